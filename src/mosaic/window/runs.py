"""The runs of the workspace as the daemon reports them, their evaluations and notes, and the order of the queue."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import partial
from operator import methodcaller
from typing import NamedTuple

from PySide6.QtCore import QObject, QTimer, Signal

from mosaic.base.comparison import shorten_titles
from mosaic.base.formatting import count_noun, run_title
from mosaic.base.worker_registry import policy_workers
from mosaic.contracts.events import Deleted, EvalSummaryUpdate, Event, RecordChanged
from mosaic.contracts.options import RunKind
from mosaic.contracts.states import Stage
from mosaic.contracts.views import Evaluation, RunView
from mosaic.window import theme
from mosaic.window.bridge import Bridge
from mosaic.window.settings import GuiSettings

SCRATCH_ID = ""
EVALUATIONS_INTERVAL_MS = 1000
"""Between two requests: batches of a small environment take less time."""


class RunsModel(QObject):
    reset = Signal()
    """Everything may have changed."""
    changed = Signal(set)
    """The ids of runs that are new or different."""
    removed = Signal(set)

    def __init__(self, bridge: Bridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self._views: dict[str, RunView] = {}
        self.archived_count = 0
        self._count_by_user: Counter[str | None] = Counter()
        bridge.runs_listed.connect(self._on_listed)
        bridge.status_polled.connect(lambda views, _: self.update(views))
        bridge.events_received.connect(self._on_events)

    def __len__(self) -> int:
        return len(self._views)

    def ids(self) -> list[str]:
        """Newest first."""
        return self.newest_first(self._views)

    def newest_first(self, run_ids: Iterable[str]) -> list[str]:
        return sorted(run_ids, key=lambda run_id: self.get_or_placeholder(run_id).age_key, reverse=True)

    def get(self, run_id: str) -> RunView | None:
        return self._views.get(run_id)

    def all(self) -> list[RunView]:
        return list(self._views.values())

    @property
    def has_several_users(self) -> bool:
        """Whether runs of more than one user are known."""
        return sum(count > 0 for user, count in self._count_by_user.items() if user) > 1

    def get_or_placeholder(self, run_id: str) -> RunView:
        """For a run that the daemon has not listed yet."""
        return self._views.get(run_id) or RunView.placeholder(run_id)

    def update(self, views: list[RunView]) -> None:
        """Stores views. Lists lack history and attempts, so known ones are kept."""
        changed = set()
        for view in views:
            known = self._views.get(view.run_id)
            if known is not None and not view.history:
                # A poll that was under way when the run ended is older than what is known.
                if known.stage == "finished" and view.stage != "finished":
                    continue
                view = view.model_copy(update={"history": known.history, "attempts": known.attempts})
            if view != known:
                self._views[view.run_id] = view
                self.archived_count += view.is_archived - (known is not None and known.is_archived)
                self._count_by_user[view.submitted_by] += known is None
                changed.add(view.run_id)
        if changed:
            theme.run_colors.assign(changed)
            self.changed.emit(changed)

    def remove(self, run_ids: set[str]) -> None:
        known = run_ids.intersection(self._views)
        for run_id in known:
            view = self._views.pop(run_id)
            self.archived_count -= view.is_archived
            self._count_by_user[view.submitted_by] -= 1
        if known:
            self.removed.emit(known)

    def _on_listed(self, views: list[RunView]) -> None:
        self._views = {view.run_id: view for view in views}
        self.archived_count = sum(view.is_archived for view in views)
        self._count_by_user = Counter(view.submitted_by for view in views)
        theme.run_colors.assign(self._views)
        self.reset.emit()

    def _on_events(self, events: list[Event]) -> None:
        latest: dict[str, RunView | None] = {}
        for event in events:
            if event.kind == Deleted.KIND:
                latest[event.run_id] = None
            elif isinstance(event, RecordChanged):
                latest[event.run_id] = event.view
        self.remove({run_id for run_id, view in latest.items() if view is None})
        self.update([view for view in latest.values() if view is not None])
        # A sidecar may start to write after the run itself has ended and is no longer polled.
        for run_id in {event.run_id for event in events if event.source == "sidecar"} - set(latest):
            self._bridge.ask(methodcaller("get_run", run_id), lambda view: self.update([view]), owner=self)


class Evaluations(QObject):
    """The evaluations of one run, or all of the workspace, while they are shown."""

    changed = Signal()

    def __init__(self, bridge: Bridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.evaluations: list[Evaluation] = []
        self.is_loaded = False
        self._bridge = bridge
        self._run_id: str | None = None
        self._is_due = False
        self._is_loading = False
        self._poll_timer = QTimer(self, singleShot=True, interval=EVALUATIONS_INTERVAL_MS)
        self._poll_timer.timeout.connect(self._request_if_due)
        bridge.events_received.connect(self._on_events)

    def watch_run(self, run_id: str) -> None:
        """Load those of this run; empty: all."""
        if run_id != self._run_id:
            self._run_id, self.evaluations, self.is_loaded = run_id, [], False
        self.refresh()

    def suspend(self) -> None:
        """They are no longer shown."""
        self._poll_timer.stop()
        self._run_id = None

    def refresh(self) -> None:
        self._is_due = True
        if not self._poll_timer.isActive():
            self._request_if_due()

    def _on_events(self, events: list[Event]) -> None:
        if any(event.kind == EvalSummaryUpdate.KIND and self._run_id in ("", event.run_id) for event in events):
            self.refresh()

    def _request_if_due(self) -> None:
        run_id = self._run_id
        if run_id is None or not self._is_due or self._is_loading:
            return
        self._is_due, self._is_loading = False, True
        take = partial(self._on_result, run_id)
        self._bridge.ask(lambda trainer: list(trainer.read_evaluations(run_id)), take, lambda _: take(None), self)

    def _on_result(self, run_id: str, evaluations: list[Evaluation] | None) -> None:
        self._is_loading = False
        if run_id != self._run_id:
            self._request_if_due()
            return
        self._poll_timer.start()
        if evaluations is not None:
            self.evaluations, self.is_loaded = evaluations, True
            self.changed.emit()


class Notes(QObject):
    """The note of each run, stored by the daemon, and a scratch page for what belongs to no run yet."""

    changed = Signal(str)
    """The run whose note has changed; SCRATCH_ID for the scratch page."""

    def __init__(self, bridge: Bridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self.scratch = ""

    def append_scratch(self, text: str) -> None:
        """Add a paragraph with its time, such as the verdict of a dry run."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        self.scratch = f"{self.scratch}[{stamp}] {text}\n"
        self.changed.emit(SCRATCH_ID)

    def save(self, run_id: str, text: str) -> None:
        self._bridge.ask(
            lambda trainer: trainer.annotate_run(run_id, notes=text), lambda _: self.changed.emit(run_id), None, self
        )


