"""The loop of a sweep against a trainer in memory: what it submits, cancels and tells."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.cli_trainer import view

from mosaic.contracts.errors import ConfigRefused, NotAllowed, RunEnded
from mosaic.contracts.folder import Workspace
from mosaic.contracts.names import RETURN_TAG
from mosaic.contracts.views import MetricsCursor, MetricSeries, RunView, Verdict
from mosaic.features.sweeps.api import best_trial
from mosaic.features.sweeps.core import TrialStatus
from mosaic.features.sweeps.core_loop import SweepLoop, check_sweep, end_running_sweep, open_study, read_study
from mosaic.features.sweeps.core_study import Study
from mosaic.trainer.client.trainer_client import MetricsUpdate

CONFIG: dict[str, Any] = {
    "name": "study",
    "algorithm": "ppo",
    "environments": ["CartPole-v1"],
    "settings": {"total_timesteps": 1000},
    "search": {"num_steps": {"values": [8, 16, 32, 64, 128, 256]}},
    "sampler": "grid",
    "parallel": 1,
    "reports": 5,
}
TICK_STEPS = 250


class Killed(BaseException):
    """The sweep's process is killed."""


class ScriptedTrainer:
    """Each tick, active runs take 250 of their 1,000 steps; a run's return is its `num_steps`."""

    def __init__(self) -> None:
        self.views: dict[str, RunView] = {}
        self.keys: dict[tuple[str, int], str] = {}
        self.steps: dict[str, int] = {}
        self.returns: dict[str, float] = {}
        self.cancelled: list[str] = []
        self.outcomes: dict[str, list[str]] = {}
        """By trial: how its next runs end instead of succeeding."""
        self.refused_steps = 0
        """The value of num_steps that the worker refuses."""
        self.slow_seed = 0
        self.before_cancel: Callable[[], None] = lambda: None

    def call(self, ask: Callable[[Any], Any]) -> Any:
        return ask(self)

    def check(self, payload: dict[str, Any], _: object = None) -> Verdict:
        if _num_steps(payload) == self.refused_steps:
            raise ConfigRefused("LOG705 num_steps: refused.")
        return Verdict()

    def submit(self, payload: dict[str, Any], _: object = None) -> RunView:
        member, config = payload["metadata"]["experiment"], payload["metadata"]["worker"]["config"]
        place = (member["key"], member["attempt"])
        if place not in self.keys:
            run_id = f"01NEW{len(self.keys):05}0000000000000000"
            self.keys[place] = run_id
            self.returns[run_id] = float(_num_steps(payload))
            self.steps[run_id] = 0
            self.views[run_id] = view(
                run_id, group="study", seed=config["seed"], total_timesteps=1000, experiment=member
            )
        return self.views[self.keys[place]]

    def runs(self, **_: Any) -> list[RunView]:
        return list(self.views.values())[::-1]

    def get_run(self, run: str) -> RunView:
        return self.views[run]

    def metrics_after(self, run: str, cursor: MetricsCursor, tags: Sequence[str]) -> MetricsUpdate:
        assert list(tags) == [RETURN_TAG]
        steps = list(range(cursor.last_point + 10, self.steps[run] + 1, 10))
        series = MetricSeries(RETURN_TAG, steps, [0.0] * len(steps), [self.returns[run]] * len(steps))
        return MetricsUpdate(MetricsCursor(1, self.steps[run]), cursor.generation != 1, [series])

    def cancel_run(self, run: str) -> RunView:
        self.before_cancel()
        if self.views[run].stage == "finished":
            raise NotAllowed("It has ended.")
        self.cancelled.append(run)
        self._end(run, "cancelled")
        return self.views[run]

    def tick(self, _: float = 0.0) -> None:
        for run_id, one in self.views.items():
            if one.stage == "finished" or (one.seed == self.slow_seed and self.steps[run_id] >= 500):
                continue
            self.steps[run_id] += TICK_STEPS
            assert one.experiment is not None
            endings = self.outcomes.get(one.experiment.setting, [])
            if endings:
                self._end(run_id, endings.pop(0))
            elif self.steps[run_id] >= 1000:
                self._end(run_id, "succeeded")

    def _end(self, run_id: str, outcome: str) -> None:
        ending = {"stage": "finished", "outcome": outcome, "reason": f"it {outcome}"}
        self.views[run_id] = RunView.model_validate({**self.views[run_id].model_dump(), **ending})

    def of_trial(self, number: int) -> list[RunView]:
        return [one for one in self.views.values() if one.experiment and one.experiment.setting == f"trial {number}"]


