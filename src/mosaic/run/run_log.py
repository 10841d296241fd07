"""Writes a run's journal, TensorBoard event file and analytics.json."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mosaic.common.files import write_json
from mosaic.contracts.folder import RunFolder
from mosaic.journal import Journal, Outbox
from mosaic.journal.points import (
    EpisodeRow,
    Point,
    SeriesByTag,
    as_float32,
    episode_points,
    finite_or_none,
    first_non_finite,
    group_by_tag,
    json_rows,
    json_series,
)
from mosaic.run.tensorboard_writer import EventWriter

MAX_POINTS_PER_LINE = 5_000
"""Keeps a line well below the size limit of a gRPC message."""
VIDEO_TAG = "videos/episode"

_JOURNAL, _EVENT_FILE = "The journal", "The TensorBoard event file"
_RESERVED_KEYS = (
    "run_id", "updated_at", "global_step", "episodes", "mean_return", "scalars", "tensorboard",
    "checkpoints", "best", "last",
)  # fmt: skip


class MetricBuffer:
    """Collects scalars and episodes at the cost of a list append, and returns them in batches."""

    def __init__(self) -> None:
        self.scalars: list[Point] = []
        self.episodes: list[EpisodeRow] = []

    def __bool__(self) -> bool:
        return bool(self.scalars or self.episodes)

    def take_scalars(self) -> list[Point]:
        raw = self.scalars[:]
        if not raw:
            return []
        del self.scalars[: len(raw)]  # not clear(): another thread may have added one
        tags, steps, times, values = zip(*raw, strict=True)
        return list(zip(tags, map(int, steps), times, as_float32(values), strict=True))

    def take_episodes(self) -> list[EpisodeRow]:
        raw = self.episodes[:]
        if not raw:
            return []
        del self.episodes[: len(raw)]
        numbers, envs, steps, times, returns, lengths = zip(*raw, strict=True)
        rounded = as_float32(returns)
        return list(zip(numbers, map(int, envs), map(int, steps), times, rounded, map(int, lengths), strict=True))


class AnalyticsFile:
    def __init__(self, folder: RunFolder, tensorboard: Path | None) -> None:
        self._folder = folder
        self.scalars: dict[str, dict[str, Any]] = {}
        """By tag: step, time and value of the newest point, and the number of points."""
        self.tensorboard_dir = folder.to_portable(tensorboard) if tensorboard else None
        self._artifacts: dict[str, Any] = {"wandb": None, "videos": [], "model": None, "evaluation": None}
        self._artifacts.update(_read_artifacts(folder.analytics))

    def set_artifact(self, name: str, value: Any) -> None:
        if name in _RESERVED_KEYS:
            raise ValueError(f"analytics.json: the entry {name!r} is reserved; choose another name.")
        self._artifacts[name] = value

    def write(self, entries: Mapping[str, Any]) -> None:
        """Write the file with the run's own entries (progress and checkpoints) and the artifacts."""
        header = {"run_id": self._folder.run_id, "updated_at": time.time()}
        if (wandb := _read_wandb_status(self._folder)) is not None:
            self._artifacts["wandb"] = wandb
        tensorboard = {"dir": self.tensorboard_dir, "enabled": self.tensorboard_dir is not None}
        body = {**header, **entries, "scalars": self.scalars, "tensorboard": tensorboard, **self._artifacts}
        write_json(self._folder.analytics, body)


