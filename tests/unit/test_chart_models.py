"""Curves as numbers: reduced without losing an extreme, fed without reading twice, compared without widgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic.base import comparison
from mosaic.base.comparison import (
    NO_GROUPING,
    ComparedRun,
    compare,
    differing_settings,
    grouping_keys,
    strip_common_parts,
    suggest_grouping_key,
)
from mosaic.base.curves import mean_with_band, smooth
from mosaic.contracts.events import Sample
from mosaic.contracts.names import RETURN_TAG
from mosaic.window.curves import (
    ChartCurve,
    CurveFeed,
    Floats,
    GrowingPoints,
    finite_range,
    points_of_sample,
    round_range,
    round_step,
    to_log_scale,
)

RANDOM = np.random.default_rng(3)


def curve_of(x: Floats, y: Floats, weight: float = 0.0) -> ChartCurve:
    curve = ChartCurve(weight)
    curve.extend(x, y)
    return curve


def growing(rows: Sequence[tuple[float, float, float]]) -> GrowingPoints:
    points = GrowingPoints()
    points.extend(*np.array(rows, np.float64).reshape(-1, 3).T)
    return points


# --- reducing


def test_an_average_that_fades_away_is_shown_as_zero() -> None:
    curve = curve_of(np.arange(2000.0), np.r_[100.0, np.zeros(1999)], 0.9)
    assert curve.last_point() == (1999.0, 0.0, 0.0)
    near = curve.value_at(3.0)
    assert near is not None
    assert near[2] > 1


def test_reducing_a_million_points_keeps_their_extremes() -> None:
    y = RANDOM.normal(size=1_000_000)
    y[123_456], y[654_321] = 99.0, -99.0
    reduced = curve_of(np.arange(1e6), y).reduce(0, 1e6, 400)
    assert 300 < len(reduced.x) <= 402
    assert reduced.high.max() == 99.0
    assert reduced.low.min() == -99.0
    assert abs(float(reduced.raw.mean())) < 0.1


def test_few_points_are_drawn_as_they_are() -> None:
    x, y = np.arange(100.0), RANDOM.normal(size=100)
    reduced = curve_of(x, y).reduce(10, 20, 400)
    np.testing.assert_array_equal(reduced.x, x[9:21])
    np.testing.assert_array_equal(reduced.raw, y[9:21])


def test_panning_does_not_move_the_bins() -> None:
    curve = curve_of(np.arange(100_000.0), RANDOM.normal(size=100_000))
    here, there = curve.reduce(10_000, 60_000, 200), curve.reduce(10_100, 60_100, 200)
    shared = np.intersect1d(here.x[1:-1], there.x[1:-1])
    assert len(shared) > 190


def test_a_gap_in_the_points_is_a_gap_in_the_line() -> None:
    y = np.ones(100_000)
    y[40_000:60_000] = np.nan
    y[70_000] = np.nan
    reduced = curve_of(np.arange(100_000.0), y).reduce(0, 1e5, 100)
    inside = (reduced.x > 41_000) & (reduced.x < 59_000)
    assert np.isnan(reduced.raw[inside]).all()
    assert np.isnan(reduced.low[inside]).all()
    # One value that is missing among a thousand leaves no hole.
    assert np.isfinite(reduced.raw[~inside & (reduced.x > 61_000)]).all()


@given(st.lists(st.integers(0, 400), min_size=1, max_size=6), st.integers(0, 2**16))
def test_a_curve_that_grows_equals_one_that_came_whole(parts: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    x, y = np.cumsum(random.integers(0, 3, sum(parts))).astype(float), random.normal(size=sum(parts))
    grown, begin = ChartCurve(0.9), 0
    for size in parts:
        grown.extend(x[begin : begin + size], y[begin : begin + size])
        begin += size
    np.testing.assert_array_equal(grown.y, y)
    np.testing.assert_allclose(grown.smooth, smooth(y, 0.9), rtol=1e-9)


def test_points_that_come_out_of_order_are_put_in_order() -> None:
    curve = curve_of(np.array([1.0, 5.0]), np.array([10.0, 50.0]))
    curve.extend(np.array([3.0, 2.0]), np.array([30.0, 20.0]))
    np.testing.assert_array_equal(curve.x, [1, 2, 3, 5])
    np.testing.assert_array_equal(curve.y, [10, 20, 30, 50])


def test_the_value_under_the_crosshair_is_the_nearest_points() -> None:
    curve = curve_of(np.array([0.0, 10.0, 20.0]), np.array([1.0, 2.0, 3.0]))
    assert curve.value_at(12) == (10.0, 2.0, 2.0)
    assert curve.value_at(19) == (20.0, 3.0, 3.0)
    assert curve.value_at(25) is None
    assert ChartCurve().value_at(0) is None


def test_the_newest_value_is_the_last_that_is_known() -> None:
    assert curve_of(np.arange(3.0), np.array([1.0, 2.0, np.nan])).last_point() == (1.0, 2.0, 2.0)
    assert curve_of(np.arange(1.0), np.array([np.nan])).last_point() is None
    assert ChartCurve().last_point() is None


def test_a_logarithmic_axis_leaves_out_what_has_no_logarithm() -> None:
    reduced = to_log_scale(curve_of(np.arange(3.0), np.array([-1.0, 10.0, 100.0])).reduce(0, 3, 10))
    np.testing.assert_array_equal(reduced.raw, [np.nan, 1.0, 2.0])


# --- axes


def test_axes_grow_in_steps() -> None:
    ranges = {round_range(0.0, float(end)) for end in np.linspace(900, 1000, 200)}
    assert len(ranges) <= 4
    for low, high in ranges:
        assert low <= 0
        assert high >= 900


def test_a_range_of_one_value_has_room_around_it() -> None:
    low, high = round_range(5.0, 5.0)
    assert low < 5 < high
    assert round_range(0.0, 0.0) == (-1.0, 1.0)


@pytest.mark.parametrize(("min_step", "step"), [(0.9, 1), (1.1, 2), (3, 5), (7, 10), (0.03, 0.05), (1000, 1000)])
def test_steps_are_round(min_step: float, step: float) -> None:
    assert round_step(min_step) == pytest.approx(step)


def test_an_empty_curve_has_no_extent() -> None:
    assert finite_range(np.array([np.nan]), np.empty(0)) is None
    assert finite_range(np.array([1.0, np.nan]), np.array([-2.0])) == (-2.0, 1.0)


# --- feeding


LOGGED = {
    RETURN_TAG: [(10.0, 100.0, 1.0), (20.0, 101.0, 2.0), (20.0, 101.5, 3.0)],
    "losses/value": [(15.0, 100.5, 7.0), (25.0, 102.0, 8.0)],
}


@pytest.mark.parametrize(
    ("kind", "tag", "x"),
    [
        ("step", RETURN_TAG, [10, 20, 20]),
        ("wall", "losses/value", [100.5, 102]),
        ("relative", "losses/value", [0.5, 2]),
        ("episode", RETURN_TAG, [1, 2, 3]),
        ("episode", "losses/value", [1, 3]),
    ],
)
def test_a_feed_reads_points_by_the_chosen_axis(kind: str, tag: str, x: list[float]) -> None:
    feed = CurveFeed({name: growing(rows) for name, rows in LOGGED.items()}, tag, ChartCurve())
    assert feed.update(kind)
    np.testing.assert_allclose(feed.curve.x, x)
    assert not feed.update(kind)


def test_a_feed_takes_only_what_is_new_and_notices_what_was_replaced() -> None:
    tags = {RETURN_TAG: growing([(1.0, 1.0, 5.0)])}
    feed = CurveFeed(tags, RETURN_TAG, ChartCurve())
    feed.update("step")
    tags[RETURN_TAG].extend(np.array([2.0]), np.array([2.0]), np.array([6.0]))
    assert feed.update("step")
    np.testing.assert_array_equal(feed.curve.y, [5, 6])
    tags[RETURN_TAG] = growing([(1.0, 1.0, 9.0)])
    assert feed.update("step")
    np.testing.assert_array_equal(feed.curve.y, [9])


def test_all_points_move_with_the_origin_of_relative_time() -> None:
    """A tag that arrives later, such as one of the keeper's samples, may have the earliest point."""
    tags = {RETURN_TAG: growing([(1.0, 101.0, 5.0)])}
    feed = CurveFeed(tags, RETURN_TAG, ChartCurve())
    feed.update("relative")
    tags["hardware/CPU %"] = growing([(0.0, 100.0, 9.0)])
    tags[RETURN_TAG].extend(np.array([2.0]), np.array([102.0]), np.array([6.0]))
    assert feed.update("relative")
    np.testing.assert_array_equal(feed.curve.x, [1, 2])
    assert not feed.update("relative")


