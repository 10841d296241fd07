"""Writes a run's journal, TensorBoard event file and analytics.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mosaic.contracts.folder import RunFolder
from mosaic.run.analytics_file import AnalyticsFile
from mosaic.run.checkpoints import fsync_path
from mosaic.run.metric_buffer import (
    RETURN_TAG,
    MetricBuffer,
    SeriesByTag,
    episode_points,
    first_non_finite,
    group_by_tag,
    replace_non_finite,
)
from mosaic.run.outbox import Outbox, RetryingWriter
from mosaic.run.tensorboard_writer import EventWriter

MAX_POINTS_PER_LINE = 5_000
"""Keeps a line well below the size limit of a gRPC message."""

_EVENT_FILE = "The TensorBoard event file"


class RunLog:
    """Writes the same numbers to all three. On a full disk they are buffered, and the run continues."""

    def __init__(self, folder: RunFolder, tensorboard: Path | None) -> None:
        self.points = MetricBuffer()
        self.analytics = AnalyticsFile(folder, tensorboard)
        self._journal_path = folder.journal
        self._outbox = Outbox(folder.journal)
        self._events = None if tensorboard is None else EventWriter(tensorboard)
        self._retrying_writer = RetryingWriter()

    def event(self, kind: str, **fields: Any) -> None:
        """Write one line immediately."""
        self._outbox.put(kind, fields)
        self._retrying_writer("The journal", self._outbox.flush)

    def write_hyperparameters(self, values: Mapping[str, object], step: int) -> None:
        """Write a table for TensorBoard's text tab and the run's row in its hparams tab."""
        if self._events is not None:
            rows = "".join(f"\n|{name}|{value}|" for name, value in values.items())
            self._events.add_text("hyperparameters", f"|param|value|\n|-|-|{rows}", step)
            self._events.start_hparams_session(values)

    def write_image(self, tag: str, encoded: bytes, width: int, height: int, step: int) -> None:
        if self._events is not None:
            self._events.add_image(tag, encoded, width, height, step)

    def mark_succeeded(self) -> None:
        if self._events is not None:
            self._events.end_hparams_session()

    def restart_event_file(self, step: int) -> None:
        """Make TensorBoard drop what an earlier attempt wrote from a step on."""
        if self._events is not None:
            self._events.purge_from_step(step)

    def write_points(self) -> None:
        """Write buffered points to the journal; the event file gets them at its next flush."""
        anomalies: dict[str, int] = {}
        scalars = self.points.take_scalars()
        for start in range(0, len(scalars), MAX_POINTS_PER_LINE):
            part = scalars[start : start + MAX_POINTS_PER_LINE]
            series = group_by_tag(part)
            non_finite = self._update_analytics(series, anomalies)
            json_series = {tag: replace_non_finite(rows) if tag in non_finite else rows for tag, rows in series.items()}
            self._outbox.put("metrics", {"series": json_series}, len(part))
        if self._events is not None:
            self._events.add_points(scalars)
        episodes = self.points.take_episodes()
        for start in range(0, len(episodes), MAX_POINTS_PER_LINE):
            rows = episodes[start : start + MAX_POINTS_PER_LINE]
            points = episode_points(rows)
            non_finite = self._update_analytics(group_by_tag(points), anomalies)
            self._outbox.put(
                "episodes", {"rows": replace_non_finite(rows) if RETURN_TAG in non_finite else rows}, len(rows)
            )
            if self._events is not None:
                self._events.add_points(points)
        for tag, step in anomalies.items():
            self._outbox.put("anomaly", {"tag": tag, "step": step})
        self._retrying_writer("The journal", self._outbox.flush)

    def flush_event_file(self) -> None:
        if self._events is not None:
            self._retrying_writer(_EVENT_FILE, self._events.flush)

    def write_analytics(self, **entries: Any) -> None:
        self._retrying_writer("analytics.json", lambda: self.analytics.write(entries))

    def sync(self) -> None:
        """Flush the files to the disk, so that they survive a power loss."""
        fsync_path(self._journal_path)
        if self._events is not None:
            self._events.sync()

    def close(self) -> None:
        if self._events is not None:
            self._retrying_writer(_EVENT_FILE, self._events.close)
        self._outbox.close()

    def _update_analytics(self, series: SeriesByTag, anomalies: dict[str, int]) -> dict[str, int]:
        """Update analytics.json; return the non-finite tags of `series` and add new ones to `anomalies`."""
        self.analytics.update(series)
        non_finite = first_non_finite(series)
        for tag, step in non_finite.items():
            anomalies.setdefault(tag, step)
        return non_finite
