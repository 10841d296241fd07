"""One training run: the files it writes, its messages, and what its config decides."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.worker_runs import events, small, train_here

from cleanrl_worker.algorithms import ppo
from cleanrl_worker.shell import launcher
from cleanrl_worker.shell.worker_config import parse_request
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.contracts.folder import TENSORBOARD_VARIABLE, RunFolder
from mosaic.worker.worker_run import tensorboard_folder, write_rejection


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "it's a run")


def payload(config: dict[str, Any], **artifacts: Any) -> dict[str, Any]:
    return {"metadata": {"worker": {"id": "cleanrl", "config": config}}, "artifacts": artifacts}


def warnings(folder: RunFolder) -> dict[str, str]:
    return {event["code"]: event["text"] for event in events(folder, "warning")}


def test_a_run_leaves_a_journal_a_model_and_its_name(folder: RunFolder) -> None:
    train_here(folder, small())
    model = next(folder.models.glob("*/*.cleanrl_model"))
    assert model.parent.name.startswith("CartPole-v1__ppo__3__")
    assert json.loads(folder.analytics.read_text())["model"] == str(model.relative_to(folder.path))
    assert [event["outcome"] for event in events(folder, "finished")] == ["succeeded"]
    assert warnings(folder) == {}


def test_no_model_is_saved_unless_requested(folder: RunFolder) -> None:
    train_here(folder, small(extras={"save_model": False}))
    assert not folder.models.exists()


def test_event_files_go_to_the_given_directory(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def place(config: dict[str, Any]) -> Path | None:
        return tensorboard_folder(parse_request(config).payload, folder)

    assert place(small()) == folder.tensorboard
    monkeypatch.setenv(TENSORBOARD_VARIABLE, str(tmp_path / "given"))
    assert place(small()) == tmp_path / "given"
    assert place(small(extras={"tensorboard_dir": "tb/here"})) == folder.path / "tb" / "here"
    assert place({"extras": {"mode": "policy_eval", "policy_path": "/x"}}) == folder.tensorboard_eval
    train_here(folder, payload(small(), tensorboard={"enabled": False}))
    assert not folder.tensorboard.exists()
    assert not (tmp_path / "given").exists()


def test_the_payload_sets_the_number_of_kept_checkpoints(folder: RunFolder) -> None:
    train_here(folder, payload(small(total_timesteps=320, extras={"checkpoint_every": 32}), keep_checkpoints=2))
    steps = sorted(int(path.name) for path in folder.checkpoints.iterdir() if path.name.isdecimal())
    assert steps[-2:] == [288, 320]
    assert len(steps) <= 3, "the latest two and the best"


def test_a_tracked_run_does_nothing_else_in_its_worker(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """R4.2: W&B only if tracked, inside the run."""
    monkeypatch.setitem(sys.modules, "wandb", None)  # otherwise an import of it would fail
    train_here(folder, payload(small(extras={"track_wandb": True}), wandb={"enabled": True}, trackio={"enabled": True}))
    assert events(folder, "warning") == []
    assert not folder.wandb.exists()


def test_a_resumed_run_keeps_its_name_and_continues(folder: RunFolder) -> None:
    train_here(folder, small(total_timesteps=64))
    earlier = folder.models / "CartPole-v1__ppo__3__1000"  # as if it had started long ago
    next(folder.models.iterdir()).rename(earlier)
    train_here(folder, small(total_timesteps=128), is_resume=True)
    assert [event["resumed_from"] for event in events(folder, "hello")] == [None, 64]
    assert list(folder.models.iterdir()) == [earlier]
    tables = [path for path in folder.tensorboard.iterdir() if b"|param|value|" in path.read_bytes()]
    assert len(tables) == 1, "the table of settings is written once"
    assert events(folder, "finished")[-1]["global_step"] == 128


def test_a_refusal_comes_before_the_folder_is_made(folder: RunFolder) -> None:
    with pytest.raises(BadInput):
        train_here(folder, small(env_id="Pendulum-v1"))
    assert not folder.path.exists()


@pytest.mark.parametrize(
    ("error", "outcome"), [(MosaicError("It broke."), "failed"), (BadInput("Not so."), "rejected")]
)
def test_an_error_that_the_user_can_act_on_ends_the_run_with_its_sentence(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, error: MosaicError, outcome: str
) -> None:
    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(ppo, "train", fails)
    with pytest.raises(type(error)):
        train_here(folder, small())
    finished = events(folder, "finished")
    assert [(event["outcome"], event["reason"]) for event in finished] == [(outcome, str(error))]


def test_a_bug_records_no_outcome(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(ppo, "train", fails)
    with pytest.raises(ZeroDivisionError):
        train_here(folder, small())
    assert events(folder, "finished") == []


def test_a_stop_ends_the_run_with_a_checkpoint(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    update = launcher.ConsoleRun.update

    def stop_soon(run: launcher.ConsoleRun, global_step: int) -> None:
        update(run, global_step)
        run.stop_requested = global_step >= 64

    monkeypatch.setattr(launcher.ConsoleRun, "update", stop_soon)
    train_here(folder, small(total_timesteps=3200))
    assert [(event["outcome"], event["global_step"]) for event in events(folder, "finished")] == [("stopped", 64)]
    assert folder.last_checkpoint.resolve() == folder.checkpoint(64).resolve()


def test_console_lines_are_limited_by_time(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train_here(folder, small(total_timesteps=3200))
    lines = capsys.readouterr().out.splitlines()
    rows = [row for event in events(folder, "episodes") for row in event["rows"]]
    assert lines[-1] == f"global_step={rows[-1][2]}, episodic_return={rows[-1][4]:g}", "the last episode's end"
    assert len(lines) < 100 / 2, "there were a hundred updates"


def test_a_rejected_run_has_its_reason_in_the_journal(folder: RunFolder) -> None:
    write_rejection("cleanrl", folder, "Not this one.")
    assert [event["kind"] for event in events(folder, "hello")] == ["hello"]
    finished = events(folder, "finished")
    assert [(event["outcome"], event["reason"]) for event in finished] == [("rejected", "Not this one.")]
