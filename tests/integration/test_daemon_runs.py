"""Runs through the real daemon, the real keeper and a scripted worker."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.commands import mosaic
from tests.helpers.daemons import LiveDaemon, ended, running_daemon, scripted, wait_for
from tests.helpers.probe_scripts import start_script
from tests.helpers.streams import telemetry
from tests.helpers.worker_runs import run_worker, small

from mosaic.base.caller_environment import program_environment
from mosaic.base.files import config_folder
from mosaic.base.formatting import short_id
from mosaic.base.journal import Journal, read_all
from mosaic.base.run_payloads import build_eval_payload
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import BadInput, ConfigRefused, NotAllowed, UnknownName
from mosaic.contracts.events import EVENT_TYPES
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.views import MetricsCursor, RunView
from mosaic.keeper.worker import kill_with_descendants
from mosaic.trainer.client import trainer_client
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.trainer.executors.worker_environment import worker_environment


def stage(trainer: TrainerClient, run_id: str, wanted: str) -> None:
    wait_for(lambda: trainer.get_run(run_id).stage == wanted, f"stage {wanted}")


def test_a_run_leaves_its_files_and_its_view_keeps_the_contract(trainer: TrainerClient, workspace: Workspace) -> None:
    run_id = trainer.submit(scripted(steps=3)).run_id
    view = ended(trainer, run_id)
    RunView.model_validate(view)
    assert (view.outcome, view.global_step, view.episodic_return, view.pid) == ("succeeded", 3, 2.0, None)
    folder = RunFolder(view.run_dir)
    assert json.loads(folder.config.read_text()) == scripted(steps=3)
    assert workspace.payload_copy(run_id).read_text() == folder.config.read_text()
    given = json.loads(workspace.worker_config(run_id, 1).read_text())["metadata"]["worker"]["config"]
    assert given == {"steps": 3, "run_id": run_id}
    assert folder.stdout_log("scripted").exists()
    for path in (folder.journal, folder.keeper):
        for event in read_all(path):
            EVENT_TYPES[event["kind"]].model_validate(event)


@pytest.mark.may_log("queue_paused")  # three quick ends in a row
def test_every_end_has_its_cause(trainer: TrainerClient) -> None:
    """R1.1: run ids; folders of ended runs are kept."""
    expected: dict[str, tuple[dict[str, Any], str]] = {
        "exit code 3": ({"exit": 3, "say": "out of luck"}, "failed"),
        "SIGKILL": ({"kill": signal.SIGKILL}, "failed"),
        "not with me": ({"reject": "not with me"}, "rejected"),
    }
    runs = {said: trainer.submit(scripted(**config)).run_id for said, (config, _) in expected.items()}
    for said, run_id in runs.items():
        view = ended(trainer, run_id)
        assert view.outcome == expected[said][1]
        assert said in (view.reason or "")
    assert "out of luck" in (trainer.get_run(runs["exit code 3"]).reason or "")


def test_limits_end_a_run(trainer: TrainerClient) -> None:
    """F4: the reason has the memory that it took and the limit."""
    slow = {**scripted(steps=10_000, dt=0.01), "schedule": {"max_duration_seconds": 0.5}}
    greedy = {**scripted(steps=10_000, dt=0.01, allocate_mb=200), "resources": {"memory_mb": 100}}
    runs = [trainer.submit(payload).run_id for payload in (slow, greedy)]
    views = [ended(trainer, run_id) for run_id in runs]
    assert [view.outcome for view in views] == ["failed", "failed"]
    assert "time limit of 0.5 s" in (views[0].reason or "")
    assert re.search(r"Out of memory: it took \d+ MB of the 100 MB it was allowed", views[1].reason or "")


def test_pause_resume_and_cancel(trainer: TrainerClient) -> None:
    """R2.2: RPCs."""
    run_id = trainer.submit(scripted(steps=10_000, dt=0.01)).run_id
    stage(trainer, run_id, "running")
    trainer.pause_run(run_id)
    stage(trainer, run_id, "paused")
    with pytest.raises(NotAllowed, match="already paused"):
        trainer.pause_run(run_id)
    trainer.resume(run_id)
    stage(trainer, run_id, "running")
    pid = trainer.get_run(run_id).pid
    trainer.cancel_run(run_id)
    view = ended(trainer, run_id)
    assert view.outcome == "cancelled"
    assert view.idle_s > 0
    (listed,) = [one for one in trainer.runs() if one.run_id == run_id]
    assert (listed.idle_s, listed.history) == (view.idle_s, ()), "its time is the same in a list"
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(NotAllowed, match="already ended"):
        trainer.cancel_run(run_id)


def test_a_worker_that_reads_no_inbox_is_paused_by_signal(trainer: TrainerClient) -> None:
    run_id = trainer.submit(scripted(steps=10_000, dt=0.01, deaf=True)).run_id
    stage(trainer, run_id, "running")
    trainer.pause_run(run_id)
    stage(trainer, run_id, "paused")
    pid = trainer.get_run(run_id).pid
    assert Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T"
    trainer.resume(run_id)
    stage(trainer, run_id, "running")
    assert pid is not None
    os.killpg(pid, signal.SIGKILL)
    assert "SIGKILL" in (ended(trainer, run_id).reason or "")


def test_a_further_attempt_continues_the_same_folder_and_curve(trainer: TrainerClient) -> None:
    run_id = trainer.submit(scripted(steps=60, dt=0.01)).run_id
    wait_for(lambda: (trainer.get_run(run_id).global_step or 0) > 5, "some steps")
    trainer.cancel_run(run_id)
    stopped_at = ended(trainer, run_id).global_step
    trainer.resume(run_id)
    view = ended(trainer, run_id)
    assert (view.outcome, view.global_step, len(view.attempts)) == ("succeeded", 60, 2)
    assert view.history[-2].message == f"Resumed from step {stopped_at}."
    (series,) = trainer.metrics(run_id, ["scripted/step"])
    assert list(series.steps) == list(range(1, 61))
    seqs = [event["seq"] for event in read_all(RunFolder(view.run_dir).journal)]
    assert seqs == list(range(1, len(seqs) + 1))
    with pytest.raises(NotAllowed, match="--total-timesteps"):
        trainer.resume(run_id)


def test_a_reader_of_metrics_gets_each_point_once_and_reloads_after_a_resume(trainer: TrainerClient) -> None:
    """R6.1: episodes and scalars, stored and streamed."""
    run_id = trainer.submit(scripted(steps=60, dt=0.01)).run_id
    steps: list[int] = []
    cursor = MetricsCursor()
    reloads = 0
    is_resumed = False
    for batch in trainer.watch(0, run_id, ["metrics", "record"]):
        assert all(event.kind == "record" for event in batch.events)
        if batch.runs_with_points:
            assert batch.runs_with_points == {run_id}
            update = trainer.metrics_after(run_id, cursor, ["scripted/step"])
            cursor = update.cursor
            steps = [] if update.is_reload else steps
            reloads += update.is_reload
            steps += [step for series in update.series for step in series.steps]
            if len(steps) > 5 and not is_resumed:
                trainer.cancel_run(run_id)
                ended(trainer, run_id)
                trainer.resume(run_id)
                is_resumed = True
        if len(steps) == 60:
            break
    assert steps == list(range(1, 61))
    assert reloads >= 2
    ended(trainer, run_id)  # an episode may come after the points of its step
    update = trainer.metrics_after(run_id, cursor, ["scripted/step"])
    assert (update.is_reload, update.series) == (False, [])
    assert trainer.metrics_after(run_id, update.cursor) == (update.cursor, False, [])


def test_published_telemetry_is_stored_and_streamed(trainer: TrainerClient) -> None:
    """R2.2: RPCs."""
    run_id = trainer.submit(scripted(steps=10_000, dt=0.05)).run_id
    stage(trainer, run_id, "running")
    facts = {"series": {"remote/loss": [[1, 1.0, 0.5], [2, 2.0, None]]}}
    messages = [
        pb.TelemetryRequest(run=run_id, kind="metrics", fields_json=json.dumps(facts)),
        pb.TelemetryRequest(run=run_id, kind="step", fields_json='{"step": 7}'),
    ]
    assert trainer.call("PublishTelemetry", iter(messages)).accepted == 2
    published: list[dict[str, Any]] = []
    for batch in telemetry(trainer, run_id):
        events = [event.model_dump(mode="json") for event in batch.events]
        published += [event for event in events if "remote/loss" in event.get("series", ()) or "step" in event]
        if len(published) == 2:
            break
    assert published[0]["series"] == facts["series"]
    assert (published[1]["kind"], published[1]["step"]) == ("step", 7)
    (series,) = trainer.metrics(run_id, ["remote/loss"])
    assert list(series.steps) == [1, 2]
    trainer.cancel_run(run_id)
    ended(trainer, run_id)


def test_a_run_without_a_checkpoint_cannot_be_resumed(trainer: TrainerClient) -> None:
    run_id = trainer.submit(scripted(exit=1)).run_id
    ended(trainer, run_id)
    with pytest.raises(NotAllowed, match="no checkpoint"):
        trainer.resume(run_id)


def test_bad_input_creates_nothing(trainer: TrainerClient, workspace: Workspace) -> None:
    """R1.1: run ids; folders of ended runs are kept."""
    stray = {**scripted(), "extra": 1}
    nobody = {"metadata": {"worker": {"id": "scriptd", "config": {}}}, "artifacts": {}}
    gpus = {**scripted(), "resources": {"gpus": {"requested": 99, "mandatory": True}}}
    for payload, error, said in (
        (stray, ConfigRefused, "LOG705.*extra: unknown key"),
        (nobody, UnknownName, "Did you mean 'scripted'"),
        (gpus, ConfigRefused, "99 requested, but this machine has none"),
    ):
        for verb in (trainer.check, trainer.submit):
            with pytest.raises(error, match=said):
                verb(payload)
    assert list(workspace.runs.iterdir()) == []
    assert list(workspace.configs.iterdir()) == []


def test_runs_are_found_by_id_beginning_end_and_last(trainer: TrainerClient) -> None:
    with pytest.raises(UnknownName, match="no runs yet"):
        trainer.get_run("last")
    first = trainer.submit(scripted()).run_id
    second = trainer.submit(scripted()).run_id
    assert trainer.get_run("last").run_id == second
    assert trainer.get_run(first.lower()).run_id == first
    assert trainer.get_run(short_id(first)).run_id == first, "as the window and the command line show it"
    assert trainer.get_run(first[-4:].lower()).run_id == first
    with pytest.raises(UnknownName, match=rf"could be any of {first} \(.*\); {second} \(.*\)\. Give the id"):
        trainer.get_run(first[:4])
    with pytest.raises(UnknownName, match="No run"):
        trainer.get_run(first[-3:])
    with pytest.raises(UnknownName, match="No run"):
        trainer.get_run("01ZZZZ")


def test_runs_are_found_by_a_name_that_only_one_of_them_has(trainer: TrainerClient) -> None:
    first = trainer.submit({**scripted(), "run_name": "wider network"}).run_id
    second = trainer.submit({**scripted(), "run_name": "Grüße"}).run_id
    assert trainer.get_run("wider network").run_id == first
    assert trainer.get_run("Grüße").run_id == second
    with pytest.raises(UnknownName, match="Did you mean 'wider network'"):
        trainer.get_run("wider netwrok")
    trainer.submit({**scripted(), "metadata": {**scripted()["metadata"], "group": "ablation"}})
    with pytest.raises(UnknownName, match="Did you mean the group 'ablation'"):
        trainer.get_run("ablatoin")
    trainer.annotate_run("Grüße", run_name="wider network")
    with pytest.raises(UnknownName, match=f"'wider network' could be any of {first} .*wider network.*; {second} "):
        trainer.cancel_run("wider network")
    trainer.annotate_run(second, run_name=short_id(first))
    with pytest.raises(UnknownName, match=f"could be any of {first} .*; {second} "):
        trainer.get_run(short_id(first))
    trainer.annotate_run(second, run_name=first)
    assert trainer.get_run(first).run_id == first, "a whole id comes first"


def test_a_long_list_comes_in_several_replies(trainer: TrainerClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """F31: a reply, and so the time of a call, does not grow with the number of runs."""
    ids = [trainer.submit(scripted(steps=100_000, dt=0.5)).run_id for _ in range(7)][::-1]
    calls: list[int] = []
    call = trainer.call
    monkeypatch.setattr(trainer_client, "RUNS_PER_REPLY", 3)

    def count(verb: str, request: Any) -> Any:
        calls.append(request.limit)
        return call(verb, request)

    monkeypatch.setattr(trainer, "call", count)
    assert [view.run_id for view in trainer.runs()] == ids
    assert [view.run_id for view in trainer.runs(limit=5)] == ids[:5]
    assert [view.run_id for view in trainer.runs(limit=2)] == ids[:2]
    assert calls == [3, 3, 3, 3, 2, 2]


def test_a_list_shows_what_a_single_run_shows_except_its_attempts_and_history(trainer: TrainerClient) -> None:
    run_id = trainer.submit(scripted(steps=1)).run_id
    ended(trainer, run_id)
    active = trainer.submit(scripted(steps=1_000_000, dt=0.5)).run_id
    stage(trainer, active, "running")
    trainer.pause_run(active)  # then nothing changes between the two calls
    stage(trainer, active, "paused")
    for listed in trainer.runs():
        whole = trainer.get_run(listed.run_id)
        assert whole.attempts
        assert whole.history
        volatile = {"hardware": whole.hardware, "idle_s": whole.idle_s, "attempts": (), "history": ()}
        assert listed.model_copy(update=volatile) == whole.model_copy(update=volatile)
        assert (listed.attempts, listed.history) == ((), ())
        assert bool(listed.pid) == (listed.run_id == active)


@pytest.mark.parametrize("command", ["delete --yes", "archive", "prune --checkpoints --yes"])
def test_what_removes_something_takes_no_older_run_for_the_newest(
    trainer: TrainerClient, workspace: Workspace, command: str
) -> None:
    older = trainer.submit(scripted(steps=1)).run_id
    ended(trainer, older)
    newest = trainer.submit(scripted(steps=10_000, dt=0.01)).run_id
    stage(trainer, newest, "running")
    name, *options = command.split()
    result = mosaic(workspace, name, "last", *options)
    assert (result.code, result.out) == (2, "")
    assert f"Run {newest} is running" in result.err
    assert [view.run_id for view in trainer.runs()] == [newest, older]
    trainer.cancel_run(newest)
    ended(trainer, newest)
    assert mosaic(workspace, name, "last", *options).code == 0
    assert trainer.get_run(older).is_archived is False


def test_last_is_the_newest_run_that_fits_the_command(trainer: TrainerClient) -> None:
    first = trainer.submit(scripted(steps=1_000_000, dt=0.02)).run_id
    stage(trainer, first, "running")
    ended(trainer, trainer.submit(scripted()).run_id)
    assert trainer.pause_run("last").run_id == first
    stage(trainer, first, "paused")
    assert trainer.resume("last").run_id == first
    stage(trainer, first, "running")
    assert trainer.cancel_run("last").run_id == first
    ended(trainer, first)
    assert trainer.resume("last").run_id == first, "the other one has no checkpoint"
    stage(trainer, first, "running")
    trainer.cancel_run(first)
    ended(trainer, first)
    with pytest.raises(NotAllowed, match="has already ended"):
        trainer.cancel_run("last")


def test_a_worker_does_not_get_the_tensorboard_folder_of_the_daemons_environment(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4.1: each run has its own folder of event files, whatever the daemon was started with."""
    monkeypatch.setenv("CLEANRL_TENSORBOARD_DIR", str(tmp_path / "shared"))
    daemon = LiveDaemon(workspace, tmp_path / "plugins")
    trainer = daemon.start()
    try:
        view = trainer.submit(scripted(steps=1_000_000, dt=0.02))
        pid = wait_for(lambda: trainer.get_run(view.run_id).pid, "its process")
        variables = Path(f"/proc/{pid}/environ").read_text(encoding="utf-8").split("\0")
        assert f"CLEANRL_TENSORBOARD_DIR={view.run_dir}/tensorboard" in variables
        trainer.cancel_run(view.run_id)
        ended(trainer, view.run_id)
    finally:
        trainer.close()
        daemon.stop()


