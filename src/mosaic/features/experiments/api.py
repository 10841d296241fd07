"""Checks, submits and follows experiments."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mosaic.base.caller_environment import program_environment
from mosaic.base.formatting import short_id
from mosaic.base.progress_line import ProgressLine
from mosaic.base.yaml_file import read_yaml_file, to_plain_mapping
from mosaic.contracts.errors import BadInput, FieldProblem, NotAllowed, RunEnded
from mosaic.contracts.model import refuse
from mosaic.contracts.names import RETURN_TAG
from mosaic.contracts.printable import make_printable
from mosaic.contracts.states import Outcome, Stage
from mosaic.features.experiments.core import (
    SUBJECT,
    ExperimentCell,
    ExperimentConfig,
    ExperimentPlan,
    ExperimentRun,
    PlannedRun,
    ReferenceScores,
    choose_submissions,
    digest,
    format_counts,
    match_runs,
    parse_experiment,
    read_ranges,
)
from mosaic.features.runs.api_run import Run, Runs, html_table
from mosaic.trainer.client.run_wait import InterruptCounter

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView, Verdict
    from mosaic.features.experiments.core_comparison import ComparisonResult
    from mosaic.trainer.client.connect import ReconnectingClient
    from mosaic.trainer.client.trainer_client import TrainerClient

POLL_S = 0.5
_NOUN = "The experiment"

Result = TypeVar("Result")
Call = Callable[[Callable[["TrainerClient"], Result]], Result]
"""Calls the daemon, and again if it was restarted meanwhile: a submission of an experiment may be repeated."""


def read_experiment(source: str | os.PathLike[str] | Mapping[str, Any]) -> ExperimentConfig:
    """Return the experiment that a YAML file or a mapping describes."""
    data = source if isinstance(source, Mapping) else read_yaml_file(Path(source), _NOUN)
    return parse_experiment(to_plain_mapping(data, _NOUN, "name, algorithms, environments and seeds"))


def check_cells(call: Call[Any], cells: Sequence[ExperimentCell], seed: int) -> list[Verdict]:
    """Return the workers' verdicts; raises ConfigRefused naming every combination that is refused."""
    verdicts: list[Verdict] = []
    problems: list[FieldProblem] = []
    for cell in cells:
        payload = PlannedRun(cell, seed).build_payload()
        try:
            verdicts.append(call(lambda trainer, p=payload: trainer.check(p, program_environment(p))))  # type: ignore[misc]
        except BadInput as error:
            problems.append(FieldProblem(cell.title, str(error).removeprefix("LOG705 ").rstrip(".")))
    if problems:
        raise refuse(problems, SUBJECT)
    return verdicts


def read_runs(call: Call[Any], plan: ExperimentPlan) -> list[ExperimentRun]:
    return match_runs(plan, call(lambda trainer: trainer.runs(group=plan.name, include_archived=True)))


@dataclass(frozen=True)
class SubmissionReport:
    """What a call of `submit_missing` did."""

    runs: list[ExperimentRun]
    """All runs of the experiment, as they were afterwards."""
    submitted: list[RunView]
    left: int
    """How many were not submitted because the caller was interrupted."""


def submit_missing(
    call: Call[Any],
    plan: ExperimentPlan,
    is_retry: bool = False,
    is_interrupted: Callable[[], bool] = lambda: False,
    show: Callable[[str], None] = lambda line: None,
) -> SubmissionReport:
    """Submit the runs that are missing, after a dry run of all of them.

    It may be interrupted or killed and repeated at any moment: the daemon returns a run that it has instead of creating
    it twice.
    """
    chosen = choose_submissions(read_runs(call, plan), is_retry)
    if chosen:
        cells = list(dict.fromkeys(planned.cell.settings_key for planned, _ in chosen))
        check_cells(call, [cell for cell in plan.cells if cell.settings_key in cells], plan.seeds[0])
    submitted: list[RunView] = []
    for planned, attempt in chosen:
        if is_interrupted():
            break
        payload = planned.build_payload(attempt)
        submitted.append(call(lambda trainer, p=payload: trainer.submit(p, program_environment(p))))  # type: ignore[misc]
        show(f"{len(submitted)} of {len(chosen)} submitted")
    return SubmissionReport(read_runs(call, plan), submitted, len(chosen) - len(submitted))


