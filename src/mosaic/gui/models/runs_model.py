"""All runs of the workspace, as the daemon tells of them."""

from __future__ import annotations

from functools import partial
from typing import Any

from PySide6.QtCore import QObject, Signal

from mosaic.client import TrainerClient
from mosaic.contracts.events import Deleted
from mosaic.gui.bridge import Bridge

Json = dict[str, Any]


class Runs(QObject):
    reset = Signal()
    """Everything may have changed."""
    changed = Signal(set)
    """The ids of runs that are new or different."""
    removed = Signal(set)

    def __init__(self, bridge: Bridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self._views: dict[str, Json] = {}
        bridge.runs_listed.connect(self._on_listed)
        bridge.status_polled.connect(lambda views, _: self.update(views))
        bridge.events_received.connect(self._on_events)

    def __len__(self) -> int:
        return len(self._views)

    def ids(self) -> list[str]:
        """Newest first."""
        return sorted(self._views, reverse=True)

    def get(self, run_id: str) -> Json | None:
        return self._views.get(run_id)

    def all(self) -> list[Json]:
        return list(self._views.values())

    def update(self, views: list[Json]) -> None:
        """Takes in views; lists lack the story and the attempts, which are kept where they were known."""
        changed = set()
        for view in views:
            run_id = view["run_id"]
            known = self._views.get(run_id, {})
            # A poll that was under way when the run ended is older than what we know.
            if known.get("stage") == "finished" and view["stage"] != "finished" and "story" not in view:
                continue
            merged = {**known, **view}
            if merged != known:
                self._views[run_id] = merged
                changed.add(run_id)
        if changed:
            self.changed.emit(changed)

    def remove(self, run_ids: set[str]) -> None:
        known = run_ids.intersection(self._views)
        for run_id in known:
            del self._views[run_id]
        if known:
            self.removed.emit(known)

    def _on_listed(self, views: list[Json]) -> None:
        self._views = {view["run_id"]: view for view in views}
        self.reset.emit()

    def _on_events(self, events: list[Json]) -> None:
        latest: dict[str, Json | None] = {}
        for event in events:
            if event["kind"] == Deleted.KIND:
                latest[event["run_id"]] = None
            elif event["kind"] == "record" and "view" in event:
                latest[event["run_id"]] = event["view"]
        self.remove({run_id for run_id, view in latest.items() if view is None})
        self.update([view for view in latest.values() if view is not None])
        # A sidecar may begin to speak, and W&B to write, when the run itself is over and asked for no more.
        for run_id in {event["run_id"] for event in events if event.get("source") == "sidecar"} - set(latest):
            self._bridge.ask(partial(_fetch_view, run_id), lambda view: self.update([view]), owner=self)


def _fetch_view(run_id: str, trainer: TrainerClient) -> Json:
    return trainer.get(run_id)
