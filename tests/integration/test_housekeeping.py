"""`mosaic disk` and `mosaic prune` with real runs: what is measured, what is removed, and what can be resumed then."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.commands import mosaic
from tests.helpers.daemons import LiveDaemon, ended, running_daemon, scripted, wait_for

from mosaic.base.checkpoint_files import is_intact, list_steps
from mosaic.base.run_payloads import build_eval_payload
from mosaic.contracts.disk_views import DiskKind, PruneItem
from mosaic.contracts.errors import BadInput, NoDaemon, NotAllowed
from mosaic.contracts.folder import PRUNED_PREFIX, RunFolder, Workspace
from mosaic.contracts.views import RunView
from mosaic.trainer.client.trainer_client import TrainerClient

STEPS = 600


def training(total_timesteps: int = STEPS) -> dict[str, Any]:
    settings = {"learning_starts": 50, "checkpoint_every": 100, "buffer_size": 2000}
    config = {"algo": "dqn", "env_id": "CartPole-v1", "total_timesteps": total_timesteps, "extras": settings}
    return {
        "metadata": {"worker": {"id": "cleanrl", "config": config}, "group": "small"},
        "artifacts": {"keep_checkpoints": 99},
    }


def train(trainer: TrainerClient) -> tuple[RunView, RunFolder]:
    view = ended(trainer, trainer.submit(training()).run_id)
    assert view.outcome == "succeeded", view.reason
    folder = RunFolder(view.run_dir)
    assert len(list_steps(folder)) == STEPS // 100
    return view, folder


def prune(trainer: TrainerClient, *runs: str, **fields: Any) -> tuple[list[PruneItem], list[str]]:
    parts = list(trainer.prune_runs(runs, **fields))
    return [item for part in parts for item in part.items], [note for part in parts for note in part.notes]


def test_a_pruned_run_resumes_and_says_that_it_is_not_exact(trainer: TrainerClient, workspace: Workspace) -> None:
    view, folder = train(trainer)
    kept = {int(link.resolve().name) for link in (folder.last_checkpoint, folder.best_checkpoint)}
    before = next(iter(trainer.read_disk_usage([view.run_id], largest=1))).largest[0]
    planned, _ = prune(trainer, view.run_id, checkpoints=True, replay=True, is_dry_run=True)
    assert len(list_steps(folder)) == STEPS // 100, "a dry run removes nothing"
    removed, notes = prune(trainer, view.run_id, checkpoints=True, replay=True)
    assert (removed, notes) == (planned, [])
    assert set(list_steps(folder)) == kept
    assert all(is_intact(folder.checkpoint(step)) for step in kept)
    assert not list(workspace.runs.glob(f"{PRUNED_PREFIX}*"))
    after = next(iter(trainer.read_disk_usage([view.run_id], largest=1))).largest[0]
    assert DiskKind.REPLAY not in after.size_bytes
    freed = before.total_bytes - after.total_bytes
    assert 0.9 * freed < sum(item.size_bytes for item in removed) < 1.1 * freed
    assert "Pruned: old checkpoints, the replay buffer" in trainer.get_run(view.run_id).history[-1].message
    assert prune(trainer, view.run_id, checkpoints=True, replay=True) == ([], [])
    trainer.resume(view.run_id, STEPS + 200)
    again = ended(trainer, view.run_id)
    assert again.outcome == "succeeded", again.reason
    assert again.global_step == STEPS + 200
    assert any("not exactly" in entry.message and "mosaic prune" in entry.message for entry in again.history)


def test_a_run_without_its_older_checkpoints_resumes_exactly(trainer: TrainerClient) -> None:
    """R3.12: pruning leaves what a resume needs."""
    view, folder = train(trainer)
    prune(trainer, view.run_id, checkpoints=True, keep=2)
    assert list_steps(folder)[-2:] == [STEPS - 100, STEPS]
    trainer.resume(view.run_id, STEPS + 100)
    again = ended(trainer, view.run_id)
    assert again.outcome == "succeeded", again.reason
    assert not any("not exactly" in entry.message for entry in again.history)


def test_active_runs_are_refused_by_name_and_passed_over_otherwise(trainer: TrainerClient) -> None:
    view, folder = train(trainer)
    active = trainer.submit(scripted(steps=1_000_000, dt=0.02)).run_id
    with pytest.raises(NotAllowed, match=f"Run {active} is .*mosaic cancel {active}"):
        prune(trainer, view.run_id, active, checkpoints=True)
    assert len(list_steps(folder)) == STEPS // 100, "nothing of the others was removed"
    items, _ = prune(trainer, checkpoints=True)
    assert {item.run_id for item in items} == {view.run_id}
    with pytest.raises(BadInput, match="Nothing to prune"):
        prune(trainer, view.run_id)
    assert prune(trainer, replay=True, older_than_s=3600.0) == ([], []), "it ended a moment ago"


def test_what_an_evaluation_refers_to_is_kept(workspace: Workspace, plugins: Path) -> None:
    with running_daemon(workspace, plugins, "--max-runs", "1") as (_, trainer):
        view, folder = train(trainer)
        best = int(folder.best_checkpoint.resolve().name)
        evaluated, used = [step for step in list_steps(folder)[:-1] if step != best][:2]

        def evaluate(path: Path, **options: Any) -> dict[str, Any]:
            options = {"eval_batch_size": 1, **options}
            return build_eval_payload({"id": "cleanrl", "config": {}}, str(path), options)

        assert ended(trainer, trainer.submit(evaluate(folder.checkpoint(evaluated))).run_id).outcome == "succeeded"
        other = train(trainer)[1].best_checkpoint.resolve()
        holder = trainer.submit(evaluate(other, eval_repeat=True)).run_id
        wait_for(lambda: trainer.get_run(holder).stage == "running", "the evaluation that holds the slot")
        waiting = trainer.submit(evaluate(folder.checkpoint(used))).run_id
        items, notes = prune(trainer, view.run_id, checkpoints=True)
        assert items == []
        assert notes == [f"Run {view.run_id} keeps its files: run {waiting}, which is queued, uses them."]
        trainer.cancel_run(waiting)
        ended(trainer, waiting)
        items, notes = prune(trainer, view.run_id, checkpoints=True)
        assert notes == []
        assert evaluated in list_steps(folder), "its result is in the leaderboard"
        assert used not in list_steps(folder)


DIES = """
import os, signal
from mosaic.trainer import __main__
from mosaic.features.disk import daemon as disk
sync = disk.fsync_path
def die(*paths, **_):
    if "{name}" == "fsync_path" and paths[0].name != "checkpoints":
        sync(*paths)
    else:
        os.kill(os.getpid(), signal.SIGKILL)
