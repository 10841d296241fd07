#!/bin/sh
# Creates .venv next to the Makefile:  scripts/setup.sh run|test
#   run   what the demo and the workbench need
#   test  that, and everything that `make test` needs
# Requires Python 3.11 or newer; everything else is downloaded. A second call returns immediately if nothing changed.
# Respects PYTHON (which interpreter; .venv is created again if it has another one), PIP_FIND_LINKS and pip's own configuration, UV_TORCH_BACKEND.
set -eu
cd "$(dirname "$0")/.."

what=${1:-test}
case $what in
    run) extras=desktop,mujoco,box2d ;;
    test) extras=desktop,mujoco,box2d,atari,minigrid,wandb,trackio,hub,keyring,remote,bdi,llm,metrics,sweep,ray,slurm,docs,dev ;;
    *) echo "scripts/setup.sh: '$what' is unknown. Known: run, test." >&2; exit 2 ;;
esac

# One row per system library: Debian package (with alternative names), and the file that shows that it is installed where
# there is no dpkg. MuJoCo renders without a display through Mesa's EGL; the rest is what Qt and QtWebEngine need. A
# desktop has all of them, a bare container none.
system_libraries='
libegl1                    libEGL.so.1
libgl1                     libGL.so.1
libegl-mesa0               libEGL_mesa.so.0
libgl1-mesa-dri            -
libxkbcommon-x11-0         libxkbcommon-x11.so.0
libdbus-1-3                libdbus-1.so.3
libfontconfig1             libfontconfig.so.1
libglib2.0-0|libglib2.0-0t64  libglib-2.0.so.0
libxcb-cursor0             libxcb-cursor.so.0
libxcb-icccm4              libxcb-icccm.so.4
libxcb-image0              libxcb-image.so.0
libxcb-keysyms1            libxcb-keysyms.so.1
libxcb-randr0              libxcb-randr.so.0
libxcb-render-util0        libxcb-render-util.so.0
libxcb-shape0              libxcb-shape.so.0
libxcb-xinerama0           libxcb-xinerama.so.0
fonts-dejavu-core          -
libnss3                    libnss3.so
libxcomposite1             libXcomposite.so.1
libxdamage1                libXdamage.so.1
libxrandr2                 libXrandr.so.2
libxtst6                   libXtst.so.6
libasound2|libasound2t64   libasound.so.2
libxkbfile1                libxkbfile.so.1
'
if [ "$what" = test ]; then
    system_libraries="$system_libraries
xvfb                       -
"
fi

venv=.venv

say() { echo "setup: $*" >&2; }

fail() { say "$*"; exit 1; }

find_python() {
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3.14 python3}; do
        # Run it: a name on the path may be a version manager's shim without an interpreter.
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

is_other_python() {  # PYTHON names an interpreter that the environment was not created with
    [ -n "${PYTHON:-}" ] || return 1
    identity='import sys; print(sys.version, sys.base_prefix)'
    named=$(find_python) || return 0  # make_venv says what is wrong with it
    [ "$("$named" -c "$identity")" != "$($venv/bin/python -c "$identity" 2>/dev/null)" ]
}

stamp=$venv/.ready-$what
contracts=src/mosaic/contracts
key="$(pwd) $(cat pyproject.toml constraints.txt scripts/setup.sh scripts/uv_settings.sh scripts/generate.py src/mosaic/__init__.py $contracts/trainer.proto src/cleanrl_worker/environments/classic_control.c | cksum)"
if [ -x $venv/bin/mosaic ] && [ -e $contracts/trainer_pb2_handlers.py ] && [ "$(cat "$stamp" 2>/dev/null)" = "$key" ] && ! is_other_python; then
    exit 0
fi

is_debian() { command -v apt-get >/dev/null 2>&1 && command -v dpkg-query >/dev/null 2>&1; }

package_names() {  # packages…; of alternative names, the one that this release has
    for names in "$@"; do
        chosen=${names%%|*}
        for name in $(echo "$names" | tr '|' ' '); do
            if apt-cache show "$name" 2>/dev/null | grep -q '^Filename:'; then chosen=$name; fi
        done
        echo "$chosen"
    done
}

