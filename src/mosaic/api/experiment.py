"""An experiment of the workspace: `mosaic.experiment`."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mosaic.api.duels import ProgressLine
from mosaic.api.experiment_state import ExperimentRun, format_counts
from mosaic.api.experiments import check_cells, follow_runs, read_runs, submit_missing
from mosaic.api.metric_arrays import html_table
from mosaic.api.reference_scores import ReferenceScores, read_ranges
from mosaic.api.run_wait import InterruptCounter
from mosaic.api.submitted_run import Run, Runs
from mosaic.contracts.errors import BadInput, NotAllowed, RunEnded
from mosaic.contracts.metric_tags import RETURN_TAG
from mosaic.contracts.printable import make_printable
from mosaic.contracts.states import Outcome
from mosaic.formatting import short_id

if TYPE_CHECKING:
    from mosaic.api.group_comparison import ComparisonResult
    from mosaic.client.connect import ReconnectingClient
    from mosaic.submission.experiment_plan import ExperimentPlan


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
        from mosaic.api.group_comparison import compare_runs

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
        from mosaic.api.figures import check_score, parse_kind, parse_width, save_figure

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