def test_the_variable_of_the_event_files_follows_the_config(tmp_path: Path) -> None:
    """R4.1: scripts and libraries find the folder that the run writes to, also on a node."""
    folder, config = RunFolder(tmp_path / "run"), tmp_path / "worker-config.json"
    assert worker_environment({}, folder, config, 1)["CLEANRL_TENSORBOARD_DIR"] == str(folder.tensorboard)
    payload = scripted()
    payload["artifacts"] = {"tensorboard": {"directory": "curves/mine"}}
    config.write_text(json.dumps(payload))
    where = worker_environment({}, folder, config, 1)["CLEANRL_TENSORBOARD_DIR"]
    assert where == str(folder.path / "curves" / "mine")


def test_tags_notes_and_the_archive(trainer: TrainerClient) -> None:
    """R1.4: list, filter, tag, annotate, archive, delete."""
    run_id = trainer.submit(scripted()).run_id
    ended(trainer, run_id)
    trainer.annotate_run(run_id, add_tags=["good", "old"], notes="first try")
    view = trainer.annotate_run(run_id, remove_tags=["old"], is_archived=True)
    assert (view.tags, view.notes, view.is_archived) == (("good",), "first try", True)
    assert trainer.runs() == []
    assert [row.run_id for row in trainer.runs(include_archived=True, tags=["good"])] == [run_id]
    with pytest.raises(BadInput, match="tags"):
        trainer.annotate_run(run_id, add_tags=["../x"])