def sort_queue(views: Iterable[RunView]) -> list[RunView]:
    """Return the unfinished runs: those that hold a slot, oldest first, then the queue by the daemon's positions."""
    active = [view for view in views if view.stage != "finished"]
    return sorted(active, key=lambda view: (*_queue_key(view), view.run_id))


def _queue_key(view: RunView) -> tuple[bool, float]:
    position = view.queue_position
    return view.stage == "queued", math.inf if position is None else position


# --- What the tabs of a run say where they have nothing to show: one table, by tab and by what the run does.


class RunPhase(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    NEVER_STARTED = "never started"
    """It ended in the queue: cancelled or rejected."""
    ENDED = "ended"


class EmptyText(NamedTuple):
    title: str
    text: str = ""

    def as_line(self) -> str:
        return f"{self.title}. {self.text}".rstrip()


_WAITS = "It waits for a free slot."
_NEVER_STARTED = EmptyText("The run never started", "It was {outcome} while it was queued.")

EMPTY_STATES: dict[str, dict[RunPhase, EmptyText]] = {
    "chart": {
        RunPhase.QUEUED: EmptyText("The run is queued"),
        RunPhase.STARTING: EmptyText("The run is starting"),
        RunPhase.RUNNING: EmptyText("No episode has ended yet"),
        RunPhase.PAUSED: EmptyText("The run was paused before an episode ended"),
        RunPhase.NEVER_STARTED: EmptyText("The run never started"),
        RunPhase.ENDED: EmptyText("The run ended before an episode did"),
    },
    "evaluation": {
        RunPhase.QUEUED: EmptyText("The evaluation is queued", _WAITS),
        RunPhase.STARTING: EmptyText("The evaluation is starting"),
        RunPhase.RUNNING: EmptyText("The first batch is being played", "{episodes} so far."),
        RunPhase.PAUSED: EmptyText("The evaluation is paused", "Its first batch is not complete: {episodes} so far."),
        RunPhase.NEVER_STARTED: EmptyText("The evaluation never started", _NEVER_STARTED.text),
        RunPhase.ENDED: EmptyText("No batch was completed", "The evaluation {ended} before."),
    },
    "fastlane": {
        RunPhase.NEVER_STARTED: EmptyText("The run never started", f"{_NEVER_STARTED.text} So there were no frames."),
        RunPhase.ENDED: EmptyText("The run has ended: {outcome}", "Frames are live: they are shown while it runs."),
    },
    "analytics": {
        RunPhase.QUEUED: EmptyText("No points yet", "The run waits for a free slot. Curves begin when it has started."),
        RunPhase.STARTING: EmptyText(
            "No points yet", "The run is starting. Curves begin with its first episode or update."
        ),
        RunPhase.RUNNING: EmptyText(
            "No points yet", "The run has logged nothing yet. Curves begin with its first episode or update."
        ),
        RunPhase.PAUSED: EmptyText(
            "No points yet", "The run was paused before it logged anything. Resume it to continue."
        ),
        RunPhase.NEVER_STARTED: _NEVER_STARTED,
        RunPhase.ENDED: EmptyText("No points", "The run {ended} before it logged anything. The Logs tab may show why."),
    },
    "tensorboard": {
        RunPhase.QUEUED: EmptyText("The run is queued", f"{_WAITS} TensorBoard starts when the run has."),
        RunPhase.NEVER_STARTED: _NEVER_STARTED,
        RunPhase.ENDED: EmptyText("The run wrote no TensorBoard files", "Its metrics are in Analytics."),
    },
    "wandb": {
        RunPhase.QUEUED: EmptyText("The run is queued", f"{_WAITS} W&B starts with it."),
        RunPhase.STARTING: EmptyText("The run is starting", "W&B starts with it."),
        RunPhase.RUNNING: EmptyText("W&B has not written anything yet"),
        RunPhase.PAUSED: EmptyText("W&B has not written anything yet", "The run is paused."),
        RunPhase.NEVER_STARTED: _NEVER_STARTED,
        RunPhase.ENDED: EmptyText("W&B wrote nothing of this run"),
    },
    "logs": {
        RunPhase.QUEUED: EmptyText("The run is queued", f"{_WAITS} Lines appear here as soon as it writes some."),
        RunPhase.STARTING: EmptyText("The run is starting", "Lines appear here as soon as it writes some."),
        RunPhase.RUNNING: EmptyText("Nothing on {stream} yet", "Lines appear here as the run writes them."),
        RunPhase.PAUSED: EmptyText("Nothing on {stream} yet", "The run is paused."),
        RunPhase.NEVER_STARTED: _NEVER_STARTED,
        RunPhase.ENDED: EmptyText("The run wrote nothing to {stream}"),
    },
    "videos": {
        RunPhase.NEVER_STARTED: _NEVER_STARTED,
        RunPhase.ENDED: EmptyText(
            "No videos",
            "A run records some when “Capture video” is on; an evaluation of its policy, when “Evaluation video” is.",
        ),
    },
}
"""A tab without a sentence for a phase of an active run has that of RunPhase.ENDED, or shows its own content.

Config has content in every phase, and Replay is a tab only of runs with a recording. A run that stops is one that runs.
"""


def run_phase(view: RunView) -> RunPhase:
    if view.stage is Stage.FINISHED:
        return RunPhase.NEVER_STARTED if view.started_at is None else RunPhase.ENDED
    named = {Stage.QUEUED: RunPhase.QUEUED, Stage.STARTING: RunPhase.STARTING, Stage.PAUSED: RunPhase.PAUSED}
    return named.get(view.stage, RunPhase.RUNNING)


def empty_text(tab: str, view: RunView, stream: str = "") -> EmptyText:
    """Return what a tab says of a run that it has nothing to show of."""
    states = EMPTY_STATES[tab]
    title, text = states.get(run_phase(view)) or states[RunPhase.ENDED]
    ended = {"failed": "failed", "cancelled": "was cancelled", "rejected": "was rejected", "lost": "was lost"}
    facts = {
        "outcome": view.outcome or "",
        "ended": ended.get(view.outcome or "", "ended"),
        "episodes": count_noun(view.episodes, "episode"),
        "stream": stream,
    }
    return EmptyText(title.format(**facts), text.format(**facts))


# --- The runs that are ticked in the list: charts show them next to the selected one.


MAX_TICKED = len(theme.RUN_COLORS) + len(theme.FURTHER_RUN_COLORS) - 1
"""One less than there are colors, so that no two curves have the same: the selected run has one, too."""


def short_labels(views: Sequence[RunView]) -> dict[str, str]:
    """Return labels of runs that are shown together, by run."""
    return shorten_titles({view.run_id: run_title(view) for view in views})


class Ticks(QObject):
    changed = Signal()

    def __init__(self, runs: RunsModel, settings: GuiSettings, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._settings = settings
        self._ids: list[str] = [str(run_id) for run_id in settings.get_for_workspace("ticked", [])][:MAX_TICKED]
        self._runs = runs
        runs.removed.connect(self._on_runs_removed)
        runs.reset.connect(self._on_runs_reset)

    @property
    def ids(self) -> list[str]:
        """In the order in which they were ticked."""
        return list(self._ids)

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._ids

    def toggle(self, run_ids: Iterable[str]) -> int:
        """Tick these runs, or untick them where all of them are, or some are and no more can be.

        Return how many had no place.
        """
        wanted = list(dict.fromkeys(run_ids))
        new = [run_id for run_id in wanted if run_id not in self._ids]
        room = MAX_TICKED - len(self._ids)
        if len(new) < len(wanted) and (not new or not room):
            self._set([run_id for run_id in self._ids if run_id not in wanted])
            return 0
        self._set([*self._ids, *new[:room]])
        return max(0, len(new) - room)

    def clear(self) -> None:
        self._set([])

    def _on_runs_removed(self, run_ids: set[str]) -> None:
        if not run_ids.isdisjoint(self._ids):
            self._set([run_id for run_id in self._ids if run_id not in run_ids])

    def _on_runs_reset(self) -> None:
        self._set([run_id for run_id in self._ids if self._runs.get(run_id) is not None])

    def _set(self, run_ids: list[str]) -> None:
        has_new_colors = theme.run_colors.separate(run_ids)
        if run_ids != self._ids or has_new_colors:
            self._ids = run_ids
            self._settings.put_for_workspace("ticked", run_ids)
            self.changed.emit()


def runs_with_policy(views: Iterable[RunView]) -> list[RunView]:
    """Runs that have trained a policy, newest first."""
    workers = policy_workers()
    trained = [view for view in views if view.kind == RunKind.TRAIN and view.checkpoint_step is not None]
    return sorted((view for view in trained if view.worker in workers), key=lambda view: view.age_key, reverse=True)
