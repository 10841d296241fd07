"""A run of the workspace, and sequences of runs."""

from __future__ import annotations

import html
import sys
from collections import UserDict, UserList
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from mosaic.base.formatting import describe_status, format_progress_line, short_id
from mosaic.base.run_payloads import effective_settings
from mosaic.contracts.errors import MissingExtra, NotAllowed, RunEnded, unknown_name_error
from mosaic.contracts.folder import RECORDING_NAME
from mosaic.contracts.options import RunKind
from mosaic.contracts.play import PlaySummary
from mosaic.contracts.printable import make_printable
from mosaic.contracts.states import Outcome, Stage
from mosaic.features.evaluate.api import evaluation_payload, open_policy
from mosaic.features.replay.api import replay_episodes
from mosaic.trainer.client.run_wait import InterruptCounter, ShowProgress, open_progress, poll_until_finished
from mosaic.trainer.client.trainer_client import submit_once
from mosaic.worker.envs.user_modules import allow_imports
from mosaic.worker.policies import Policy, load_policy_file

if TYPE_CHECKING:
    import pandas as pd

    from mosaic.contracts.replays import ReplayReport
    from mosaic.contracts.views import EpisodeRow, EvaluationSummary, RunView
    from mosaic.contracts.views import MetricSeries as SeriesPart
    from mosaic.trainer.client.connect import ReconnectingClient
    from mosaic.trainer.client.trainer_client import TrainerClient

# --- Metrics and episodes of a run as numpy arrays, and tables of them for pandas and notebooks.


Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MetricSeries:
    """The points of one metric, in the order in which they were logged."""

    tag: str
    steps: Ints
    times: Floats
    """Seconds since 1970."""
    values: Floats

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        last = f", last {self.values[-1]:.6g} at step {self.steps[-1]:,}" if len(self) else ""
        return f"MetricSeries({self.tag!r}, {len(self):,} points{last})"

    def to_frame(self) -> pd.DataFrame:
        """Return the columns step, time and value. Requires pandas."""
        return make_frame({"step": self.steps, "time": self.times, "value": self.values})


class Metrics(UserDict[str, MetricSeries]):
    """All metrics of a run by tag."""

    def __repr__(self) -> str:
        return f"Metrics({', '.join(map(repr, self.values()))})"

    def to_frame(self) -> pd.DataFrame:
        """Return the columns tag, step, time and value, one row per point. Requires pandas."""
        series = [empty_series(""), *self.values()]
        return make_frame(
            {
                "tag": [one.tag for one in series for _ in range(len(one))],
                "step": np.concatenate([one.steps for one in series]),
                "time": np.concatenate([one.times for one in series]),
                "value": np.concatenate([one.values for one in series]),
            }
        )


@dataclass(frozen=True, eq=False)
class Episodes:
    """The finished episodes of a run, one element per episode in each array."""

    steps: Ints
    """Environment steps of the run when the episode ended."""
    times: Floats
    """Seconds since 1970."""
    returns: Floats
    """NaN where a return was not finite."""
    lengths: Ints
    envs: Ints
    """Index of the environment that it was played in."""

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        finite = [value for value in self.returns[-100:] if np.isfinite(value)]
        mean = f", mean return of the last 100: {np.mean(finite):.6g}" if finite else ""
        return f"Episodes({len(self):,} episodes{mean})"

    def to_frame(self) -> pd.DataFrame:
        """Return the columns step, time, return, length and env. Requires pandas."""
        columns: dict[str, Ints | Floats] = {"step": self.steps, "time": self.times, "return": self.returns}
        return make_frame({**columns, "length": self.lengths, "env": self.envs})


def join_series(parts: Iterable[SeriesPart]) -> dict[str, MetricSeries]:
    """Join the parts in which the daemon sends the points, by tag."""
    by_tag: dict[str, list[SeriesPart]] = {}
    for part in parts:
        by_tag.setdefault(part.tag, []).append(part)
    return {
        tag: MetricSeries(
            tag,
            np.concatenate([np.array(part.steps, np.int64) for part in tag_parts]),
            np.concatenate([np.array(part.at, np.float64) for part in tag_parts]),
            np.concatenate([np.array(part.values, np.float64) for part in tag_parts]),
        )
        for tag, tag_parts in by_tag.items()
    }


def empty_series(tag: str) -> MetricSeries:
    return MetricSeries(tag, np.empty(0, np.int64), np.empty(0), np.empty(0))


def join_episodes(rows: Iterable[EpisodeRow]) -> Episodes:
    episodes = list(rows)
    return Episodes(
        np.array([row.step for row in episodes], np.int64),
        np.array([row.at for row in episodes], np.float64),
        np.array([np.nan if row.episodic_return is None else row.episodic_return for row in episodes], np.float64),
        np.array([row.length for row in episodes], np.int64),
        np.array([row.env for row in episodes], np.int64),
    )


