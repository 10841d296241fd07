"""`mosaic compare`: groups, intervals, the probability of improvement, and what differs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.helpers.cli_trainer import CommandResult, call
from tests.helpers.compared_runs import TAG, FinishedGroups

from mosaic.cli.output import sparkline
from mosaic.contracts.experiment_member import ExperimentMember
from mosaic.contracts.views import MetricSeries


def compared(*arguments: str) -> CommandResult:
    result = call(FinishedGroups(), "compare", *arguments)
    assert result.code == 0, result.err
    return result


def test_groups_are_scored_and_compared_as_in_the_window() -> None:
    comparison = json.loads(compared("fast", "slow", "--last", "10", "--json").out)
    assert (comparison["by"], comparison["last"], comparison["tag"], comparison["is_scaled"]) == (
        "group",
        10,
        TAG,
        False,
    )
    fast, slow = comparison["groups"]
    assert (fast["name"], fast["n"], fast["mean"], fast["iqm"]) == ("fast", 3, 20.0, 20.0)
    assert fast["mean_ci95"] == pytest.approx([20 - 4.3027 * 10 / 3**0.5, 20 + 4.3027 * 10 / 3**0.5], rel=1e-4)
    assert fast["iqm_ci95"] == [None, None], "three runs are too few"
    assert (slow["name"], slow["mean"]) == ("slow", 6.0)
    better = {(one["one"], one["other"]): one for one in comparison["probability_of_improvement"]}
    # 10 beats two of three, 20 and 30 beat all: 8 of 9 pairs.
    assert better["fast", "slow"]["probability"] == pytest.approx(8 / 9)
    assert better["slow", "fast"]["probability"] == pytest.approx(1 / 9)
    assert better["fast", "slow"]["ci95"] == [None, None]
    assert "Fewer than 5 runs of a group" in compared("fast", "slow").err
    assert comparison["differences"]["learning_rate"] == [0.01] * 3 + [0.001] * 3
    assert "metadata.ui.x" not in comparison["differences"]


def test_the_area_scores_the_whole_curve_and_not_its_end() -> None:
    class OneLearnsEarlier(FinishedGroups):
        """Both end at 100; `fast` is there from step 20 on, `slow` only at its last step, 100."""

        def metrics(self, run: str, tags: Sequence[str] = (), last_only: bool = False) -> Iterator[MetricSeries]:
            values = [0.0, 100.0, 100.0] if "FAST" in run else [0.0, 0.0, 100.0]
            yield MetricSeries(TAG, [10, 20, 100], [0.0] * 3, values)

    trainer = OneLearnsEarlier()
    by_end = json.loads(call(trainer, "compare", "fast", "slow", "--last", "1", "--json").out)
    assert [group["mean"] for group in by_end["groups"]] == [100.0, 100.0]
    by_area = json.loads(call(trainer, "compare", "fast", "slow", "--score", "area", "--json").out)
    assert (by_area["score"], by_area["last"]) == ("area", None)
    assert [group["name"] for group in by_area["groups"]] == ["fast", "slow"]
    fast, slow = (group["mean"] for group in by_area["groups"])
    # fast: 0 up to step 10, then rises to step 20; slow: rises over the last 80 of 100 steps.
    assert fast == pytest.approx(85, abs=1)
    assert slow == pytest.approx(40, abs=1)
    shown = call(trainer, "compare", "fast", "slow", "--score", "area")
    assert "The score of a run is the mean of its curve over all steps." in shown.err
    refused = call(trainer, "compare", "fast", "--score", "area", "--last", "5")
    assert (refused.code, "so `last` has no effect" in refused.err) == (2, True)


def test_a_run_that_ended_early_keeps_its_last_value_to_the_end_of_the_others() -> None:
    class OneEndsEarly(FinishedGroups):
        def metrics(self, run: str, tags: Sequence[str] = (), last_only: bool = False) -> Iterator[MetricSeries]:
            yield MetricSeries(TAG, *(([1, 50], [0.0] * 2, [8, 8]) if "FAST" in run else ([1, 100], [0.0] * 2, [4, 4])))

    groups = json.loads(call(OneEndsEarly(), "compare", "fast", "slow", "--score", "area", "--json").out)["groups"]
    assert [group["mean"] for group in groups] == [8.0, 4.0]


def test_runs_on_two_environments_have_no_mean_in_common_and_can_be_selected() -> None:
    """R10.4: statistics never mix environments."""
    trainer = FinishedGroups()
    for run in list(trainer.views)[1::2]:
        trainer.move_to(run, "Acrobot-v1")
    groups = ("compare", "fast", "slow", "--by", "group")
    result = call(trainer, *groups)
    assert "These runs are on Acrobot-v1 and CartPole-v1, whose returns cannot be averaged." in result.err
    assert "--env Acrobot-v1" in result.err
    assert "from the worst (0) to the best (1) of these runs" in result.err
    assert "Normalized scores over 2 environments [95 %]" in result.out
    both = json.loads(call(trainer, *groups, "--json").out)
    assert both["is_scaled"]
    assert [group["mean"] for group in both["groups"]] == [None, None]
    assert all(0 <= group["iqm"] <= 1 for group in both["groups"])
    # Each environment alone has means: fast is 10, 30 on CartPole and 20 on Acrobot.
    fast = {env: next(g for g in of["groups"] if g["name"] == "fast") for env, of in both["environments"].items()}
    last_hundred = 0.01 * 0.9 + 1 * 0.1
    assert {env: group["mean"] for env, group in fast.items()} == {
        "Acrobot-v1": pytest.approx(20 * last_hundred),
        "CartPole-v1": pytest.approx(20 * last_hundred),
    }
    aggregate = both["aggregate"]
    assert (aggregate["normalization"], sorted(aggregate["ranges"])) == ("min-max", ["Acrobot-v1", "CartPole-v1"])
    assert [group["name"] for group in aggregate["groups"]] == ["fast", "slow"]
    assert aggregate["groups"][0]["profile"][0]["value"] == 1.0
    one = json.loads(call(trainer, *groups, "--env", "Acrobot-v1", "--json").out)
    assert not one["is_scaled"]
    assert None not in [group["mean"] for group in one["groups"]]
    assert len(one["runs"]) == 3
    unknown = call(trainer, "compare", "fast", "--env", "Acrobat-v1")
    assert (unknown.code, "Did you mean 'Acrobot-v1'?" in unknown.err) == (2, True)


def test_scores_are_normalized_by_reference_scores(tmp_path: Path) -> None:
    file = tmp_path / "scores.yaml"
    file.write_text("CartPole-v1: {low: 0, high: 100}")
    arguments = ("compare", "fast", "slow", "--last", "10", "--reference-scores", str(file))
    aggregate = json.loads(call(FinishedGroups(), *arguments, "--json").out)["aggregate"]
    assert [group["iqm"]["value"] for group in aggregate["groups"]] == pytest.approx([0.2, 0.06])
    assert aggregate["ranges"] == {"CartPole-v1": {"low": 0.0, "high": 100.0}}
    file.write_text("Acrobot-v1: {low: -500, high: -80}")
    refused = call(FinishedGroups(), *arguments)
    assert (refused.code, "no entry for 'CartPole-v1'" in refused.err) == (2, True)


def test_a_hint_about_seeds_is_given_where_no_two_runs_have_the_same_settings() -> None:
    trainer = FinishedGroups()
    fast, slow = (next(run for run, one in trainer.views.items() if one.group == group) for group in ("fast", "slow"))
    assert "Run each with several seeds" in call(trainer, "compare", fast, slow).err
    assert "several seeds" not in call(trainer, "compare", "fast", "slow").err


def test_the_whole_id_of_a_run_means_the_run_though_a_group_has_that_name() -> None:
    trainer = FinishedGroups()
    run_id, other = list(trainer.views)[:2]
    for member in (run_id, other):
        trainer.views[member] = trainer.views[member].model_copy(update={"group": run_id})
    both = call(trainer, "compare", run_id)
    assert (both.code, both.out.count("·") > 0) == (0, True), both.err


def test_runs_of_an_experiment_are_compared_by_setting_without_those_that_were_replaced() -> None:
    trainer = FinishedGroups()
    first, second, third = [run for run, one in trainer.views.items() if one.group == "fast"]
    for run, attempt, setting in ((first, 1, "ppo"), (second, 2, "ppo"), (third, 1, "ppo, wide")):
        key = ("a" if setting == "ppo" else "b") * 32
        member = ExperimentMember(key=key, settings_key=key, attempt=attempt, setting=setting, environment="a pole")
        trainer.views[run] = trainer.views[run].model_copy(update={"experiment": member})
    result = json.loads(call(trainer, "compare", "fast", "--json", "--by", "setting").out)
    assert (result["runs"], result["superseded"]) == ([second, third], 1)
    assert {group["name"] for group in result["groups"]} == {"ppo", "ppo, wide"}
    assert "setting" not in result["differences"]
    assert "1 run was left out" in call(trainer, "compare", "fast").err
    named = json.loads(call(trainer, "compare", first, second, "--json", "--env", "a pole").out)
    assert named["runs"] == [first, second], "A run that is named is compared."


def test_the_score_is_of_as_many_last_values_as_are_asked_for() -> None:
    comparison = json.loads(compared("fast", "--json", "--by", "run").out)
    assert comparison["groups"][0]["mean"] == pytest.approx((0.3 * 90 + 30 * 10) / 100)
    assert comparison["probability_of_improvement"] == []


def test_people_get_three_tables() -> None:
    lines = [
        line.rstrip() for line in compared("fast", "slow", "--last", "10", "--by", "learning-rate").out.splitlines()
    ]
    assert lines[0].split()[:2] == ["GROUP", "RUNS"]
    assert lines[1].startswith("0.01      3  20 [-4.842, 44.84]  20  ")
    assert lines[1].rstrip()[-1] in "▆▇█"
    assert "How likely a run of the row is better than one of the column [95 %]" in lines
    assert any(line.startswith("0.001  0.11") for line in lines)
    differing = lines[lines.index("What differs") + 2 :]
    assert [line.split()[0] for line in differing] == ["group", "learning_rate"], "the seeds are the same in both"


def test_a_single_run_is_named_by_what_differs() -> None:
    result = compared("fast", "--by", "run").out
    assert "1FAST3 · seed 3" in result
    assert "CartPole" not in result


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nobody",), "No run 'nobody'."),
        (("fast", "--by", "learning_rat"), "No setting 'learning_rat' in these runs. Did you mean 'learning_rate'?"),
        (("fast", "--tag", "losses/los"), "No metric 'losses/los' in these runs. Did you mean 'losses/loss'?"),
        (("fast", "--last", "0"), "--last must be a whole number of at least 1, not 0."),
        ((), "Missing argument 'RUN|GROUP…'"),
    ],
)
def test_unknown_names_are_reported(arguments: tuple[str, ...], words: str) -> None:
    result = call(FinishedGroups(), "compare", *arguments)
    assert (result.code, result.out) == (2, "")
    assert words in result.err


def test_runs_without_an_episode_have_nothing_to_compare() -> None:
    class Young(FinishedGroups):
        def metrics(self, run: str, tags: Sequence[str] = (), last_only: bool = False) -> Iterator[MetricSeries]:
            return iter(())

    result = call(Young(), "compare", "fast")
    assert result.code == 2
    assert "has finished an episode yet" in result.err


def test_curves_side_by_side_share_a_scale() -> None:
    assert sparkline([0.0, 1.0], 2) == "▁█"
    assert sparkline([0.0, 1.0], 2, (0.0, 4.0)) == "▁▃"
    assert sparkline([9.0], 1, (0.0, 4.0)) == "█"


class OneUnfinished(FinishedGroups):
    """The first run of `fast` was cancelled at step 40 of 100; returns rise with the step."""

    def __init__(self) -> None:
        super().__init__()
        for number, (run, known) in enumerate(self.views.items()):
            fields = {"total_timesteps": 100, "global_step": 100} if number else {"global_step": 40}
            ended = {} if number else {"outcome": "cancelled", "total_timesteps": 100}
            self.views[run] = known.model_copy(update=fields | ended)

    def metrics(self, run: str, tags: Sequence[str] = (), last_only: bool = False) -> Iterator[MetricSeries]:
        steps = range(1, 1 + (self.views[run].global_step or 0))
        yield MetricSeries(TAG, steps, [0.0] * len(steps), [float(step) for step in steps])


def test_unfinished_runs_are_named_and_the_curve_of_their_group_ends_there() -> None:
    result = call(OneUnfinished(), "compare", "fast", "slow", "--last", "1")
    assert "1 of 6 runs is unfinished: 1FAST1 · seed 1 at 40 %." in result.err
    assert "fast has all its runs up to step 40. The curves end there." in result.err
    fast = next(line for line in result.out.splitlines() if line.startswith("fast"))
    slow = next(line for line in result.out.splitlines() if line.startswith("slow"))
    assert len(fast.rstrip()) < len(slow.rstrip())


def test_a_common_step_leaves_out_later_points_of_all_runs() -> None:
    arguments = ("compare", "fast", "slow", "--last", "1", "--json")
    plain = json.loads(call(OneUnfinished(), *arguments).out)
    assert plain["common_steps"] == {}
    assert [group["mean"] for group in plain["groups"]] == [100.0, 80.0]
    assert plain["progress"][0] | {"run": ""} == {"run": "", "step": 40, "fraction": 0.4, "is_finished": False}
    cut = json.loads(call(OneUnfinished(), *arguments, "--common-step").out)
    assert cut["common_steps"] == {"CartPole-v1": 40.0}
    assert [group["mean"] for group in cut["groups"]] == [40.0, 40.0]
    shown = call(OneUnfinished(), "compare", "fast", "slow", "--common-step")
    assert "Compared at step 40, which all runs have reached." in shown.err
