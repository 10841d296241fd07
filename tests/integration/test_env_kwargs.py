"""Settings of an environment through the life of a training: resumed, recorded, evaluated, played."""

from __future__ import annotations

import json

import pytest
from tests.helpers.daemons import ended

from mosaic.api.play_payload import build_play_payload
from mosaic.api.policy_lookup import evaluation_payload
from mosaic.api.replays import replay_episodes
from mosaic.client import TrainerClient
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.views import RunView
from mosaic.run import last_good_checkpoint
from mosaic.submission.run_payloads import build_train_payload

ENV_KWARGS = {"is_slippery": False, "desc": ["SFFG"]}
"""On this map the goal is three steps to the right: a slippery one would need more on average."""
SETTINGS = {"env_id": "FrozenLake-v1", "total_timesteps": 2_048, "seed": 1, "record_episodes": True}


def train(trainer: TrainerClient, worker: str, algo: str) -> RunView:
    settings = {**SETTINGS, "env_kwargs": ENV_KWARGS}
    if worker == "bdi":
        settings.pop("record_episodes")
    view = trainer.submit(build_train_payload(worker, algo, settings, {}))
    view = ended(trainer, view.run_id, 120)
    assert view.outcome == "succeeded", view
    return view


def env_kwargs_of_checkpoint(view: RunView) -> object:
    checkpoint = last_good_checkpoint(RunFolder(view.run_dir))
    assert checkpoint is not None
    return checkpoint.facts["config"]["env_kwargs"]


@pytest.mark.parametrize(("worker", "algo"), [("cleanrl", "ppo"), ("bdi", "bdi_q")])
def test_settings_last_from_the_training_to_the_evaluation(trainer: TrainerClient, worker: str, algo: str) -> None:
    """R3.14: environment settings."""
    if worker == "bdi":
        pytest.importorskip("agentspeak")
    view = train(trainer, worker, algo)
    assert env_kwargs_of_checkpoint(view) == ENV_KWARGS

    trainer.resume(view.run_id, 4_096)
    view = ended(trainer, view.run_id, 120)
    assert (view.outcome, view.global_step) == ("succeeded", 4_096)
    assert env_kwargs_of_checkpoint(view) == ENV_KWARGS

    evaluation = trainer.submit(evaluation_payload(trainer, view.run_id, {"eval_batch_size": 5}))
    evaluation = ended(trainer, evaluation.run_id, 120)
    assert evaluation.outcome == "succeeded", evaluation
    episodes = list(trainer.episodes(evaluation.run_id))
    assert [(episode.episodic_return, episode.length) for episode in episodes] == [(1.0, 3)] * 5

    if worker == "cleanrl":
        recording = trainer.open_file(view.run_id, "recording.bin")
        reports = list(replay_episodes(recording, 0))
        assert [report.is_identical for report in reports] == [True]

    payload = build_play_payload(
        trainer, "FrozenLake-v1", {"*": f"policy:{view.run_id}"}, {"env_kwargs": ENV_KWARGS, "episodes": 2}
    )
    session = ended(trainer, trainer.submit(payload).run_id, 120)
    assert session.outcome == "succeeded", session
    summary = trainer.read_json(session.run_id, "play_summary.json")
    assert summary["agents"]["*"]["avg_length"] == 3, json.dumps(summary)
