"""`mosaic doctor`: what this machine has, and what to do about what it lacks."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path

from mosaic.cli import output
from mosaic.cli.cli_context import CliContext, command, pass_context
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.folder import Workspace

DISTRIBUTION = "mosaic-rl"
DEFAULT_PORT = 50055
MIN_FREE_DISK_MB = 1000
MIN_SHARED_MEMORY_MB = 128
_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}
_ENVIRONMENTS_WORKER = "cleanrl"
_EXTRA_DISTRIBUTIONS = {"mujoco": "mujoco", "box2d": "box2d"}
"""Extras that are extras of gymnasium: the distribution that shows whether they are installed."""


@dataclass(frozen=True)
class DoctorCheck:
    name: str
    state: str
    """ok, warn (something optional is missing) or fail (something required)."""
    found: str
    todo: str = ""


@command()
@pass_context
def doctor(context: CliContext) -> int:
    """Checks this machine and shows how to fix each problem. Exit code 1: a required check failed."""
    context.print_workspace()
    found: list[DoctorCheck] = []
    for check in _all_checks(context):
        found.extend(check())
    is_well = all(one.state != "fail" for one in found)
    if context.is_json:
        output.print_json({"ok": is_well, "checks": [asdict(one) for one in found]})
    else:
        _print_checks(found)
    return 0 if is_well else 1


def _print_checks(checks: list[DoctorCheck]) -> None:
    from rich.text import Text

    table = output.create_table("CHECK", "STATE", "FOUND, AND WHAT TO DO", wrap=("FOUND, AND WHAT TO DO",))
    for one in checks:
        words = Text(one.found)
        if one.todo:
            words.append(("\n" if one.found else "") + one.todo, style=_STYLES[one.state])
        table.add_row(one.name, Text(one.state, style=_STYLES[one.state]), words)
    output.console().print(table)


def _all_checks(context: CliContext) -> list[Callable[[], Iterator[DoctorCheck]]]:
    workspace = context.workspace
    return [
        _check_python,
        _check_packages,
        _check_extras,
        _check_display,
        _check_gpu,
        lambda: _check_disk(workspace),
        lambda: _check_workspace(workspace),
        _check_shared_memory,
        lambda: _check_port(context),
        lambda: _check_daemon(context),
        lambda: _check_rendering(context),
    ]


# --- the interpreter and its packages


def _check_python() -> Iterator[DoctorCheck]:
    words = f"{sys.version.split()[0]} at {sys.executable}"
    is_good = sys.version_info >= (3, 11)
    yield DoctorCheck("Python", "ok" if is_good else "fail", words, "" if is_good else "Use Python 3.11 or newer.")


def required_distributions(lines: list[str], extra: str = "") -> list[str]:
    """The distributions that these requirement lines ask for, plainly or for an extra."""
    names = []
    for line in lines:
        spec, _, marker = line.partition(";")
        is_meant = f"extra == '{extra}'" in marker.replace('"', "'") if extra else "extra ==" not in marker
        if is_meant:
            end = next((at for at, char in enumerate(spec) if not (char.isalnum() or char in "._-")), len(spec))
            names.append(spec[:end])
    return names


def missing_distributions(names: list[str]) -> list[str]:
    """Those that are not installed; nothing is imported."""
    absent = []
    for name in names:
        try:
            version(name)
        except PackageNotFoundError:
            absent.append(name)
    return absent


def _check_packages() -> Iterator[DoctorCheck]:
    try:
        absent = missing_distributions(required_distributions(requires(DISTRIBUTION) or []))
    except PackageNotFoundError:
        yield DoctorCheck("packages", "fail", "MOSAIC is not installed as a package.", "In its folder: make setup")
        return
    if absent:
        yield DoctorCheck("packages", "fail", "missing: " + ", ".join(absent), f"pip install {' '.join(absent)}")
    else:
        yield DoctorCheck("packages", "ok", f"{DISTRIBUTION} {version(DISTRIBUTION)} and all it needs")


def _check_extras() -> Iterator[DoctorCheck]:
    try:
        lines = requires(DISTRIBUTION) or []
        names = [name for name in metadata(DISTRIBUTION).get_all("Provides-Extra") or () if name != "dev"]
    except PackageNotFoundError:
        return
    here, absent = [], []
    for name in names:
        wanted = required_distributions(lines, name) + (
            [_EXTRA_DISTRIBUTIONS[name]] if name in _EXTRA_DISTRIBUTIONS else []
        )
        lacking = missing_distributions(wanted)
        if not lacking:
            here.append(name)
        elif len(lacking) == len(wanted) or _EXTRA_DISTRIBUTIONS.get(name) in lacking:
            absent.append(name)
        else:
            words = f"{name} is incomplete: {', '.join(lacking)} missing"
            yield DoctorCheck(f"extra: {name}", "warn", words, f"pip install '{DISTRIBUTION}[{name}]'")
    yield DoctorCheck("extras", "ok", f"installed: {', '.join(here) or 'none'}")
    if absent:
        words = f"not installed: {', '.join(absent)}; get one with pip install '{DISTRIBUTION}[{absent[0]}]'"
        yield DoctorCheck("other extras", "ok", words)
    if "train" in absent:
        yield DoctorCheck(
            "extra: train", "warn", "Nothing can be trained without it.", f"pip install '{DISTRIBUTION}[train]'"
        )


# --- the machine


def _check_display() -> Iterator[DoctorCheck]:
    display = os.environ.get("WAYLAND_DISPLAY") or os.environ.get("DISPLAY")
    if sys.platform == "darwin":
        display = display or "macOS"
    yield DoctorCheck("display", "ok", display or "none; training, evaluation and videos need none")


def _check_gpu() -> Iterator[DoctorCheck]:
    if shutil.which("nvidia-smi") is None:
        yield DoctorCheck("GPU", "ok", "no NVIDIA driver; runs use the CPU")
        return
    asked = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield DoctorCheck("GPU", "warn", f"nvidia-smi does not answer ({error})", "Check the NVIDIA driver.")
        return
    names = [line.strip() for line in said.stdout.splitlines() if line.strip()]
    if said.returncode == 0 and names:
        yield DoctorCheck("GPU", "ok", "; ".join(names))
    else:
        last = (said.stderr or said.stdout or "no output").strip().splitlines()[-1]
        yield DoctorCheck("GPU", "warn", f"nvidia-smi fails: {last}", "Check the NVIDIA driver.")


def _check_disk(workspace: Workspace) -> Iterator[DoctorCheck]:
    at = _nearest_existing_folder(workspace.root)
    free_mb = shutil.disk_usage(at).free / 1e6
    words = f"{free_mb / 1000:,.1f} GB free at {at}"
    if free_mb < MIN_FREE_DISK_MB:
        yield DoctorCheck("disk", "warn", words, "Free some space, or choose another workspace with --var.")
    else:
        yield DoctorCheck("disk", "ok", words)


def _nearest_existing_folder(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _check_workspace(workspace: Workspace) -> Iterator[DoctorCheck]:
    at = _nearest_existing_folder(workspace.root)
    try:
        with tempfile.TemporaryFile(dir=at):
            pass
    except OSError as error:
        words = f"{at} cannot be written ({error.strerror})"
        yield DoctorCheck("workspace", "fail", words, "Choose another with --var DIR or MOSAIC_VAR.")
        return
    yield DoctorCheck("workspace", "ok", str(workspace.root) + ("" if at == workspace.root else " (made when needed)"))


def _check_shared_memory() -> Iterator[DoctorCheck]:
    shm = Path("/dev/shm")
    if not shm.is_dir():
        yield DoctorCheck("shared memory", "warn", "no /dev/shm", "Live frames need it; training does not.")
        return
    free_mb = shutil.disk_usage(shm).free / 1e6
    words = f"{free_mb:,.0f} MB free in /dev/shm"
    if free_mb < MIN_SHARED_MEMORY_MB:
        yield DoctorCheck(
            "shared memory", "warn", words, "Live frames need it. In a container: docker run --shm-size=1g"
        )
    else:
        yield DoctorCheck("shared memory", "ok", words)


def _check_port(context: CliContext) -> Iterator[DoctorCheck]:
    try:
        address = context.daemon_address()
    except MosaicError:
        address = None
    if address is not None:
        yield DoctorCheck("port", "ok", f"{address.address} is our daemon's")
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", DEFAULT_PORT))
            words = f"{DEFAULT_PORT} is free"
        except OSError:
            words = f"{DEFAULT_PORT} is taken by another program; the daemon uses the next free one"
    yield DoctorCheck("port", "ok", words)


# --- the daemon, and through it the worker's own environments


def _check_daemon(context: CliContext) -> Iterator[DoctorCheck]:
    log = context.workspace.daemon_log
    try:
        status = context.trainer().status()
    except MosaicError as error:
        yield DoctorCheck("daemon", "fail", str(error), f"Its log: {log}")
        return
    yield DoctorCheck("daemon", "ok", f"pid {status.pid} at {status.address}; its log: {log}")


def _check_rendering(context: CliContext) -> Iterator[DoctorCheck]:
    """A real frame, drawn off screen, from each family that is installed."""
    try:
        found = context.trainer().ask_worker(_ENVIRONMENTS_WORKER, {"ask": "environments"})["environments"]
    except MosaicError as error:
        yield DoctorCheck("environments", "fail", str(error), f"The logs are in {context.workspace.logs}")
        return
    for family in dict.fromkeys(env["family"] for env in found if env["is_installed"]):
        yield _check_family_rendering(context, family)


def _check_family_rendering(context: CliContext, family: str) -> DoctorCheck:
    name = f"frame: {family}"
    try:
        said = context.trainer().ask_worker(_ENVIRONMENTS_WORKER, {"ask": "probe", "family": family})
    except MosaicError as error:
        return DoctorCheck(name, "warn", "no frame", str(error))
    if "shape" not in said:
        return DoctorCheck(name, "warn", "no frame", str(said.get("message") or said.get("error") or ""))
    height, width = said["shape"][:2]
    return DoctorCheck(name, "ok", f"{width}×{height} in {said['seconds']:.2f} s")
