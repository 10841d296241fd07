"""How text of others is written where it could be obeyed: in terminals, spreadsheets, figures and notebooks."""

from __future__ import annotations

import csv
import io
import warnings
from pathlib import Path
from xml.dom import minidom

import numpy as np
import pytest
from rich.text import Text
from tests.helpers.cli_trainer import FakeTrainer, call, view
from tests.helpers.compared_runs import FinishedGroups

from mosaic.cli import output
from mosaic.cli.terminal import TerminalScreen
from mosaic.contracts.errors import BadInput
from mosaic.contracts.printable import csv_text, make_printable
from mosaic.contracts.views import MetricSeries
from mosaic.features.runs.api_run import Episodes, html_table
from mosaic.trainer.client.exports import write_csv


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, Zürich, 日本, ✓", "plain, Zürich, 日本, ✓"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x9b31m\x07\r\x00\x7f", r"\x9b31m\x07\r\x00\x7f"),
        ("\u202egnp.exe\u2066\u200e", r"\u202egnp.exe\u2066\u200e"),
        ("a\u2028b\u2029c\u200bd", r"a\u2028b\u2029c\u200bd"),
        ("\ud800\U000e0041", r"\ud800\U000e0041"),
        ("5\u00a0000 \u3000", "5\u00a0000 \u3000"),
    ],
)
def test_what_a_terminal_would_obey_is_shown_as_an_escape(text: str, shown: str) -> None:
    assert make_printable(text) == shown
    assert make_printable(shown) == shown


def test_a_cell_of_a_table_is_one_line() -> None:
    assert make_printable("a\nb\tc", kept="") == r"a\nb\tc"


def test_every_way_to_print_escapes_what_others_wrote(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b]8;;http://evil\x1b\\[red]x[/red]"
    output.echo(hostile)
    output.echo(hostile, is_bold=True)
    output.print_message(hostile)
    output.print_fields([("name", hostile), ("path", f"/{hostile}")])
    screen = output.console()
    screen.print(hostile)
    screen.print(Text.assemble((hostile, "bold"), hostile))
    table = output.create_table(hostile)
    table.add_row(hostile)
    table.add_row(Text(hostile))
    screen.print(table)
    printed = capsys.readouterr()
    shown = make_printable(hostile)
    assert printed.out.count(shown) == 10
    assert printed.err == f"{shown}\n"
    assert "\x1b]" not in printed.out


def test_an_error_carries_no_control_characters_to_a_traceback_of_the_users() -> None:
    assert str(BadInput("No run '\x1b[2J'.")) == r"No run '\x1b[2J'."


FORMULAS = ("=HYPERLINK(1)", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1+1", "\r=1+1")


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_is_a_formula(text: str) -> None:
    """As the row of a metric that an imported run has."""
    stream = io.StringIO()
    write_csv([MetricSeries(text, [1], [0.5], [-2.5])], stream)
    _, (tag, *numbers) = csv.reader(io.StringIO(stream.getvalue()))
    assert tag[0] in "'\\"
    assert numbers == ["1", "0.5", "-2.5"], "numbers stay numbers"
    assert call_csv(text).startswith("tag,step,at,value\n" + stream.getvalue().splitlines()[1])


def call_csv(tag: str) -> str:
    trainer = FakeTrainer(view())
    trainer.series = [MetricSeries(tag, [1], [0.5], [-2.5])]
    return call(trainer, "metrics", "last", "--csv").out


@pytest.mark.parametrize("text", ["-1.5", "+2", "-1,234", "1e-5", "charts/SPS", ""])
def test_numbers_and_plain_names_stay_as_they_are(text: str) -> None:
    assert csv_text(text) == text


@pytest.mark.parametrize("ending", ["png", "pdf", "svg"])
def test_a_name_is_no_formula_of_a_figure(tmp_path: Path, ending: str) -> None:
    """Of matplotlib, which raises for one that it cannot parse."""
    trainer = FinishedGroups()
    for at, run in enumerate(list(trainer.views)):
        name = r"$\frac" if trainer.views[run].group == "fast" else "_\x1b<!-- \ud800$x$"
        trainer.views[run] = trainer.views[run].model_copy(update={"algo": name})
        trainer.payloads[run]["metadata"]["worker"]["config"]["algo"] = name
        trainer.move_to(run, (r"$\undefined{$", "CartPole-v1")[at % 2])
    for kind in ("curves", "efficiency", "aggregates"):
        out = tmp_path / f"{kind}.{ending}"
        result = call(trainer, "plot", "fast", "slow", "--by", "algo", "--kind", kind, "--out", str(out))
        assert result.code == 0, result.err
        if ending == "svg":
            words = out.read_text(encoding="utf-8")
            minidom.parseString(words)
            assert r"<!-- $\frac -->" in words
            assert r"_\x1b" in words


def test_cells_of_a_notebook_are_neither_html_nor_mathematics() -> None:
    table = html_table(["a"], [["<img src=x>", "$\\href{x}{y}$"], ["\u202e"]])
    assert "<img" not in table
    assert "mathjax_ignore" in table
    assert r"\u202e" in table


def test_episodes_without_a_finite_return_are_printed_without_a_warning() -> None:
    floats = np.full(3, np.nan)
    numbers = np.arange(3)
    episodes = Episodes(numbers, floats, floats, numbers, numbers)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert repr(episodes) == "Episodes(3 episodes)"


def test_the_text_below_the_frames_of_a_terminal_is_one_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    screen = object.__new__(TerminalScreen)
    screen._text_lines, screen._size, screen._shown_lines = 2, (80, 24), []
    monkeypatch.setattr(screen, "_write", written.append)
    screen.set_text(["\x1b[2JCartPole\n", "q quits"])
    assert written == ["\x1b[23;1H\x1b[0m\x1b[K\\x1b[2JCartPole\\n", "\x1b[24;1H\x1b[0m\x1b[Kq quits"]
