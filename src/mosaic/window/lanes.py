"""The frames of a run as Qt images, and the status that a viewer shows."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PySide6.QtCore import QObject, QRect, Signal
from PySide6.QtGui import QImage

from mosaic.base.fastlane import (
    BGRX32,
    CONNECTED,
    NO_REQUEST,
    UNAVAILABLE,
    WAITING,
    Frame,
    FrameHud,
    FrameRequest,
    LaneView,
    compose_grid,
    full_grid,
    lanes_folder,
    limit_size,
    scale_image_smoothly,
)
from mosaic.base.formatting import count_noun
from mosaic.base.media import VideoWriter
from mosaic.contracts import names as semconv
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.options import RunKind
from mosaic.contracts.views import RunView
from mosaic.trainer.client.frame_sources import FrameRateMeter, RelayedFrames, has_local_frames
from mosaic.trainer.client.trainer_client import FrameUpdate
from mosaic.window.bridge import Bridge
from mosaic.window.events import EventLog
from mosaic.window.runs import RunsModel

WAITING_FOR_FRAME = "waiting for the next frame…"
BETWEEN_BATCHES = "between batches"
STALE_AFTER_S = 2.0
"""A frame without a successor for this time is the last one for now."""
RETRY_S = 1.0
MAX_SIDE_PX = 1280
"""Of an image that the daemon sends."""


class FrameCell(NamedTuple):
    env: int
    image: QImage | None
    """None before the first frame."""
    pixels: Any
    """The memory of `image`, referenced so that it lives as long as the cell."""
    hud: FrameHud | None
    """None before the first frame."""


# --- on this machine


class LocalLanes(LaneView):
    transport = "shared memory"

    def __init__(self, run_dir: str, envs: Sequence[int], log_event: Callable[..., None]) -> None:
        super().__init__(lanes_folder(run_dir), envs, log_event=log_event)
        self.cells: list[FrameCell] = []

    def poll(self) -> set[int]:
        new = super().poll()
        if new or len(self.frames) != len(self.cells):
            current = {cell.env: cell for cell in self.cells if cell.env not in new}
            self.cells = [current.get(env) or _make_cell(env, frame) for env, frame in sorted(self.frames.items())]
        return new


def _make_cell(env: int, frame: Frame | None) -> FrameCell:
    if frame is None:
        return FrameCell(env, None, None, None)
    return FrameCell(env, to_image(frame.image, frame.format), frame.image, frame.hud(env))


def to_image(pixels: Any, pixel_format: str) -> QImage:
    """Return an image that shares the memory of `pixels`, which must outlive it."""
    height, width, channels = pixels.shape
    if pixel_format == BGRX32:
        # The fourth byte is not set, and Qt copies it unchanged: where it is 0, a screenshot of the window has holes.
        words = pixels.view(np.uint32)
        np.bitwise_or(words, np.uint32(0xFF000000), out=words)
        kind = QImage.Format.Format_RGB32
    else:
        kind = QImage.Format.Format_RGB888
    return QImage(pixels.data, width, height, width * channels, kind)


# --- on another machine


class RelayedLanes(RelayedFrames["list[FrameCell]"]):
    """Receives in a thread of the bridge, and again after a failure."""

    transport = "the trainer's relay"

    def __init__(self, bridge: Bridge, run_id: str, envs: Sequence[int], request: FrameRequest) -> None:
        super().__init__(run_id, envs, request, lambda update: split_grid(update, envs), MAX_SIDE_PX)
        self.cells: list[FrameCell] = []
        self._bridge = bridge
        self._retry_at: float | None = None
        bridge.ask(self.receive, None, self._on_error)

    def _on_error(self, error: Exception) -> None:
        self.state = WAITING if isinstance(error, MosaicError) else UNAVAILABLE
        self.reason = str(error)
        self._retry_at = time.monotonic() + RETRY_S

    def poll(self) -> set[int]:
        """Return the environments with a new frame. Never waits."""
        if self._retry_at is not None and time.monotonic() >= self._retry_at and not self.is_closed:
            self._retry_at = None
            self._bridge.ask(self.receive, None, self._on_error)
        cells = self.take_newest()
        if cells is None:
            return set()
        before = {cell.env: cell.hud for cell in self.cells}
        self.cells = cells
        return {cell.env for cell in cells if before.get(cell.env) != cell.hud}


def split_grid(update: FrameUpdate, envs: Sequence[int]) -> list[FrameCell]:
    """Split a grid that was sent as one image; unless `envs` are given, its cells are environment 0 and up, by row."""
    whole = QImage.fromData(update.image).convertToFormat(QImage.Format.Format_RGB32)
    width, height = whole.width(), whole.height()
    positions = {env: position for position, env in enumerate(envs)}
    cells = []
    for hud in update.huds:
        row, column = divmod(positions.get(hud.env, hud.env), update.columns)
        if row >= update.rows:
            continue
        top, bottom = row * height // update.rows, (row + 1) * height // update.rows
        left, right = column * width // update.columns, (column + 1) * width // update.columns
        cells.append(FrameCell(hud.env, whole.copy(QRect(left, top, right - left, bottom - top)), None, hud))
    return cells


def merge_cells(shown: Sequence[FrameCell], found: Sequence[FrameCell]) -> list[FrameCell]:
    """Return the cells to show: an environment without a frame keeps its last one, and all do until there is one."""
    if not any(cell.image is not None for cell in found) and any(cell.image is not None for cell in shown):
        return list(shown)
    last = {cell.env: cell for cell in shown}
    return [last.get(cell.env, cell) if cell.image is None else cell for cell in found]


# --- one viewer

LaneSource = LocalLanes | RelayedLanes


class ViewerStatus(NamedTuple):
    state: str
    text: str


def viewer_status(
    view: RunView | None,
    video_mode: str | None,
    source: LaneSource | None,
    since_frame_s: float,
    has_image: bool = False,
) -> ViewerStatus:
    """Return the status of a viewer: the state of the run takes precedence over that of its lanes."""
    if view is None:
        return ViewerStatus(WAITING, "the trainer has not reported this run yet")
    if view.stage == "finished":
        return ViewerStatus(UNAVAILABLE, f"the run has ended ({view.outcome})")
    if video_mode == "off":
        return ViewerStatus(UNAVAILABLE, "live frames are off for this run (video_mode is off)")
    if view.stage in ("queued", "starting"):
        return ViewerStatus(WAITING, f"the run is {view.stage}")
    if source is None:
        return ViewerStatus(WAITING, WAITING_FOR_FRAME)
    if source.state == UNAVAILABLE:
        return ViewerStatus(UNAVAILABLE, source.reason)
    if view.stage == "paused":
        return ViewerStatus(WAITING, "the run is paused")
    if source.state == WAITING:
        if has_image:  # its lanes are gone for now
            return ViewerStatus(WAITING, BETWEEN_BATCHES if view.kind == RunKind.POLICY_EVAL else WAITING_FOR_FRAME)
        return ViewerStatus(WAITING, source.reason or WAITING_FOR_FRAME)
    return (
        ViewerStatus(CONNECTED, source.transport)
        if since_frame_s < STALE_AFTER_S
        else ViewerStatus(WAITING, WAITING_FOR_FRAME)
    )


class Lanes(QObject):
    """The frames of one run for one viewer. Call `poll` often while it is shown; `suspend` when it is not."""

    changed = Signal()
    """State, reason or counts."""

    def __init__(
        self, bridge: Bridge, runs: RunsModel, events: EventLog, is_remote: bool = False, parent: QObject | None = None
    ) -> None:
        """`is_remote`: the trainer is on another machine, whatever lies under its paths on this one."""
        super().__init__(parent)
        self._is_remote = is_remote
        self.run_id: str | None = None
        self.envs: tuple[int, ...] = ()
        """Those that are watched; empty: all."""
        self.cells: list[FrameCell] = []
        self.status = ViewerStatus(WAITING, WAITING_FOR_FRAME)
        self.torn = 0
        self.invalid = 0
        self._request = NO_REQUEST
        self._focused_env: int | None = None
        self._bridge = bridge
        self._runs = runs
        self._events = events
        self._source: LaneSource | None = None
        self._video_mode: str | None = None
        self._last_frame_at = 0.0
        self._next_status_at = 0.0
        self._rate_meter = FrameRateMeter()
        self._last_logged: dict[str, str] = {}
        """By run, whether connected or unavailable was reported last."""
        runs.changed.connect(self._on_runs_changed)

    def _on_runs_changed(self, run_ids: set[str]) -> None:
        """Report the end of the run also while nothing polls, because its frames are hidden."""
        view = self._run()
        if self.run_id in run_ids and view is not None and view.stage == "finished":
            self._update_status()

    def show_run(self, run_id: str) -> None:
        if run_id == self.run_id:
            return
        self.suspend()
        self.run_id = run_id
        self.envs = ()
        self.cells = []
        self.torn = self.invalid = 0
        self._video_mode = None
        self._bridge.ask(lambda trainer: (run_id, trainer.config(run_id)), self._on_config, lambda _: None, owner=self)
        self._update_status()

    def select_envs(self, envs: Sequence[int]) -> None:
        """Only these environments; none: all. The others are not drawn."""
        if tuple(envs) != self.envs:
            self.envs = tuple(envs)
            self.suspend()
            self.cells = [cell for cell in self.cells if not envs or cell.env in envs]

    def ask(self, request: FrameRequest, focused_env: int | None = None) -> None:
        """State what is asked of the run; the environment that somebody looks at gets more than the others."""
        is_new = request != self._request
        self._request, self._focused_env = request, focused_env
        if isinstance(self._source, LocalLanes):
            self._source.ask(request, focused_env)
        elif is_new:
            self.suspend()

    @property
    def request(self) -> FrameRequest:
        return self._request

    def poll(self) -> set[int]:
        """The environments with a new frame. Never waits; costs what the new frames' copies cost."""
        now = time.monotonic()
        new: set[int] = set()
        if self._source is None:
            self._source = self._open_source()
            self._last_frame_at = now
        source = self._source
        if source is not None:
            before = len(self.cells)
            new = source.poll()  # a signal that closes the window may come in the middle: then there is no source left
            if source.cells and (new or len(source.cells) != before):
                self.cells = merge_cells(self.cells, source.cells)
            if new:
                self._last_frame_at = now
                self._rate_meter.record(now, len(new))
        if now >= self._next_status_at or (new and self.status.state != CONNECTED):
            self._update_status()
        return new

    def suspend(self) -> None:
        """The viewer is hidden: without requests the run stops rendering."""
        if self._source is not None:
            self._source.close()
            self._source = None
        self._rate_meter.clear()

    @property
    def is_suspended(self) -> bool:
        return self._source is None

    def frame_rate_hz(self) -> float:
        """Frames per second of all environments together, over the last two seconds."""
        return self._rate_meter.rate_hz(time.monotonic())

    @property
    def _has_image(self) -> bool:
        return any(cell.image is not None for cell in self.cells)

    def _run(self) -> RunView | None:
        return self._runs.get(self.run_id) if self.run_id else None

    def _open_source(self) -> LaneSource | None:
        view = self._run()
        if view is None or view.stage in ("queued", "finished"):
            return None
        if has_local_frames(view, self._is_remote):
            local = LocalLanes(view.run_dir, self.envs, self._log_lane_event)
            local.ask(self._request, self._focused_env)
            return local
        return RelayedLanes(self._bridge, view.run_id, self.envs, self._request)

    def _on_config(self, answer: tuple[str, Mapping[str, Any]]) -> None:
        run_id, payload = answer
        if run_id == self.run_id:
            self._video_mode = payload.get("artifacts", {}).get("video", {}).get("mode")
            self._update_status()

    def _update_status(self) -> None:
        """Called rarely, because it may read folders."""
        now = time.monotonic()
        self._next_status_at = now + 0.25
        view = self._run()
        if view is not None and view.stage == "finished":
            self.suspend()
        status = viewer_status(view, self._video_mode, self._source, now - self._last_frame_at, self._has_image)
        source = self._source
        counts = (source.torn_reads, source.invalid_files) if source is not None else (self.torn, self.invalid)
        if status != self.status or counts != (self.torn, self.invalid):
            self.status = status
            self.torn, self.invalid = counts
            self.changed.emit()
        if status.state == CONNECTED:
            count = len(self.cells)
            self._log_status_change(semconv.FASTLANE_CONNECTED, f"{count_noun(count, 'environment')} by {status.text}")
        elif status.state == UNAVAILABLE and (self._source is not None or self.run_id in self._last_logged):
            self._log_status_change(semconv.FASTLANE_UNAVAILABLE, status.text)

    def _log_status_change(self, event: str, text: str) -> None:
        run_id = self.run_id or ""
        if self._last_logged.get(run_id) != event:
            self._last_logged[run_id] = event
            self._events.add(event, text, run_id)

    def _log_lane_event(self, event: str, **fields: Any) -> None:
        """Log the errors that a lane reports; its state is logged where the run's is known too."""
        if event in semconv.FASTLANE_PROBLEMS:
            self._events.add(event, ", ".join(f"{name}: {value}" for name, value in fields.items()), self.run_id or "")


