"""The wheel, installed into empty environments as a user would: without an extra, and with `train` alone."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mosaic

ROOT = Path(__file__).parents[2]
WHEELS = runpy.run_path(str(ROOT / "scripts" / "wheels.py"))
UV = Path(sys.executable).with_name("uv")
SMALL = "--env-id CartPole-v1 --total-timesteps 256 --num-envs 2 --num-steps 32"
pytestmark = pytest.mark.timeout(400)
"""An environment is installed and compiled, which takes long beside other work."""
Command = Callable[[str], "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with sdist and wheel."""
    folder = tmp_path_factory.mktemp("dist")
    WHEELS["build"](folder, UV)
    return folder


@pytest.fixture
def command(dist: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Command]:
    """The `mosaic` of an environment with the extra that the test names, and with nothing else on its path."""
    venv, var = tmp_path / "venv", tmp_path / "var"
    var.mkdir()
    (wheel,) = dist.glob("*.whl")
    install, place = WHEELS["install"], (wheel, request.param, venv, sys.executable, UV)
    pinned = ("-c", str(ROOT / "constraints.txt"))
    try:
        install(*place, "--offline", *pinned)  # the setup has left these versions in uv's cache
    except subprocess.CalledProcessError:
        install(*place, *pinned)
    mark = {name: value for name, value in os.environ.items() if name.startswith("MOSAIC_TEST")}

    def run(arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(venv / "bin" / "mosaic"), *arguments.split()],
            env={**mark, "PATH": os.defpath, "HOME": str(tmp_path), "MOSAIC_VAR": str(var), "COLUMNS": "200"},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    yield run
    run("daemon stop")


def last_line(result: subprocess.CompletedProcess[str]) -> str:
    assert "Traceback" not in result.stderr
    return result.stderr.splitlines()[-1]


def test_the_sdist_has_what_builds_the_wheel(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"pyproject.toml", "README.md", "LICENSE", "scripts/generate.py", "src/mosaic/contracts/trainer.proto"}
    assert needed <= names
    assert not {name for name in names if name.startswith((".venv", "build/", "var/"))}


@pytest.mark.parametrize("command", [""], indirect=True, ids=["minimal"])
def test_without_an_extra_every_command_explains_what_is_missing(command: Command) -> None:
    assert command("--help").returncode == 0
    assert command("--version").stdout.strip().endswith(mosaic.__version__)
    assert command("runs").returncode == 0
    assert "Nothing can be trained without it." in command("doctor").stdout
    training = command(f"train ppo {SMALL}")
    assert training.returncode == 2
    assert last_line(training).endswith("which is not installed: pip install 'mosaic-rl[train]'")


@pytest.mark.parametrize("command", ["train"], indirect=True)
def test_with_train_alone_numpy_trains_without_torch_and_qt(command: Command, tmp_path: Path) -> None:
    assert WHEELS["size_mb"](tmp_path / "venv") < WHEELS["MAX_TRAIN_MB"]
    assert command(f"train ppo {SMALL}").returncode == 0
    evaluated = command("eval last --episodes 3")
    assert evaluated.returncode == 0, evaluated.stderr
    for refused, sentence in (
        (
            "train qrdqn --env-id CartPole-v1",
            "qrdqn needs torch, which is not installed: pip install 'mosaic-rl[torch]'.",
        ),
        ("gui", "The workbench needs PySide6, which is not installed: pip install 'mosaic-rl[gui]'"),
        ("plot last --out curve.pdf", "A figure needs matplotlib: pip install 'mosaic-rl[plot]'."),
    ):
        result = command(refused)
        assert (result.returncode, last_line(result)) == (2, sentence)
    assert command("doctor").returncode == 0
