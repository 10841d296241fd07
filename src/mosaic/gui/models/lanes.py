"""What is seen of a run's environments: in shared memory where they run on this machine, else by the daemon's relay."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from PySide6.QtCore import QObject, QRect, Signal
from PySide6.QtGui import QImage

from mosaic.client import TrainerClient
from mosaic.contracts.errors import MosaicError
from mosaic.fastlane import (
    BGRX32,
    CONNECTED,
    UNAVAILABLE,
    WAITING,
    Frame,
    LaneView,
    hud_fields,
    lanes_folder,
)
from mosaic.gui.bridge import Bridge
from mosaic.gui.models.event_log import EventLog
from mosaic.gui.models.runs_model import Runs

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView

Json = dict[str, Any]
EventCallback = Callable[..., None]

WAITING_FOR_FRAME = "waiting for the next frame…"
STALE_AFTER_S = 2.0
"""A frame without a successor for this time is the last one for now."""
RETRY_S = 1.0
MAX_RELAYED_SIDE_PX = 1280
"""Of a frame that the daemon sends."""


class FrameCell(NamedTuple):
    env: int
    image: QImage | None
    """None before the first frame."""
    pixels: Any
    """The bytes that `image` looks at: they live as long as the cell does."""
    hud: Json
    """Episode, step, reward, return, rate_hz, pace; empty before the first frame."""


class LaneSource(Protocol):
    transport: str
    """How the frames come, in words."""
    cells: list[FrameCell]

    @property
    def state(self) -> str: ...

    @property
    def reason(self) -> str: ...

    def poll(self) -> set[int]:
        """The environments with a new frame. Never waits."""

    def error_counts(self) -> tuple[int, int]:
        """Frames that were torn and files that were no lanes, so far."""

    def close(self) -> None: ...


# --- on this machine


class LocalLanes:
    transport = "shared memory"

    def __init__(self, run_dir: str, envs: Sequence[int], rate_options: Json, on_event: EventCallback) -> None:
        self.cells: list[FrameCell] = []
        self._view = LaneView(lanes_folder(run_dir), envs, log_event=on_event, **rate_options)
        self._seen: dict[int, Frame | None] = {}

    @property
    def state(self) -> str:
        return self._view.state

    @property
    def reason(self) -> str:
        return self._view.reason

    def poll(self) -> set[int]:
        self._view.poll()
        frames = self._view.frames
        new = {env for env, frame in frames.items() if env not in self._seen or frame is not self._seen[env]}
        if new or len(frames) != len(self._seen):
            kept = {cell.env: cell for cell in self.cells}
            self._seen = dict(frames)
            self.cells = [_make_cell(env, frame) if env in new else kept[env] for env, frame in sorted(frames.items())]
        return new

    def error_counts(self) -> tuple[int, int]:
        return self._view.torn_reads, self._view.invalid_files

    def close(self) -> None:
        self._view.close()


def _make_cell(env: int, frame: Frame | None) -> FrameCell:
    if frame is None:
        return FrameCell(env, None, None, {})
    return FrameCell(env, to_image(frame.image, frame.format), frame.image, hud_fields(frame))


def to_image(pixels: Any, pixel_format: str) -> QImage:
    """An image over the same bytes. Whoever holds it must hold the pixels too."""
    height, width, channels = pixels.shape
    if pixel_format == BGRX32:
        # Nobody fills the fourth byte, and Qt copies it as it is: where it is 0, a grabbed window has holes.
        words = pixels.view(np.uint32)
        np.bitwise_or(words, np.uint32(0xFF000000), out=words)
        kind = QImage.Format.Format_RGB32
    else:
        kind = QImage.Format.Format_RGB888
    return QImage(pixels.data, width, height, width * channels, kind)


# --- on another machine


class RelayedLanes:
    """Listens in a thread of the bridge; only the newest frame is kept."""

    transport = "the trainer's relay"

    def __init__(self, bridge: Bridge, run_id: str, envs: Sequence[int], rate_options: Json) -> None:
        self.state = WAITING
        self.reason = "the trainer has sent nothing yet"
        self.cells: list[FrameCell] = []
        self._bridge = bridge
        self._run_id = run_id
        self._envs = tuple(envs)
        self._rate_options = {name: value for name, value in rate_options.items() if value is not None}
        self._newest: list[FrameCell] | None = None
        self._torn = 0
        self._is_closed = False
        self._has_ended = False
        self._retry_at: float | None = None
        self._start_stream()

    def _start_stream(self) -> None:
        self._retry_at = None
        self._bridge.ask(self._receive_frames, None, self._on_error)

    def _receive_frames(self, trainer: TrainerClient) -> None:
        """Ends within seconds after `close`: the daemon sends something every two of them."""
        for sight in trainer.frames(self._run_id, self._envs, max_side=MAX_RELAYED_SIDE_PX, **self._rate_options):
            if self._is_closed:
                return
            if sight.image:
                self._newest = list(split_grid(sight.image, sight.hud, self._envs))
                self._torn = int(sight.hud.get("torn", 0))
            self.state, self.reason = sight.state, sight.reason
        self._has_ended = True

    def _on_error(self, error: Exception) -> None:
        self.state = WAITING if isinstance(error, MosaicError) else UNAVAILABLE
        self.reason = str(error)
        self._retry_at = time.monotonic() + RETRY_S

    def poll(self) -> set[int]:
        if self._retry_at is not None and time.monotonic() >= self._retry_at and not self._is_closed:
            self._start_stream()
        cells, self._newest = self._newest, None
        if cells is None:
            return set()
        before = {cell.env: cell.hud.get("number") for cell in self.cells}
        self.cells = cells
        return {cell.env for cell in cells if cell.image and before.get(cell.env) != cell.hud.get("number")}

    def error_counts(self) -> tuple[int, int]:
        return self._torn, 0

    def close(self) -> None:
        self._is_closed = True


def split_grid(jpeg: bytes, grid_info: Json, envs: Sequence[int]) -> Iterator[FrameCell]:
    """The cells of a grid that was sent as one image; by default those of environment 0 and up, row by row."""
    whole = QImage.fromData(jpeg).convertToFormat(QImage.Format.Format_RGB32)
    rows, columns = int(grid_info.get("rows", 1)), int(grid_info.get("columns", 1))
    width, height = whole.width(), whole.height()
    places = {env: at for at, env in enumerate(envs)}
    for hud in grid_info.get("envs", []):
        env = int(hud["env"])
        row, column = divmod(places.get(env, env), columns)
        top, bottom = row * height // rows, (row + 1) * height // rows
        left, right = column * width // columns, (column + 1) * width // columns
        yield FrameCell(env, whole.copy(QRect(left, top, right - left, bottom - top)), None, hud)


# --- one viewer


class ViewerStatus(NamedTuple):
    state: str
    text: str


def viewer_status(
    view: RunView | None, video_mode: str | None, source: LaneSource | None, since_frame_s: float
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
        self, bridge: Bridge, runs: Runs, events: EventLog, is_remote: bool = False, parent: QObject | None = None
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
        self._rate_options: Json = {"rate_hz": None, "budget": None}
        self._bridge = bridge
        self._runs = runs
        self._events = events
        self._source: LaneSource | None = None
        self._video_mode: str | None = None
        self._last_frame_at = 0.0
        self._next_status_at = 0.0
        self._arrival_times: deque[float] = deque(maxlen=240)
        self._last_logged: dict[str, str] = {}
        """By run, whether connected or unavailable was reported last."""

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

    def set_rate(self, rate_hz: float | None, budget: float | None) -> None:
        """How often, and for how much of the training time; None leaves it to the run."""
        self._rate_options = {"rate_hz": rate_hz, "budget": budget}
        self.suspend()

    def poll(self) -> set[int]:
        """The environments with a new frame. Never waits; costs what the new frames' copies cost."""
        now = time.monotonic()
        new: set[int] = set()
        if self._source is None and self._can_watch():
            self._source = self._open_source()
            self._last_frame_at = now
        source = self._source
        if source is not None:
            before = len(self.cells)
            new = source.poll()  # a signal that closes the window may come in the middle: then there is no source left
            if source.cells and (new or len(source.cells) != before):
                self.cells = list(source.cells)
            if new:
                self._last_frame_at = now
                self._arrival_times.extend([now] * len(new))
        if now >= self._next_status_at or (new and self.status.state != CONNECTED):
            self._update_status()
        return new

    def suspend(self) -> None:
        """The viewer is hidden: without requests the run stops rendering."""
        if self._source is not None:
            self._source.close()
            self._source = None
        self._arrival_times.clear()

    @property
    def is_suspended(self) -> bool:
        return self._source is None

    def frame_rate_hz(self) -> float:
        """Frames per second of all environments together, over the last two seconds."""
        now = time.monotonic()
        while self._arrival_times and now - self._arrival_times[0] > STALE_AFTER_S:
            self._arrival_times.popleft()
        return len(self._arrival_times) / STALE_AFTER_S

    def _can_watch(self) -> bool:
        view = self._runs.get(self.run_id) if self.run_id else None
        return view is not None and view.stage not in ("queued", "finished")

    def _open_source(self) -> LaneSource:
        assert self.run_id is not None
        view = self._runs.get(self.run_id)
        assert view is not None
        if not self._is_remote and Path(view.run_dir).is_dir():
            return LocalLanes(view.run_dir, self.envs, self._rate_options, self._log_lane_event)
        return RelayedLanes(self._bridge, self.run_id, self.envs, self._rate_options)

    def _on_config(self, answer: tuple[str, Json]) -> None:
        run_id, payload = answer
        if run_id == self.run_id:
            self._video_mode = payload.get("artifacts", {}).get("video", {}).get("mode")
            self._update_status()

    def _update_status(self) -> None:
        """Called rarely, because it may read folders."""
        now = time.monotonic()
        self._next_status_at = now + 0.25
        view = self._runs.get(self.run_id) if self.run_id else None
        if view is not None and view.stage == "finished":
            self.suspend()
        found = viewer_status(view, self._video_mode, self._source, now - self._last_frame_at)
        counts = self._source.error_counts() if self._source is not None else (self.torn, self.invalid)
        if found != self.status or counts != (self.torn, self.invalid):
            self.status = found
            self.torn, self.invalid = counts
            self.changed.emit()
        if found.state == CONNECTED:
            count = len(self.cells)
            self._log_status_change("fastlane_connected", f"{count} environment{'s' * (count != 1)} by {found.text}")
        elif found.state == UNAVAILABLE and (self._source is not None or self.run_id in self._last_logged):
            self._log_status_change("fastlane_unavailable", found.text)

    def _log_status_change(self, event: str, text: str) -> None:
        run_id = self.run_id or ""
        if self._last_logged.get(run_id) != event:
            self._last_logged[run_id] = event
            self._events.add(event, text, run_id)

    def _log_lane_event(self, event: str, **fields: Any) -> None:
        """Log the errors that a lane reports; its state is logged where the run's is known too."""
        if event in ("fastlane_header_invalid", "fastlane_frame_read_error"):
            self._events.add(event, ", ".join(f"{name}: {value}" for name, value in fields.items()), self.run_id or "")
