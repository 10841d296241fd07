"""Runs as Slurm jobs: by submitit's local executor, and by stand-ins for Slurm's commands where that has no queue."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import MARK_VARIABLE, logged_problems
from tests.helpers.daemons import LiveDaemon, ended, wait_for
from tests.helpers.hub_server import running_hub
from tests.helpers.slurm_commands import NODE, FakeSlurm
from tests.helpers.uninstalled import uninstalled
from tests.helpers.wandb_server import KEY, WandbServer, files_with
from tests.helpers.worker_runs import events, small

from mosaic.base.journal import read_all
from mosaic.contracts.errors import BadInput, MissingExtra, NotAllowed
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.views import RunView
from mosaic.trainer.client.connect import connect
from mosaic.trainer.client.trainer_client import TrainerClient

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("submitit") is None, reason="submitit is not installed: extra 'slurm'."
)

LONG = 1_000_000_000
SHORT: dict[str, Any] = {"steps": 5, "dt": 0.2}
"""Not shorter: where a run is, is looked up four times a second."""
GATHERS_LONGER = """
from mosaic.trainer import __main__
from mosaic.trainer.executors.slurm import executor
executor.GATHER_S = 3.0
raise SystemExit(__main__.main())
"""


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slurm") / "plug ins"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> FakeSlurm:
    return FakeSlurm(tmp_path_factory.mktemp("cluster") / "it's slurm")


def start_daemon(place: Workspace, plugins: Path, *options: str, **variables: str) -> LiveDaemon:
    # Not marked as the session's, which counts what a test leaves behind: a daemon serves several tests.
    variables = {"XDG_CONFIG_HOME": str(plugins), MARK_VARIABLE: "", **variables}
    return LiveDaemon(place, plugins, "--executor", "slurm", *options, **variables)


def serve(daemon: LiveDaemon) -> Iterator[LiveDaemon]:
    daemon.start().close()
    yield daemon
    daemon.end()
    problems = [line for line in logged_problems(daemon.workspace.daemon_log) if line["event"] != "jobs_refused"]
    assert not problems, problems


@pytest.fixture(scope="module")
def local_daemon(plugins: Path) -> Iterator[LiveDaemon]:
    place = Workspace(plugins.with_name("it's a place") / "var")
    yield from serve(start_daemon(place, plugins, MOSAIC_SLURM_CLUSTER="local"))


@pytest.fixture(scope="module")
def slurm_daemon(plugins: Path, slurm: FakeSlurm) -> Iterator[LiveDaemon]:
    place = Workspace(plugins.with_name("it's a cluster") / "var")
    settings = "partition=short account=lab signal_delay_s=60 sbatch.reservation='a course' setup='true setup'"
    daemon = start_daemon(place, plugins, "--slurm", settings, **slurm.variables)
    daemon.command = [sys.executable, "-c", GATHERS_LONGER]
    yield from serve(daemon)


@pytest.fixture
def local(local_daemon: LiveDaemon) -> Iterator[TrainerClient]:
    with connect(local_daemon.workspace, may_start=False) as trainer:
        yield trainer
        cancel_all(trainer)


@pytest.fixture
def trainer(slurm_daemon: LiveDaemon, slurm: FakeSlurm) -> Iterator[TrainerClient]:
    with connect(slurm_daemon.workspace, may_start=False) as trainer:
        yield trainer
        slurm.release()
        cancel_all(trainer)


def cancel_all(trainer: TrainerClient) -> None:
    for view in trainer.runs():
        with suppress(NotAllowed):  # it has ended
            trainer.cancel_run(view.run_id)
    for view in trainer.runs():
        ended(trainer, view.run_id)


def scripted(group: str | None = None, **config: Any) -> dict[str, Any]:
    metadata = {"worker": {"id": "scripted", "config": config}, **({"group": group} if group else {})}
    return {"metadata": metadata, "artifacts": {}}


def ppo(**changes: Any) -> dict[str, Any]:
    return {"metadata": {"worker": {"id": "cleanrl", "config": small(**changes)}}, "artifacts": {}}


def wait_running(trainer: TrainerClient, run_id: str, attempt: int = 1) -> RunView:
    def view() -> RunView | None:
        seen = trainer.get_run(run_id)
        assert seen.stage != "finished", seen.reason
        last = seen.attempts[-1] if len(seen.attempts) == attempt else None
        is_there = seen.stage == "running" and last is not None and last.node and last.keeper
        return seen if is_there and seen.global_step else None

    found: RunView = wait_for(view, "the run on its node", 100)
    return found


def task_pid(view: RunView) -> int:
    """The process that submitit has started: the parent of the keeper."""
    keeper = view.attempts[-1].keeper
    assert keeper is not None
    return int(Path(f"/proc/{keeper['pid']}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])


def messages(view: RunView) -> list[str]:
    return [entry.message for entry in view.history]


# --- with submitit's local executor


def test_runs_of_a_group_train_to_the_end(local: TrainerClient) -> None:
    payloads = [ppo(total_timesteps=512, seed=seed) for seed in (1, 2)]
    for payload in payloads:
        payload["metadata"]["group"] = "seeds"
    run_ids = [local.submit(payload).run_id for payload in payloads]
    views = [ended(local, run_id) for run_id in run_ids]
    assert [(view.status, view.executor, view.global_step) for view in views] == [("succeeded", "slurm", 512)] * 2
    assert {view.attempts[0].node for view in views} == {socket.gethostname()}
    assert len({view.attempts[0].job for view in views} - {""}) == 2


def test_a_run_is_tracked_and_uploaded_when_it_has_ended_as_the_shell_says_that_submits_it(
    local: TrainerClient, local_daemon: LiveDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4.6, R10.1: by a process on the trainer's machine, as nodes may have neither network nor key."""
    pytest.importorskip("wandb", reason="the wandb extra is not installed")
    with WandbServer() as server, running_hub() as hub:
        shell = {**hub.environment, "WANDB_BASE_URL": server.url, "WANDB_API_KEY": KEY}
        for name, value in shell.items():
            monkeypatch.setenv(name, value)
        payload = ppo(total_timesteps=512)
        payload["artifacts"] = {"wandb": {"enabled": True}, "model": {"upload": True}}
        run_id = local.submit(payload).run_id
        assert ended(local, run_id).outcome == "succeeded"
        wait_for(lambda: [state.state for state in local.read_wandb(run_id)] == ["synced"], "the upload", 120)
        assert max(row["global_step"] for row in server.history(run_id)) == 512
        wait_for(lambda: [repo for repo in hub.repos.values() if repo.files], "the policy on the Hub", 120)
    keys = (KEY, hub.environment["HF_TOKEN"])
    assert [path for key in keys for path in files_with(local_daemon.workspace.root, key)] == []


