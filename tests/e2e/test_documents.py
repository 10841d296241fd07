"""The code blocks of the guides, run in their order as a reader would, and the commands of those that are not run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.documents import GUIDES, ROOT, commands, find_problem, read_blocks

from mosaic.contracts.folder import WORKSPACE_VARIABLE, Workspace

RUN_BLOCKS = """
import json, subprocess, sys
names = {"__name__": "__main__"}
for language, text, file in json.load(open(sys.argv[1])):
    if file is not None:
        open(file, "w").write(text)
    elif language == "python":
        exec(compile(text, "<block>", "exec"), names)
    else:
        subprocess.run(["bash", "-e", "-x", "-o", "pipefail", "-c", text], check=True, stdin=subprocess.DEVNULL)
"""
RUNNABLE = ("sh", "python")
TOUR = ROOT / "README.md"
SMALLER: dict[str, dict[str, str]] = {
    "compare": {"1-5 ": "1 ", "1e5": "512", "2e5": "512", "  small: {hidden_sizes: [16, 16]}\n": ""},
    "sweep": {"3e4": "1024", "trials: 20 ": "trials: 2 ", "per_trial: 2 ": "per_trial: 1 ", "101-108": "101"},
    "tracking": {"mosaic train ppo": "mosaic train ppo --total-timesteps 1024"},
}
"""What is replaced in the blocks of a guide, so that its runs take seconds."""


def blocks_to_run(document: Path) -> list[tuple[str, str, str | None]]:
    blocks = [one for one in read_blocks(document) if one.is_run and (one.language in RUNNABLE or one.file)]
    return [(one.language, make_smaller(one.text, document), one.file) for one in blocks]


def make_smaller(text: str, document: Path) -> str:
    for part, smaller in SMALLER.get(document.stem, {}).items():
        text = text.replace(part, smaller)
    return text


def has_commands(document: Path) -> bool:
    return any(language in RUNNABLE and file is None for language, _, file in blocks_to_run(document))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("document", [one for one in GUIDES if has_commands(one)], ids=lambda document: document.stem)
def test_the_blocks_of_a_guide_run_in_their_order(workspace: Workspace, tmp_path: Path, document: Path) -> None:
    """R11.1: Python API."""
    (tmp_path / "blocks.json").write_text(json.dumps(blocks_to_run(document)))
    result = subprocess.run(
        [sys.executable, "-c", RUN_BLOCKS, "blocks.json"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"],
            WORKSPACE_VARIABLE: str(workspace.root),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("document", [TOUR, *GUIDES], ids=lambda document: document.stem)
def test_every_command_in_a_block_exists_with_its_options(document: Path) -> None:
    found = [words for block in read_blocks(document) if block.language == "sh" for words in commands(block.text)]
    assert {" ".join(words): problem for words in found if (problem := find_problem(words))} == {}


def test_an_unknown_command_or_option_is_found() -> None:
    text = (
        "mosaic trian ppo\nA=1 mosaic train ppo --lerning-rate 1; mosaic daemon begin\nmosaic runs | mosaic show --x=1"
    )
    problems = [find_problem(words) for words in commands(text)]
    assert [problem is not None for problem in problems] == [True, True, True, False, True]


def test_most_guides_have_blocks_that_run() -> None:
    assert sum(map(has_commands, GUIDES)) >= 12


@pytest.mark.parametrize("name", SMALLER)
def test_what_makes_a_guide_smaller_is_in_its_blocks(name: str) -> None:
    guide = next(one for one in GUIDES if one.stem == name)
    text = "".join(block.text for block in read_blocks(guide) if block.is_run)
    assert [part for part in SMALLER[name] if part not in text] == []
