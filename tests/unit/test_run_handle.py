"""The run handle: logged values are the same everywhere, and commands are obeyed."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.run_folders import (
    events,
    journal_points,
    load_event_file,
    make_run_folder,
    open_run,
    save,
    send_command,
    tensorboard_points,
)

from mosaic.base.checkpoint_files import STATE
from mosaic.base.journal import Journal, Outbox, read_all
from mosaic.contracts.events import EVENT_TYPES
from mosaic.contracts.folder import INBOX_OFFSET_VARIABLE, RUN_DIR_VARIABLE, RunFolder
from mosaic.worker import run as handle
from mosaic.worker.checkpoints import last_good_checkpoint
from mosaic.worker.run import Run


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return make_run_folder(tmp_path)


def analytics(folder: RunFolder) -> dict[str, Any]:
    entries: dict[str, Any] = json.loads(folder.analytics.read_text())
    return entries


def train(run: Run, begin: int, end: int) -> None:
    three: Any = np.int64(3)
    for step in range(begin, end):
        run.scalar("losses/value_loss", math.sin(step), step)
        run.scalars(step, {"charts/SPS": step * 0.1, "charts/learning_rate": np.float32(0.1)})
        if step % 3 == 0:
            run.episode(env=step % 2, step=step, episodic_return=np.float64(step / 7), length=three)
        run.update(step)


def tick(run: Run) -> None:
    """Do everything that waits for the clock."""
    run._due_at = 0.0
    run.update(run.global_step)


def test_every_line_matches_its_contract(folder: RunFolder) -> None:
    with open_run(folder, total_timesteps=100) as run:
        run.hello()
        train(run, 0, 50)
        save(run, 49)
        run.scalar("losses/value_loss", math.nan, 50)
        run.episode(env=0, step=50, episodic_return=math.inf, length=1)
        run.warn("Something is odd.", "odd")
        run.finish()
    lines = read_all(folder.journal)
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert {line["kind"] for line in lines} >= {"hello", "progress", "metrics", "episodes", "checkpoint", "finished"}
    for line in lines:
        EVENT_TYPES[line["kind"]].model_validate(line)


def test_journal_tensorboard_and_analytics_have_the_same_points(folder: RunFolder) -> None:
    """R3.7: metrics."""
    with open_run(folder) as run:
        run.hello()
        train(run, 0, 1000)
        run.finish()
    points = journal_points(folder)
    assert len(points["losses/value_loss"]) == 1000
    assert len(points["charts/episodic_return"]) == 334
    assert tensorboard_points(folder.tensorboard) == points
    newest = {tag: (*rows[-1], len(rows)) for tag, rows in points.items()}
    shown = analytics(folder)
    assert {tag: tuple(entry.values()) for tag, entry in shown["scalars"].items()} == newest
    assert shown["episodes"] == 334
    assert shown["mean_return"] == run.mean_return
    assert shown["tensorboard"] == {"dir": "tensorboard", "enabled": True}


def test_without_tensorboard_there_is_no_event_file(folder: RunFolder) -> None:
    with open_run(folder, tensorboard=None) as run:
        run.hello()
        run.hyperparameters({"seed": 1})
        train(run, 0, 5)
        run.finish()
    assert not folder.tensorboard.exists()
    assert analytics(folder)["tensorboard"] == {"dir": None, "enabled": False}


def test_hyperparameters_are_a_table(folder: RunFolder) -> None:
    with open_run(folder) as run:
        run.hello()
        run.hyperparameters({"learning_rate": 0.1, "anneal": True})
    [event] = load_event_file(folder.tensorboard).Tensors("hyperparameters/text_summary")
    assert event.tensor_proto.string_val == [b"|param|value|\n|-|-|\n|learning_rate|0.1|\n|anneal|True|"]


def test_values_that_are_not_finite_are_null_and_reported_once_per_tag(folder: RunFolder) -> None:
    """F40: whatever an algorithm logs."""
    with open_run(folder) as run:
        run.hello()
        for step, value in enumerate((1.0, math.nan, math.inf, 1e300, 2.0)):
            run.scalar("losses/a", value, step)
            run.scalar("losses/b", 1.0, step)
        run.episode(env=0, step=9, episodic_return=-math.inf, length=3)
        run.finish()
    assert [row[2] for row in journal_points(folder)["losses/a"]] == [1.0, None, None, None, 2.0]
    assert events(folder, "episodes")[0]["rows"][0][4] is None
    anomalies = [(event["tag"], event["step"]) for event in events(folder, "anomaly")]
    assert anomalies == [("losses/a", 1), ("charts/episodic_return", 9)]
    assert "NaN" not in folder.journal.read_text()
    shown = [value for _, _, value in tensorboard_points(folder.tensorboard)["losses/a"]]
    assert [math.isfinite(value) for value in shown] == [True, False, False, False, True]
    assert run.mean_return is None


def test_the_mean_return_is_over_the_last_hundred_episodes(folder: RunFolder) -> None:
    with open_run(folder) as run:
        assert run.mean_return is None
        for number in range(150):
            run.episode(env=0, step=number, episodic_return=number, length=1)
        assert run.mean_return == 99.5
        assert run.episode_count == 150


def test_a_steady_loop_writes_about_ten_lines_per_second(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(handle, "_monotonic", lambda: clock[0])
    with open_run(folder) as run:
        run.hello()
        before = len(read_all(folder.journal))
        for step in range(10_000):
            clock[0] += 0.001
            run.scalar("a", 1.0, step)
            run.episode(env=0, step=step, episodic_return=1.0, length=1)
            run.update(step)
        lines = len(read_all(folder.journal)) - before
        assert 60 <= lines <= 110
        assert 9 <= len(events(folder, "progress")) <= 12


def test_many_buffered_points_are_written_in_lines_of_bounded_length(folder: RunFolder) -> None:
    with open_run(folder, tensorboard=None) as run:
        run.hello()
        for step in range(12_000):
            run.scalar("a", 1.0, step)
            run.episode(env=0, step=step, episodic_return=1.0, length=1)
        run.finish()
    assert [len(event["series"]["a"]) for event in events(folder, "metrics")] == [5000, 5000, 2000]
    assert [len(event["rows"]) for event in events(folder, "episodes")] == [5000, 5000, 2000]


# --- commands


def test_a_stop_in_the_inbox_is_read_at_the_next_update(folder: RunFolder) -> None:
    with open_run(folder) as run:
        run.hello()
        run.update(1)
        send_command(folder, "stop")
        assert not run.stop_requested
        tick(run)
        assert run.stop_requested


def test_a_requested_checkpoint_is_due_once(folder: RunFolder) -> None:
    with open_run(folder) as run:
        run.hello()
        send_command(folder, "checkpoint")
        tick(run)
        assert run.checkpoint_due(7)
        save(run, 7)
        assert not run.checkpoint_due(8)


@pytest.mark.parametrize("end", ["resume", "stop", "signal"])
def test_a_paused_run_waits_for_a_command(folder: RunFolder, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    with open_run(folder) as run:
        run.hello()
        run.scalar("a", 1.0, 5)
        run.update(5)
        sleeps = []

        def sleep(seconds: float) -> None:
            sleeps.append(seconds)
            if len(sleeps) == 3:
                assert not events(folder, "resumed")
                assert journal_points(folder)["a"]
                if end == "signal":
                    signal.raise_signal(signal.SIGTERM)
                else:
                    send_command(folder, end)

        monkeypatch.setattr("mosaic.worker.run.time.sleep", sleep)
        send_command(folder, "pause", by_signal=False)
        tick(run)
        assert len(sleeps) == 3
        assert run.stop_requested == (end != "resume")
    kinds = [event["kind"] for event in read_all(folder.journal)]
    assert kinds.index("paused") < kinds.index("resumed")
    assert "progress" in kinds[kinds.index("paused") : kinds.index("resumed")]
    assert events(folder, "paused")[0]["global_step"] == 5


def test_a_pause_by_signal_is_left_to_the_keeper(folder: RunFolder) -> None:
    with open_run(folder) as run:
        run.hello()
        send_command(folder, "pause", by_signal=True)
        tick(run)
    assert not events(folder, "paused")


def test_commands_for_an_earlier_attempt_are_not_obeyed_again(folder: RunFolder) -> None:
    with open_run(folder) as run:
        run.hello()
        send_command(folder, "stop")
        tick(run)
        run.finish("stopped")
    with open_run(folder) as run:
        run.hello()
        tick(run)
        assert not run.stop_requested


def test_the_inbox_offset_is_read_from_the_environment(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.path.mkdir(parents=True)
    send_command(folder, "stop")
    monkeypatch.setenv(RUN_DIR_VARIABLE, str(folder.path))
    monkeypatch.setenv(INBOX_OFFSET_VARIABLE, str(folder.inbox.stat().st_size))
    send_command(folder, "checkpoint", at=0.0)
    with open_run(folder) as run:
        run.hello()
        tick(run)
        assert not run.stop_requested
        assert run.checkpoint_due(1)


def test_a_further_process_adds_to_the_run_with_files_of_its_own(folder: RunFolder) -> None:
    with open_run(folder, tensorboard=folder.tensorboard) as run:
        run.hello()
        send_command(folder, "stop", at=0.0)
        tick(run)
        assert not run.stop_requested, "The command is older than this process."
        train(run, 1, 10)
        run.save_checkpoint(9, weights={"w": np.zeros(2)}, arrays={}, facts={})
        written = analytics(folder)
        (folder.checkpoints / ".10.tmp").mkdir()
        with open_run(folder, process=77, tensorboard=folder.tensorboard) as further:
            tick(further)
            assert further.stop_requested, "It reads all commands."
            train(further, 10, 40)
            further.save_checkpoint(39, weights={"w": np.ones(2)}, arrays={}, facts={})
        assert (folder.checkpoints / ".10.tmp").exists(), "Another process may be writing it."
        assert analytics(folder) == written
        run.is_shared = True
        run.finish()
    assert [one["step"] for one in analytics(folder)["checkpoints"]] == [9, 39]
    journal = folder.path / "journal.77.jsonl"
    events = read_all(journal)
    assert {"hello", "packages"}.isdisjoint(event["kind"] for event in events)
    assert (events[-1]["kind"], events[-1]["global_step"]) == ("finished", 39)
    numbers = [row[0] for event in events if event["kind"] == "episodes" for row in event["rows"]]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 10
    assert min(numbers) > 2**50, "Another process does not use them."
    points = tensorboard_points(folder.tensorboard / "process-77")["losses/value_loss"]
    assert [step for step, _, _ in points] == list(range(10, 40))


def test_signal_handlers_are_restored_at_the_end(folder: RunFolder) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with open_run(folder) as run:
        signal.raise_signal(signal.SIGTERM)
        assert run.stop_requested
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


# --- checkpoints and attempts


def test_checkpoints_are_due_at_multiples(folder: RunFolder) -> None:
    with open_run(folder, checkpoint_every=100) as run:
        run.hello()
        assert [step for step in range(0, 500, 64) if run.checkpoint_due(step) and save(run, step)] == [
            128,
            256,
            320,
            448,
        ]
    with open_run(folder) as run:
        assert not run.checkpoint_due(10**9)


def test_the_best_checkpoint_is_kept_with_the_newest(folder: RunFolder) -> None:
    with open_run(folder, keep_checkpoints=2) as run:
        run.hello()
        for step, score in enumerate((1.0, 9.0, 2.0, 3.0, 4.0)):
            run._recent_returns.clear()
            run.episode(env=0, step=step, episodic_return=score, length=1)
            save(run, step)
        run.finish()
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["1", "3", "4", "best", "last"]
    assert (folder.best_checkpoint.resolve().name, folder.last_checkpoint.resolve().name) == ("1", "4")
    reported = [(event["step"], event["is_best"], event["score"]) for event in events(folder, "checkpoint")]
    assert reported == [(0, True, 1.0), (1, True, 9.0), (2, False, 2.0), (3, False, 3.0), (4, False, 4.0)]
    shown = analytics(folder)
    assert [entry["step"] for entry in shown["checkpoints"]] == [1, 3, 4]
    assert (shown["best"]["path"], shown["last"]["path"]) == ("checkpoints/1", "checkpoints/4")
    with open_run(folder, keep_checkpoints=2) as run:
        run.hello(last_good_checkpoint(folder))
        run._recent_returns.clear()
        run.episode(env=0, step=5, episodic_return=8.0, length=1)
        save(run, 5)
    assert folder.best_checkpoint.resolve().name == "1"


def test_an_interim_checkpoint_is_replaced_by_the_next_one_unless_it_is_the_best(folder: RunFolder) -> None:
    def kept() -> list[str]:
        return sorted(path.name for path in folder.checkpoints.iterdir() if path.name.isdecimal())

    with open_run(folder, keep_checkpoints=2, checkpoint_every=10) as run:
        run.hello()
        for step in (10, 20, 30):
            save(run, step)
        save(run, 34, score=1.0, is_interim=True)
        assert kept() == ["20", "30", "34"]
        save(run, 35, is_interim=True)
        assert kept() == ["20", "30", "34", "35"], "34 is the best"
        assert run.checkpoint_due(40), "those by steps are where they would be without it"
        save(run, 36, score=2.0, is_interim=True)
        assert kept() == ["20", "30", "36"]
    with open_run(folder, keep_checkpoints=2) as run:
        run.hello(last_good_checkpoint(folder))
        save(run, 40, score=3.0)
        run.finish()
    assert kept() == ["30", "40"]


def test_the_latest_state_is_saved_by_the_clock_and_before_a_pause(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, saved = [100.0], list[int]()
    monkeypatch.setattr(handle, "_monotonic", lambda: clock[0])
    with open_run(folder, checkpoint_minutes=5) as run:
        run.hello()
        run.save_latest = lambda: saved.append(len(saved))
        for clock[0], count in ((399.0, 0), (400.0, 1), (699.0, 1), (700.0, 2)):
            tick(run)
            assert len(saved) == count
        clock[0] = 900.0
        save(run, 5)  # one by steps counts, too
        for clock[0], count in ((1199.0, 2), (1200.0, 3)):
            tick(run)
            assert len(saved) == count
        monkeypatch.setattr("mosaic.worker.run.time.sleep", lambda _: send_command(folder, "resume"))
        send_command(folder, "pause")
        tick(run)
        assert len(saved) == 4
        assert len(events(folder, "paused")) == 1
    with open_run(folder, checkpoint_minutes=0) as run:
        run.hello()
        run.save_latest = lambda: saved.append(len(saved))
        clock[0] = 1e9
        tick(run)
        assert len(saved) == 4


def test_a_checkpoint_of_an_earlier_state_has_the_log_of_that_time(folder: RunFolder) -> None:
    with open_run(folder) as run:
        run.hello()
        run.scalar("loss", 1.0, 1)
        run.episode(env=0, step=1, episodic_return=5.0, length=1)
        log = run.mark_log()
        run.scalar("loss", 2.0, 2)
        run.episode(env=0, step=2, episodic_return=7.0, length=1)
        run.save_checkpoint(1, weights={}, arrays={}, facts={}, log=log)
    checkpoint = last_good_checkpoint(folder)
    assert checkpoint is not None
    assert (checkpoint.manifest["score"], checkpoint.manifest["log"]["recent_returns"]) == (5.0, [5.0])
    counts = {tag: point["count"] for tag, point in checkpoint.manifest["log"]["scalars"].items()}
    assert counts == {"loss": 1, "charts/episodic_return": 1, "charts/episodic_length": 1}
    with open_run(folder) as run:
        run.hello(checkpoint)
        assert (run.episode_count, run.mean_return) == (1, 5.0)


def test_a_resumed_run_has_one_curve(folder: RunFolder) -> None:
    with open_run(folder) as run:
        run.hello()
        run.hyperparameters({"seed": 1})
        train(run, 0, 101)
        mean = run.mean_return
        save(run, 100)
        train(run, 101, 150)
        run.artifact("model", "runs/x/ppo.cleanrl_model")
    checkpoint = last_good_checkpoint(folder)
    with open_run(folder) as run:
        run.hello(checkpoint)
        assert (run.attempt, run.global_step, run.episode_count, run.mean_return) == (2, 100, 34, mean)
        train(run, 101, 130)
        run.finish()
    points = journal_points(folder)
    assert [row[0] for row in points["losses/value_loss"]] == list(range(130))
    assert tensorboard_points(folder.tensorboard) == points
    shown = analytics(folder)
    assert {tag: entry["count"] for tag, entry in shown["scalars"].items()} == {t: len(p) for t, p in points.items()}
    assert shown["model"] == "runs/x/ppo.cleanrl_model"
    assert [row[0] for event in events(folder, "episodes") for row in event["rows"]][-1] == 44
    assert load_event_file(folder.tensorboard).Tensors("hyperparameters/text_summary")
    assert [event["resumed_from"] for event in events(folder, "hello")] == [None, 100]


def test_a_run_started_again_shows_nothing_of_the_earlier_attempt(folder: RunFolder) -> None:
    with open_run(folder) as run:
        run.hello()
        train(run, 0, 50)
        save(run, 40)
    with open_run(folder) as run:
        run.hello()
        run.hyperparameters({"seed": 1})
        train(run, 0, 20)
        save(run, 10)
        run.finish()
    points = journal_points(folder)
    assert [row[0] for row in points["losses/value_loss"]] == list(range(20))
    assert tensorboard_points(folder.tensorboard) == points
    assert load_event_file(folder.tensorboard).Tensors("hyperparameters/text_summary")
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["10", "40.superseded", "best", "last"]


def test_a_rejected_attempt_leaves_the_earlier_one_unchanged(folder: RunFolder) -> None:
    with open_run(folder) as run:
        run.hello()
        train(run, 0, 50)
        save(run, 40)
        run.finish()
    shown = analytics(folder)
    points = tensorboard_points(folder.tensorboard)
    with open_run(folder) as run:
        run.hello()
        run.finish("rejected", "No.")
    assert analytics(folder) == shown
    assert tensorboard_points(folder.tensorboard) == points
    assert folder.last_checkpoint.resolve().name == "40"


def test_damaged_checkpoints_are_reported_and_kept(folder: RunFolder) -> None:
    with open_run(folder) as run:
        run.hello()
        for step in (10, 20, 30):
            save(run, step)
    for step in (20, 30):
        (folder.checkpoint(step) / STATE).write_bytes(b"")
    with open_run(folder) as run:
        run.hello(last_good_checkpoint(folder))
        save(run, 20)
    warnings = events(folder, "warning")
    assert [event["code"] for event in warnings] == ["checkpoint_damaged"] * 2
    assert "20.damaged" in warnings[0]["text"]
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == [
        "10",
        "20",
        "20.damaged",
        "30.damaged",
        "last",
    ]


def test_the_state_of_the_wandb_upload_is_in_analytics(folder: RunFolder) -> None:
    with open_run(folder) as run:
        run.hello()
        run.finish()
    assert analytics(folder)["wandb"] is None
    folder.wandb.mkdir()
    folder.wandb_ledger.write_text(json.dumps({"state": "synced", "url": "https://w", "project": "p", "runs": {}}))
    with open_run(folder) as run:
        run.hello()
        run.hyperparameters({})
        run.finish()
    expected = {"state": "synced", "url": "https://w", "project": "p", "ledger": "wandb/sync.json"}
    assert analytics(folder)["wandb"] == expected


def test_an_artifact_cannot_replace_a_reserved_entry(folder: RunFolder) -> None:
    with open_run(folder) as run, pytest.raises(ValueError, match="scalars"):
        run.artifact("scalars", {})


# --- a full disk


def test_a_checkpoint_that_cannot_be_saved_is_reported_and_the_previous_one_stays_valid(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_run(folder) as run:
        run.hello()
        save(run, 10)

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as broken:
            broken.setattr("mosaic.worker.checkpoints._write_arrays", full)
            assert save(run, 20) is None
        assert not run.checkpoint_due(21)
    assert [event["code"] for event in events(folder, "warning")] == ["checkpoint_failed"]
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["10", "last"]
    checkpoint = last_good_checkpoint(folder)
    assert checkpoint is not None
    assert checkpoint.step == 10


def test_lines_that_cannot_be_written_wait_in_order_and_the_oldest_points_are_dropped(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mosaic.base.journal.MAX_BUFFERED_POINTS", 5)
    folder.path.mkdir(parents=True)
    outbox = Outbox(Journal(folder.journal))
    with monkeypatch.context() as broken:
        broken.setattr(
            "mosaic.base.journal.Journal.append", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "full"))
        )
        for number in range(4):
            outbox.put("metrics", {"n": number, "at": 5.0}, points=2)
            outbox.put("warning", {"text": str(number)})
            with pytest.raises(OSError, match="full"):
                outbox.flush()
    outbox.flush()
    outbox.close()
    lines = read_all(folder.journal)
    written = [line.get("n", line.get("text")) for line in lines]
    assert written[:-1] == ["0", "1", 2, "2", 3, "3"]
    assert (lines[-1]["code"], lines[2]["at"]) == ("points_lost", 5.0)
