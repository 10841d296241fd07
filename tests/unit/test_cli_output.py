"""How figures, times and runs are written."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import time
from pathlib import Path

import pytest
from tests.helpers.cli_trainer import FakeTrainer, call, finished, view

from mosaic.base import formatting
from mosaic.base.files import atomic_write
from mosaic.cli import output
from mosaic.contracts.errors import BadInput, StorageFailed
from mosaic.features.machines.cli_doctor import required_distributions, split_extras
from mosaic.features.runs.cli_control import normalize_tag_arguments
from mosaic.features.runs.cli_files import MAX_LINE_CHARS, last_lines, running_mean, sanitize_for_terminal


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "–"), (0.0, "0"), (500.0, "500"), (487.25, "487.2"), (0.00025, "0.00025"), (1234.5, "1,234"),
     (-0.00123456, "-0.0012"), (7.58e-10, "7.58e-10"), (math.nan, "nan"), (math.inf, "inf"), (1e12, "1e+12")],
)  # fmt: skip
def test_a_number_has_about_four_significant_digits(value: float | None, words: str) -> None:
    assert formatting.format_number(value) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "–"), (0.04, "0.0s"), (9.96, "10s"), (59.6, "1m"), (200, "3m 20s"), (3605, "1h"), (7500, "2h 5m"),
     (280000, "3d 5h")],
)  # fmt: skip
def test_a_duration_has_two_units_at_most(seconds: float | None, words: str) -> None:
    assert formatting.format_duration(seconds) == words


@pytest.mark.parametrize("number", [1e300, -1e300, 1e20, float("inf"), float("-inf"), float("nan"), 10**30, -1])
def test_any_number_is_shown(number: float) -> None:
    """Also one that no calendar has."""
    for show in (formatting.format_timestamp, formatting.format_duration, formatting.format_number):
        assert 0 < len(show(number)) < 40
    assert formatting.format_timestamp(None) == formatting.PLACEHOLDER


def test_an_age_has_one_unit() -> None:
    assert [formatting.format_age(1000.0, 1000.0 + seconds) for seconds in (-5, 59, 60, 7300, 200_000)] == [
        "0s", "59s", "1m", "2h", "2d"
    ]  # fmt: skip
    assert formatting.format_ago(time.time() - 130) == "2 min ago"
    assert formatting.format_ago(None) == "–"


def test_short_ids_are_ends_that_differ() -> None:
    ids = ["01AAAAAAAAAAAAAAAA12345678", "01BBBBBBBBBBBBBBBBX2345678", "01CCCCCCCCCCCCCCCC11111111"]
    short = formatting.short_ids(ids)
    assert short == {ids[0]: "12345678", ids[1]: "X2345678", ids[2]: "11111111"}
    assert formatting.short_ids(ids[:1] * 2) == {ids[0]: "345678"}
    assert formatting.short_id(ids[0]) == "345678"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (482.123, "482.1"),
        (9_999, "9,999"),
        (3_534.4, "3,534"),
        (-1_135.26, "-1,135"),
        (50_700, "50.7k"),
        (1.2e6, "1.2M"),
        (math.nan, "nan"),
    ],
)
def test_a_number_in_the_window_has_an_si_suffix(value: float | None, text: str) -> None:
    assert formatting.format_si_number(value) == text


@pytest.mark.parametrize(
    ("number", "nouns", "text"),
    [
        (0, ("run",), "0 runs"),
        (1, ("run",), "1 run"),
        (1200, ("run",), "1,200 runs"),
        (2, ("batch", "batches"), "2 batches"),
    ],
)
def test_a_number_of_things_has_the_right_plural(number: int, nouns: tuple[str, ...], text: str) -> None:
    assert formatting.count_noun(number, *nouns) == text


def test_a_sparkline_keeps_low_and_high() -> None:
    assert output.sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert output.sparkline([5.0, 5.0]) == "▄▄"
    assert output.sparkline([]) == output.sparkline([math.nan, None]) == ""
    assert len(output.sparkline(list(range(1000)), 24)) == 24


def test_json_is_one_line_without_nan(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"a": math.nan, "b": [1.0, math.inf], "c": "ü\n"})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"a": None, "b": [1.0, None], "c": "ü\n"}


def test_a_run_that_succeeded_is_done_even_if_the_last_update_did_not_fit() -> None:
    assert formatting.format_progress(finished(view(global_step=512))) == "100%"
    assert formatting.format_progress(view(global_step=512)) == "51%"
    assert formatting.format_progress(view()) == "–"


def test_a_terminal_is_shown_no_endless_line_and_no_control_sequence() -> None:
    long = b"x" * 3000
    shown = b"".join(sanitize_for_terminal([long, long, b"\nnext \x1b[2J \xff\ttab\rover"])).decode()
    first, rest = shown.split("\n")
    assert first == "x" * MAX_LINE_CHARS + " … (cut)"
    assert "\x1b" not in rest
    assert "\ttab\rover" in rest


def test_the_last_lines_are_cut_from_the_bytes() -> None:
    assert last_lines(b"a\nb\nc", 2) == b"b\nc"
    assert last_lines(b"a\n", 0) == b""
    assert last_lines(b"a\nb", None) == b"a\nb"


def test_a_tag_after_a_dash_is_removed() -> None:
    assert normalize_tag_arguments(["last", "+a", "-old", "--json", "-h"]) == [
        "last", "+a", "--remove", "old", "--json", "-h"
    ]  # fmt: skip


def test_the_mean_runs_over_the_last_episodes() -> None:
    assert running_mean([1.0, 3.0, 5.0, 7.0], window=2).tolist() == [1.0, 2.0, 4.0, 6.0]


def test_returns_that_are_not_finite_are_left_out_of_the_running_mean() -> None:
    means = running_mean([1.0, math.nan, 5.0, math.inf, math.nan, 7.0], window=2).tolist()
    assert means[:4] == [1.0, 1.0, 5.0, 5.0]
    assert math.isnan(means[4])
    assert means[5] == 7.0


def test_a_file_is_written_completely_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "curve.png"
    with contextlib.suppress(RuntimeError), atomic_write(target) as file:
        file.write(b"half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StorageFailed, match="No space left"), atomic_write(target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert (BadInput.exit_code, StorageFailed.exit_code) == (2, 1), "as the page of exit codes says"
    with pytest.raises(BadInput, match="cannot be written"), atomic_write(tmp_path / "no" / "such.png"):
        pass


def test_requirements_are_grouped_by_extra() -> None:
    lines = ["click>=8.1", "gymnasium[box2d]<2,>=1.2; extra == 'box2d'", 'torch>=2.10; extra == "train"']
    assert required_distributions(lines) == ["click"]
    assert required_distributions(lines, "box2d") == ["gymnasium"]
    assert required_distributions(lines, "train") == ["torch"]


def test_an_extra_is_not_incomplete_for_what_another_one_or_another_package_requires() -> None:
    required = {"atari": ["ale", "cv2"], "ma_atari": ["ale", "multi-ale"], "procgen": ["envpool", "qt5"], "hub": ["hf"]}
    missing = {"atari": [], "ma_atari": ["multi-ale"], "procgen": ["qt5"], "hub": ["hf"]}
    assert split_extras(required, missing) == (["atari"], ["procgen"], ["ma_atari", "hub"])
    assert split_extras(required, missing, {"envpool"}) == (["atari"], [], ["ma_atari", "procgen", "hub"])


def test_curves_of_a_group_leave_out_runs_without_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "mosaic.features.runs.cli_files.save_curve", lambda trainer, run, path, task: path.write_bytes(b"curve")
    )
    new, old = (f"01M7F4D1G10M14WJPB063GKCS{number}" for number in (1, 2))
    trainer = FakeTrainer(view(new, group="g"), view(old, group="g", episodes=3))
    result = call(trainer, "export", "g", "--png", str(tmp_path / "g.png"))
    assert result.code == 0, result.err
    assert f"Not drawn, as no episode has ended: {new[-6:]}." in result.err
    assert [path.name for path in tmp_path.iterdir()] == [f"g-{old[-6:]}.png"]
