"""Metrics are parsed from what scripts print, and other output is ignored."""

from __future__ import annotations

import pytest

from mosaic.common.console_parser import MAX_LINE_LENGTH, ConsoleParser, ConsoleReading

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
