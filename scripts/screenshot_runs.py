"""The runs that `scripts/screenshots.py` shows: one of each kind, an experiment and a sweep."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tests.helpers.daemons import ended
from tests.helpers.gui import pump

from mosaic.base.run_payloads import build_eval_payload, build_payload, build_train_payload, with_seed
from mosaic.contracts.folder import Workspace
from mosaic.contracts.play import ANY_AGENT
from mosaic.features.experiments.api import follow_runs, read_experiment, submit_missing
from mosaic.features.experiments.core import plan_experiment
from mosaic.features.play.core import build_play_payload
from mosaic.features.sweeps.core_loop import SweepLoop, open_study
from mosaic.trainer.client.exports import ExportTask, export_zip
from mosaic.trainer.client.trainer_client import TrainerClient


def submit_training(
    trainer: TrainerClient, algo: str, env_id: str, steps: int, track: bool = False, **options: Any
) -> str:
    settings = {"env_id": env_id, "total_timesteps": steps, "seed": 1} | ({"track": True} if track else {})
    view = trainer.submit(build_train_payload("cleanrl", algo, settings | options, {}))
    return str(view.run_id)


def make_runs(trainer: TrainerClient) -> dict[str, str]:
    """Create one run of each kind, by what it shows."""
    tags, notes = ("baseline", "good"), "The first one."
    runs = {"cartpole": submit_training(trainer, "ppo", "CartPole-v1", 150_000, track=True, tags=tags, notes=notes)}
    acrobot = build_train_payload("cleanrl", "ppo", {"env_id": "Acrobot-v1", "total_timesteps": 60_000}, {})
    for seed in (1, 2, 3):
        runs[f"seed{seed}"] = trainer.submit(with_seed(acrobot, seed, "acrobot")).run_id
    runs["short"] = submit_training(trainer, "ppo", "MountainCar-v0", 20_000_000, max_seconds=4.0)
    runs["stopped"] = submit_training(trainer, "ppo", "CartPole-v1", 5_000_000, tags=("long",))
    for name in ("cartpole", "seed1", "seed2", "seed3", "short"):
        ended(trainer, runs[name], 180)
    pump(lambda: (trainer.get_run(runs["stopped"]).global_step or 0) > 20_000, "some steps", 60)
    trainer.cancel_run(runs["stopped"])
    ended(trainer, runs["stopped"])
    for name, of, episodes in (("other", "seed1", 30), ("evaluation", "cartpole", 10)):
        checkpoint = str(Path(trainer.get_run(runs[of]).run_dir) / "checkpoints" / "last")
        worker = trainer.config(runs[of])["metadata"]["worker"]
        options = {"eval_batch_size": episodes, "eval_capture_video": name == "evaluation"}
        evaluation = build_eval_payload(worker, checkpoint, options)
        runs[name] = trainer.submit(evaluation).run_id
        ended(trainer, runs[name], 120)
    for name, env_id, settings in (
        ("played", "CartPole-v1", {"episodes": 6}),
        ("lake", "FrozenLake-v1", {"episodes": 3, "seed": 4}),
        ("moon", "LunarLander-v3", {"episodes": 2}),
    ):
        runs[name] = trainer.submit(build_play_payload(trainer, env_id, {ANY_AGENT: "random"}, settings)).run_id
        ended(trainer, runs[name], 60)
    runs["imported"] = import_copy(trainer, submit_script(trainer))
    delete_two(trainer)
    runs["running"] = submit_training(trainer, "ppo_continuous_action", "Pendulum-v1", 20_000_000, tags=("long",))
    pump(lambda: (trainer.get_run(runs["running"]).global_step or 0) > 10_000, "some steps", 60)
    runs["queued"] = queue_run(trainer)
    return runs


def queue_run(trainer: TrainerClient) -> str:
    """Submit a run that waits for the slot of the running one."""
    trainer.set_cap(1)
    return submit_training(trainer, "ppo", "CartPole-v1", 20_000_000, priority=2)


def make_room(trainer: TrainerClient, queued: str) -> None:
    """Delete the run that waits, and leave slots to play sessions."""
    trainer.cancel_run(queued)
    ended(trainer, queued)
    trainer.delete_run(queued)
    trainer.set_cap(4)


def submit_script(trainer: TrainerClient) -> str:
    script = Path(trainer.get_status().workspace) / "hello.py"
    script.write_text("print('hello')\n", encoding="utf-8")
    config = {"argv": [sys.executable, str(script), "--quiet"], "cwd": str(script.parent), "algo": "hello"}
    environment = {"PATH": os.environ["PATH"]}
    run_id = str(trainer.submit(build_payload({"id": "script", "config": config}), environment).run_id)
    ended(trainer, run_id)
    return run_id


def import_copy(trainer: TrainerClient, run_id: str) -> str:
    """Replace a run by its exported copy."""
    path = Path(trainer.get_status().workspace) / "exported.zip"
    export_zip(trainer, trainer.get_run(run_id), path, ExportTask("export"))
    trainer.delete_run(run_id)
    return str(trainer.import_run(str(path)).run_id)


def delete_two(trainer: TrainerClient) -> None:
    """Leave two runs in the trash."""
    for seed in (1, 2):
        run_id = submit_training(trainer, "ppo", "CartPole-v1", 2_000, seed=seed, run_name=f"first try {seed}")
        ended(trainer, run_id)
        trainer.delete_run(run_id)


def make_experiment(trainer: TrainerClient) -> None:
    """Two algorithms on two environments with three seeds each."""
    lake = {"id": "FrozenLake-v1", "label": "no slip", "env_kwargs": {"is_slippery": False}}
    data = {
        "name": "study",
        "algorithms": ["ppo", {"name": "a2c", "learning_rate": 1e-3}],
        "environments": ["CartPole-v1", lake],
        "seeds": "1-3",
        "settings": {"total_timesteps": 20_000},
    }
    plan = plan_experiment(read_experiment(data))
    submit_missing(lambda call: call(trainer), plan)
    follow_runs(lambda call: call(trainer), plan)


def make_sweep(trainer: TrainerClient, workspace: Workspace) -> None:
    data = {
        "name": "search",
        "algorithm": "ppo",
        "environments": ["CartPole-v1"],
        "settings": {"total_timesteps": 8_000},
        "search": {
            "learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
            "num_steps": {"values": [64, 128, 256]},
            "activation": {"choices": ["tanh", "relu"]},
            "ent_coef": {"low": 0.0, "high": 0.05},
        },
        "sampler": "random",
        "trials": 16,
        "pruning": {"method": "median", "startup_trials": 6},
    }
    with open_study(workspace, data) as study:
        SweepLoop(lambda call: call(trainer), study).run()