def test_a_sample_of_the_hardware_is_a_point_for_each_thing_measured() -> None:
    gpu = {"util_percent": 50.0, "memory_used_mb": 100.0, "memory_total_mb": 1000.0}
    values = points_of_sample(
        Sample(seq=1, at=1.0, kind="sample", cpu_percent=99.5, rss_mb=12.0, processes=1, gpus=[gpu])
    )
    assert values == {
        "hardware/CPU %": 99.5,
        "hardware/memory MB": 12.0,
        "hardware/GPU 0 %": 50.0,
        "hardware/GPU 0 memory MB": 100.0,
    }


# --- comparing


def entry(run_id: str, level: float, env_id: str = "CartPole-v1", **settings: Any) -> ComparedRun:
    x = np.arange(0.0, 1000.0, 10.0)
    y = np.full(100, level)
    return ComparedRun(run_id, run_id, {"env_id": env_id, "algo": "ppo", **settings}, x, y, y)


def test_runs_are_grouped_by_a_setting_and_averaged() -> None:
    runs = [entry("a", 1.0, rate=1), entry("b", 3.0, rate=1), entry("c", 9.0, rate=2)]
    result = compare(runs, "rate", 0.0)
    assert [(group.name, group.run_ids) for group in result.groups] == [("2", ["c"]), ("1", ["a", "b"])]
    slow = result.groups[1]
    assert slow.final_return.point == 2.0
    assert slow.final_return.low < 2.0 < slow.final_return.high
    np.testing.assert_allclose(slow.curve.mean, 2.0)
    assert result.improvement_probability["2", "1"].point == 1.0
    assert result.improvement_probability["1", "2"].point == 0.0
    assert not result.is_normalized


