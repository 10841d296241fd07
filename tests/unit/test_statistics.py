"""Statistics for comparing runs, checked against loops and against values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic.base.comparison import ComparedRun, compare
from mosaic.base.curves import (
    Floats,
    Smoother,
    mean_with_band,
    mean_with_interval,
    resample,
    score_with_interval,
    smooth,
    t_975,
)
from mosaic.base.scores import (
    ScoreRange,
    aggregate_groups,
    bootstrap_strata,
    final_performance,
    iqm,
    iqm_interval,
    probability_of_improvement,
    probability_of_improvement_interval,
)

RANDOM = np.random.default_rng(7)


def smooth_in_a_loop(values: Floats, weight: float) -> Floats:
    level, age, result = 0.0, 0, []
    for value in values:
        if np.isfinite(value):
            level, age = weight * level + (1 - weight) * value, age + 1
            result.append(level / (1 - weight**age))
        else:
            result.append(np.nan)
    return np.array(result)


@pytest.mark.parametrize("weight", [0.01, 0.6, 0.9, 0.99])
def test_smoothing_equals_the_moving_average_of_a_loop(weight: float) -> None:
    values = RANDOM.normal(size=5000).cumsum() + 300
    np.testing.assert_allclose(smooth(values, weight), smooth_in_a_loop(values, weight), rtol=1e-9)


def test_smoothing_an_empty_curve_or_with_weight_zero_changes_nothing() -> None:
    values = RANDOM.normal(size=50)
    np.testing.assert_array_equal(smooth(values, 0.0), values)
    assert len(smooth(np.empty(0), 0.9)) == 0


def test_a_gap_stays_a_gap_and_is_not_averaged() -> None:
    values = np.array([np.nan, 1.0, np.nan, 3.0, np.inf, 5.0])
    np.testing.assert_allclose(smooth(values, 0.5), smooth_in_a_loop(values, 0.5))


@given(st.lists(st.integers(0, 90), min_size=1, max_size=8), st.sampled_from([0.3, 0.9, 0.99]))
def test_a_growing_curve_is_smoothed_like_a_complete_one(parts: list[int], weight: float) -> None:
    values = np.random.default_rng(sum(parts)).normal(size=sum(parts)) + 5
    smoother, smoothed = Smoother(weight), []
    for begin, size in zip(np.cumsum([0, *parts]), parts, strict=False):
        smoothed.append(smoother.extend(values[begin : begin + size]))
    np.testing.assert_allclose(np.concatenate(smoothed), smooth(values, weight), rtol=1e-9)


def test_a_resampled_curve_is_the_mean_of_the_points_around_each_grid_point() -> None:
    x, y = np.array([0.0, 1, 9, 11, 30]), np.array([1.0, 3, 4, 6, 9])
    resampled = resample(x, y, np.array([-10.0, 0, 10, 20, 30, 40]))
    np.testing.assert_allclose(resampled, [np.nan, 2, 5, 7, 9, np.nan])


def test_a_curve_without_points_is_nan_everywhere() -> None:
    assert np.isnan(resample(np.array([1.0]), np.array([np.nan]), np.array([0.0, 1.0]))).all()


def test_the_interval_of_a_mean_is_students_interval() -> None:
    band = mean_with_band(np.array([[1.0, 5.0], [2.0, np.nan], [3.0, np.nan]]))
    np.testing.assert_allclose(band.mean, [2.0, 5.0])
    np.testing.assert_allclose(band.high[0] - 2.0, 4.3027 / np.sqrt(3), rtol=1e-4)
    assert np.isnan(band.low[1])
    assert list(band.runs) == [3, 1]


def test_the_table_of_students_t_and_its_expansion_agree() -> None:
    np.testing.assert_allclose(
        t_975(np.array([1, 4, 10, 11, 20, 1000])), [12.706, 2.776, 2.228, 2.201, 2.086, 1.962], atol=6e-4
    )


def test_final_performance_is_the_mean_of_the_last_hundred_episodes() -> None:
    assert final_performance(np.concatenate([np.zeros(500), np.full(100, 7.0)])) == 7.0
    assert final_performance(np.array([1.0, np.nan, 3.0])) == 2.0
    assert np.isnan(final_performance(np.empty(0)))


def test_the_interquartile_mean_drops_a_quarter_at_either_end() -> None:
    assert iqm(np.array([1.0, 2, 3, 4, 100, -100, 3, 3])) == pytest.approx((2 + 3 + 3 + 3) / 4)
    assert iqm(np.array([1.0, 2, 6])) == 3.0


def test_a_bootstrap_interval_contains_its_point_and_is_deterministic() -> None:
    strata = [RANDOM.normal(size=8), RANDOM.normal(loc=3, size=5)]
    interval = iqm_interval(strata, repetitions=4000)
    assert interval.low < interval.point < interval.high
    assert interval == iqm_interval(strata, repetitions=4000)


def test_a_bootstrap_samples_within_each_task() -> None:
    # Equal runs of each task leave nothing to sample: a bootstrap over all runs together would vary.
    interval = iqm_interval([np.full(5, 1.0), np.full(5, 9.0)], repetitions=500)
    assert interval == (5.0, 5.0, 5.0)


def test_four_runs_of_an_environment_have_no_bootstrap_interval() -> None:
    few, enough = np.arange(4.0), np.arange(5.0)
    assert np.isnan(iqm_interval([enough, few], repetitions=500)[1:]).all()
    assert np.isnan(probability_of_improvement_interval([enough], [few])[1:]).all()
    assert np.isfinite(probability_of_improvement_interval([enough], [enough])).all()


def test_the_interval_of_improvement_is_that_of_samples_compared_run_by_run() -> None:
    random = np.random.default_rng(0)
    one, other = random.integers(0, 5, 9).astype(float), random.integers(1, 6, 7).astype(float)
    left, right = (next(bootstrap_strata([part], 2000, seed=seed))[0] for seed, part in enumerate((one, other)))
    each = [probability_of_improvement([a], [b]) for a, b in zip(left, right, strict=True)]
    interval = probability_of_improvement_interval([one], [other])
    assert (interval.low, interval.high) == pytest.approx(tuple(np.percentile(each, (2.5, 97.5))))


def test_the_probability_of_improvement_counts_pairs_and_ties_as_half() -> None:
    assert probability_of_improvement([np.array([2.0, 3.0])], [np.array([1.0, 2.0])]) == pytest.approx(3.5 / 4)
    assert probability_of_improvement([np.array([5.0])], [np.array([5.0])]) == 0.5
    two_tasks = probability_of_improvement([np.array([1.0]), np.array([0.0])], [np.array([0.0]), np.array([1.0])])
    assert two_tasks == 0.5


def test_a_side_that_always_wins_has_probability_one() -> None:
    interval = probability_of_improvement_interval([np.arange(5.0) + 10], [np.arange(5.0)])
    assert interval == (1.0, 1.0, 1.0)


def test_the_mean_of_values_has_students_interval() -> None:
    mean = mean_with_interval(np.array([1.0, 2.0, 3.0]))
    assert mean.point == 2
    assert mean.high - 2 == pytest.approx(4.3027 / 3**0.5)
    assert mean.low == pytest.approx(4 - mean.high)
    assert np.isnan(mean_with_interval(np.array([5.0]))[1:]).all()
    assert np.isnan(mean_with_interval(np.array([5.0, np.nan]))).all()
    assert np.isnan(mean_with_interval(np.empty(0))).all()


def test_final_performance_averages_the_requested_number_of_episodes() -> None:
    assert final_performance(np.arange(10.0), 2) == 8.5


def test_probabilities_of_improvement_agree_in_both_directions() -> None:
    random = np.random.default_rng(3)
    curve = np.array([0.0, 1.0])
    runs = [
        ComparedRun(f"{algo}{at}", "", {"algo": algo}, curve, curve, np.array([random.normal(mean)]))
        for algo, mean in (("ppo", 0.0), ("dqn", 0.4))
        for at in range(7)
    ]
    better = compare(runs, "algo", 0.0).improvement_probability
    one, other = better["ppo", "dqn"], better["dqn", "ppo"]
    assert (one.point, one.low, one.high) == pytest.approx((1 - other.point, 1 - other.high, 1 - other.low))


def test_what_is_compared_prints_names_runs_and_means_and_no_arrays() -> None:
    curve = np.linspace(0.0, 1.0, 5000)
    runs = [ComparedRun(f"{at}", "a run", {"algo": "ppo"}, curve, curve, np.array([at])) for at in (1.0, 3.0)]
    compared = compare(runs, "algo", 0.0)
    (group,) = compared.groups
    assert repr(group) == "<RunGroup ppo: 2 runs, mean 2 [-10.7062, 14.7062]>"
    assert repr(group) in repr(compared)
    assert repr(compare(runs[:1], "algo", 0.0).groups[0]) == "<RunGroup ppo: 1 run, mean 1>"
    ranges = {name: ScoreRange(0.0, 8.0) for name in "AB"}
    scores = aggregate_groups({"ppo": dict.fromkeys(ranges, np.arange(9.0))}, ranges, False)
    for shown in (runs[0], group, group.curve, compared, scores):
        assert len(repr(shown)) < 400
        assert "array" not in repr(shown)


@pytest.mark.parametrize(
    ("wins", "count", "low", "high"), [(0, 5, 0.0, 0.4345), (1, 20, 0.0089, 0.2361), (5, 5, 0.5655, 1.0)]
)
def test_a_rate_has_wilsons_interval(wins: int, count: int, low: float, high: float) -> None:
    """Brown, Cai and DasGupta (2001): it stays between 0 and 1, and says something of 0 in 5."""
    interval = score_with_interval(np.array([1.0] * wins + [0.0] * (count - wins)))
    assert tuple(interval) == pytest.approx((wins / count, low, high), abs=1e-4)
    if wins in (0, count):
        assert interval[1 if wins == 0 else 2] == wins / count, "it is shown"
    values = np.array([0.0, 1.0, 0.5])
    assert score_with_interval(values) == mean_with_interval(values)
    assert np.isnan(score_with_interval(np.array([1.0]))[1:]).all()