# --- Saved frames: as one image, or as videos in real time.


RATE_HZ = 30
MAX_QUEUED_FRAMES = 60
"""Frames that may wait for the encoder; further ones are dropped, and the video freezes meanwhile."""


def to_array(image: QImage) -> Any:
    """Return a copy of the pixels as RGB."""
    plain = image.convertToFormat(QImage.Format.Format_RGB888)
    rows = np.frombuffer(plain.constBits(), np.uint8).reshape(plain.height(), plain.bytesPerLine())
    return rows[:, : plain.width() * 3].reshape(plain.height(), plain.width(), 3).copy()


def compose_cells(cells: Sequence[FrameCell], size: tuple[int, int] | None = None, max_side: int | None = None) -> Any:
    """Compose all cells into one RGB image: of this size, or of their own."""
    images = [None if cell.image is None else to_array(cell.image) for cell in cells]
    shape, full_size = full_grid(images)
    size = size or (limit_size(*full_size, max_side) if max_side else full_size)
    return compose_grid(images, shape, *size, scale_image_smoothly)


def save_image(cells: Sequence[FrameCell], path: Path) -> None:
    pixels = np.ascontiguousarray(compose_cells(cells))
    height, width = pixels.shape[:2]
    path.parent.mkdir(parents=True, exist_ok=True)
    if not QImage(pixels.data, width, height, width * 3, QImage.Format.Format_RGB888).save(str(path)):
        raise MosaicError(f"{path} cannot be written. Choose another folder, and a name that ends in .png or .jpg.")


