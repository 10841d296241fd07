"""Scores of trials from training returns."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mosaic.base.scores import curve_area as area
from mosaic.features.sweeps.core import last_fifth, parse_sweep, seed_scores, trial_score

BASE = {
    "name": "study",
    "algorithm": "ppo",
    "environments": ["CartPole-v1"],
    "search": "default",
}


def array(*values: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array(values, np.float64)


def test_the_last_fifth_counts_episodes_that_ended_in_it() -> None:
    steps, returns = array(10, 79, 81, 100, 120), array(1, 2, 10, 20, 1000)
    assert last_fifth(steps, returns, 100) == 15
    assert last_fifth(steps, returns, 50) == 1, "no episode ended in it: the last one before"
    assert math.isnan(last_fifth(steps, returns, 5))


def test_the_area_weighs_steps_and_not_episodes() -> None:
    steps = array(*range(1, 51), 100)  # fifty short episodes, then one long
    returns = array(*[0] * 50, 100)
    assert 20 < area(steps, returns, 100) < 30, "the curve rises from 0 to 100 in its second half"
    assert returns.mean() < 2
    assert area(array(50), array(7), 100) == 7
    assert math.isnan(area(array(), array(), 100))


def test_a_curve_that_rises_earlier_has_the_larger_area() -> None:
    steps = np.linspace(1, 100, 100)
    early, late = np.minimum(steps * 4, 100), np.minimum(steps, 100)
    assert area(steps, early, 100) > area(steps, late, 100) + 20
    assert area(steps, early, 25) == pytest.approx(area(steps[:25], early[:25], 25)), "later points do not count"


def test_a_trial_has_the_mean_over_seeds_or_the_lower_end_of_its_interval() -> None:
    values = {"CartPole-v1": [90.0, 100.0, 110.0]}
    assert trial_score(parse_sweep(BASE), values) == 100
    lower = trial_score(parse_sweep(BASE | {"score": "lower"}), values)
    assert lower == pytest.approx(100 - 4.3027 * 10 / math.sqrt(3), rel=1e-4)
    assert math.isnan(trial_score(parse_sweep(BASE), {"CartPole-v1": [90.0, math.nan]}))


def test_environments_are_normalized_before_they_are_averaged() -> None:
    config = parse_sweep(
        BASE
        | {
            "environments": ["CartPole-v1", "Acrobot-v1"],
            "reference_scores": {"CartPole-v1": {"low": 0, "high": 500}, "Acrobot-v1": {"low": -500, "high": -100}},
        }
    )
    values = {"CartPole-v1": [500.0, 250.0], "Acrobot-v1": [-100.0, -300.0]}
    assert seed_scores(config, values).tolist() == [1.0, 0.5]
    assert trial_score(config, values) == 0.75
