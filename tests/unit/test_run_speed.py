from __future__ import annotations

import pytest

from mosaic.base.journal import SpeedMeter


def test_speed_is_measured_over_the_last_seconds() -> None:
    speed = SpeedMeter(window_s=5)
    speed.start(0, now_s=100)
    for second in range(1, 11):
        sps = speed.update(10 * second, now_s=100 + second)
    assert sps == pytest.approx(10)
    for second in range(1, 11):
        sps = speed.update(100 + 1000 * second, now_s=110 + second)
    assert sps == pytest.approx(1000)


def test_a_pause_does_not_lower_the_speed() -> None:
    speed = SpeedMeter()
    speed.start(1000, now_s=100)
    speed.update(1100, now_s=101)
    speed.exclude_pause(3600)
    assert speed.update(1200, now_s=3702) == pytest.approx(100)


def test_steps_of_an_earlier_attempt_do_not_count() -> None:
    speed = SpeedMeter()
    speed.start(1_000_000, now_s=5)
    assert speed.update(1_000_010, now_s=6) == pytest.approx(10)


def test_there_is_no_speed_before_any_time_has_passed() -> None:
    speed = SpeedMeter()
    speed.start(0, now_s=5)
    assert speed.update(0, now_s=5) is None
