"""F1: any order of commands, with daemons that are killed and replaced in between, keeps a workspace consistent.

`make test` takes a few short sequences. MOSAIC_FULL_SWEEP=1 takes 30 long ones, at random (some minutes), or as many as
MOSAIC_FAULT_SEQUENCES.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.helpers.daemons import LiveDaemon, ended, scripted, wait_for

from mosaic.contracts.errors import BadInput
from mosaic.contracts.folder import RUN_DIR_VARIABLE, Workspace
from mosaic.contracts.states import RunRecord
from mosaic.contracts.views import RunView
from mosaic.trainer.client.connect import connect

IS_FULL = bool(os.environ.get("MOSAIC_FULL_SWEEP"))
pytestmark = pytest.mark.timeout(0 if IS_FULL else 120)
SEQUENCES = int(os.environ.get("MOSAIC_FAULT_SEQUENCES", 30 if IS_FULL else 4))
LEGAL_MOVES = {
    "queued": {"starting", "finished"},
    "starting": {"queued", "running", "stopping", "finished"},
    "running": {"paused", "stopping", "finished"},
    "paused": {"running", "stopping", "finished"},
    "stopping": {"finished"},
    "finished": {"queued"},
}


def workers_by_folder() -> dict[str, list[int]]:
    """Return the processes of runs by the folder of their run; keepers have none."""
    workers: dict[str, list[int]] = {}
    prefix = f"{RUN_DIR_VARIABLE}=".encode()
    for entry in Path("/proc").iterdir():
        try:
            variables = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        for variable in variables:
            if variable.startswith(prefix):
                workers.setdefault(os.fsdecode(variable.removeprefix(prefix)), []).append(int(entry.name))
    return workers


class WorkspaceMachine(RuleBasedStateMachine):
    runs: Any = Bundle("runs")

    def __init__(self, daemon: LiveDaemon) -> None:
        super().__init__()
        self.daemon = daemon
        self.workspace = daemon.workspace
        self.trainer = connect(self.workspace, may_start=False)
        self.others = {view.run_id for view in self.trainer.runs()}
        self.present: set[str] = set()
        self.deleted: set[str] = set()
        self.commands_to_daemon = 0

    def allowed(self, command: Callable[[], object]) -> bool:
        """Give a command that may not fit the run's stage; then it is refused with a sentence."""
        self.commands_to_daemon += 1
        try:
            command()
        except BadInput:
            return False
        return True

    @initialize(target=runs)
    def submit_some(self) -> Any:
        return multiple(self.submit(1_000_000), self.submit(2), self.submit(1_000_000))

    @rule(target=runs, steps=st.sampled_from([2, 1_000_000]))
    def submit_another(self, steps: int) -> Any:
        return self.submit(steps)

    def submit(self, steps: int) -> str:
        run_id = self.trainer.submit(scripted(steps=steps, dt=0.005)).run_id
        self.present.add(run_id)
        return run_id

    @rule(target=runs, run_id=runs)
    def resubmit(self, run_id: str) -> Any:
        if run_id in self.deleted:
            return run_id
        copy = self.trainer.submit(self.trainer.config(run_id)).run_id
        self.present.add(copy)
        return copy

    @rule(run_id=runs)
    def cancel(self, run_id: str) -> None:
        self.allowed(lambda: self.trainer.cancel_run(run_id))

    @rule(run_id=runs)
    def cancel_and_wait(self, run_id: str) -> None:
        self.allowed(lambda: self.trainer.cancel_run(run_id))
        if run_id in self.present:
            assert ended(self.trainer, run_id).outcome in ("cancelled", "succeeded")

    @rule(run_id=runs)
    def pause(self, run_id: str) -> None:
        self.allowed(lambda: self.trainer.pause_run(run_id))

    @rule(run_id=runs)
    def resume(self, run_id: str) -> None:
        self.allowed(lambda: self.trainer.resume(run_id))

    @rule(run_id=runs)
    def delete(self, run_id: str) -> None:
        if self.allowed(lambda: self.trainer.delete_run(run_id)):
            self.present.remove(run_id)
            self.deleted.add(run_id)

    @rule(run_id=runs)
    def undelete(self, run_id: str) -> None:
        if self.allowed(lambda: self.trainer.import_run(str(self.workspace.trash / run_id))):
            self.deleted.remove(run_id)
            self.present.add(run_id)

    @rule(run_id=runs)
    def wait_for_steps(self, run_id: str) -> None:
        """Let time pass: until the run trains, or something else is in its way."""
        if run_id in self.present and self.trainer.get_run(run_id).stage in ("starting", "running"):
            wait_for(lambda: self.trainer.get_run(run_id).global_step or not self.is_moving(run_id), "steps")

    def is_moving(self, run_id: str) -> bool:
        return self.trainer.get_run(run_id).stage in ("starting", "running")

    @precondition(lambda self: self.commands_to_daemon > 4)
    @rule()
    def replace_daemon(self) -> None:
        self.commands_to_daemon = 0
        self.trainer.close()
        self.daemon.kill()
        self.trainer = self.daemon.start()

    @invariant()
    def every_run_is_listed_once(self) -> None:
        listed = [view.run_id for view in self.trainer.runs()]
        assert sorted(listed) == sorted(self.present | self.others)
        assert {path.name for path in self.workspace.runs.glob("[!.]*")} == self.present | self.others

    @invariant()
    def processes_and_files_agree_with_the_index(self) -> None:
        for run_id in self.present:
            view = self.trainer.get_run(run_id)
            stages = [str(entry.stage) for entry in view.history]
            assert all(later in LEGAL_MOVES[earlier] for earlier, later in itertools.pairwise(stages)), stages
            workers = workers_by_folder().get(view.run_dir, [])
            assert len(workers) <= (0 if view.stage == "finished" and not self.is_active(run_id) else 1)
            wait_for(lambda: self.has_equal_record(run_id), "record.json to agree with the index")  # noqa: B023

    def is_active(self, run_id: str) -> bool:
        return self.trainer.get_run(run_id).stage != "finished"

    def has_equal_record(self, run_id: str) -> bool:
        view: RunView = self.trainer.get_run(run_id)
        record = RunRecord.model_validate_json(self.workspace.run(run_id).record.read_bytes())
        return all(
            getattr(view, name) == getattr(record, name) for name in RunRecord.model_fields.keys() - {"total_timesteps"}
        )

    def teardown(self) -> None:
        for run_id in self.present:
            self.allowed(lambda: self.trainer.cancel_run(run_id))  # noqa: B023
        for run_id in self.present:
            ended(self.trainer, run_id)
        assert not set(workers_by_folder()) & {str(self.workspace.run(run_id).path) for run_id in self.present}
        self.trainer.close()


def test_a_workspace_survives_any_order_of_commands(workspace: Workspace, plugins: Path) -> None:
    """F1: runs are listed once, their stages are legal, they have one worker at most, and none when they have ended."""
    daemon = LiveDaemon(workspace, plugins, "--max-runs", "2")
    daemon.start().close()
    run_state_machine_as_test(
        lambda: WorkspaceMachine(daemon),  # type: ignore[arg-type]  # any callable that makes one
        settings=settings(
            max_examples=SEQUENCES,
            stateful_step_count=40 if IS_FULL else 12,
            derandomize=not IS_FULL,
            database=None,
            deadline=None,
            phases=[Phase.generate],  # a shorter sequence is not worth the minutes that a search for it takes
            suppress_health_check=list(HealthCheck),
        ),
    )
    daemon.end()