def retry_run(trainer: TrainerClient, view: RunView, is_trusted: bool = False) -> RunView:
    """Submit a run of an experiment again as its next attempt, with the config that it had."""
    if view.experiment is None:
        raise BadInput(f"Run {view.run_id} is not part of an experiment: submit it again as a run of its own.")
    config = dict(trainer.config(view.run_id))
    member = view.experiment.model_copy(update={"attempt": view.experiment.attempt + 1})
    config["metadata"] = {**config["metadata"], "experiment": member.model_dump(mode="json")}
    return trainer.submit(config, program_environment(config), is_trusted)


def repeat_member(
    view: RunView, config: Mapping[str, Any], changed: Mapping[str, Any], members: Iterable[RunView]
) -> dict[str, Any]:
    """Return the place of a run that is submitted again with changes, to a group with these `members`; by its key.

    Empty where it is of no experiment, or trains something else than its labels say.
    """
    before, after = (payload["metadata"]["worker"]["config"] for payload in (config, changed))
    if view.experiment is None or any(before.get(name) != after.get(name) for name in ("algo", "env_id")):
        return {}
    place = view.experiment
    if before != after:
        without_seed = {name: value for name, value in after.items() if name != "seed"}
        place = place.model_copy(
            update={
                "key": digest({"repeats": place.key, "config": after}),
                "settings_key": digest({"repeats": place.settings_key, "config": without_seed}),
            }
        )
    earlier = (one.experiment.attempt for one in members if one.experiment and one.experiment.key == place.key)
    place = place.model_copy(update={"attempt": 1 + max(earlier, default=0)})
    return {"experiment": place.model_dump(mode="json")}


def follow_runs(
    call: Call[Any],
    plan: ExperimentPlan,
    show: Callable[[str], None] = lambda line: None,
    is_interrupted: Callable[[], bool] = lambda: False,
    timeout_s: float | None = None,
) -> list[ExperimentRun]:
    """Return when all submitted runs have ended, or the caller is interrupted.

    Raises TimeoutError after `timeout_s`; runs continue.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        runs = read_runs(call, plan)
        line = format_counts([run.status for run in runs])
        show(line)
        if is_interrupted() or all(run.view is None or run.view.stage is Stage.FINISHED for run in runs):
            return runs
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"The experiment {plan.name!r} is not done after {timeout_s:g} s: {line}. It continues.")
        time.sleep(POLL_S)


# --- An experiment of the workspace: `mosaic.experiment`.


@dataclass(frozen=True)
class ExperimentStatus:
    """How many of an experiment's runs are at which status; `missing` ones were not submitted."""

    counts: Mapping[str, int]
    line: str
    """`18 of 30 done, 2 failed, 4 running, 6 queued`."""

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def is_done(self) -> bool:
        """Whether all runs have succeeded."""
        return self.counts.get(str(Outcome.SUCCEEDED), 0) == self.total

    def __str__(self) -> str:
        return self.line