apt_updated=
apt_install() {  # packages…; fails without root or without a network
    [ "$(id -u)" = 0 ] || return 1
    say "apt-get install $*"
    if [ -z "$apt_updated" ]; then
        apt-get update -qq >/dev/null || return 1
        apt_updated=yes
    fi
    # shellcheck disable=SC2046 # one word per package
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(package_names "$@") >/dev/null
}

make_venv() {
    python=$(find_python) || fail "MOSAIC requires Python 3.11 or newer, but none was found (tried ${PYTHON:-python3.11 to python3.14, python3}). Install one, or specify it: make PYTHON=/path/to/python3"
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        if ! { is_debian && apt_install "$package"; }; then
            fail "$python cannot create virtual environments: its venv module is missing. On Debian and Ubuntu: sudo apt-get install $package"
        fi
    fi
    say "creating $venv with $("$python" --version)"
    "$python" -m venv --clear $venv
}

is_missing() {  # package, file
    if is_debian; then
        for name in $(echo "$1" | tr '|' ' '); do
            [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" != installed ] || return 1
        done
    elif [ "$2" = - ]; then
        return 1
    else
        ! $venv/bin/python -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$2" 2>/dev/null
    fi
}

check_system_libraries() {
    [ "$(uname -s)" = Linux ] || return 0
    missing=$(echo "$system_libraries" | while read -r package file; do
        if [ -n "$package" ] && is_missing "$package" "$file"; then printf '%s ' "$package"; fi
    done)
    [ -n "$missing" ] || return 0
    # shellcheck disable=SC2086 # one word per package
    if is_debian && apt_install $missing; then
        return 0
    fi
    say "system libraries are missing; without them MuJoCo cannot render and the window may not open (training is not affected)."
    if is_debian; then
        # shellcheck disable=SC2086 # one word per package
        say "install them: sudo apt-get install $(package_names $missing | tr '\n' ' ')"
    else
        say "install Mesa's EGL and GL and what Qt needs. Fedora: sudo dnf install mesa-libEGL mesa-libGL mesa-dri-drivers libxkbcommon-x11 xcb-util-cursor xcb-util-wm xcb-util-keysyms nss; Arch: sudo pacman -S mesa libxkbcommon-x11 xcb-util-cursor nss; elsewhere the packages that correspond to Debian's: $missing"
    fi
}

. scripts/uv_settings.sh

torch_backend() {  # which build of torch; empty: the one in the index or the folders of wheels
    if [ -n "${UV_FIND_LINKS:-}" ] || [ "$(uname -s)" != Linux ]; then
        return
    elif [ -n "${UV_TORCH_BACKEND:-}" ]; then
        echo "$UV_TORCH_BACKEND"
    elif command -v nvidia-smi >/dev/null 2>&1; then
        echo auto
    else
        echo cpu
    fi
}

install_packages() {  # further arguments for uv
    # Compile now: with PYTHONDONTWRITEBYTECODE every process would otherwise compile at every start.
    # MOSAIC itself is always built again: that generates the protobuf stubs, which may be missing or out of date,
    # and the C library, if there is a compiler.
    # In a terminal, uv shows what it downloads.
    $venv/bin/uv pip install $([ -t 2 ] || echo --quiet) --compile-bytecode --python $venv/bin/python -c constraints.txt \
        --build-constraints constraints.txt --reinstall-package mosaic-rl "$@" -e ".[$extras]"
}

# A copied or moved checkout has a .venv whose scripts point elsewhere, PYTHON may name another interpreter; an interrupted setup may lack pip.
if [ "$(cat $venv/.home 2>/dev/null)" != "$(pwd)" ] || is_other_python || ! $venv/bin/python -m pip --version >/dev/null 2>&1; then
    make_venv
    pwd > $venv/.home
fi
check_system_libraries
pass_pip_settings_to_uv
say "installing the packages (about a minute the first time)"
$venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
backend=$(torch_backend)
if [ -z "$backend" ]; then
    install_packages
elif ! install_packages --torch-backend="$backend"; then
    say "installing from PyTorch's own index failed; trying the package index only (a larger torch)"
    install_packages
fi
PYTHONDONTWRITEBYTECODE='' $venv/bin/python -m compileall -q src
echo "$key" > "$stamp"
if [ "$what" = test ]; then echo "$key" > $venv/.ready-run; fi
say "ready"
