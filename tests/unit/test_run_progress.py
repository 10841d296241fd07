"""How far compared runs are: sentences about unfinished ones, the common step, and curves that end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.helpers.gui_runs import running, view

from mosaic.base.comparison import (
    ComparedRun,
    RunProgress,
    compare,
    cut_at_common_step,
    describe_progress,
    describe_tails,
    find_common_steps,
    run_progress,
    shorten_titles,
    suggest_grouping_key,
)


def entry(name: str, last_step: int, total: int = 1000, env_id: str = "CartPole-v1", **fields: Any) -> ComparedRun:
    """A run that logs its step every ten steps."""
    x = np.arange(10.0, last_step + 1, 10.0)
    progress = RunProgress(last_step, last_step / total, last_step == total)
    algo, _, seed = name.partition("-")
    settings = {"env_id": env_id, "algo": algo}
    return ComparedRun(f"id{name}", f"{algo} · seed {seed} · id{name}", settings, x, x, x, progress=progress, **fields)


def test_unfinished_runs_are_named_with_their_progress_the_least_advanced_first() -> None:
    runs = [entry("ppo-1", 1000), entry("dqn-2", 790), entry("dqn-3", 120)]
    assert describe_progress(runs, {}) == ["2 of 3 runs are unfinished: dqn · seed 3 at 12 % and dqn · seed 2 at 79 %."]
    assert describe_progress([entry("ppo-1", 1000), entry("ppo-2", 1000)], {}) == []
    many = [entry(f"ppo-{seed}", 10 * seed) for seed in range(1, 7)]
    assert describe_progress(many, {}) == ["6 of 6 runs are unfinished: seed 1 at 1 %, seed 2 at 2 % and 4 more."]


def test_a_run_that_is_almost_finished_is_not_at_100_percent() -> None:
    assert "at 99 %" in describe_progress([entry("ppo-1", 9990, 10_000)], {})[0]
    assert "at 19 %" in describe_progress([entry("ppo-1", 1860, 10_000)], {})[0], "rounded as in the list of runs"


def test_finished_runs_that_were_trained_for_fewer_steps_are_named() -> None:
    runs = [entry("ppo-1", 1000), entry("ppo-2", 200, 200), entry("ppo-3", 50, 50, "Acrobot-v1")]
    [sentence] = describe_progress(runs, {})
    assert sentence == "1 of 3 runs was trained for fewer steps than others: seed 2 (at step 200)."


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"total_timesteps": 1000, "global_step": 900}, RunProgress(1000, 1.0, True)),
        ({"total_timesteps": 1000, "global_step": 900, "outcome": "cancelled"}, RunProgress(900, 0.9, False)),
        ({"total_timesteps": None, "global_step": 70}, RunProgress(70, 1.0, True)),
        ({"kind": "policy_eval"}, RunProgress(None, None, True)),
        ({"kind": "play", "global_step": 70}, RunProgress(None, None, True)),
    ],
)
def test_the_progress_of_a_run_follows_from_its_view(fields: dict[str, Any], expected: RunProgress) -> None:
    assert run_progress(view(1, **fields)) == expected
    assert not run_progress(running(2, total_timesteps=1000)).is_finished


def test_runs_are_cut_at_the_largest_step_that_all_of_their_environment_have_reached() -> None:
    empty = np.empty(0)
    waiting = ComparedRun("idq", "queued", {"env_id": "CartPole-v1"}, empty, empty, empty)
    runs = [entry("ppo-1", 1000), entry("dqn-1", 120), entry("ppo-2", 500, 500, "Acrobot-v1"), waiting]
    assert find_common_steps(runs) == {"CartPole-v1": 120, "Acrobot-v1": 500}
    cut, common = cut_at_common_step(runs)
    assert [len(one.x) for one in cut] == [12, 12, 50, 0]
    assert cut[0].y[-1] == cut[0].returns[-1] == 120
    assert (
        describe_progress(runs, common)[-1] == "Compared at step 500 on Acrobot-v1 and 120 on CartPole-v1, "
        "which all runs with points have reached (1 of 4 has none)."
    )
    assert describe_progress(runs[:2], {"CartPole-v1": 120.0})[-1] == (
        "Compared at step 120, which all runs have reached."
    )


def test_runs_drawn_by_time_are_cut_by_their_steps() -> None:
    steps = np.arange(10.0, 1001.0, 10.0)
    settings, seconds = {"env_id": "CartPole-v1"}, steps / 1e3
    timed = ComparedRun(
        "a", "a", settings, seconds, steps, steps[::2], progress=RunProgress(1000), steps=steps, return_steps=steps[::2]
    )
    cut, _ = cut_at_common_step([timed, entry("ppo-1", 120)])
    assert (cut[0].x[-1], cut[0].y[-1], cut[0].returns[-1]) == (0.12, 120, 110)


def test_a_group_continues_as_a_tail_where_runs_of_it_are_missing() -> None:
    compared = compare([entry("ppo-1", 1000), entry("ppo-2", 400)], "algo", 0.0)
    [group] = compared.groups
    assert group.complete_until == 400
    is_after = compared.grid > 405
    assert np.isnan(group.curve.mean[is_after]).all()
    assert np.isfinite(group.tail[is_after]).all()
    assert np.isnan(group.tail[compared.grid < 395]).all()
    assert group.run_curves.shape == (2, len(compared.grid))
    assert describe_tails(compared, lambda x: f"step {round(x, -1):.0f}") == "ppo has all its runs up to step 400."


def test_a_short_run_next_to_a_very_long_one_is_reported_with_its_own_last_step() -> None:
    x = np.linspace(10.0, 1e6, 2000)
    long = ComparedRun("b", "b", {"algo": "ppo", "env_id": "CartPole-v1"}, x, x, x)
    compared = compare([entry("ppo-1", 400), long], "algo", 0.0)
    assert describe_tails(compared) == "ppo has all its runs up to step 400."


def test_runs_of_the_same_length_whose_last_episodes_end_apart_have_no_tail() -> None:
    x = np.arange(0.0, 801.0, 200.0)
    sparse = ComparedRun("b", "b", {"algo": "ppo", "env_id": "CartPole-v1"}, x, x, x)
    compared = compare([entry("ppo-1", 1000), sparse], "algo", 0.0)
    assert compared.groups[0].complete_until is None
    assert describe_tails(compared) == ""


def test_many_runs_are_grouped_by_what_leaves_few_groups() -> None:
    runs = [{"algo": "ppo", "seed": seed, "lr": lr, "noise": seed / 7} for lr in (1, 2) for seed in range(10)]
    assert suggest_grouping_key(runs, 16) == "lr"
    assert suggest_grouping_key(runs[:5], 16) == suggest_grouping_key(runs[:5])
    assert suggest_grouping_key([{"noise": seed} for seed in range(20)], 16) == "algo"


def test_titles_of_the_command_line_lose_their_ids_where_the_rest_distinguishes_them() -> None:
    assert shorten_titles({"xA1": "A1 · ppo · seed 1", "xB2": "B2 · ppo · seed 2"}) == {
        "xA1": "seed 1",
        "xB2": "seed 2",
    }
    assert shorten_titles({"xA1": "A1 · ppo", "xB2": "B2 · ppo"}) == {"xA1": "A1", "xB2": "B2"}
