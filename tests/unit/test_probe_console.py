"""Metrics are parsed from what scripts print, and other output is ignored."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from mosaic.base.console_parser import MAX_LINE_LENGTH, ConsoleParser, ConsoleReading
from mosaic.contracts.folder import RunFolder
from mosaic.keeper.console import ConsoleMetrics
from mosaic.probe.build import build_probe

HELLO = '{"seq":1,"at":1.0,"kind":"hello","worker":"script","version":"Python 3","pid":5,"capabilities":[]}\n'
PROGRESS = '{"seq":2,"at":1.0,"kind":"progress","global_step":0,"total_timesteps":null,"sps":null}\n'

TABLE = """
---------------------------------
| rollout/           |          |
|    ep_len_mean     | 22.5     |
|    ep_rew_mean     | 22.5     |
| time/              |          |
|    fps             | 1234     |
|    total_timesteps | 2048     |
---------------------------------
"""


def read(*texts: str) -> list[ConsoleReading]:
    parser = ConsoleParser()
    return [reading for text in texts for reading in parser.feed(text)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("global_step=512, episodic_return=21.0", (512, 21.0, None)),
        ("global_step=512, episodic_return=[21.]", (512, 21.0, None)),
        ("episodic_length=9, episodic_return=-3.5e2, global_step=7", (7, -350.0, 9)),
        ("global_step=512, episodic_return=np.float32(21.5)", (512, 21.5, None)),
        ("2024-01-01 INFO: global_step: 5 episodic_return: 1", (5, 1.0, None)),
    ],
)
def test_cleanrls_line_is_parsed_in_any_order(line: str, expected: tuple[int, float, int | None]) -> None:
    """R3.9: lines of the console."""
    (reading,) = read(line + "\n")
    assert (reading.step, reading.episodic_return, reading.episodic_length) == expected


def test_other_values_of_the_line_become_scalars_and_the_total() -> None:
    (reading,) = read("global_step=1, total_timesteps=100, fps=50, time_elapsed=2, wall_time=3\n")
    assert reading.total_timesteps == 100
    assert reading.scalars == {"charts/SPS": 50.0, "time/time_elapsed": 2.0, "time/wall_time": 3.0}


@pytest.mark.parametrize(
    ("written", "seconds"), [("00:01:05", 65.0), ("1:02:03.5", 3723.5), ("02:05", 125.0), ("3", 3.0), ("3:", 3.0)]
)
def test_times_are_read_as_seconds(written: str, seconds: float) -> None:
    """R3.9: times may be written as hours, minutes and seconds."""
    (reading,) = read(f"wall_time={written}, time_elapsed: {written}, global_step=8\n")
    assert reading.step == 8
    assert reading.scalars == {"time/wall_time": seconds, "time/time_elapsed": seconds}


def test_a_line_without_a_step_belongs_to_the_last_one() -> None:
    """R3.9: any of the known values is understood, also without `global_step`."""
    first, second, third = read("episodic_return=3.5, episodic_length=7\n", "global_step=20\n", "fps=50\n")
    assert (first.step, first.episodic_return, first.episodic_length) == (None, 3.5, 7)
    assert (second.step, third.step) == (20, 20)
    assert third.scalars == {"charts/SPS": 50.0}
    assert read("total_timesteps=100\n") == [], "it may be the steps that were done"


def test_a_table_is_one_reading_at_its_step() -> None:
    (reading,) = read(TABLE)
    assert reading.step == 2048
    assert reading.scalars["rollout/ep_rew_mean"] == 22.5
    assert reading.scalars["time/fps"] == 1234


def test_text_may_arrive_in_any_pieces() -> None:
    assert read(*TABLE, *"global_step=3, episodic_return=4\n") == read(TABLE, "global_step=3, episodic_return=4\n")


def test_a_line_that_is_too_long_is_skipped_and_the_next_one_is_parsed() -> None:
    long = "global_step=1, " + "x" * MAX_LINE_LENGTH
    assert [reading.step for reading in read(long, long, "\nglobal_step=2\n")] == [2]


def test_progress_bars_and_garbage_are_ignored() -> None:
    garbage = bytes(range(256)).decode(errors="replace")
    assert read("\r 10%|###   | 1/10", "\r 20%|####  | 2/10\n", garbage, "\n| a | b |\n| c |\n-----\n") == []
    assert [reading.step for reading in read("50%\rglobal_step=4\r60%\n")] == [4]


@pytest.mark.parametrize(("journal", "is_parsed"), [(HELLO, True), (HELLO + PROGRESS, False)])
def test_the_keeper_parses_the_console_until_the_probe_has_recorded_anything(
    tmp_path: Path, journal: str, is_parsed: bool
) -> None:
    folder = RunFolder(tmp_path)
    folder.stdout_log("script").parent.mkdir()
    metrics = ConsoleMetrics(folder, "script")
    folder.stdout_log("script").write_text("global_step=5, episodic_return=1\n")
    folder.journal.write_text(journal)
    metrics.close()
    assert (folder.path / "journal.console.jsonl").exists() == is_parsed


def test_the_probe_has_recorded_a_line_before_the_keeper_can_see_it(tmp_path: Path) -> None:
    code = """
        import os, sys
        from _mosaic_probe import hooks
        class Stream:
            def write(self, text):
                if text.strip():
                    with open(os.path.join(os.environ["MOSAIC_RUN_DIR"], "journal.jsonl")) as file:
                        sys.stderr.write(str(len(file.readlines())))
            def flush(self):
                pass
        sys.stdout = Stream()
        hooks._patch_stdout()
        print("global_step=0, episodic_return=1")
    """
    variables = {"PYTHONPATH": str(build_probe(tmp_path / "probe")), "MOSAIC_RUN_DIR": str(tmp_path)}
    environment = {**os.environ, **variables, "MOSAIC_PROBE": "console=1 metrics=1"}
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert result.stderr == "3", "the handshake, the packages and the progress"


def test_a_line_of_purejaxrl_is_read() -> None:
    """R3.9: lines of the console."""
    (reading,) = ConsoleParser().feed("global step=64, episodic return=[12.5]\n")
    assert (reading.step, reading.episodic_return) == (64, 12.5)
