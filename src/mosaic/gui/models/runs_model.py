"""The runs of the workspace as the daemon reports them, their evaluations and notes, and the order of the queue."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from operator import methodcaller

from PySide6.QtCore import QObject, QTimer, Signal

from mosaic.contracts.events import Deleted, EvalSummaryUpdate, Event, RecordChanged
from mosaic.contracts.views import Evaluation, RunView
from mosaic.gui import theme
from mosaic.gui.bridge import Bridge

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
