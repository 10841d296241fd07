"""`mosaic plot`: figures that a paper can use."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.cli_trainer import CommandResult, call
from tests.helpers.compared_runs import FinishedGroups

from mosaic.features.experiments.core_figures import COLORS, LINE_STYLES, parse_width

KINDS = ("curves", "efficiency", "aggregates")


def two_environments() -> FinishedGroups:
    trainer = FinishedGroups()
    for run in list(trainer.views)[1::2]:
        trainer.move_to(run, "Acrobot-v1")
    return trainer


def plot(out: Path, *arguments: str, trainer: FinishedGroups | None = None) -> CommandResult:
    groups = ("fast", "slow", "--by", "group")
    return call(trainer or two_environments(), "plot", *groups, "--out", str(out), *arguments)


def pdf_size_in(data: bytes) -> tuple[float, float]:
    box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", data)
    assert box is not None
    return float(box[1]) / 72, float(box[2]) / 72


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("width", "inches"), [("column", 3.3), ("full", 6.75), ("5", 5.0)])
def test_a_pdf_has_the_width_of_the_paper_and_fonts_that_publishers_accept(
    tmp_path: Path, kind: str, width: str, inches: float
) -> None:
    out = tmp_path / "figure.pdf"
    result = plot(out, "--kind", kind, "--width", width)
    assert result.code == 0, result.err
    assert f"Wrote {out}" in result.out
    data = out.read_bytes()
    assert pdf_size_in(data)[0] == pytest.approx(inches)
    assert b"/Type3" not in data
    assert b"/CIDFontType2" in data
    assert ("were normalized" in result.err) is (kind != "curves")
    plot(tmp_path / "again.pdf", "--kind", kind, "--width", width)
    assert (tmp_path / "again.pdf").read_bytes() == data, "the same runs give the same file"


def test_every_environment_is_a_panel_and_every_group_a_line_in_the_legend(tmp_path: Path) -> None:
    out = tmp_path / "figure.svg"
    result = plot(out, "--json")
    assert result.code == 0, result.err
    assert len(json.loads(result.out)["runs"]) == 6
    svg = out.read_text()
    words = set(re.findall(r"<!-- (.*?) -->", svg))
    assert {"Acrobot-v1", "CartPole-v1", "fast", "slow", "environment steps", "episodic return"} <= words
    assert len(re.findall(r'<g id="axes_\d+">', svg)) == 2
    assert COLORS[0].lower() in svg


def test_a_png_has_the_resolution_of_print(tmp_path: Path) -> None:
    out = tmp_path / "figure.png"
    assert plot(out, "--width", "column").code == 0
    data = out.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert int.from_bytes(data[16:20], "big") == 990  # 3.3 inches at 300 dots


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--width", "wide"), "width: expected column, full or inches from 1.5 to 40, not 'wide'."),
        (("--width", "nan"), "width: expected column"),
        (("--kind", "pie"), "'pie' is not one of"),
        (("--env", "CartPole-v1", "--kind", "aggregates"), "all these runs are on one"),
        (("--smoothing", "1"), "--smoothing"),
    ],
)
def test_what_cannot_be_drawn_is_refused_and_nothing_is_written(
    tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    result = plot(tmp_path / "figure.pdf", *arguments)
    assert (result.code, words in result.err) == (2, True), result.err
    assert list(tmp_path.glob("*figure*")) == []


def test_the_name_of_the_file_decides_the_format(tmp_path: Path) -> None:
    refused = plot(tmp_path / "figure.jpg")
    assert (refused.code, "expected a name that ends in .pdf, .svg, .png." in refused.err) == (2, True)
    nowhere = plot(tmp_path / "no" / "figure.pdf")
    assert (nowhere.code, "there is no folder" in nowhere.err) == (2, True)


def test_a_missing_matplotlib_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = plot(tmp_path / "figure.pdf")
    assert (result.code, "pip install 'mosaic-rl[plot]'" in result.err) == (2, True)


def test_one_environment_is_drawn_with_reference_scores(tmp_path: Path) -> None:
    (tmp_path / "scores.yaml").write_text("CartPole-v1: {low: 0, high: 100}")
    arguments = ("--kind", "aggregates", "--reference-scores", str(tmp_path / "scores.yaml"))
    result = plot(tmp_path / "figure.pdf", *arguments, trainer=FinishedGroups())
    assert result.code == 0, result.err
    assert "by the reference scores" in result.err


def test_widths_and_styles() -> None:
    assert (parse_width("column"), parse_width("full"), parse_width("4.5")) == (3.3, 6.75, 4.5)
    assert len(set(COLORS)) * len(LINE_STYLES) == 32


def test_neither_the_daemon_nor_the_help_imports_matplotlib() -> None:
    code = (
        "import sys, mosaic.trainer.daemon; from mosaic.cli.main import main;"
        "main(['--help']); main(['plot', '--help']); print('matplotlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
