"""Runs the trials of a sweep: one loop that starts them, follows their runs, reports, prunes and tells.

It may be killed at any moment. What it has decided is in the study; which runs belong to a trial follows from their
keys, so that a trial is continued by submitting its runs again, of which the daemon returns those that it has.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from mosaic.base.caller_environment import program_environment
from mosaic.base.formatting import count_noun, join_words
from mosaic.base.workspace_trust import claim_if_new
from mosaic.contracts.errors import BadInput, NotAllowed, RunEnded, UnknownName
from mosaic.contracts.names import RETURN_TAG
from mosaic.contracts.states import Outcome, Stage
from mosaic.contracts.views import MetricsCursor
from mosaic.features.experiments.api import check_cells, submit_missing
from mosaic.features.experiments.core import is_done
from mosaic.features.sweeps.core import (
    FREE_KEYS,
    METRICS,
    SweepPlan,
    TrialStatus,
    changed_keys,
    parse_sweep,
    plan_sweep,
    seed_scores,
    trial_score,
)
from mosaic.features.sweeps.core_folder import SweepFolder

if TYPE_CHECKING:
    from mosaic.contracts.folder import Workspace
    from mosaic.contracts.views import RunView
    from mosaic.features.experiments.api import Call
    from mosaic.features.experiments.core import ExperimentPlan, PlannedRun
    from mosaic.features.sweeps.core import SweepConfig, TrialRow
    from mosaic.features.sweeps.core_study import Study

POLL_S = 0.5
MAX_ATTEMPTS = 3
"""Of a run that is lost, such as by a restart of the machine."""
MAX_FAILED = 5
"""Trials that fail before the first one succeeds: then something is wrong with all of them."""


def check_sweep(call: Call[Any], workspace: Workspace, data: dict[str, Any]) -> None:
    """Raise where the sweep's file or a run without searched settings is refused, or other runs have its group."""
    config = parse_sweep(data)
    cells = plan_sweep(config).plan_defaults().cells
    if not SweepFolder(workspace.sweeps / config.name).config.exists():
        _require_new_group(call, config.name)
    check_cells(call, cells, 1)


def _require_new_group(call: Call[Any], name: str) -> None:
    members = call(lambda trainer: trainer.runs(group=name, include_archived=True))
    if members:
        raise NotAllowed(
            f"The group {name!r} has {count_noun(len(members), 'run')} that this sweep did not start. Choose another "
            "name: the runs of a sweep are a group of their own."
        )


@contextmanager
def open_study(workspace: Workspace, data: dict[str, Any]) -> Iterator[Study]:
    """Open the study of a sweep for writing, and create it if it is new. `data` is the content of the sweep's file."""
    config = parse_sweep(data)
    plan = plan_sweep(config)
    from mosaic.features.sweeps.core_study import Study  # imports Optuna

    folder = SweepFolder(workspace.sweeps / config.name)
    claim_if_new(workspace)  # with a trainer on another machine, there is no daemon here
    with folder.hold():
        _check_unchanged(folder, config)
        folder.write_config(json.dumps(data, indent=2))
        study = Study(folder, plan)
        study.prepare(uuid4().hex)
        yield study


def end_running_sweep(workspace: Workspace, data: dict[str, Any]) -> None:
    """Make the process that runs this sweep end, if there is one; its runs continue."""
    config = parse_sweep(data)
    folder = SweepFolder(workspace.sweeps / config.name)
    _check_unchanged(folder, config)
    folder.end_holder()


def _check_unchanged(folder: SweepFolder, config: SweepConfig) -> None:
    if not folder.config.exists():
        return
    changed = changed_keys(parse_sweep(folder.read_config()), config)
    if changed:
        raise NotAllowed(
            f"The sweep {config.name!r} was started with other values of {join_words(changed)}, so its scores "
            f"cannot be compared. Only {join_words(FREE_KEYS)} may change: undo the change, or choose another name."
        )


def read_study(folder: SweepFolder) -> Study:
    """Open the study of a sweep for reading."""
    from mosaic.features.sweeps.core_study import Study

    return Study(folder, plan_sweep(parse_sweep(folder.read_config())))


@dataclass
class _TrackedRun:
    """A run of a trial with the returns that were read of it."""

    planned: PlannedRun
    view: RunView
    cursor: MetricsCursor = field(default_factory=MetricsCursor)
    steps: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)

    @property
    def total_steps(self) -> int:
        return self.planned.cell.total_timesteps or self.view.total_timesteps or 1

    def has_reached(self, share: float) -> bool:
        """Whether all episodes up to this share of its steps are known: one has ended later, or the run has."""
        is_past = bool(self.steps) and self.steps[-1] > share * self.total_steps
        return is_past or self.view.stage is Stage.FINISHED

    def metric(self, name: str, share: float) -> float:
        returns = np.array(self.returns, np.float64)
        return METRICS[name](np.array(self.steps, np.float64), returns, share * self.total_steps)


@dataclass
class _ActiveTrial:
    number: int
    plan: ExperimentPlan
    runs: list[_TrackedRun]
    next_report: int = 1


