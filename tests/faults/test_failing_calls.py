"""F9: one write, fsync, rename, open or mmap fails in the daemon, the keeper or the worker, wherever that may be.

`make test` takes a sample. MOSAIC_FULL_SWEEP=1 fails every call in turn, until a pass in which none is left to fail.
"""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.helpers.daemons import LiveDaemon, ended, scripted, wait_for
from tests.helpers.failing_calls import ERRORS, Failure
from tests.helpers.keeper_runs import KeeperRun, python, send_launch
from tests.helpers.run_folders import events

from mosaic.base.journal import read_all
from mosaic.contracts.errors import MosaicError, NotAllowed
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.states import RunRecord
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.worker.checkpoints import last_good_checkpoint

IS_FULL = bool(os.environ.get("MOSAIC_FULL_SWEEP"))
pytestmark = pytest.mark.timeout(0 if IS_FULL else 120)
CHILD = Path(__file__).parents[1] / "helpers" / "run_child.py"
Result = TypeVar("Result")


def each_case(*calls: str) -> pytest.MarkDecorator:
    cases = [(call, error) for call in calls for error in (ERRORS[call] if IS_FULL else ERRORS[call][:1])]
    names = [f"{call}-{errno.errorcode[error]}" for call, error in cases]
    return pytest.mark.parametrize(("call", "error"), cases, ids=names)


def sweep(call: str, error: int, sample: Iterable[int], folder: Path) -> Iterator[tuple[Failure, Path]]:
    """Yield failures and the files that report them, until one does not happen because there are fewer such calls."""
    for number in itertools.count(1) if IS_FULL else sample:
        failure, report = Failure(call, error, number), folder / f"{call}-{number}.report"
        yield failure, report
        if not report.exists():
            assert number > 1, f"The process makes no {call} at all."
            return
        print(report.read_text().strip())  # shown if the test fails


# --- the daemon


def ask(call: Callable[[], Result]) -> Result | None:
    """Return the daemon's answer; None where it is an error, which must be a sentence."""
    message = ""
    try:
        return call()
    except MosaicError as error:
        message = str(error)
    assert "The daemon failed (" not in message
    return None


def check_output(daemon: LiveDaemon) -> None:
    """A daemon that has ended has printed one sentence."""
    assert daemon.process is not None
    assert daemon.process.poll() is not None, "The daemon hangs."
    output = (daemon.workspace.root / "daemon.out").read_text()
    assert output.count("\n") <= 1, output
    assert "Traceback" not in output


@contextmanager
def failing_daemon(failing: LiveDaemon, good: LiveDaemon) -> Iterator[TrainerClient]:
    """The daemon whose call fails; where it cannot start, a good one."""
    try:
        trainer = failing.start()
    except AssertionError:
        check_output(failing)
        trainer = good.start()
    with trainer:
        yield trainer
    for daemon in (failing, good):
        if daemon.process is not None and daemon.process.poll() is None:
            daemon.kill()
    check_output(failing)


def use_daemon(trainer: TrainerClient, workspace: Workspace) -> dict[str, set[str]]:
    """Submit, cancel, annotate, delete and restore; return the acknowledged runs and how they may end."""
    runs: dict[str, set[str]] = {}
    short = ask(lambda: trainer.submit(scripted(steps=3)))
    if short is not None:
        runs[short.run_id] = {"succeeded"}
    long = ask(lambda: trainer.submit(scripted(steps=1_000_000, dt=0.005)))
    if long is not None:
        runs[long.run_id] = {"cancelled"}
        wait_for(lambda: ask(lambda: trainer.get_run(long.run_id)), "an answer")
        ask(lambda: trainer.cancel_run(long.run_id))
    if short is not None and ask(lambda: ended(trainer, short.run_id)) is not None:
        ask(lambda: trainer.annotate_run(short.run_id, add_tags=["kept"]))
        ask(lambda: trainer.delete_run(short.run_id))
        ask(lambda: trainer.import_run(str(workspace.trash / short.run_id)))
    return runs