def test_a_run_that_slurm_preempts_continues_from_its_checkpoint(local: TrainerClient) -> None:
    """As its next attempt, with one curve; then it is cancelled, with a checkpoint."""
    run_id = local.submit(ppo(total_timesteps=LONG)).run_id
    view = wait_running(local, run_id)
    os.kill(task_pid(view), signal.SIGUSR2)
    view = wait_running(local, run_id, attempt=2)
    folder = RunFolder(view.run_dir)
    resumed_from = events(folder, "hello")[-1]["resumed_from"]
    job, node = view.attempts[0].job, view.attempts[0].node
    reason = f"Slurm ended job {job} on {node} at its time limit, or to run another job"
    assert f"{reason}; it continues from step {resumed_from:,}." in messages(view)
    assert (view.node_losses, view.attempts[1].job != job) == (0, True)
    assert [line["cause"] for line in read_all(folder.keeper) if line["kind"] == "exited"] == ["lifeline_lost"]
    local.cancel_run(run_id)
    view = ended(local, run_id)
    assert (view.status, view.reason) == ("cancelled", "Cancelled on request.")
    assert view.checkpoint_step == view.global_step > resumed_from
    for series in local.metrics(run_id):
        assert list(series.steps) == sorted(series.steps), series.tag


def test_a_job_that_is_killed_puts_its_run_back_into_the_queue(local: TrainerClient) -> None:
    """Its keeper notices, and stops the worker before the next attempt starts."""
    run_id = local.submit(scripted(steps=2000, dt=0.02)).run_id
    view = wait_running(local, run_id)
    os.kill(task_pid(view), signal.SIGKILL)
    view = wait_running(local, run_id, attempt=2)
    assert f"Slurm lost job {view.attempts[0].job} on {socket.gethostname()} (GONE); it starts again." in messages(view)
    assert view.node_losses == 1