def test_single_runs_have_no_interval_and_no_probability_of_improvement() -> None:
    result = compare([entry("a", 1.0), entry("b", 3.0)], NO_GROUPING, 0.0)
    assert [group.name for group in result.groups] == ["b", "a"]
    assert np.isnan(result.groups[0].final_return.low)
    assert not result.improvement_probability


def test_scores_of_different_environments_are_scaled_before_they_are_averaged() -> None:
    runs = [
        entry("a", 100.0, "CartPole-v1", algo="ppo"),
        entry("b", 500.0, "CartPole-v1", algo="dqn"),
        entry("c", -500.0, "Acrobot-v1", algo="ppo"),
        entry("d", -80.0, "Acrobot-v1", algo="dqn"),
    ]
    result = compare(runs, "algo", 0.0)
    assert result.is_normalized
    assert [(group.name, group.iqm.point) for group in result.groups] == [("dqn", 1.0), ("ppo", 0.0)]


def test_a_run_without_episodes_or_points_does_not_spoil_the_others() -> None:
    empty = np.empty(0)
    result = compare([entry("a", 4.0), ComparedRun("b", "b", {"algo": "ppo"}, empty, empty, empty)], "algo", 0.9)
    assert result.groups[0].final_return.point == 4.0
    assert np.nanmax(result.groups[0].curve.mean) == pytest.approx(4.0)
    nothing = compare([ComparedRun("b", "b", {"algo": "ppo"}, empty, empty, empty)], "algo", 0.0)
    assert np.isnan(nothing.groups[0].iqm.point)


def test_titles_contain_only_what_differs() -> None:
    titles = ["CartPole-v1 · ppo · seed 1 · AAA", "CartPole-v1 · dqn · seed 1 · BBB"]
    assert list(strip_common_parts(titles).values()) == ["ppo · AAA", "dqn · BBB"]
    assert strip_common_parts(["one · two"]) == {"one · two": "one · two"}


def test_only_settings_that_differ_are_listed() -> None:
    settings = [{"seed": 1, "algo": "ppo", "rate": 0.1}, {"seed": 2, "algo": "ppo"}]
    assert differing_settings(settings) == {"rate": [0.1, None], "seed": [1, 2]}
    assert grouping_keys(settings) == ["algo", "seed", "rate"]


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ([{"group": "x"}, {"group": "x"}, {"group": "y"}], "group"),
        ([{"algo": "ppo", "seed": 1}, {"algo": "ppo", "seed": 2}], "algo"),
        ([{"algo": "ppo"}, {"algo": "dqn"}], NO_GROUPING),
        ([{"algo": "ppo"}], NO_GROUPING),
    ],
)
def test_the_default_key_groups_some_runs(settings: list[dict[str, Any]], key: str) -> None:
    assert suggest_grouping_key(settings) == key


def test_rounding_errors_of_a_constant_are_drawn_flat() -> None:
    assert round_range(-200.00000000000003, -200.0) == pytest.approx((-220.0, -180.0))


def test_a_group_is_drawn_only_where_all_of_its_runs_are() -> None:
    spread = mean_with_band(np.array([[1.0, 2.0, 3.0, 4.0], [3.0, 4.0, np.nan, np.nan]]))
    shared = comparison._mask_partial(spread)
    assert shared.mean[:2].tolist() == [2.0, 3.0]
    assert np.isnan(shared.mean[2:]).all()
    assert np.isnan(shared.high[2:]).all()