class Experiment:
    """Algorithms × environments × seeds as one group of runs.

    Its runs are found again by their settings, also by another process: the same config is the same experiment.
    """

    def __init__(self, connection: ReconnectingClient, plan: ExperimentPlan) -> None:
        self._connection = connection
        self._plan = plan

    @property
    def name(self) -> str:
        """The group of its runs."""
        return self._plan.name

    def check(self) -> Experiment:
        """Have every combination checked by a dry run, and return the experiment; raises ConfigRefused."""
        check_cells(self._connection.call, self._plan.cells, self._plan.seeds[0])
        return self

    def run(self, *, retry: bool = False) -> Experiment:
        """Submit the runs that are missing, and return at once. Nothing is submitted if a combination is refused.

        `retry`: submit failed, cancelled and lost runs again, too.
        """
        submit_missing(self._connection.call, self._plan, retry)
        return self

    def wait(self, progress: bool = False, timeout: float | None = None) -> Experiment:
        """Wait until all submitted runs have ended, and return the experiment.

        Raises RunEnded if one did not succeed, and TimeoutError after `timeout` seconds. Ctrl-C detaches: the runs
        continue, and `wait` returns.
        """
        with InterruptCounter() as interrupts, closing(ProgressLine()) as line:
            show = line if progress else (lambda _: None)
            runs = follow_runs(self._connection.call, self._plan, show, lambda: interrupts.count > 0, timeout)
        if any(run.view is not None and run.view.is_active for run in runs):
            print(
                f"Detached from {self.name}: {_status_of(runs)}. Cancel it: mosaic cancel {self.name}", file=sys.stderr
            )
            return self
        if failed := [run.view for run in runs if run.is_unsuccessful and run.view is not None]:
            first = f"Run {short_id(failed[0].run_id)} {failed[0].status}: {failed[0].reason}"
            raise RunEnded(f"{self.name}: {_status_of(runs)}. {first} Submit such runs again: run(retry=True)")
        return self

    @property
    def status(self) -> ExperimentStatus:
        """How far its runs are: `18 of 30 done, 2 failed, 4 running`."""
        return _status_of(self._read())

    @property
    def runs(self) -> Runs:
        """The newest run of each combination that was submitted, newest first."""
        views = sorted((run.view for run in self._read() if run.view is not None), key=lambda view: view.age_key)
        return Runs([Run(self._connection, view) for view in reversed(views)])

    def cancel(self) -> Experiment:
        """Ask all runs that have not ended to stop with a checkpoint, and return."""
        for run in self.runs:
            if not run.is_finished:
                try:
                    run.cancel()
                except NotAllowed:
                    continue  # it has just ended by itself
        return self

    def compare(
        self,
        *,
        by: str | None = None,
        tag: str = RETURN_TAG,
        last: int | None = None,
        env_id: str = "",
        reference_scores: ReferenceScores | None = None,
        score: str = "final",
        common_step: bool = False,
    ) -> ComparisonResult:
        """Compare its runs by setting, on each environment and by normalized scores, as `mosaic compare` does."""
        from mosaic.features.experiments.core_comparison import compare_runs

        names = [run.id for run in self.runs[::-1]]
        if not names:
            raise BadInput(f"{self.name} has no runs yet: there is nothing to compare. Submit them: run()")
        reference = read_ranges(reference_scores)
        return self._connection.call(
            lambda trainer: compare_runs(trainer, names, by, tag, last, env_id, reference, score, common_step)
        )

    def plot(
        self,
        path: str | os.PathLike[str],
        *,
        kind: str = "curves",
        width: str | float = "full",
        by: str | None = None,
        tag: str = RETURN_TAG,
        last: int | None = None,
        env_id: str = "",
        reference_scores: ReferenceScores | None = None,
        score: str = "final",
        common_step: bool = False,
    ) -> Path:
        """Draw a figure of its runs (`curves`, `efficiency` or `aggregates`) and return where it is.

        The name of the file decides the format: .pdf, .svg or .png. `width` is `column`, `full` or inches. Requires
        matplotlib.
        """
        from mosaic.features.experiments.core_figures import check_score, parse_kind, parse_width, save_figure

        figure, width_in = parse_kind(kind), parse_width(str(width))
        check_score(figure, score)
        result = self.compare(
            by=by, tag=tag, last=last, env_id=env_id, reference_scores=reference_scores, score=score,
            common_step=common_step,
        )  # fmt: skip
        save_figure(result, Path(path), figure, width_in)
        return Path(path).absolute()

    def _read(self) -> list[ExperimentRun]:
        return read_runs(self._connection.call, self._plan)

    def __repr__(self) -> str:
        return make_printable(f"<Experiment {self.name}: {self.status}>")

    def _repr_html_(self) -> str:
        rows = [
            (run.planned.cell.setting, run.planned.cell.environment, run.planned.seed, run.status)
            for run in self._read()
        ]
        return html_table(("setting", "environment", "seed", "status"), rows)


def _status_of(runs: list[ExperimentRun]) -> ExperimentStatus:
    statuses = [run.status for run in runs]
    return ExperimentStatus(dict(Counter(statuses)), format_counts(statuses))
