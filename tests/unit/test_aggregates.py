"""Normalized scores over environments, against values computed by hand from the definitions of arXiv:2108.13264."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mosaic.base.scores import ScoreRange, aggregate_groups, iqm_curve, min_max_range, performance_profile
from mosaic.contracts.errors import BadInput
from mosaic.features.experiments.core import read_reference_scores, select_ranges

A = np.array([0.0, 50.0, 100.0, 100.0])
B = np.array([-1.0, -1.0, 1.0, 3.0])
RANGES = {"a": ScoreRange(0.0, 100.0), "b": ScoreRange(-1.0, 1.0)}
"""Normalized: 0, 0.5, 1, 1 and 0, 0, 1, 2."""


def test_the_aggregates_are_those_of_the_definitions() -> None:
    found = aggregate_groups({"one": {"a": A, "b": B}}, RANGES, is_reference=True, thresholds=(0.25, 1.0))
    assert found is not None
    (group,) = found.groups
    assert group.iqm.point == np.mean([0.0, 0.5, 1.0, 1.0])  # without 0, 0 and 1, 2
    assert group.mean.point == np.mean([0.625, 0.75])
    assert group.median.point == np.median([0.625, 0.75])
    assert group.optimality_gap.point == pytest.approx(1 - np.mean([0.625, 0.5]))  # 2 counts as 1
    assert [share.point for share in group.profile] == [np.mean([0.75, 0.5]), np.mean([0.0, 0.25])]
    assert all(np.isnan(value.low) for value in (group.iqm, group.median, *group.profile)), "four runs are too few"


def test_five_runs_of_each_environment_have_intervals() -> None:
    scores = {"one": {"a": np.append(A, 75.0), "b": np.append(B, 0.0)}}
    found = aggregate_groups(scores, RANGES, is_reference=True, thresholds=(0.25, 1.0))
    assert found is not None
    (group,) = found.groups
    for value in (group.iqm, group.median, group.mean, group.optimality_gap, *group.profile):
        assert value.low <= value.point <= value.high
        assert value.low < value.high


def test_only_environments_that_all_groups_have_count_and_the_best_group_is_first() -> None:
    scores = {"one": {"a": A, "b": B}, "two": {"a": A + 10}}
    found = aggregate_groups(scores, RANGES, is_reference=False)
    assert found is not None
    assert list(found.ranges) == ["a"]
    assert [(group.name, group.runs) for group in found.groups] == [("two", 4), ("one", 4)]
    assert aggregate_groups({"one": {"a": A}, "two": {"b": B}}, RANGES, is_reference=False) is None


def test_equal_scores_have_no_scale() -> None:
    assert min_max_range([3.0, 3.0, float("nan")]).normalize(np.array([3.0, 3.0])).tolist() == [0.0, 0.0]


def test_a_profile_falls_from_one_to_zero() -> None:
    profile = performance_profile([np.array([0.0, 0.5, 1.0])], np.array([-0.1, 0.0, 0.4, 1.0]))
    assert profile.mean.tolist() == pytest.approx([1.0, 2 / 3, 2 / 3, 0.0])


def test_the_curve_is_the_iqm_of_the_runs_at_each_point_with_a_band_over_runs() -> None:
    first = np.array([[0.0, 1.0, np.nan], [0.0, 2.0, 1.0]] + [[2.0, 2.5, 1.0]] * 3)
    second = np.array([[4.0, 3.0, 1.0], [8.0, 6.0, 1.0]] + [[2.0, 2.5, 1.0]] * 3)
    band = iqm_curve([first, second])
    assert band.mean[:2].tolist() == [2.0, 2.5]  # the middle six of ten
    assert np.isnan(iqm_curve([first[:4], second]).low).all(), "four runs are too few for a band"
    assert np.isnan(band.mean[2]), "a run has no value there"
    assert (band.low[:2] <= band.mean[:2]).all()
    assert (band.high[:2] > band.mean[:2]).all()
    assert iqm_curve([first, second]).low.tolist()[:2] == band.low.tolist()[:2], "the same runs give the same band"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("CartPole-v1: {low: 20, hihg: 500}", "CartPole-v1.hihg: unknown key"),
        ("CartPole-v1: {low: 20, high: 10}", "CartPole-v1: expected low below high"),
        ("CartPole-v1: 20", "CartPole-v1"),
        ("- 1", "expected keys such as"),
    ],
)
def test_reference_scores_that_do_not_fit_are_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "scores.yaml").write_text(text)
    with pytest.raises(BadInput, match=words):
        read_reference_scores(tmp_path / "scores.yaml")


def test_reference_scores_must_cover_the_environments(tmp_path: Path) -> None:
    (tmp_path / "scores.yaml").write_text("CartPole-v1: {low: 20, high: 5e2}")
    scores = read_reference_scores(tmp_path / "scores.yaml")
    assert select_ranges(scores, ["CartPole-v1"]) == {"CartPole-v1": ScoreRange(20.0, 500.0)}
    with pytest.raises(BadInput, match=r"no entry for 'Acrobot-v1'. Known: CartPole-v1\."):
        select_ranges(scores, ["CartPole-v1", "Acrobot-v1"])
