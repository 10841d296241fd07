"""Everything that a run writes while it goes on, except its checkpoints: journal, event file, analytics.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mosaic.contracts.folder import RunFolder
from mosaic.run.analytics import Analytics
from mosaic.run.checkpoints import sync
from mosaic.run.outbox import Outbox, Patience
from mosaic.run.points import RETURN_TAG, Points, Series, by_tag, episode_points, first_strange, with_nulls
from mosaic.run.tensorboard import EventWriter

POINTS_A_LINE = 5_000
"""Keeps a line well below what one gRPC message takes."""

_EVENT_FILE = "The TensorBoard event file"


class Log:
    """Points go to all three as the very same numbers. A disk that is full makes them wait and stops nobody."""

    def __init__(self, folder: RunFolder, tensorboard: Path | None) -> None:
        self.points = Points()
        self.analytics = Analytics(folder, tensorboard)
        self._journal_path = folder.journal
        self._outbox = Outbox(folder.journal)
        self._events = None if tensorboard is None else EventWriter(tensorboard)
        self._patience = Patience()

    def event(self, kind: str, **facts: Any) -> None:
        """One line, at once."""
        self._outbox.put(kind, facts)
        self._patience("The journal", self._outbox.send)

    def hyperparameters(self, values: Mapping[str, object], step: int) -> None:
        """A table for TensorBoard's text tab, and the run's row in its hparams tab."""
        if self._events is not None:
            rows = "".join(f"\n|{name}|{value}|" for name, value in values.items())
            self._events.text("hyperparameters", f"|param|value|\n|-|-|{rows}", step)
            self._events.session(values)

    def image(self, tag: str, encoded: bytes, width: int, height: int, step: int) -> None:
        if self._events is not None:
            self._events.image(tag, encoded, width, height, step)

    def succeeded(self) -> None:
        if self._events is not None:
            self._events.session_succeeded()

    def restart_events(self, step: int) -> None:
        """TensorBoard drops what an earlier attempt wrote from that step on."""
        if self._events is not None:
            self._events.restart(step)

    def write_points(self) -> None:
        """To the journal; the event file gets them at its next flush."""
        strange: dict[str, int] = {}
        scalars = self.points.take_scalars()
        for start in range(0, len(scalars), POINTS_A_LINE):
            part = scalars[start : start + POINTS_A_LINE]
            series = by_tag(part)
            found = self._count(series, strange)
            shown = {tag: with_nulls(rows) if tag in found else rows for tag, rows in series.items()}
            self._outbox.put("metrics", {"series": shown}, len(part))
        if self._events is not None:
            self._events.points(scalars)
        episodes = self.points.take_episodes()
        for start in range(0, len(episodes), POINTS_A_LINE):
            rows = episodes[start : start + POINTS_A_LINE]
            points = episode_points(rows)
            found = self._count(by_tag(points), strange)
            self._outbox.put("episodes", {"rows": with_nulls(rows) if RETURN_TAG in found else rows}, len(rows))
            if self._events is not None:
                self._events.points(points)
        for tag, step in strange.items():
            self._outbox.put("anomaly", {"tag": tag, "step": step})
        self._patience("The journal", self._outbox.send)

    def write_events(self) -> None:
        if self._events is not None:
            self._patience(_EVENT_FILE, self._events.flush)

    def write_analytics(self, **facts: Any) -> None:
        self._patience("analytics.json", lambda: self.analytics.write(facts))

    def sync(self) -> None:
        """What was written survives a loss of power."""
        sync(self._journal_path)
        if self._events is not None:
            self._events.sync()

    def close(self) -> None:
        if self._events is not None:
            self._patience(_EVENT_FILE, self._events.close)
        self._outbox.close()

    def _count(self, series: Series, strange: dict[str, int]) -> dict[str, int]:
        """Notes them for analytics.json and adds to `strange` what is not finite; returns what is in these."""
        self.analytics.count(series)
        found = first_strange(series)
        for tag, step in found.items():
            strange.setdefault(tag, step)
        return found