def test_a_daemon_that_is_killed_finds_its_jobs_again(tmp_path: Path, plugins: Path) -> None:
    daemon = start_daemon(Workspace(tmp_path / "var"), plugins, MOSAIC_SLURM_CLUSTER="local")
    with daemon.start() as trainer:
        run_id = trainer.submit(scripted(steps=60, dt=0.03)).run_id
        wait_running(trainer, run_id)
    daemon.kill()
    with daemon.start() as trainer:
        view = ended(trainer, run_id)
        assert (view.status, view.global_step, len(view.attempts)) == ("succeeded", 60, 1)
    daemon.end()


# --- with stand-ins for Slurm's commands


def test_runs_of_a_group_that_start_together_are_one_array(trainer: TrainerClient, slurm: FakeSlurm) -> None:
    """They wait in Slurm's queue, and say so; one is cancelled there, the other runs when Slurm starts it."""
    slurm.hold()
    single = trainer.submit(scripted(**SHORT)).run_id
    payloads = [scripted("seeds", **SHORT) | {"resources": {"cpus": 2, "memory_mb": 500}} for _ in range(2)]
    run_ids = [trainer.submit(payload).run_id for payload in payloads]

    views: list[RunView] = [
        wait_for(partial(_get_with_job, trainer, run_id), "its job") for run_id in (single, *run_ids)
    ]
    jobs = [view.attempts[-1].job for view in views]
    assert views[1].wait_reason == f"waits in Slurm's queue, job {jobs[1]}"
    assert (views[1].stage, views[1].attempts[-1].node) == ("starting", "")
    trainer.cancel_run(run_ids[0])
    view = ended(trainer, run_ids[0])
    assert (view.status, view.reason) == ("cancelled", "Cancelled before it was started.")
    wait_for(lambda: jobs[1] in slurm.cancelled(), "scancel")
    slurm.release()
    views = [ended(trainer, run_id) for run_id in (single, run_ids[1])]
    assert [(view.status, view.attempts[0].node) for view in views] == [("succeeded", NODE)] * 2
    assert (jobs[1], jobs[2]) == (f"{jobs[1][:4]}_0", f"{jobs[1][:4]}_1")
    script = slurm.script(jobs[2])
    expected = [
        "partition=short", "account=lab", "reservation='a course'", "no-requeue", "signal=USR2@60", "mem=756MB",
        "cpus-per-task=2", "time=1440", "nodes=1",
    ]  # fmt: skip
    assert not [option for option in expected if f"#SBATCH --{option}\n" not in script], script
    assert "true setup" in script


def test_the_state_of_a_job_that_ends_early_says_what_becomes_of_its_run(
    trainer: TrainerClient, slurm: FakeSlurm
) -> None:
    """A node that fails puts it back into the queue; whoever cancels its job in Slurm wants it to end."""
    run_ids = [trainer.submit(scripted(steps=3000, dt=0.02)).run_id for _ in range(2)]
    jobs = [wait_running(trainer, run_id).attempts[0].job for run_id in run_ids]
    slurm.end_job(jobs[0], "NODE_FAIL")
    slurm.cancel(jobs[1])
    view = wait_running(trainer, run_ids[0], attempt=2)
    assert f"Slurm lost job {jobs[0]} on {NODE} (NODE_FAIL); it starts again." in messages(view)
    view = ended(trainer, run_ids[1])
    hint = f"If it saved a checkpoint, resume from there: mosaic resume {run_ids[1]}"
    assert (view.status, view.reason) == ("lost", f"In Slurm, job {jobs[1]} on {NODE} was cancelled. {hint}")


def test_what_slurm_refuses_or_cannot_start_says_why(trainer: TrainerClient, slurm: FakeSlurm) -> None:
    slurm.refuse("invalid partition specified: short")
    view = ended(trainer, trainer.submit(scripted(steps=1)).run_id)
    expected = "Slurm did not accept the job: sbatch: error: invalid partition specified: short"
    assert (view.status, view.reason) == ("failed", f"The worker could not be started: {expected}")
    slurm.refuse("Batch job submission failed: Unable to contact slurm controller (connect failure)")
    run_id = trainer.submit(scripted(steps=1)).run_id
    reason = wait_for(
        lambda: "Slurm" in (trainer.get_run(run_id).wait_reason or "") and trainer.get_run(run_id), "the wait"
    )
    assert (reason.stage, reason.wait_reason) == ("queued", "Slurm did not answer; it is asked again soon")
    assert any(message.endswith("(connect failure); it waits again.") for message in messages(reason))
    slurm.refuse("")
    trainer.cancel_run(run_id)
    assert ended(trainer, run_id).status == "cancelled"