class Recording(QObject):
    """A video of frames in real time, encoded in a background thread until `stop`."""

    saved = Signal(str, int)
    """The file and its number of frames."""
    failed = Signal(str)

    def __init__(self, bridge: Bridge, run_id: str, path: Path, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.run_id = run_id
        self.path = path
        self.is_stopped = False
        self.started_at = time.monotonic()
        self._length_s = 0.0
        """From its start to its stop."""
        self._written_count = 0
        self._queue: queue.SimpleQueue[tuple[float, list[FrameCell]]] = queue.SimpleQueue()
        bridge.run_in_background(
            self._encode,
            lambda frames: self.saved.emit(str(path), frames),
            lambda error: self.failed.emit(str(error)),
            owner=self,
        )

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_at

    @property
    def progress(self) -> float:
        """How much of the video is written, 0 to 1; of one that is not stopped, 0."""
        return min(1.0, self._written_count / max(1.0, self._length_s * RATE_HZ)) if self.is_stopped else 0.0

    def add(self, cells: Sequence[FrameCell]) -> None:
        """Show these from now on."""
        if self._queue.qsize() < MAX_QUEUED_FRAMES and any(cell.image is not None for cell in cells):
            self._queue.put((time.monotonic(), list(cells)))

    def stop(self) -> None:
        if not self.is_stopped:
            self.is_stopped = True
            self._length_s = self.elapsed_s
            self._queue.put((time.monotonic(), []))

    def _encode(self) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        video = VideoWriter(self.path, RATE_HZ)
        try:
            self._write_frames(video)
            video.finish()
        except BaseException:
            video.discard()
            raise
        return video.frame_count

    def _write_frames(self, video: VideoWriter) -> None:
        """Write in real time: a frame is shown until the next one arrives."""
        started_at, cells = self._queue.get()
        while cells:
            # The size of a video is that of its first frame, whatever is shown later.
            frame = compose_cells(cells, video.size, MAX_SIDE_PX)
            until, cells = self._queue.get()
            for _ in range(max(1, round((until - started_at) * RATE_HZ) - video.frame_count)):
                video.add(frame)
                self._written_count = video.frame_count
        if not video.frame_count:
            raise MosaicError("No frame arrived while recording: nothing was saved.")


class Recordings(QObject):
    """The recordings of this window that are not complete: taken, or being written."""

    changed = Signal(str)
    """The run one of whose recordings was started, stopped, saved or given up."""
    saved = Signal(str, object, int)
    """The run, the file and its number of frames."""
    failed = Signal(str)

    def __init__(self, bridge: Bridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self._active: list[Recording] = []
        self.requested_path: Path | None = None
        """The video that somebody wants to see, until it is selected."""

    def of_run(self, run_id: str) -> list[Recording]:
        """Return those of a run, the newest first."""
        return [recording for recording in reversed(self._active) if recording.run_id == run_id]

    def start(self, run_id: str, path: Path) -> Recording:
        recording = Recording(self._bridge, run_id, path, self)
        recording.saved.connect(lambda _, frames: self._on_saved(recording, frames))
        recording.failed.connect(lambda reason: self._on_failed(recording, reason))
        self._active.append(recording)
        self.changed.emit(run_id)
        return recording

    def stop(self, recording: Recording) -> None:
        recording.stop()
        self.changed.emit(recording.run_id)

    def _on_saved(self, recording: Recording, frames: int) -> None:
        self._remove(recording)
        self.saved.emit(recording.run_id, recording.path, frames)

    def _on_failed(self, recording: Recording, reason: str) -> None:
        recording.is_stopped = True
        self._remove(recording)
        self.failed.emit(reason)

    def _remove(self, recording: Recording) -> None:
        self._active.remove(recording)
        recording.deleteLater()
        self.changed.emit(recording.run_id)