def test_a_run_with_any_name_is_renamed(trainer: TrainerClient, workspace: Workspace) -> None:
    run_id = trainer.submit({**scripted(), "run_name": "größeres Netz, 2. Versuch"}).run_id
    assert ended(trainer, run_id).run_name == "größeres Netz, 2. Versuch"
    assert trainer.annotate_run(run_id, run_name="  PPO, 学習 ").run_name == "PPO, 学習"
    assert trainer.annotate_run(run_id, add_tags=["good"]).run_name == "PPO, 学習"
    assert json.loads(workspace.run(run_id).record.read_text())["run_name"] == "PPO, 学習"
    with pytest.raises(BadInput, match="one line of text"):
        trainer.annotate_run(run_id, run_name="two\nlines")
    with pytest.raises(BadInput, match="at most 120"):
        trainer.annotate_run(run_id, run_name="x" * 121)
    assert trainer.annotate_run(run_id, run_name="").run_name is None


def test_only_ended_runs_can_be_deleted_and_delete_can_be_undone(trainer: TrainerClient, workspace: Workspace) -> None:
    """R1.4: list, filter, tag, annotate, archive, delete."""
    run_id = trainer.submit(scripted(steps=10_000, dt=0.01)).run_id
    with pytest.raises(NotAllowed, match="cannot be deleted"):
        trainer.delete_run(run_id)
    stage(trainer, run_id, "running")
    trainer.cancel_run(run_id)
    before = ended(trainer, run_id)
    grave = trainer.delete_run(run_id).run_dir
    assert trainer.runs() == []
    assert not workspace.run(run_id).path.exists()
    assert trainer.import_run(grave) == before
    assert not Path(grave).exists()