def _num_steps(payload: dict[str, Any]) -> int:
    return int(payload["metadata"]["worker"]["config"].get("algo_params", {}).get("num_steps", 128))


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> ScriptedTrainer:
    scripted = ScriptedTrainer()
    monkeypatch.setattr(time, "sleep", scripted.tick)
    return scripted


@pytest.fixture
def run(trainer: ScriptedTrainer, tmp_path: Path) -> Callable[..., Study]:
    def run_sweep(is_interrupted: Callable[[], bool] = lambda: False, **changes: Any) -> Study:
        check_sweep(trainer.call, Workspace(tmp_path), CONFIG | changes)
        with open_study(Workspace(tmp_path), CONFIG | changes) as study:
            SweepLoop(trainer.call, study, is_interrupted).run()
        return study

    return run_sweep


def statuses(study: Study) -> list[str]:
    return [str(row.status) for row in study.rows()]


def test_each_trial_has_a_run_for_each_seed_and_the_best_score_wins(
    run: Callable[..., Study], trainer: ScriptedTrainer
) -> None:
    study = run()
    assert statuses(study) == ["done"] * 6
    assert [row.score for row in study.rows()] == [8, 16, 32, 64, 128, 256]
    assert len(trainer.views) == 12
    best = best_trial(study.rows())
    assert best is not None
    assert (best.params, best.seed_scores) == ({"num_steps": 256}, (256.0, 256.0))
    assert study.rows()[0].reports == dict.fromkeys((1, 2, 3, 4), 8.0), "at the same shares of steps for all"


def test_a_trial_reports_what_all_of_its_seeds_have_reached(
    run: Callable[..., Study], trainer: ScriptedTrainer
) -> None:
    trainer.slow_seed = 2
    ticks = iter(range(8))
    study = run(lambda: next(ticks, None) is None, reports=4)
    assert sorted(study.rows()[0].reports) == [1], "an episode of both has ended after a quarter; the end is not known"
    trainer.slow_seed = 0
    assert statuses(run(reports=4)) == ["done"] * 6
    assert len(trainer.views) == 12


def test_a_pruned_trial_has_its_runs_cancelled_also_if_the_sweep_was_killed_in_between(
    run: Callable[..., Study], trainer: ScriptedTrainer, tmp_path: Path
) -> None:
    pruning = {"method": "median", "startup_trials": 1}
    search = {"search": {"num_steps": {"choices": [128, 16, 256]}}, "pruning": pruning}

    def die() -> None:
        if trainer.cancelled:
            trainer.before_cancel = lambda: None
            raise Killed

    trainer.before_cancel = die
    with pytest.raises(Killed):
        run(**search)
    assert len(trainer.cancelled) == 1
    study = run(**search)
    assert statuses(study) == ["done", "pruned", "done"]
    assert trainer.cancelled == [one.run_id for one in trainer.of_trial(1)]
    assert len(trainer.views) == 6
    assert study.rows()[1].last_score == 16


def test_a_killed_sweep_takes_its_running_trials_over(run: Callable[..., Study], trainer: ScriptedTrainer) -> None:
    for left in (3, 5, 4):
        ticks = iter(range(left))
        run(lambda ticks=ticks: next(ticks, None) is None, parallel=2)
    study = run(parallel=2)
    assert statuses(study) == ["done"] * 6
    assert len(trainer.views) == 12


def test_a_failed_run_fails_its_trial_and_cancels_the_other_seeds(
    run: Callable[..., Study], trainer: ScriptedTrainer
) -> None:
    trainer.outcomes = {"trial 1": ["failed"]}
    study = run()
    assert statuses(study) == ["done", "failed", "done", "done", "done", "done"]
    assert study.rows()[1].problem.endswith(": it failed")
    assert [one.outcome for one in trainer.of_trial(1)] == ["failed", "cancelled"]