# --- tables


def make_frame(columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]]) -> pd.DataFrame:
    """Return a data frame of columns of equal length; MissingExtra where pandas is not installed."""
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise MissingExtra("to_frame() needs pandas, which is not installed: pip install 'mosaic-rl[pandas]'") from None
    return pd.DataFrame(dict(columns))


def html_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a small HTML table; cells are escaped, and a `$` in them begins no formula."""
    head = "".join(f"<th style='text-align:left'>{html.escape(name)}</th>" for name in header)
    cells = [[html.escape(make_printable(str(cell))) for cell in row] for row in rows]
    body = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{cell}</td>" for cell in row) + "</tr>" for row in cells
    )
    start = f"<thead><tr>{head}</tr></thead>" if header else ""
    return f"<table class='mathjax_ignore tex2jax_ignore'>{start}<tbody>{body}</tbody></table>"


# --- A run of the workspace, and sequences of runs.


UNSUCCESSFUL = (Outcome.FAILED, Outcome.REJECTED, Outcome.LOST)
FRAME_COLUMNS = (
    *("run_id", "run_name", "kind", "status", "algo", "env_id", "seed", "group", "tags", "global_step"),
    *("total_timesteps", "episodes", "episodic_return", "sps", "submitted_at", "finished_at", "run_dir"),
)


class Run:
    """A run: training, an evaluation, a play session or a script.

    Attributes such as `status` show the run as it was last read; `refresh` reads it again.
    """

    def __init__(self, connection: ReconnectingClient, view: RunView) -> None:
        self._connection = connection
        self._view = view

    # --- state

    @property
    def id(self) -> str:
        """Its id, a ULID."""
        return self._view.run_id

    @property
    def view(self) -> RunView:
        """Everything that lists show of the run, as it was last read."""
        return self._view

    @property
    def status(self) -> str:
        """The outcome of a finished run (`succeeded`, `failed`, …), else its stage (`queued`, `running`, …)."""
        return self._view.status

    @property
    def is_finished(self) -> bool:
        """Whether it had ended when it was last read."""
        return self._view.stage is Stage.FINISHED

    @property
    def folder(self) -> Path:
        """The folder with everything that the run wrote, on the daemon's machine."""
        return Path(self._view.run_dir)

    @property
    def config(self) -> Mapping[str, Any]:
        """The payload that was submitted."""
        return self._connection.call(lambda trainer: trainer.config(self.id))

    @property
    def settings(self) -> Mapping[str, Any]:
        """Every setting by name, including those that were left at their default."""
        return effective_settings(dict(self.config))

    def refresh(self) -> Run:
        """Read the run's state again, and return the run."""
        self._view = self._connection.call(lambda trainer: trainer.get_run(self.id))
        return self

    def wait(self, progress: bool = False, timeout: float | None = None) -> Run:
        """Wait until the run has ended, and return it.

        Raises RunEnded with the reason if it failed, and TimeoutError after `timeout` seconds. Ctrl-C detaches:
        the run continues, and `wait` returns.
        """
        try:
            if progress:
                with open_progress() as show:
                    self._wait(timeout, show)
            else:
                self._wait(timeout)
        except KeyboardInterrupt:
            print(f"Detached from run {short_id(self.id)}, which is {self.refresh().status}.", file=sys.stderr)
            return self
        if self._view.outcome in UNSUCCESSFUL:
            raise RunEnded(f"Run {short_id(self.id)} {self.status}: {self._view.reason}")
        return self

    def _wait(self, timeout: float | None, show: ShowProgress | None = None) -> None:
        with InterruptCounter() as interrupts:
            poll_until_finished(lambda: self.refresh().view, timeout, show, lambda: interrupts.count > 0)

    # --- results

    @overload
    def metrics(self, tag: None = None) -> Metrics: ...
    @overload
    def metrics(self, tag: str) -> MetricSeries: ...

    def metrics(self, tag: str | None = None) -> MetricSeries | Metrics:
        """Return the points of one metric, such as `charts/episodic_return`, or all metrics by tag.

        A metric that an active run has not logged yet has no points; one that an ended run has not logged is an error.
        """
        if tag is None:
            return Metrics(self._connection.call(lambda trainer: join_series(trainer.metrics(self.id))))
        # Asked before the points are read: those of a run that has ended have all arrived.
        has_ended = self.is_finished or not self._connection.call(lambda trainer: trainer.get_run(self.id)).is_active
        series = self._connection.call(lambda trainer: join_series(trainer.metrics(self.id, [tag])))
        if tag in series:
            return series[tag]
        known = self._connection.call(lambda trainer: {p.tag for p in trainer.metrics(self.id, last_only=True)})
        if known and has_ended:
            raise unknown_name_error("metric", tag, known, f"run {short_id(self.id)}")
        return empty_series(tag)

    def episodes(self) -> Episodes:
        """Return its finished episodes."""
        return self._connection.call(lambda trainer: join_episodes(trainer.episodes(self.id)))

    def logs(self, stderr: bool = False) -> str:
        """Return what the run wrote to its standard output, or to its standard error."""
        chunks = self._connection.call(lambda trainer: [chunk.data for chunk in trainer.log(self.id, stderr)])
        return b"".join(chunks).decode("utf-8", "replace")

    @property
    def returns(self) -> npt.NDArray[np.float64]:
        """One return per finished episode, NaN where it was not finite; of several agents, that of the first."""
        return self.episodes().returns

    @property
    def summary(self) -> PlaySummary | EvaluationSummary | None:
        """The result of a play session or an evaluation, which has one when it has ended; None before."""
        if self._view.kind is RunKind.PLAY:
            return self._connection.call(lambda trainer: trainer.play_summary(self.id))
        evaluation = self._connection.call(lambda trainer: next(trainer.read_evaluations(self.id), None))
        return None if evaluation is None else evaluation.summary

    @property
    def recording(self) -> Path | None:
        """The file with the episodes that the run recorded, copied here if it is elsewhere; None if there is none."""
        if not self._connection.call(lambda trainer: trainer.files(self.id, RECORDING_NAME)):
            return None
        return self._connection.call(lambda trainer: trainer.open_file(self.id, RECORDING_NAME))

    def replay(self, episode: int | None = None) -> list[ReplayReport]:
        """Simulate a recorded episode again, from 0, or all of them, in a process of its own, and compare each reward.

        `is_identical` of a report is False where it differed, and `difference` says at which step.
        """
        recording = self.recording
        if recording is None:
            raise NotAllowed(f"Run {short_id(self.id)} recorded no episodes.")
        return list(replay_episodes(recording, episode))

    def evaluate(
        self,
        episodes: int = 50,
        *,
        checkpoint: str | int = "last",
        deterministic: bool = True,
        seed: int | None = None,
        env_id: str | None = None,
        video: bool = False,
        record: bool = False,
        trust: bool = False,
        progress: bool = False,
        timeout: float | None = None,
    ) -> EvaluationResult:
        """Evaluate its policy on seeds that training did not use, wait for the end, and return the result.

        `checkpoint` is `last`, `best` or a step. `seed` is the first seed instead. `trust`: import the module that the
        environment of an imported run names. The evaluation is a run of its own; with `record`, it can be replayed.
        """
        options = {
            "eval_batch_size": episodes,
            "eval_capture_video": video,
            "eval_stochastic": not deterministic,
            "record_episodes": record,
            "seed_override": seed,
        }
        trainer = self._connection.trainer()
        payload = evaluation_payload(trainer, self.id, options, str(checkpoint), env_id=env_id)
        view = submit_once(self._connection.call, payload, is_trusted=trust)
        run = Run(self._connection, view).wait(progress, timeout)
        evaluation = self._connection.call(lambda trainer: next(trainer.read_evaluations(run.id), None))
        if evaluation is None:
            raise RunEnded(
                f"Evaluation {short_id(run.id)} {describe_status(run.status)}, without a complete batch of episodes."
            )
        return EvaluationResult(run, evaluation.summary)

    def load_policy(self, checkpoint: str | int = "last") -> Policy:
        """Load its policy into this process. `checkpoint` is `last`, `best` or a step.

        The policy of an evaluation is the one that it evaluated.
        """
        path = self._connection.call(lambda trainer: open_policy(trainer, self.view, str(checkpoint)))
        metadata = self._connection.call(lambda trainer: trainer.payload(self.id)).metadata
        # Environments and networks of the user's own, but not those of a config that comes from elsewhere.
        allow_imports(None if metadata.is_imported else metadata.worker.imports)
        return load_policy_file(path)

    # --- control

    def cancel(self) -> Run:
        """Ask the run to stop with a checkpoint, and return; `wait` waits for its end."""
        return self._update(lambda trainer: trainer.cancel_run(self.id))

    def pause(self) -> Run:
        """Ask the run to pause, and return; `resume` continues it."""
        return self._update(lambda trainer: trainer.pause_run(self.id))

    def resume(self, total_timesteps: int | None = None, trust: bool = False) -> Run:
        """Continue a paused run, or one that has ended from its last checkpoint, up to `total_timesteps` if given.

        `trust`: execute what the config of an imported run would execute.
        """
        return self._update(lambda trainer: trainer.resume(self.id, total_timesteps, trust))

    def tag(self, *tags: str, remove: Sequence[str] = ()) -> Run:
        """Add tags, and remove others."""
        return self._update(lambda trainer: trainer.annotate_run(self.id, add_tags=tags, remove_tags=remove))

    def rename(self, name: str) -> Run:
        """Give the run another name; an empty one removes it."""
        return self._update(lambda trainer: trainer.annotate_run(self.id, run_name=name))

    def note(self, text: str) -> Run:
        """Replace the run's note."""
        return self._update(lambda trainer: trainer.annotate_run(self.id, notes=text))

    def delete(self) -> None:
        """Move the folder of a finished run to the trash, where it stays for 30 days."""
        self._connection.trainer().delete_run(self.id)

    def _update(self, call: Callable[[TrainerClient], RunView]) -> Run:
        self._view = call(self._connection.trainer())
        return self

    # --- display

    def __repr__(self) -> str:
        view = self._view
        name = f" {view.run_name!r}" if view.run_name else ""
        what = " on ".join(part for part in (view.algo or view.worker, view.env_id) if part)
        seed = "" if view.seed is None else f", seed {view.seed}"
        return make_printable(f"<Run {short_id(self.id)}{name}: {what}{seed}, {format_progress_line(view)}>")

    def _repr_html_(self) -> str:
        view = self._view
        rows = (
            ("run", self.id),
            ("name", view.run_name),
            ("algorithm", view.algo or view.worker),
            ("environment", view.env_id),
            ("seed", view.seed),
            ("status", format_progress_line(view)),
            ("reason", view.end_reason),
            ("folder", view.run_dir),
        )
        return html_table((), [(name, value) for name, value in rows if value is not None])