class SweepLoop:
    def __init__(self, call: Call[Any], study: Study, is_interrupted: Callable[[], bool] = lambda: False) -> None:
        self._call = call
        self._study = study
        self._plan: SweepPlan = study.plan
        self._config = study.plan.config
        self._is_interrupted = is_interrupted
        self._active: dict[int, _ActiveTrial] = {}
        self.is_cancelled = False
        """Whether `run` returned because another process cancels the sweep."""

    def run(self, show: Callable[[list[TrialRow]], None] = lambda rows: None) -> None:
        """Return when all trials have ended, the caller is interrupted, or another process cancels the sweep.

        Runs that have not ended continue; the process that cancels the sweep cancels them.
        """
        self._adopt_running()
        while not self._has_to_end():
            while len(self._active) < self._config.parallel and not self._study.is_exhausted():
                self._begin(self._study.ask())
                if self._has_to_end():
                    return
            for trial in list(self._active.values()):
                if self._advance(trial):
                    del self._active[trial.number]
            rows = self._study.rows()
            show(rows)
            self._require_success(rows)
            if not self._active and self._study.is_exhausted():
                return
            time.sleep(POLL_S)

    def _has_to_end(self) -> bool:
        self.is_cancelled = self._study.folder.end_request.exists()
        return self.is_cancelled or self._is_interrupted()

    def cancel(self) -> int:
        """Cancel the runs of all running trials, and give these trials up; return their number."""
        self._adopt_running()
        for trial in self._active.values():
            self._cancel_runs(trial)
            self._study.tell_cancelled(trial.number)
        count = len(self._active)
        self._active.clear()
        return count

    # --- starting

    def _adopt_running(self) -> None:
        """Continue the trials that an earlier process left."""
        from mosaic.features.sweeps.core_study import INTERRUPTED

        for row in self._study.rows():
            if row.status is not TrialStatus.RUNNING:
                continue
            if not row.is_complete:  # killed while its settings were chosen: it has no runs
                self._study.tell_cancelled(row.number, INTERRUPTED)
                continue
            self._begin(row)

    def _begin(self, row: TrialRow) -> None:
        """Submit the runs of a trial that are missing; find the others."""
        plan = self._plan.plan_trial(self._study.id, row.number, row.params)
        try:
            report = submit_missing(self._call, plan)
        except BadInput as error:
            self._study.tell_failed(row.number, str(error))
            return
        runs = [_TrackedRun(run.planned, run.view) for run in report.runs if run.view is not None]
        trial = _ActiveTrial(row.number, plan, runs, max(row.reports, default=1))
        if row.pruned_at is not None:
            self._prune(trial)
            return
        self._active[row.number] = trial

    # --- following

    def _advance(self, trial: _ActiveTrial) -> bool:
        """Read what is new of a trial and act on it; return whether it has ended."""
        try:
            for run in trial.runs:
                self._refresh(run)
        except UnknownName as error:  # a run was deleted
            self._cancel_runs(trial)
            self._study.tell_failed(trial.number, str(error))
            return True
        failed = [run.view for run in trial.runs if run.view.stage is Stage.FINISHED and not is_done(run.view)]
        if failed:
            self._cancel_runs(trial)
            self._study.tell_failed(trial.number, f"Run {failed[0].run_id}: {failed[0].reason or failed[0].status}")
            return True
        count = self._config.reports
        while trial.next_report < count and all(run.has_reached(trial.next_report / count) for run in trial.runs):
            value = trial_score(self._config, self._values(trial, trial.next_report / count))
            if math.isfinite(value) and self._study.report(trial.number, value, trial.next_report):
                self._prune(trial)
                return True
            trial.next_report += 1
        if any(run.view.stage is not Stage.FINISHED for run in trial.runs):
            return False
        self._finish(trial)
        return True

    def _finish(self, trial: _ActiveTrial) -> None:
        values = self._values(trial, 1.0)
        score = trial_score(self._config, values)
        if not math.isfinite(score):
            self._study.tell_failed(trial.number, "a run has finished no episode")
            return
        self._study.tell_done(trial.number, score, seed_scores(self._config, values).tolist())

    def _values(self, trial: _ActiveTrial, share: float) -> dict[str, list[float]]:
        """By environment: the metric of each seed, when this share of the steps had been taken."""
        values: dict[str, list[float]] = {}
        for run in trial.runs:
            values.setdefault(run.planned.cell.environment, []).append(run.metric(self._config.metric, share))
        return values

    def _refresh(self, run: _TrackedRun) -> None:
        if run.view.stage is not Stage.FINISHED or not run.cursor.last_point:
            # The view first: the points that are read afterwards include all of a run that has ended.
            run.view = self._call(lambda trainer: trainer.get_run(run.view.run_id))
            update = self._call(lambda trainer: trainer.metrics_after(run.view.run_id, run.cursor, [RETURN_TAG]))
            if update.is_reload:
                run.steps.clear()
                run.returns.clear()
            for series in update.series:
                run.steps += series.steps
                run.returns += series.values
            run.cursor = update.cursor
        if run.view.outcome is Outcome.LOST:
            self._replace_lost(run)

    def _replace_lost(self, run: _TrackedRun) -> None:
        attempt = run.view.experiment.attempt if run.view.experiment is not None else MAX_ATTEMPTS
        if attempt >= MAX_ATTEMPTS:
            return
        payload = run.planned.build_payload(attempt + 1)
        view = self._call(lambda trainer: trainer.submit(payload, program_environment(payload)))
        run.view, run.cursor, run.steps, run.returns = view, MetricsCursor(), [], []

    # --- ending

    def _prune(self, trial: _ActiveTrial) -> None:
        self._cancel_runs(trial)
        self._study.tell_pruned(trial.number)

    def _cancel_runs(self, trial: _ActiveTrial) -> None:
        for run in trial.runs:
            with suppress(NotAllowed, UnknownName):  # it has ended by itself, or was deleted
                self._call(lambda trainer, run_id=run.view.run_id: trainer.cancel_run(run_id))  # type: ignore[misc]

    def _require_success(self, rows: list[TrialRow]) -> None:
        failed = [row for row in rows if row.status is TrialStatus.FAILED]
        has_success = any(row.status in (TrialStatus.DONE, TrialStatus.PRUNED) for row in rows)
        if len(failed) >= MAX_FAILED and not has_success:
            raise RunEnded(f"The first {len(failed)} trials all failed. The last one: {failed[-1].problem}")