disk.{name} = die
raise SystemExit(__main__.main())
"""


@pytest.mark.parametrize("name", ["copy_without_replay", "exchange_folders", "fsync_path", "shutil.rmtree"])
def test_a_daemon_killed_while_it_prunes_leaves_complete_checkpoints(
    workspace: Workspace, plugins: Path, name: str
) -> None:
    daemon = LiveDaemon(workspace, plugins)
    with daemon.start() as trainer:
        view, folder = train(trainer)
    daemon.stop()
    command, daemon.command = daemon.command, [sys.executable, "-c", DIES.format(name=name)]
    with daemon.start() as trainer, suppress(NoDaemon):
        prune(trainer, view.run_id, checkpoints=True, replay=True)
    assert daemon.process is not None
    daemon.process.wait()
    assert list(workspace.runs.glob(f"{PRUNED_PREFIX}*")), "it was killed before it had deleted anything"
    assert STEPS in list_steps(folder)
    assert all(is_intact(folder.checkpoint(step)) for step in list_steps(folder))
    daemon.command = command
    with daemon.start() as trainer:
        assert not list(workspace.runs.glob(f"{PRUNED_PREFIX}*"))
        prune(trainer, view.run_id, checkpoints=True, replay=True)
        trainer.resume(view.run_id, STEPS + 100)
        assert ended(trainer, view.run_id).outcome == "succeeded"
    daemon.end()


def test_the_command_line_asks_before_it_removes_anything(trainer: TrainerClient, workspace: Workspace) -> None:
    """R1.1: what an ended run has written is removed on request only."""
    view, folder = train(trainer)
    shown = mosaic(workspace, "disk")
    assert shown.code == 0
    assert all(words in shown.out for words in ("checkpoints", "index", "all of 1 run", view.run_id[-6:], "dqn"))
    assert mosaic(workspace, "disk", "small", "--json").json["largest"][0]["run_id"] == view.run_id
    dry = mosaic(workspace, "prune", "--checkpoints", "--videos")
    assert (dry.code, "add --yes" in dry.err) == (0, True)
    assert len(list_steps(folder)) == STEPS // 100, "there is no terminal to ask in"
    done = mosaic(workspace, "prune", "small", "--checkpoints", "--yes", "--json")
    assert done.json["is_dry_run"] is False
    assert done.json["size_bytes"] == done.json["by_kind"]["checkpoints"] > 0
    trainer.delete_run(view.run_id)
    assert mosaic(workspace, "prune", "--trash", "--older-than", "1h", "--yes", "--json").json["items"] == []
    emptied = mosaic(workspace, "prune", "--trash", "--yes")
    assert "Removed" in emptied.err
    assert not (workspace.trash / view.run_id).exists()
    for wrong in (["prune"], ["prune", "--replay", "--keep", "2"], ["prune", "x", "--trash"]):
        assert mosaic(workspace, *wrong).code == 2, wrong
    assert "such as 90s, 30m, 2h or 1d" in mosaic(workspace, "prune", "--trash", "--older-than", "soon").err