def test_a_daemon_that_ends_while_jobs_wait_finds_them_again(tmp_path: Path, plugins: Path, slurm: FakeSlurm) -> None:
    """Also one that ended before Slurm had answered: what Slurm has of it finds nothing to do."""
    daemon = start_daemon(Workspace(tmp_path / "var"), plugins, **slurm.variables)
    slurm.hold()
    with daemon.start() as trainer:
        run_ids = [trainer.submit(scripted(**SHORT)).run_id for _ in range(2)]
        views: list[RunView] = [wait_for(partial(_get_with_job, trainer, run_id), "its job") for run_id in run_ids]
    daemon.kill()
    for path in RunFolder(views[0].run_dir).path.glob("slurm/*/job.json"):
        path.unlink()
    with daemon.start() as trainer:
        again = wait_for(partial(_get_with_job, trainer, run_ids[0], views[0].attempts[0].job), "another job")
        assert "The trainer ended before it was started; it waits again." in messages(again)
        slurm.release()
        ends = [ended(trainer, run_id) for run_id in run_ids]
        assert [(view.status, len(view.attempts), view.attempts[0].node) for view in ends] == [
            ("succeeded", 1, NODE)
        ] * 2
        assert [view.attempts[0].job for view in ends] == [again.attempts[0].job, views[1].attempts[0].job]
        unused = wait_for(lambda: _output(daemon.workspace, views[0].attempts[0].job), "the job that came too late")
        assert "nothing is left to do" in unused
    daemon.end()


def _get_with_job(trainer: TrainerClient, run_id: str, other_than: str = "") -> RunView | None:
    view = trainer.get_run(run_id)
    return view if view.attempts and view.attempts[-1].job not in ("", other_than) else None


def _output(workspace: Workspace, job: str) -> str:
    path = workspace.trainer / "slurm" / f"{job}_0_log.out"
    text = path.read_text() if path.exists() else ""
    return text if "completed" in text else ""


# --- where it cannot be used


def test_what_cannot_run_as_a_job_is_refused(trainer: TrainerClient) -> None:
    script = {"metadata": {"worker": {"id": "script", "config": {"argv": ["true"], "cwd": "/"}}}, "artifacts": {}}
    with pytest.raises(BadInput, match="a program of yours runs on the trainer's machine only, not by 'slurm'"):
        trainer.submit(script | {"resources": {"executor": "slurm"}}, {"PATH": os.environ["PATH"]})
    with pytest.raises(BadInput, match="Slurm gives whole GPUs only"):
        trainer.submit(scripted(steps=1) | {"resources": {"gpus": {"requested": 0.5}}})
    with pytest.raises(BadInput, match="Slurm chooses the GPU of a run"):
        trainer.submit(scripted(steps=1) | {"resources": {"gpus": {"device": 0}}})


def test_a_machine_without_slurm_or_submitit_says_what_is_missing(tmp_path: Path, plugins: Path) -> None:
    without = uninstalled(tmp_path / "without", "submitit")["PYTHONPATH"]
    with start_daemon(Workspace(tmp_path / "var"), plugins, PYTHONPATH=f"{without}:{plugins}").start() as trainer:
        with pytest.raises(MissingExtra, match=r"need the extra 'slurm': pip install 'mosaic-rl\[slurm\]'"):
            trainer.submit(scripted(steps=1))
        trainer.stop_daemon()
    daemon = start_daemon(Workspace(tmp_path / "other" / "var"), plugins)
    with daemon.start() as trainer:
        with pytest.raises(NotAllowed, match="there is no srun in its PATH"):
            trainer.submit(scripted(steps=1))
        run = trainer.submit(scripted(steps=1) | {"resources": {"executor": "local"}})
        assert ended(trainer, run.run_id).status == "succeeded"
    daemon.end()