def test_a_lost_run_is_submitted_again_three_times_in_all(run: Callable[..., Study], trainer: ScriptedTrainer) -> None:
    trainer.outcomes = {"trial 0": ["lost"], "trial 2": ["lost"] * 9}
    study = run(seeds_per_trial=1)
    assert statuses(study) == ["done", "done", "failed", "done", "done", "done"]
    attempts = [[one.experiment.attempt for one in trainer.of_trial(n) if one.experiment] for n in (0, 1, 2)]
    assert attempts == [[1, 2], [1], [1, 2, 3]]


def test_settings_that_the_worker_refuses_together_fail_one_trial(
    run: Callable[..., Study], trainer: ScriptedTrainer
) -> None:
    trainer.refused_steps = 16
    study = run()
    assert statuses(study) == ["done", "failed", "done", "done", "done", "done"]
    assert "num_steps: refused" in study.rows()[1].problem


def test_a_sweep_in_which_everything_fails_ends_early(run: Callable[..., Study], trainer: ScriptedTrainer) -> None:
    trainer.outcomes = {f"trial {number}": ["failed"] for number in range(6)}
    with pytest.raises(RunEnded, match=r"The first 5 trials all failed\. The last one: Run .*: it failed"):
        run()
    assert not trainer.of_trial(5)


def test_what_is_refused_without_searched_settings_starts_nothing(
    run: Callable[..., Study], trainer: ScriptedTrainer, tmp_path: Path
) -> None:
    trainer.refused_steps = 128  # the default
    with pytest.raises(ConfigRefused):
        run()
    assert trainer.views == {}
    assert not Workspace(tmp_path).sweeps.exists()


def test_cancelled_trials_are_replaced_when_the_sweep_continues(
    run: Callable[..., Study], trainer: ScriptedTrainer, tmp_path: Path
) -> None:
    ticks = iter(range(4))
    run(lambda: next(ticks, None) is None)
    with open_study(Workspace(tmp_path), CONFIG) as study:
        assert SweepLoop(trainer.call, study).cancel() == 1
    assert len(trainer.cancelled) == 2
    study = run()
    assert statuses(study) == ["cancelled", *["done"] * 6]
    assert [row.params for row in study.rows()[1:]] == study.plan.grid()


def test_a_new_sweep_is_refused_where_other_runs_have_its_group(
    run: Callable[..., Study], trainer: ScriptedTrainer
) -> None:
    run(trials=1)
    with pytest.raises(NotAllowed, match=r"The group 'other' has 2 runs that this sweep did not start"):
        run(trials=1, name="other")
    assert statuses(run(trials=2)) == ["done"] * 2, "its own runs do not count"


def test_a_file_that_means_other_scores_is_refused_and_more_trials_are_not(
    run: Callable[..., Study], trainer: ScriptedTrainer
) -> None:
    assert statuses(run(trials=2)) == ["done"] * 2
    with pytest.raises(NotAllowed, match="was started with other values of seeds_per_trial and metric"):
        run(metric="area", seeds_per_trial=3)
    study = run(trials=3)
    assert statuses(study) == ["done"] * 3
    assert TrialStatus.DONE in {row.status for row in read_study(study.folder).rows()}


def test_a_request_to_end_is_obeyed_and_does_not_outlive_the_process_that_obeyed(
    trainer: ScriptedTrainer, tmp_path: Path
) -> None:
    workspace = Workspace(tmp_path)
    with open_study(workspace, CONFIG) as study:
        study.folder.end_request.touch()
        loop = SweepLoop(trainer.call, study)
        loop.run()
        assert loop.is_cancelled
    assert trainer.views == {}
    with open_study(workspace, CONFIG) as study:  # the process that asked was killed before it could remove it
        assert not study.folder.end_request.exists()


def test_a_process_that_does_not_end_is_named_and_no_longer_asked_to(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    with open_study(workspace, CONFIG) as study:
        with pytest.raises(NotAllowed, match=rf"asked to end, in process {os.getpid()}\. .* End that process"):
            study.folder.end_holder(timeout_s=-1)
        assert not study.folder.end_request.exists()
        with pytest.raises(NotAllowed, match="other values of metric"):
            end_running_sweep(workspace, {**CONFIG, "metric": "area"})
    end_running_sweep(workspace, CONFIG)  # nobody runs it
