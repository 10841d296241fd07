"""Evaluations during training, and trainings that end at a return."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.algorithm_cases import (
    Killed,
    RecordingRun,
    assert_same_checkpoint,
    events,
    latest_checkpoint,
    train_run,
)
from tests.helpers.commands import mosaic
from tests.helpers.daemons import ended, wait_for
from tests.helpers.worker_runs import events as folder_events
from tests.helpers.worker_runs import small, train_here

from cleanrl_worker.registry import load_algorithm
from mosaic.base import formatting
from mosaic.base.run_payloads import build_train_payload
from mosaic.contracts.errors import NotAllowed
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.worker.checkpoints import Checkpoint, load_checkpoint

Curves = dict[str, list[tuple[int, float]]]
_REPLAY = {"buffer_size": 300, "batch_size": 16, "learning_starts": 60}
_PENDULUM = {**_REPLAY, "env_id": "Pendulum-v1", "total_timesteps": 160, "eval_every": 50, "num_eval_episodes": 1}
_GAMES = {
    "env_id": "BreakoutNoFrameskip-v4", "env_kwargs": {"max_num_frames_per_episode": 80}, "num_eval_episodes": 1,
    "total_timesteps": 96, "eval_every": 30, "cuda": False, "hidden_sizes": (16,),
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo", {"num_steps": 16, "num_envs": 2}),
    "ppo in torch": ("ppo", {"num_steps": 16, "num_envs": 2, "backend": "torch", "cuda": False}),
    "ppo with normalized observations": ("ppo_continuous_action", {"env_id": "Pendulum-v1", "num_steps": 64}),
    "dqn": ("dqn", {**_REPLAY, "num_envs": 2}),
    "sac": ("sac_continuous_action", _PENDULUM),
    "sac in torch": ("sac_continuous_action", {**_PENDULUM, "backend": "torch", "cuda": False}),
    "ppo of frames": ("ppo_atari", {**_GAMES, "num_steps": 8, "num_envs": 4}),
    "rainbow": ("rainbow_atari", {**_GAMES, **_REPLAY, "learning_starts": 40}),
}


def config_of(case: str, **changes: Any) -> Any:
    name, settings = CASES[case]
    given = {
        "env_id": "CartPole-v1", "total_timesteps": 448, "eval_every": 128, "num_eval_episodes": 3,
        "checkpoint_every": 192, **settings, **changes,
    }  # fmt: skip
    return load_algorithm(name).Config(**given)


def train(path: Path, case: str, resume: Checkpoint | None = None, *, is_evaluated: bool = True, **orders: Any) -> Any:
    config = config_of(case) if is_evaluated else config_of(case, eval_every=0)
    return train_run(path, CASES[case][0], config, resume, **orders)


def evaluation_curves(path: Path) -> Curves:
    curves: Curves = {}
    for event in events(path, "metrics"):
        for tag, points in event["series"].items():
            if tag.startswith("eval/"):
                curves.setdefault(tag, []).extend((step, value) for step, _, value in points)
    return curves


@pytest.mark.parametrize("case", CASES)
def test_a_training_is_the_same_with_and_without_evaluations(case: str, place: Path) -> None:
    """R3.6: evaluation during training changes nothing but its own curve and the choice of the best checkpoint."""
    evaluated, plain = train(place / "one", case), train(place / "two", case, is_evaluated=False)

    with_evaluation, without = latest_checkpoint(place / "one"), latest_checkpoint(place / "two")
    assert with_evaluation.facts.pop("evaluated_step") == with_evaluation.step
    assert_same_checkpoint(with_evaluation, without)
    assert evaluated.episodes == plain.episodes
    assert (evaluated.mean_return, evaluated.global_step) == (plain.mean_return, plain.global_step)

    config, curves = config_of(case), evaluation_curves(place / "one")
    reports = events(place / "one", "evaluated")
    steps = [report["step"] for report in reports]
    assert len(steps) == len(set(steps)) >= 2
    assert [step for step, _ in curves["eval/avg_return"]] == steps
    assert len(curves["eval/episodic_return"]) == config.num_eval_episodes * len(steps)
    assert evaluation_curves(place / "two") == {}


@pytest.mark.parametrize("case", ["ppo", "sac"])
def test_the_best_checkpoint_has_the_highest_evaluation_which_mosaic_eval_repeats(case: str, place: Path) -> None:
    """R3.14: evaluation during training chooses the best checkpoint."""
    train(place / "run", case)

    means = {report["step"]: report["avg_return"] for report in events(place / "run", "evaluated")}
    best = load_checkpoint(RunFolder(place / "run").best_checkpoint)
    assert best.manifest["score"] == means[best.step] == max(means.values())
    for event in events(place / "run", "checkpoint"):
        assert event["score"] == means.get(event["step"])

    extras = {"mode": "policy_eval", "policy_path": str(best.path), "eval_episodes": config_of(case).num_eval_episodes}
    evaluation = train_here(RunFolder(place / "evaluation"), {"extras": extras})
    assert json.loads(evaluation.eval_summary.read_bytes())["avg_return"] == best.manifest["score"]


class StoppedWhileEvaluating(RecordingRun):
    evaluation_step = 0
    seen = 0

    def update(self, global_step: int) -> None:
        self.seen = self.seen + 1 if global_step == self.global_step else 0
        super().update(global_step)
        if self.evaluation_step and global_step >= self.evaluation_step and self.seen > 20:
            self.stop_requested = True


@pytest.mark.parametrize("case", ["ppo", "dqn", "sac", "ppo of frames"])
def test_a_training_that_is_stopped_or_killed_while_it_evaluates_ends_as_if_it_had_not_been(
    case: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(place / "straight", case)
    monkeypatch.setattr("tests.helpers.algorithm_cases.RecordingRun", StoppedWhileEvaluating)
    first_step = events(place / "straight", "evaluated")[1]["step"]
    stopped = train(place / "stopped", case, evaluation_step=first_step)
    assert stopped.global_step == first_step
    assert [report["step"] for report in events(place / "stopped", "evaluated")][-1] < first_step
    with pytest.raises(Killed):
        train(place / "killed", case, kill_at=first_step)

    for path in (place / "stopped", place / "killed"):
        train(path, case, latest_checkpoint(path))
        assert_same_checkpoint(latest_checkpoint(path), latest_checkpoint(place / "straight"))
        best = RunFolder(path).best_checkpoint.resolve().name
        assert best == RunFolder(place / "straight").best_checkpoint.resolve().name
        reports = {report["step"]: report["avg_return"] for report in events(path, "evaluated")}
        assert reports == {report["step"]: report["avg_return"] for report in events(place / "straight", "evaluated")}


def test_evaluations_leave_shared_random_states_alone(place: Path) -> None:
    import random

    import torch

    from cleanrl_worker.evaluation.during_training import preserve_random_states

    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(()))

    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = draw()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    with preserve_random_states():
        draw()
    assert draw() == expected


def test_an_evaluation_after_training_adds_no_points_to_the_curves_of_those_during_it(place: Path) -> None:
    extras = {"eval_every": 32, "num_eval_episodes": 2, "save_model": True}
    folder = train_here(RunFolder(place / "run"), small(extras=extras))

    assert [step for step, _ in evaluation_curves(folder.path)["eval/avg_return"]] == [32, 64]
    assert json.loads(folder.eval_summary.read_bytes())["episodes"] == 10
    [finished] = folder_events(folder, "finished")
    assert (finished["outcome"], finished["reason"], finished["global_step"]) == ("succeeded", None, 64)


# --- a return to reach


REACHABLE = {"total_timesteps": 20_000, "extras": {"num_envs": 4, "num_steps": 128, "stop_at_return": 15.0}}


def test_a_training_ends_when_its_last_100_episodes_reach_a_return(place: Path) -> None:
    folder = train_here(RunFolder(place / "run"), small(**REACHABLE))

    [finished] = folder_events(folder, "finished")
    episodes = [row for event in folder_events(folder, "episodes") for row in event["rows"]]
    step = finished["global_step"]
    mean = float(np.mean([row[4] for row in episodes[-100:]]))
    assert finished["outcome"] == "succeeded"
    assert finished["reason"] == (
        f"It reached stop_at_return = 15: the last 100 episodes until step {step:,} had a mean return of {mean:.6g}."
    )
    assert len(episodes) >= 100
    assert mean >= 15
    assert latest_checkpoint(folder.path).step == step < 20_000

    # Resumed with more steps, it trains them.
    longer = small(**{**REACHABLE, "total_timesteps": step + 1024})
    train_here(folder, longer, is_resume=True)
    finished = folder_events(folder, "finished")[-1]
    assert (finished["outcome"], finished["reason"], finished["global_step"]) == ("succeeded", None, step + 1024)
    assert latest_checkpoint(folder.path).facts["is_goal_reached"]


def test_few_episodes_do_not_reach_a_return(place: Path) -> None:
    folder = train_here(RunFolder(place / "run"), small(extras={"stop_at_return": 1.0}))
    [finished] = folder_events(folder, "finished")
    assert (finished["reason"], finished["global_step"]) == (None, 64)


def test_with_evaluations_their_mean_counts(place: Path) -> None:
    extras = {"num_envs": 4, "num_steps": 64, "eval_every": 256, "num_eval_episodes": 4, "stop_at_return": 30.0}
    folder = train_here(RunFolder(place / "run"), small(total_timesteps=20_480, extras=extras))

    *earlier, last = folder_events(folder, "evaluated")
    assert all(report["avg_return"] < 30 for report in earlier)
    assert last["avg_return"] >= 30
    [finished] = folder_events(folder, "finished")
    assert (finished["outcome"], finished["global_step"]) == ("succeeded", last["step"])
    assert f"the evaluation at step {last['step']:,} had a mean return of" in finished["reason"]
    assert folder.best_checkpoint.resolve().name == folder.last_checkpoint.resolve().name == str(last["step"])


def test_the_daemon_says_why_a_training_ended_early_and_extends_it(
    trainer: TrainerClient, workspace: Workspace
) -> None:
    """In the record, its history and `mosaic show`; its step and return are those of the training."""
    settings = {
        "env_id": "CartPole-v1", "total_timesteps": 20_480, "num_envs": 4, "num_steps": 64, "eval_every": 256,
        "num_eval_episodes": 4, "stop_at_return": 30.0,
    }  # fmt: skip
    run_id = trainer.submit(build_train_payload("cleanrl", "ppo", settings, {})).run_id
    view = ended(trainer, run_id, 60)
    step, series = view.global_step or 0, {one.tag: one for one in trainer.metrics(run_id)}
    assert step < 20_480
    assert view.end_reason == view.reason
    assert str(view.reason).startswith(f"It reached stop_at_return = 30: the evaluation at step {step:,} had a mean")
    assert trainer.get_run(run_id).history[-1].message == f"Succeeded: {view.reason}"
    assert f"why {view.reason}" in " ".join(mosaic(workspace, "show", run_id).out.split())
    returns = list(series["charts/episodic_return"].values)
    assert view.episodes == len(returns)
    assert view.episodic_return == pytest.approx(np.mean(returns[-100:]))
    assert list(series["eval/avg_return"].steps)[-1] == step
    assert formatting.progress_fraction(view) == step / 20_480

    with pytest.raises(NotAllowed, match=f"has succeeded after {step:,} steps. Extend it"):
        trainer.resume(run_id)
    trainer.resume(run_id, step + 512)
    view = ended(trainer, run_id, 60)
    assert (view.outcome, view.global_step, view.end_reason) == ("succeeded", step + 512, None)
    assert view.reason == "It completed all its steps."


def test_a_training_is_paused_and_cancelled_while_it_evaluates(trainer: TrainerClient) -> None:
    settings = {"env_id": "CartPole-v1", "num_steps": 16, "eval_every": 64, "num_eval_episodes": 100_000}
    run_id = trainer.submit(build_train_payload("cleanrl", "ppo", settings, {})).run_id
    wait_for(lambda: trainer.get_run(run_id).global_step == 64, "the evaluation")
    trainer.pause_run(run_id)
    wait_for(lambda: trainer.get_run(run_id).stage == "paused", "the pause")
    trainer.resume(run_id)
    wait_for(lambda: trainer.get_run(run_id).stage == "running", "the end of the pause")
    trainer.cancel_run(run_id)
    view = ended(trainer, run_id, 60)
    assert (view.outcome, view.global_step, view.checkpoint_step) == ("cancelled", 64, 64)
    assert not any(series.tag.startswith("eval/") for series in trainer.metrics(run_id)), "it was not complete"
