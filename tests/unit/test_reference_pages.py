"""Tables of the reference that are written by hand, compared with the code; the lifecycle, with its table."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import pytest

import mosaic
from mosaic.cli.context import INTERRUPTED_EXIT_CODE
from mosaic.trainer import lifecycle

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"


@pytest.fixture
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])


def test_every_environment_variable_of_the_source_is_listed_and_no_other() -> None:
    sources = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    used = {name for text in sources for name in re.findall(r'"(MOSAIC_[A-Z_]+)"', text)}
    listed = set(re.findall(r"`(MOSAIC_[A-Z_]+)`", (REFERENCE / "environment-variables.md").read_text()))
    assert listed == used
    for prefix in ("WANDB_", "HF_", "CLEANRL_"):  # of other programs, and read or named here
        named = {name for text in sources for name in re.findall(rf'"({prefix}[A-Z_]+)"', text)}
        page = (REFERENCE / "environment-variables.md").read_text()
        assert {name for name in named if f"`{name}`" not in page} == set()
    others = set(re.findall(r"`([A-Z]+_[A-Z_]+)`", (REFERENCE / "environment-variables.md").read_text())) - listed
    assert {name for name in others if not any(name in text for text in sources)} == set()


@pytest.mark.usefixtures("_scripts")
def test_every_exit_code_is_listed_and_no_other() -> None:
    import docs_pages

    rows = re.findall(r"^\| (\d+) \|", (REFERENCE / "exit-codes.md").read_text(), re.MULTILINE)
    codes = {0, INTERRUPTED_EXIT_CODE, *(error.exit_code for error in docs_pages.error_classes())}
    assert list(map(int, rows)) == sorted(codes)
    assert [one.__name__ for one in docs_pages.error_classes() if one.__name__ not in docs_pages.format_errors()] == []


@pytest.mark.usefixtures("_scripts")
def test_the_drawing_of_the_lifecycle_has_every_event_and_only_moves_that_exist() -> None:
    import docs_lifecycle

    assert {type(event) for _, event in docs_lifecycle.CASES} == {row[0] for row in lifecycle._TABLE}
    moves = {(one.stage, one.target) for one in docs_lifecycle.transitions() if one.target is not one.stage}
    assert set(docs_lifecycle._ROUTES) == moves


@pytest.mark.usefixtures("_scripts")
def test_every_file_of_a_run_has_a_sentence_and_a_writer() -> None:
    import docs_pages

    rows = [row.strip("| ").split(" | ") for row in docs_pages.format_run_files().splitlines()[2:]]
    assert len(rows) > 20
    assert [row for row in rows if len(row) != 3 or not all(row)] == []


def test_everything_public_in_the_python_api_has_a_sentence_as_the_reference_leaves_out_the_rest() -> None:
    members = {name: getattr(mosaic, name) for name in mosaic._MODULE_OF}
    for name, value in [(name, value) for name, value in members.items() if inspect.isclass(value)]:
        own = {key: one for key, one in vars(value).items() if inspect.isfunction(one) or isinstance(one, property)}
        members |= {f"{name}.{key}": one for key, one in own.items() if not key.startswith("_")}
    assert len(members) > 80
    # Without a docstring, a dataclass has its signature as one.
    missing = [name for name, one in members.items() if (inspect.getdoc(one) or f"{name}(").startswith(f"{name}(")]
    assert missing == []