RECORDER = """
    import subprocess, sys
    from mosaic.contracts.folder import RunFolder
    from mosaic.features.tracking.sidecar import sync_state
    service = "import os, sys\\nwhile True: os.makedirs(sys.argv[1], exist_ok=True)"
    folder = RunFolder(sys.argv[1])
    with sync_state.acquire_lock(folder, is_sidecar=True):
        # Like W&B's: in a session of its own, and it creates the folders of its files whenever it writes.
        child = subprocess.Popen([sys.executable, "-c", service, str(folder.wandb / "files")], start_new_session=True)
        print("recording", flush=True)
        child.wait()
"""


def test_a_sidecar_that_still_records_does_not_create_a_deleted_run_again(
    trainer: TrainerClient, workspace: Workspace
) -> None:
    before = ended(trainer, trainer.submit(scripted()).run_id)
    folder = workspace.run(before.run_id)
    folder.wandb.mkdir()
    command = [sys.executable, "-c", textwrap.dedent(RECORDER), str(folder.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as recorder:
        assert recorder.stdout is not None
        try:
            assert recorder.stdout.readline() == "recording\n"
            grave = trainer.delete_run(before.run_id).run_dir
            assert recorder.wait(30.0) == -signal.SIGKILL
            assert recorder.stdout.read() == "", "and its service has ended, too"
        finally:
            kill_with_descendants(recorder.pid)
    assert not folder.path.exists()
    assert trainer.import_run(grave) == before


def test_an_imported_run_is_resumed_in_a_new_workspace(trainer: TrainerClient, plugins: Path, tmp_path: Path) -> None:
    payload = {"metadata": {"worker": {"id": "cleanrl", "config": small()}}, "artifacts": {}}
    trained = ended(trainer, trainer.submit(payload).run_id)
    with running_daemon(Workspace(tmp_path / "other machine"), plugins) as (_, other):
        run_id = other.import_run(trained.run_dir).run_id
        other.resume(run_id, 128)
        assert ended(other, run_id).global_step == 128


def test_watchers_receive_an_event_for_a_deleted_run(trainer: TrainerClient) -> None:
    kept, gone = (trainer.submit(scripted()).run_id for _ in range(2))
    for run_id in (kept, gone):
        ended(trainer, run_id)
    trainer.delete_run(gone)
    told = []
    for batch in trainer.watch(0, kinds=["record", "deleted"]):  # its records have gone with it, and break nothing
        told += [(event.run_id, event.kind) for event in batch.events]
        if (gone, "deleted") in told:
            break
    assert {run_id for run_id, kind in told if kind == "record"} == {kept}


def test_logs_are_read_as_they_grow(trainer: TrainerClient) -> None:
    run_id = trainer.submit(scripted(steps=20, dt=0.01, say="hello there")).run_id
    text = b"".join(chunk.data for chunk in trainer.log(run_id, is_stderr=True, follow=True))
    assert text == b"hello there\n"
    assert trainer.get_run(run_id).stage == "finished"


def test_a_draining_daemon_starts_no_run_and_exits_after_its_last_one(
    daemon: LiveDaemon, trainer: TrainerClient
) -> None:
    """F2: an upgrade waits for the active runs; the next daemon starts those that wait."""
    running = trainer.submit(scripted(steps=10_000, dt=0.01)).run_id
    stage(trainer, running, "running")
    trainer.stop_daemon(drain=True)
    waiting = trainer.submit(scripted()).run_id
    trainer.cancel_run(running)
    assert daemon.process is not None
    daemon.process.wait(timeout=90)
    trainer.close()
    trainer = daemon.start()
    assert trainer.get_run(running).outcome == "cancelled"
    assert ended(trainer, waiting).outcome == "succeeded"
    trainer.close()


def test_the_cap_and_the_priority_of_a_waiting_run_can_be_changed(trainer: TrainerClient) -> None:
    working = [trainer.submit(scripted(steps=10_000, dt=0.05)).run_id for _ in range(4)]
    for run_id in working:
        stage(trainer, run_id, "running")
    first, second = (trainer.submit(scripted(steps=10_000, dt=0.05)).run_id for _ in range(2))
    positions = {view.run_id: view.queue_position for view in trainer.runs()}
    assert positions == {**dict.fromkeys(working), first: 1, second: 2}
    changed = trainer.annotate_run(second, priority=7)
    assert (changed.priority, changed.queue_position, trainer.get_run(first).queue_position) == (7, 1, 2)
    with pytest.raises(NotAllowed, match="for runs that wait"):
        trainer.annotate_run(working[0], priority=7)
    with pytest.raises(ConfigRefused, match="priority"):
        trainer.annotate_run(first, priority=1000)
    with pytest.raises(BadInput, match="from 1 to 1000"):
        trainer.set_cap(0)
    assert trainer.set_cap(5).slots.runs == 5
    stage(trainer, second, "running")
    assert trainer.get_run(first).stage == "queued"


def test_a_refusal_carries_the_paths_of_its_fields(trainer: TrainerClient) -> None:
    """R2.1: submissions are checked first."""
    payload = {**scripted(), "stray": 1, "schedule": {"priority": 1000}}
    with pytest.raises(ConfigRefused) as refused:
        trainer.submit(payload)
    assert {path for path, _ in refused.value.problems} == {"stray", "schedule.priority"}
    assert dict(refused.value.problems)["stray"] == "unknown key"


def test_settings_of_an_evaluation_are_refused_in_a_training_without_one(trainer: TrainerClient) -> None:
    """R3.3: they are obeyed, or refused by the path that was written."""

    def submit(**extras: Any) -> RunView:
        worker = {"id": "cleanrl", "config": small(extras=extras)}
        return trainer.submit({"metadata": {"worker": worker}, "artifacts": {}})

    for name, value in {"seed_override": 0, "eval_batch_size": 3, "eval_stochastic": True, "eval_repeat": True}.items():
        with pytest.raises(ConfigRefused, match=rf"metadata\.worker\.config\.extras\.{name}: "):
            submit(**{name: value})
    with pytest.raises(ConfigRefused, match=r"extras\.eval_repeat: only an evaluation repeats"):
        submit(eval_repeat=True, save_model=True)
    assert trainer.runs() == []
    view = ended(trainer, submit(save_model=True, seed_override=40, eval_batch_size=2).run_id)
    summary = json.loads((Path(view.run_dir) / "eval_summary.json").read_text())
    assert summary["seeds"] == [40, 41]


def test_what_has_no_effect_or_cannot_work_is_said_before_and_after_the_submission(
    trainer: TrainerClient, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3.3: in the dry run, and in the run's record."""
    wandb = {"http_proxy": "http://proxy:1"}
    artifacts = {"tensorboard": {"enabled": False, "directory": "curves"}, "wandb": wandb, "model": {"upload": True}}
    payload = {"metadata": {"worker": {"id": "cleanrl", "config": small()}}, "artifacts": artifacts}
    warnings = trainer.check(payload).summary.warnings
    for words in ("tensorboard_dir has no effect", "without wandb_use_vpn_proxy", "not tracked", "no token of the Hub"):
        assert sum(words in warning for warning in warnings) == 1, words
    assert trainer.submit(payload).warnings == warnings
    file = workspace.root / "payload.json"
    file.write_text(json.dumps(payload))
    shown = mosaic(workspace, "submit", str(file), "--json")
    assert "no token of the Hub" in shown.err
    monkeypatch.setenv("HF_TOKEN", "hf_0")  # of the shell that submits, not of the daemon
    assert trainer.check(payload).summary.warnings == warnings[:-1]
    artifacts = {"tensorboard": {"directory": "curves"}, "wandb": {**wandb, "use_vpn_proxy": True, "enabled": True}}
    assert not trainer.check({**payload, "artifacts": artifacts}).summary.warnings
    artifacts = {"wandb": {"project": "p", "entity": "e"}, "model": {"hub_entity": "me"}}
    tracking, hub = trainer.check({**payload, "artifacts": artifacts}).summary.warnings
    assert "not tracked (--track): wandb_project_name, wandb_entity." in tracking
    assert "hf_entity has no effect" in hub


def test_a_payload_without_the_id_of_its_worker_is_run_by_the_first_one(trainer: TrainerClient) -> None:
    """R3.1: only `metadata.worker.config` and `artifacts`, as for the worker's own command line."""
    worker = {"config": small(extras={"fastlane_video_mode": "single"}), "module": "cleanrl_worker.cli"}
    payload = {"metadata": {"worker": worker}, "artifacts": {}}
    assert program_environment(payload) is None
    view = ended(trainer, trainer.submit(payload).run_id)
    assert (view.worker, view.outcome) == ("cleanrl", "succeeded")
    stored = trainer.config(view.run_id)
    assert (stored["metadata"]["worker"]["id"], stored["artifacts"]["video"]["mode"]) == ("cleanrl", "single")
    assert "module" not in stored["metadata"]["worker"]


def test_a_worker_started_by_hand_leaves_a_run_of_the_daemon(trainer: TrainerClient, workspace: Workspace) -> None:
    """R1.2: its folder has a config, gets a record when it has ended, and is listed with its curve."""
    done = run_worker(workspace.root, small(run_id="01BYHAND", agent_id="ada"))
    assert done.returncode == 0
    view = wait_for(lambda: next(iter(trainer.runs()), None), "the run to be adopted")
    assert (view.run_id, view.outcome, view.algo, view.agent_id) == ("01BYHAND", "succeeded", "ppo", "ada")
    wait_for(lambda: trainer.get_run("01BYHAND").global_step == 64, "its journal to be read")
    assert workspace.run("01BYHAND").record.exists()
    assert trainer.config("01BYHAND")["metadata"]["worker"]["config"]["seed"] == 3


def test_an_evaluation_has_the_seed_of_its_first_episode(trainer: TrainerClient) -> None:
    """Not that of the training, of which its config names only what the policy is."""
    worker = {"id": "cleanrl", "config": small()}
    policy = ended(trainer, trainer.submit({"metadata": {"worker": worker}, "artifacts": {}}).run_id).run_dir
    for options, seed in (({"seed_override": 77}, 77), ({}, 1_030_000)):
        payload = build_eval_payload(worker, policy, {"eval_batch_size": 2, **options})
        view = ended(trainer, trainer.submit(payload).run_id)
        assert (view.outcome, view.seed) == ("succeeded", seed), view.reason
        summary = json.loads(RunFolder(view.run_dir).eval_summary.read_text(encoding="utf-8"))
        assert summary["batches"][0]["seeds"] == [seed, seed + 1]


def test_options_of_a_training_are_said_to_have_no_effect_on_an_evaluation(trainer: TrainerClient) -> None:
    """R3.3: a payload that was made from that of the training may have them."""
    worker = {"id": "cleanrl", "config": small()}
    policy = ended(trainer, trainer.submit({"metadata": {"worker": worker}, "artifacts": {}}).run_id).run_dir
    payload = build_eval_payload(worker, policy, {"video_mode": "single"})
    extras = {"capture_video": True, "save_model": False, "upload_model": True}
    payload["metadata"]["worker"]["config"]["extras"] = extras
    (warning,) = trainer.check(payload).summary.warnings
    assert warning.endswith("on an evaluation: capture_video, save_model, upload_model.")


def test_a_file_that_most_runs_do_not_have_leaves_no_refusal_in_the_log(
    trainer: TrainerClient, workspace: Workspace
) -> None:
    run_id = trainer.submit(scripted(steps=1)).run_id
    view = ended(trainer, run_id)
    before = workspace.daemon_log.read_text(encoding="utf-8").count("request_refused")
    assert mosaic(workspace, "show", run_id).code == 0
    assert trainer.read_json(run_id, "hub/push.json") is None
    assert workspace.daemon_log.read_text(encoding="utf-8").count("request_refused") == before
    assert [file.name for file in trainer.files(run_id, "record.json")] == ["record.json"]
    for name in ("logs", "../" + run_id + "/record.json", str(RunFolder(view.run_dir).record), "nothing/below"):
        assert trainer.files(run_id, name) == [], name


def test_a_worker_started_by_hand_is_adopted_after_its_end_only(trainer: TrainerClient, workspace: Workspace) -> None:
    """R1.2: while its process lives, the run is its own; one that was killed is lost."""
    folder = workspace.run("01KILLED")
    folder.path.mkdir(parents=True)
    folder.config.write_text(json.dumps(scripted()))
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]) as worker:
        journal = Journal(folder.journal)
        journal.append("hello", worker="scripted", version="1", pid=worker.pid, capabilities=[])
        journal.close()
        ended(trainer, trainer.submit(scripted()).run_id)
        assert not folder.record.exists()
        worker.kill()
    view = wait_for(lambda: {view.run_id: view for view in trainer.runs()}.get("01KILLED"), "the run to be adopted")
    assert (view.outcome, view.reason) == ("lost", "Its worker was started by hand and ended without a report.")


def test_registration_stores_version_and_capabilities_and_refuses_another_contract(trainer: TrainerClient) -> None:
    """R2.2: the handshake and RegisterWorker state version and capabilities; another contract is refused."""
    run_id = trainer.submit(scripted(steps=10_000, dt=0.02)).run_id
    stage(trainer, run_id, "running")
    assert (trainer.get_run(run_id).worker_version, len(trainer.get_run(run_id).capabilities)) == ("1", 4)
    request = pb.RegisterRequest(run=run_id, worker="scripted", version="1.2", capabilities=["inbox"])
    assert trainer.call("RegisterWorker", request).is_known
    assert (trainer.get_run(run_id).worker_version, trainer.get_run(run_id).capabilities) == ("1.2", ("inbox",))
    request.contract = 99
    with pytest.raises(NotAllowed, match="writes version 99 of the journal; this trainer reads version 1"):
        trainer.call("RegisterWorker", request)
    trainer.cancel_run(run_id)
    ended(trainer, run_id)
    short = ended(trainer, trainer.submit(scripted()).run_id)
    assert short.worker_version == "1", "a short run is registered by its handshake"


def test_a_worker_that_writes_another_version_of_the_journal_is_rejected(trainer: TrainerClient) -> None:
    """R2.2: the run of a worker with an incompatible handshake is stopped and rejected."""
    view = ended(trainer, trainer.submit(scripted(steps=10_000, dt=0.02, contract=99)).run_id)
    assert view.outcome == "rejected"
    assert "writes version 99 of the journal" in (view.reason or "")


def test_telemetry_of_an_ended_run_is_refused(trainer: TrainerClient) -> None:
    """R2.2: telemetry that no one could see is refused."""
    run_id = ended(trainer, trainer.submit(scripted()).run_id).run_id
    message = pb.TelemetryRequest(run=run_id, kind="step", fields_json="{}")
    with pytest.raises(NotAllowed, match="has ended and accepts no more telemetry"):
        trainer.call("PublishTelemetry", iter([message]))


@pytest.mark.may_log("run_not_started")
def test_a_queued_script_whose_environment_is_gone_must_be_submitted_again(
    daemon: LiveDaemon, trainer: TrainerClient, tmp_path: Path
) -> None:
    holders = [trainer.submit(scripted(steps=10_000, dt=0.01)).run_id for _ in range(4)]
    for holder in holders:
        stage(trainer, holder, "running")
    run_id = start_script(trainer, tmp_path, "pass")
    daemon.kill()
    (config_folder() / "environments" / f"{run_id}.json").unlink()
    with daemon.start() as restarted:
        restarted.cancel_run(holders[0])
        view = ended(restarted, run_id)
        assert view.outcome == "failed"
        assert f"mosaic resubmit {run_id}" in (view.reason or "")
        config = restarted.config(run_id)
        again = restarted.submit(config, program_environment(config))
        assert ended(restarted, again.run_id).outcome == "succeeded"