def check_runs(trainer: TrainerClient, workspace: Workspace, runs: dict[str, set[str]]) -> None:
    """Every acknowledged run is here once, ended as it should, and the index, the record and the journal agree."""
    listed = [view.run_id for view in trainer.runs()]
    for run_id, outcomes in runs.items():
        if run_id not in listed:
            trainer.import_run(str(workspace.trash / run_id))  # its deletion was done, and its restoration was not
        if trainer.get_run(run_id).stage not in ("finished", "stopping") and outcomes == {"cancelled"}:
            with suppress(NotAllowed):  # it may end meanwhile
                trainer.cancel_run(run_id)
        view = ended(trainer, run_id)
        assert view.outcome in outcomes or (view.reason or "").startswith("The worker could not be started"), view
    for view in trainer.runs():
        folder = workspace.run(view.run_id)
        record = RunRecord.model_validate_json(folder.record.read_bytes())
        assert {name: getattr(view, name) for name in ("stage", "outcome", "reason", "tags")} == {
            name: getattr(record, name) for name in ("stage", "outcome", "reason", "tags")
        }
        seqs = [event["seq"] for event in read_all(folder.journal)]
        assert seqs == list(range(1, len(seqs) + 1))
        steps = [step for series in trainer.metrics(view.run_id, ["scripted/step"]) for step in series.steps]
        assert steps == list(range(1, (view.global_step or 0) + 1))
    assert not set(listed) - set(runs) or all(view.stage == "finished" for view in trainer.runs())
    assert len(listed) == len(set(listed))


SAMPLE = {"write": (30,), "rename": (6,), "open": (20, 25)}


@each_case(*(ERRORS if IS_FULL else SAMPLE))
def test_a_failing_call_of_the_daemon_loses_no_run(call: str, error: int, tmp_path: Path, plugins: Path) -> None:
    """F9: errors are sentences, acknowledged runs end as they should, and the next daemon knows all of them."""
    for failure, report in sweep(call, error, SAMPLE.get(call, ()), tmp_path):
        workspace = Workspace(tmp_path / str(failure) / "var")
        variables = failure.variables("mosaic.trainer", workspace.root, report)
        good = LiveDaemon(workspace, plugins)
        with failing_daemon(LiveDaemon(workspace, plugins, **variables), good) as trainer:
            runs = use_daemon(trainer, workspace)
        with good.start() as trainer:
            check_runs(trainer, workspace, runs)
            assert ended(trainer, trainer.submit(scripted(steps=1)).run_id).outcome == "succeeded"
        good.kill()


# --- the keeper

WORKER = """
    print("global_step=5, episodic_return=1.0", flush=True)
    announce("done")
"""


@each_case("write", "fsync", "create", "open")
def test_a_failing_call_of_the_keeper_is_retried_or_reported(call: str, error: int, tmp_path: Path) -> None:
    """F9: the worker's end is recorded, or the keeper prints why not in one sentence."""
    for failure, report in sweep(call, error, (1, 2, 3, 5), tmp_path):
        run = KeeperRun(tmp_path / str(failure))
        keeper = run.spawn(**failure.variables("keeper/__main__.py", run.folder.path, report))
        send_launch(keeper, run.launch(python(WORKER), reads_console=True))
        code = keeper.wait(60)
        output = (run.folder.path / "keeper.log").read_text()
        assert output.count("\n") <= 1, output
        kinds = [event["kind"] for event in run.events()]
        if "worker_not_started" in kinds:
            assert code == 0
        else:
            assert kinds[-1] == "exited", kinds
            assert run.events()[-1]["code"] == 0
            assert (run.folder.path / "done").exists()
        assert run.close() == []


# --- the worker


def run_child(folder: RunFolder, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CHILD), "train_briefly", str(folder.path)]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=60)


@each_case("write", "fsync", "rename", "create", "open")
def test_a_failing_call_of_the_worker_loses_at_most_one_checkpoint_interval(
    call: str, error: int, tmp_path: Path
) -> None:
    """F10: it trains on, or ends with an error and can be resumed; no line of its journal and no point is lost."""
    for failure, report in sweep(call, error, (2, 6, 12), tmp_path):
        folder = RunFolder(tmp_path / str(failure))
        folder.path.mkdir()
        result = run_child(folder, failure.variables("run_child.py", folder.path, report))
        saved = [int(step) for step in result.stdout.split()]
        if result.returncode:
            assert "OSError" in result.stderr or "Error: [Errno" in result.stderr
            checkpoint = last_good_checkpoint(folder)
            assert (checkpoint.step if checkpoint else 0) >= (saved[-1] if saved else 0)
            result = run_child(folder, {})
            assert result.returncode == 0, result.stderr
        checkpoint = last_good_checkpoint(folder)
        assert checkpoint is not None
        assert checkpoint.step == 30
        assert float(checkpoint.weights["w"][0]) == 30
        lines: list[Any] = read_all(folder.journal)
        assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
        assert [event["outcome"] for event in events(folder, "finished")] == ["succeeded"]
        points = [row for event in events(folder, "metrics") for row in event["series"]["value"]]
        assert {step for step, _, _ in points} == set(range(1, 31))