class Runs(UserList[Run]):
    """Some runs, newest first."""

    def wait(self, timeout: float | None = None) -> Runs:
        """Wait until all have ended; raises RunEnded for the first that failed."""
        for run in self:
            run.wait(timeout=timeout)
        return self

    def to_frame(self) -> pd.DataFrame:
        """Return one row per run. Requires pandas."""
        return make_frame({name: [_cell(run.view, name) for run in self] for name in FRAME_COLUMNS})

    def __repr__(self) -> str:
        return f"Runs([{', '.join(map(repr, self))}])"

    def _repr_html_(self) -> str:
        header = ("run", "algorithm", "environment", "seed", "status", "return")
        views = [run.view for run in self]
        rows = [
            (short_id(v.run_id), v.algo or v.worker, v.env_id or "", v.seed, v.status, v.episodic_return) for v in views
        ]
        return html_table(header, [["" if cell is None else cell for cell in row] for row in rows])


def _cell(view: RunView, name: str) -> object:
    value = getattr(view, name)
    if isinstance(value, tuple):
        return list(value)
    return str(value) if name == "kind" else value


@dataclass(frozen=True)
class EvaluationResult:
    """The returns of an evaluation and their statistics."""

    run: Run
    """The evaluation, which is a run of its own."""
    summary: EvaluationSummary

    @property
    def returns(self) -> npt.NDArray[np.float64]:
        """One return per episode; NaN where it was not finite."""
        return np.array([np.nan if value is None else value for value in self.summary.returns], np.float64)

    @property
    def episodes(self) -> int:
        """How many episodes were played."""
        return self.summary.episodes

    @property
    def mean(self) -> float:
        """The mean return."""
        return _to_float(self.summary.avg_return)

    @property
    def median(self) -> float:
        """The median return."""
        return _to_float(self.summary.median_return)

    @property
    def std(self) -> float:
        """The standard deviation of the returns."""
        return _to_float(self.summary.std_return)

    @property
    def iqm(self) -> float:
        """The interquartile mean."""
        return _to_float(self.summary.iqm)

    @property
    def ci95(self) -> tuple[float, float] | None:
        """Student's 95 % confidence interval of the mean; None for a single episode."""
        return self.summary.ci95

    def to_frame(self) -> pd.DataFrame:
        """Return the columns seed, return and length, one row per episode. Requires pandas."""
        lengths, seeds = (np.array(values, np.int64) for values in (self.summary.lengths, self.summary.seeds))
        return make_frame({"seed": seeds, "return": self.returns, "length": lengths})

    def __repr__(self) -> str:
        interval = "" if self.ci95 is None else f", Student's 95 % interval {self.ci95[0]:.6g} to {self.ci95[1]:.6g}"
        return f"<EvaluationResult: {self.episodes} episodes, mean {self.mean:.6g}{interval}>"


def _to_float(value: float | None) -> float:
    return float("nan") if value is None else value
