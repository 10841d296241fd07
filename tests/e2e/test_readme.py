"""The tour in README.md, typed line by line as a reader would."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from mosaic.contracts.folder import Workspace

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
LINE_LIMIT = 150


def tour_lines() -> list[str]:
    section = README.split("\n## Tour\n")[1].split("\n## ")[0]
    block = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)[0]
    commands = [shlex.join(shlex.split(line, comments=True)) for line in block.splitlines()]
    return [command for command in commands if command]


def test_the_readme_is_short_enough_to_read() -> None:
    assert len(README.splitlines()) <= LINE_LIMIT


def test_every_line_of_the_tour_works_in_the_order_given(workspace: Workspace, tmp_path: Path) -> None:
    activate, *commands = tour_lines()
    assert activate == ". .venv/bin/activate"
    assert len(commands) > 20
    environment = {
        **os.environ,
        "PATH": str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"],
        "MOSAIC_VAR": str(workspace.root),
    }
    for command in commands:
        result = subprocess.run(
            shlex.split(command),
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert result.returncode == 0, f"{command}\n{result.stdout}"
    assert (tmp_path / "cartpole.mp4").stat().st_size > 0
    assert (tmp_path / "run.zip").stat().st_size > 0


def test_an_interpreter_that_does_not_run_is_refused_also_where_an_environment_exists(tmp_path: Path) -> None:
    missing = str(tmp_path / "python9")
    command = [str(ROOT / "scripts" / "setup.sh"), "test"]
    result = subprocess.run(command, env={**os.environ, "PYTHON": missing}, capture_output=True, text=True)
    assert result.returncode == 1
    assert f"none was found (tried {missing})" in result.stderr
