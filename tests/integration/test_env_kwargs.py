"""Settings of an environment through the life of a training: resumed, recorded, evaluated, played."""

from __future__ import annotations

import json
import os
import signal

import pytest
from tests.helpers.daemons import ended, wait_for

from mosaic.base.checkpoint_files import list_steps
from mosaic.base.run_payloads import build_train_payload
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.views import RunView
from mosaic.features.evaluate.api import evaluation_payload
from mosaic.features.play.core import build_play_payload
from mosaic.features.replay.api import replay_episodes
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.worker.checkpoints import last_good_checkpoint
from mosaic.worker.recording import Recording

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


@pytest.mark.parametrize("processes", [1, 2])
def test_a_drawn_map_is_one_map_in_a_training_its_resume_evaluation_and_replays(
    trainer: TrainerClient, processes: int
) -> None:
    """The constructor draws the map: in each environment of each process, also after a kill."""
    drawn = {"is_slippery": False, "map_name": None}
    settings = {**SETTINGS, "env_kwargs": drawn, "num_envs": 4, "num_steps": 64, "env_processes": processes}
    settings |= {"total_timesteps": 100_000_000, "checkpoint_every": 1_024}
    run_id = trainer.submit(build_train_payload("cleanrl", "ppo", settings, {})).run_id
    folder = RunFolder(trainer.get_run(run_id).run_dir)
    wait_for(lambda: len(list_steps(folder)) > 1, "some checkpoints", 120)
    pid = trainer.get_run(run_id).pid
    assert pid is not None
    os.killpg(pid, signal.SIGKILL)
    killed = ended(trainer, run_id)
    step = list_steps(folder)[-1]
    assert killed.outcome == "failed"
    trainer.resume(run_id, step + 8_192)
    view = ended(trainer, run_id, 120)
    assert (view.outcome, view.global_step) == ("succeeded", step + 8_192)
    with Recording(folder.recording) as recording:
        numbers = recording.numbers
        before, after = [number for number in numbers if number < 40], numbers[-40:]
        assert {tuple(recording.episode(number).hashes[:1]) for number in numbers} == {recording.episode(0).hashes[:1]}
    for number in (*before[::8], *after[::8]):
        (report,) = replay_episodes(folder.recording, number)
        assert (report.is_identical, "observations" in report.compared) == (True, True), report
    options = {"eval_batch_size": 5, "record_episodes": True}
    evaluation = ended(trainer, trainer.submit(evaluation_payload(trainer, run_id, options)).run_id, 120)
    played = {"env_kwargs": drawn, "episodes": 2}
    payload = build_play_payload(trainer, "FrozenLake-v1", {"*": f"policy:{run_id}"}, played)
    session = ended(trainer, trainer.submit(payload).run_id, 120)
    for one in (evaluation, session):
        reports = list(replay_episodes(RunFolder(one.run_dir).recording))
        assert [report.is_identical for report in reports] == [True] * len(reports) != []
    with (
        Recording(RunFolder(evaluation.run_dir).recording) as first,
        Recording(RunFolder(session.run_dir).recording) as other,
    ):
        assert {first.episode(0).actions.tobytes()} == {other.episode(0).actions.tobytes()}