class RunLog:
    """Writes the same numbers to all three. On a full disk they are buffered, and the run continues."""

    def __init__(self, folder: RunFolder, tensorboard: Path | None, process: int | None = None) -> None:
        self.points = MetricBuffer()
        self.analytics = AnalyticsFile(folder, tensorboard)
        self._outbox = Outbox(Journal(folder.path / f"journal.{process}.jsonl" if process else folder.journal))
        # TensorBoard reads the files of one folder one after the other, and each of them only once.
        self.event_file = EventWriter(tensorboard / f"process-{process}" if tensorboard and process else tensorboard)
        self._failing_files: set[str] = set()

    @property
    def has_unwritten_lines(self) -> bool:
        return self._outbox.has_lines

    def event(self, kind: str, **fields: Any) -> None:
        """Write one line immediately."""
        self._outbox.put(kind, fields)
        self._write(_JOURNAL, self._outbox.flush)

    def write_hyperparameters(self, values: Mapping[str, object], step: int) -> None:
        """Write the journal's event, a table for TensorBoard's text tab and the run's row in its hparams tab."""
        self.event("hyperparameters", values=to_json(values))
        rows = "".join(f"\n|{name}|{value}|" for name, value in values.items())
        self.event_file.add_text("hyperparameters", f"|param|value|\n|-|-|{rows}", step)
        self.event_file.start_hparams_session(values)

    def write_video_preview(self, video_path: Path) -> None:
        """Write the first seconds of `rl-video-episode-<n>.mp4` as a GIF for TensorBoard; a failure is ignored."""
        if self.event_file.folder is None:
            return
        from mosaic.media.gif import encode_gif

        # Decoders raise all kinds of errors, and the video itself exists.
        with contextlib.suppress(Exception):
            gif = encode_gif(video_path)
            episode = int(video_path.stem.rpartition("-")[2])
            if gif is not None:
                self.event_file.add_image(VIDEO_TAG, gif.encoded, gif.width, gif.height, episode)

    def write_points(self) -> None:
        """Write buffered points: to the event file first, so that a killed run's has whatever its journal has."""
        anomalies: dict[str, int] = {}
        scalars = self.points.take_scalars()
        for start in range(0, len(scalars), MAX_POINTS_PER_LINE):
            part = scalars[start : start + MAX_POINTS_PER_LINE]
            series = group_by_tag(part)
            non_finite = self._update_analytics(series, anomalies)
            self._outbox.put("metrics", {"series": json_series(series, non_finite)}, len(part))
        self.event_file.add_points(scalars)
        episodes = self.points.take_episodes()
        for start in range(0, len(episodes), MAX_POINTS_PER_LINE):
            rows = episodes[start : start + MAX_POINTS_PER_LINE]
            points = episode_points(rows)
            self._update_analytics(group_by_tag(points), anomalies)
            self._outbox.put("episodes", {"rows": json_rows(rows)}, len(rows))
            self.event_file.add_points(points)
        for tag, step in anomalies.items():
            self._outbox.put("anomaly", {"tag": tag, "step": step})
        self._write(_EVENT_FILE, self.event_file.flush)
        self._write(_JOURNAL, self._outbox.flush)

    def write_analytics(self, **entries: Any) -> None:
        self._write("analytics.json", lambda: self.analytics.write(entries))

    def sync(self) -> None:
        """Flush the files to the disk, so that they survive a power loss."""
        self._outbox.journal.sync()
        self.event_file.sync()

    def close(self) -> None:
        self._write(_EVENT_FILE, self.event_file.close)
        self._outbox.close()

    def _write(self, what: str, write: Callable[[], None]) -> None:
        """Run a write that must not stop the training; report once on stderr that it fails."""
        try:
            write()
        except OSError as error:
            if what not in self._failing_files:
                self._failing_files.add(what)
                # stderr may be on the same full disk
                with contextlib.suppress(OSError):
                    print(f"{what} cannot be written ({error}). The run continues and retries.", file=sys.stderr)
        else:
            self._failing_files.discard(what)

    def _update_analytics(self, series: SeriesByTag, anomalies: dict[str, int]) -> dict[str, int]:
        """Update analytics.json; return the non-finite tags of `series` and add new ones to `anomalies`."""
        _add_series(self.analytics.scalars, series)
        non_finite = first_non_finite(series)
        for tag, step in non_finite.items():
            anomalies.setdefault(tag, step)
        return non_finite


def add_points(
    scalars: Mapping[str, dict[str, Any]], points: list[Point], episodes: list[EpisodeRow]
) -> dict[str, dict[str, Any]]:
    """Return the `scalars` of analytics.json with these buffered points."""
    buffer, result = MetricBuffer(), dict(scalars)
    buffer.scalars, buffer.episodes = points[:], episodes[:]
    _add_series(result, group_by_tag(buffer.take_scalars()))
    _add_series(result, group_by_tag(episode_points(buffer.take_episodes())))
    return result


def _add_series(scalars: dict[str, dict[str, Any]], series: SeriesByTag) -> None:
    for tag, rows in series.items():
        step, at, value = rows[-1]
        count = scalars[tag]["count"] if tag in scalars else 0
        scalars[tag] = {"step": step, "at": at, "value": finite_or_none(value), "count": count + len(rows)}


def count_hellos(journal: Path) -> int:
    """Count the attempts so far. Lines are searched, not parsed: parsing a long journal takes seconds."""
    try:
        with open(journal, "rb") as file:
            return sum(b'"kind":"hello"' in line[:200] for line in file)
    except FileNotFoundError:
        return 0


def to_json(value: Any) -> Any:
    """Return settings as JSON values; text where there is no such value, as for infinity."""
    if hasattr(value, "tolist"):  # of numpy and torch
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [to_json(part) for part in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, argparse.Namespace):
        value = vars(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(part) for key, part in value.items()}
    is_number = isinstance(value, float) and math.isfinite(value)
    return value if is_number or value is None or isinstance(value, (str, int)) else str(value)


def _read_wandb_status(folder: RunFolder) -> dict[str, Any] | None:
    """Return how the run is synchronized with W&B, from the ledger that the sidecar writes."""
    try:
        ledger = json.loads(folder.wandb_ledger.read_text(encoding="utf-8"))
        status = {key: ledger[key] for key in ("state", "url", "project")}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return {**status, "ledger": str(folder.wandb_ledger.relative_to(folder.path))}


def _read_artifacts(path: Path) -> dict[str, Any]:
    """Return the entries that an earlier attempt added to the run's own."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {key: value for key, value in body.items() if key not in _RESERVED_KEYS} if isinstance(body, dict) else {}
