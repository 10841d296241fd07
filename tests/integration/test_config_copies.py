"""The texts that the Config tab copies start the same run, and its settings name what the run was started with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.helpers import shared_daemon
from tests.helpers.commands import MOSAIC, PATIENCE_S, mosaic
from tests.helpers.daemons import ended, wait_for
from tests.helpers.probe_scripts import start_script

from mosaic.base.run_payloads import build_train_payload
from mosaic.contracts.folder import Workspace
from mosaic.features.runs.window_model import to_command, to_python
from mosaic.trainer.client.trainer_client import TrainerClient

plugins, workspace, live, trainer = shared_daemon.FIXTURES


def run_text(workspace: Workspace, *argv: str) -> None:
    path = os.pathsep.join([str(Path(MOSAIC).parent), os.environ["PATH"]])
    env = {**os.environ, "MOSAIC_VAR": str(workspace.root), "PATH": path}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr


def newest_config(trainer: TrainerClient) -> dict[str, Any]:
    return trainer.config(trainer.runs(limit=1)[0].run_id)


def test_command_python_and_json_start_the_same_run(trainer: TrainerClient, workspace: Workspace) -> None:
    given = {
        "env_id": "CartPole-v1",
        "seed": 3,
        "total_timesteps": 600,
        "learning_rate": 0.001,
        "hidden_sizes": [8, 8],
        "env_kwargs": {"sutton_barto_reward": True},
        "anneal_lr": False,
        "tags": ("a", "b"),
        "run_name": "copy",
        "notes": 'a "quoted" note',
        "memory_mb": 4000,
    }
    first = trainer.submit(build_train_payload("cleanrl", "ppo", given, {})).run_id
    payload = trainer.config(first)
    command = to_command(payload)
    assert command.startswith("mosaic train ppo ")
    run_text(workspace, "sh", "-c", f"{command} --detach")
    assert newest_config(trainer) == payload
    python = to_python(payload)
    assert python.startswith("import mosaic\n\nrun = mosaic.train(\n    'ppo',\n    'CartPole-v1',\n")
    run_text(workspace, sys.executable, "-c", python)
    copy = newest_config(trainer)
    assert copy["artifacts"].pop("tensorboard") == {"enabled": True}, "the API states its default"
    assert copy == payload
    assert len(trainer.runs()) == 3


def test_what_no_form_shows_is_copied_as_a_whole(trainer: TrainerClient, workspace: Workspace) -> None:
    trained = trainer.submit(
        build_train_payload("cleanrl", "ppo", {"env_id": "CartPole-v1", "total_timesteps": 600}, {})
    ).run_id
    ended(trainer, trained)
    payload = {
        "kind": "policy_eval",
        "metadata": {"worker": trainer.config(trained)["metadata"]["worker"]},
        "artifacts": {},
        "evaluation": {"policy_path": trainer.get_run(trained).run_dir, "episodes": 2},
    }
    evaluation = trainer.submit(payload).run_id
    accepted = trainer.config(evaluation)
    run_text(workspace, "sh", "-c", to_command(accepted))
    assert newest_config(trainer) == accepted
    run_text(workspace, sys.executable, "-c", to_python(accepted))
    assert newest_config(trainer) == accepted
    assert {trainer.get_run(view.run_id).kind for view in trainer.runs(limit=3)} == {"policy_eval"}


def test_a_script_is_copied_as_the_command_that_runs_it_and_its_commit_is_recorded(
    trainer: TrainerClient, workspace: Workspace, tmp_path: Path
) -> None:
    folder = tmp_path / "it's mine"
    folder.mkdir()
    (folder / "script.py").write_text("")
    identity = ["-c", "user.name=n", "-c", "user.email=e@x"]
    for arguments in (["init"], ["add", "."], [*identity, "commit", "-m", "first"]):
        subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)
    run_id = start_script(trainer, folder, "print('hello')")
    ended(trainer, run_id)
    settings = trainer.read_settings(run_id)
    (source,) = settings.sources
    assert (source.folder, len(source.commit), source.is_dirty) == (str(folder), 40, True)
    assert settings.machine is not None
    assert settings.machine.cpus == os.cpu_count()
    assert settings.python == ".".join(map(str, sys.version_info[:3]))
    assert "gymnasium" in settings.packages
    command = to_command(trainer.config(run_id))
    run_text(workspace, "sh", "-c", command)
    assert newest_config(trainer)["metadata"]["worker"]["config"]["argv"] == [sys.executable, str(folder / "script.py")]
    shown = mosaic(workspace, "--json", "show", run_id).json
    assert shown["resolved"]["sources"] == [json.loads(source.model_dump_json())]
    assert source.commit[:10] in mosaic(workspace, "show", run_id).out


def test_a_training_run_reports_every_setting_and_its_packages(trainer: TrainerClient) -> None:
    given = {"env_id": "CartPole-v1", "total_timesteps": 600, "learning_rate": 0.01}
    run_id = trainer.submit(build_train_payload("cleanrl", "ppo", given, {})).run_id
    wait_for(lambda: trainer.read_settings(run_id).packages, "the packages")
    ended(trainer, run_id)
    settings = trainer.read_settings(run_id)
    changed = {setting.name: (setting.value, setting.default) for setting in settings.settings if setting.is_changed}
    assert changed == {"total_timesteps": (600, 500_000), "learning_rate": (0.01, 0.00025)}
    assert {"torch", "numpy", "gymnasium"} <= set(settings.packages)
    assert settings.sources == ()
