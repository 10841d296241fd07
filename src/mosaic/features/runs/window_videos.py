"""The Videos tab: the videos that a run has recorded, and a player."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from PySide6.QtCore import QSignalBlocker, QSize, Qt, QUrl
from PySide6.QtGui import QDesktopServices, QHideEvent, QImage, QShowEvent
from PySide6.QtWidgets import QComboBox, QListWidget, QListWidgetItem, QSizePolicy, QSlider, QWidget

from mosaic.base.formatting import count_noun, format_ago, format_si_number, format_timestamp, run_title
from mosaic.contracts.errors import BadInput, MissingExtra
from mosaic.contracts.views import RunView
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.bridge import Bridge
from mosaic.window.frames import FrameGrid
from mosaic.window.lanes import FrameCell, Recording
from mosaic.window.runs import empty_text
from mosaic.window.widgets import (
    EmptyState,
    PlainLabel,
    button,
    column,
    combo_box,
    create_timer,
    row,
    stack,
    tool_button,
    with_object_name,
)
from mosaic.window.workbench import Workbench

if TYPE_CHECKING:
    from mosaic.trainer.client.trainer_client import RunFile

# --- An MP4 file, frame by frame. Decoding is slow: it happens off the GUI thread.


MAX_NUMBER = 1e12
"""Of what a recording states about its episode."""
MAX_SIDE_PX = 1280
"""Larger frames are scaled down as they are read."""


class VideoFile(NamedTuple):
    run_id: str
    name: str
    """Below the run's folder."""
    path: PurePath
    """On the trainer's machine."""
    size_bytes: int
    written_at: float
    episode_return: float | None = None
    episode_length: int | None = None
    local_path: Path | None = None
    """Of a video that was recorded in the window: it is on this machine, wherever the trainer is."""


def list_videos(trainer: TrainerClient, view: RunView, exports: Path) -> list[VideoFile]:
    """List the videos of a run and those that were recorded in the window, newest first.

    A video that is still being written has another suffix.
    """
    files = trainer.files(view.run_id, "videos/*")
    names = {file.name for file in files}
    videos = [
        _read_video_file(trainer, view, file, names)
        for file in files
        if file.name.endswith(".mp4") and not PurePath(file.name).name.startswith(".")
    ]
    videos += [
        VideoFile(view.run_id, path.name, path, path.stat().st_size, path.stat().st_mtime, local_path=path)
        for path in exports.glob("*.mp4")
        if not path.name.startswith(".")
    ]
    return sorted(videos, key=lambda video: video.written_at, reverse=True)


def _read_video_file(trainer: TrainerClient, view: RunView, file: RunFile, names: set[str]) -> VideoFile:
    description = file.name.removesuffix(".mp4") + ".meta.json"
    metadata: Any = trainer.read_json(view.run_id, description) if description in names else {}
    if not isinstance(metadata, dict):
        metadata = {}
    return VideoFile(
        view.run_id,
        file.name,
        PurePath(view.run_dir, file.name),
        file.size_bytes,
        _finite_number(metadata, "timestamp") or file.modified_at,
        _finite_number(metadata, "episode_return"),
        None if (length := _finite_number(metadata, "episode_length")) is None else int(length),
    )


def _finite_number(metadata: dict[str, Any], key: str) -> float | None:
    value = metadata.get(key)
    return float(value) if isinstance(value, (int, float)) and abs(value) < MAX_NUMBER else None


class VideoFrame(NamedTuple):
    at_s: float
    image: QImage


class VideoReader:
    """One thread at a time may read; `read` continues where it stopped."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        """Must be set before the first read."""
        self.rate_hz = 30.0
        self.duration_s = 0.0
        self._lock = threading.Lock()
        self._container: Any = None
        self._frames: Iterator[Any] = iter(())

    def open(self) -> None:
        assert self.path is not None
        try:
            import av
        except ImportError:
            raise MissingExtra("Playing videos here needs PyAV: pip install 'mosaic-rl[video]'.") from None
        try:
            # No other format, such as a list of further files to read.
            self._container = av.open(str(self.path), format="mp4")
            stream = self._container.streams.video[0]
        except (OSError, IndexError, ValueError) as error:
            raise BadInput(f"{self.path.name} cannot be played: {error}.") from None
        stream.thread_type = "NONE"  # the cores belong to the runs
        self.rate_hz = float(stream.average_rate or 30)
        length = stream.duration * stream.time_base if stream.duration else (self._container.duration or 0) / 1e6
        self.duration_s = float(length)
        self._frames = self._container.decode(stream)

    def read(self, count: int, from_s: float | None = None) -> list[VideoFrame]:
        """Return the next frames, or those from this time on; fewer at the end."""
        with self._lock:
            if self._container is None:
                self.open()
            if from_s is not None:
                self._container.seek(int(from_s * 1e6))  # to the key frame before it
                self._frames = self._container.decode(video=0)
            frames: list[VideoFrame] = []
            for frame in self._frames:
                if from_s is not None and frame.time is not None and frame.time < from_s - 0.5 / self.rate_hz:
                    continue
                frames.append(_decode_frame(frame))
                if len(frames) == count:
                    break
            return frames

    def close(self) -> None:
        with self._lock:
            if self._container is not None:
                self._container.close()
                self._container = None
                self._frames = iter(())


def _decode_frame(frame: Any) -> VideoFrame:
    scale = min(1.0, MAX_SIDE_PX / max(frame.width, frame.height))
    width, height = int(frame.width * scale), int(frame.height * scale)
    pixels = frame.to_ndarray(format="rgb24", width=width, height=height).tobytes()
    image = QImage(pixels, width, height, 3 * width, QImage.Format.Format_RGB888)
    return VideoFrame(float(frame.time or 0.0), image.copy())  # a copy: the image outlives the bytes


# --- Plays a video, or two side by side: frames are read ahead in the background, and a timer shows them.


VideoChoice = tuple[str, VideoFile]
FRAMES_READ_AHEAD = 24
"""Frames to read ahead; at 600 by 400 these are 17 MB."""
MIN_BUFFERED_FRAMES = 10
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0)
SLIDER_STEPS = 1000


class VideoPlayer(QWidget):
    def __init__(self, bridge: Bridge, name: str) -> None:
        super().__init__()
        self.setObjectName(name)
        self._bridge = bridge
        self._video: VideoFile | None = None
        self._reader: VideoReader | None = None
        self._frames: deque[VideoFrame] = deque()
        self._is_reading = False
        self._has_ended = False
        """Whether the last frame has been read."""
        self._pending_seek_s: float | None = None
        self._at_s = 0.0
        self._is_playing = False
        self.canvas = with_object_name(FrameGrid(has_text=False), f"{name}.canvas")
        self._play = tool_button(
            f"{name}.play", "mdi6.play", "Play or stop", lambda: self.play(not self._is_playing), is_flat=False
        )
        self._slider = with_object_name(QSlider(Qt.Orientation.Horizontal), f"{name}.slider")
        self._slider.setRange(0, SLIDER_STEPS)
        self._slider.setToolTip("Position in the video")
        self._slider.sliderMoved.connect(self._seek)
        self._slider.actionTriggered.connect(lambda _: self._seek(self._slider.sliderPosition()))
        self._time = PlainLabel(name=f"{name}.time")
        self._speed = combo_box(f"{name}.speed", [(f"{speed:g}×", speed) for speed in SPEEDS], "Playing speed")
        self._speed.setCurrentIndex(SPEEDS.index(1.0))
        self._speed.currentIndexChanged.connect(lambda _: self._update_interval())
        self._loop = tool_button(
            f"{name}.loop", "mdi6.repeat", "Play again from the start", is_flat=False, is_checkable=True
        )
        open_button = tool_button(
            f"{name}.outside",
            "mdi6.open-in-new",
            "Open with the system's player",
            self._open_externally,
            is_flat=False,
        )
        controls = row(self._play, (self._slider, 1), self._time, self._speed, self._loop, open_button)
        column((self.canvas, 1), controls, parent=self)
        self._frame_timer = create_timer(self, 33, self._tick)
        self._frame_timer.setTimerType(Qt.TimerType.PreciseTimer)

    # --- which video

    def show_video(self, video: VideoFile | None, is_playing: bool = True) -> None:
        self.play(False)
        if self._reader is not None:
            self._bridge.run_in_background(self._reader.close)
        self._video = video
        self._reader = None if video is None else VideoReader()
        self._frames.clear()
        self._is_reading = self._has_ended = False
        self._pending_seek_s = None
        self._at_s = 0.0
        self._show_position()
        self.setEnabled(video is not None)
        self._show_message("" if video is None else "Opening…")
        if video is not None:
            self._is_playing = is_playing
            self._read_frames(0.0)

    def _show_message(self, text: str) -> None:
        self.canvas.show_cells([])
        self.canvas.show_message(text)

    def _read_frames(self, from_s: float | None = None) -> None:
        reader, video = self._reader, self._video
        if reader is None or video is None or self._is_reading:
            self._pending_seek_s = from_s if from_s is not None else self._pending_seek_s
            return
        self._is_reading = True

        def read(trainer: TrainerClient) -> list[VideoFrame]:
            if reader.path is None:
                reader.path = video.local_path or trainer.open_file(video.run_id, video.name)
            return reader.read(FRAMES_READ_AHEAD, from_s)

        def then(frames: list[VideoFrame]) -> None:
            if reader is self._reader:
                self._on_frames(frames, is_seek=from_s is not None)

        def failed(error: Exception) -> None:
            if reader is self._reader:
                self._is_reading = False
                self.play(False)
                self._show_message(f"{error}\nThe button at the right opens it with the system's player.")

        self._bridge.ask(read, then, failed, self)

    def _on_frames(self, frames: list[VideoFrame], is_seek: bool) -> None:
        self._is_reading = False
        if self._pending_seek_s is not None:  # the user has moved the slider again
            from_s, self._pending_seek_s = self._pending_seek_s, None
            self._frames.clear()
            self._read_frames(from_s)
            return
        self._has_ended = len(frames) < FRAMES_READ_AHEAD
        if is_seek:
            self._frames.clear()
        self._frames.extend(frames)
        if is_seek and self._frames:
            self._show_frame(self._frames.popleft())
        if self._is_playing and not self._frame_timer.isActive():
            self.play(True)

    # --- playing

    def play(self, is_playing: bool) -> None:
        self._is_playing = is_playing and self._reader is not None
        self._play.setIcon(theme.icon("mdi6.pause" if self._is_playing else "mdi6.play"))
        if not self._is_playing:
            self._frame_timer.stop()
            return
        if self._has_ended and not self._frames:
            self._read_frames(0.0)
        self._update_interval()
        if self.isVisible():
            self._frame_timer.start()

    def _update_interval(self) -> None:
        rate_hz = self._reader.rate_hz if self._reader is not None else 30.0
        self._frame_timer.setInterval(max(8, round(1000 / (rate_hz * float(self._speed.currentData())))))

    def _tick(self) -> None:
        if self._frames:
            self._show_frame(self._frames.popleft())
        elif self._has_ended and not self._is_reading:
            if self._loop.isChecked():
                self._read_frames(0.0)
            else:
                self.play(False)
            return
        if len(self._frames) < MIN_BUFFERED_FRAMES and not self._has_ended and not self._is_reading:
            self._read_frames()

    def _show_frame(self, frame: VideoFrame) -> None:
        self._at_s = frame.at_s
        self.canvas.show_cells([FrameCell(0, frame.image, None, None)], {0})
        self._show_position()

    def _show_position(self) -> None:
        duration_s = self._reader.duration_s if self._reader is not None else 0.0
        self._time.setText(f"{_format_time(self._at_s)} / {_format_time(duration_s)}")
        if not self._slider.isSliderDown():
            with QSignalBlocker(self._slider):
                self._slider.setValue(round(SLIDER_STEPS * self._at_s / duration_s) if duration_s else 0)

    def _seek(self, position: int) -> None:
        if self._reader is not None:
            self._has_ended = False
            self._frames.clear()
            self._read_frames(position / SLIDER_STEPS * self._reader.duration_s)

    def _open_externally(self) -> None:
        if self._reader is not None and self._reader.path is not None:
            QDesktopServices.openUrl(QUrl.fromLocalFile(str(self._reader.path)))

    def hideEvent(self, event: QHideEvent) -> None:
        self.play(False)
        super().hideEvent(event)


def _format_time(seconds: float) -> str:
    return f"{int(seconds // 60)}:{seconds % 60:04.1f}"


class VideoPair(QWidget):
    """Two videos side by side, of any of the compared runs."""

    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._views: Sequence[RunView] = ()
        self._choices: list[VideoChoice] = []
        self._needs_reload = False
        self._players = [VideoPlayer(workbench.bridge, f"compare.player.{side}") for side in ("left", "right")]
        self._menus = [combo_box(f"compare.video.{side}") for side in ("left", "right")]
        self._empty = EmptyState("No videos", "None of these runs has recorded one: “Capture video” makes a run do so.")
        # In a hidden tab it does not make the page taller.
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Ignored)
        for side, menu in enumerate(self._menus):
            menu.currentIndexChanged.connect(lambda _, side=side: self._choose(side))
            menu.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        both = button("Play both", "compare.play", self._play_both, "From the beginning")
        (left_menu, right_menu), (left, right) = self._menus, self._players
        sides = (
            column(left_menu, (left, 1)),
            column(row((right_menu, 1), both), (right, 1)),
        )
        players = QWidget()
        row(*((side, 1) for side in sides), parent=players, spacing=2 * theme.GAP)
        self._stack = stack(self._empty, players)
        column(self._stack, parent=self, margins=(0, theme.GAP, 0, 0))

    def show_runs(self, views: Sequence[RunView]) -> None:
        self._views = views
        self._needs_reload = True
        if self.isVisible():
            self._load_videos()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._needs_reload:
            self._load_videos()

    def _load_videos(self) -> None:
        self._needs_reload = False
        views = [view for view in self._views if view.run_dir]
        exports = self._workbench.workspace.exports

        def list_choices(trainer: TrainerClient) -> list[VideoChoice]:
            return [
                (_choice_title(view, video), video)
                for view in views
                for video in list_videos(trainer, view, exports(view.run_id))
            ]

        self._workbench.bridge.ask(list_choices, self._show_choices, self._workbench.show_error, self)

    def _show_choices(self, choices: list[VideoChoice]) -> None:
        if choices == self._choices:
            return
        self._choices = choices
        self._stack.setCurrentIndex(1 if choices else 0)
        for side, menu in enumerate(self._menus):
            with QSignalBlocker(menu):
                menu.clear()
                menu.addItems([title for title, _ in choices])
                menu.setCurrentIndex(min(side * self._default_right_index(), len(choices) - 1))
            self._choose(side, is_playing=False)

    def _default_right_index(self) -> int:
        """Return the first video of another run, else the next of the same."""
        folders = [video.path.parent for _, video in self._choices]
        return next((number for number, folder in enumerate(folders) if folder != folders[0]), 1)

    def _choose(self, side: int, is_playing: bool = True) -> None:
        number = self._menus[side].currentIndex()
        video = self._choices[number][1] if 0 <= number < len(self._choices) else None
        self._players[side].show_video(video, is_playing)

    def _play_both(self) -> None:
        for side in (0, 1):
            self._choose(side)


def _choice_title(view: RunView, video: VideoFile) -> str:
    parts = [run_title(view), video.path.stem]
    if video.episode_return is not None:
        parts.append(f"return {format_si_number(video.episode_return)}")
    return " · ".join(parts)


# --- The Videos tab: the videos that a run has recorded, and a player.


POLL_INTERVAL_MS = 5000
PROGRESS_INTERVAL_MS = 500


class VideoRow(NamedTuple):
    """A line of the list."""

    path: PurePath
    title: str
    tooltip: str
    video: VideoFile | None
    """None while it is being written."""


class VideosTab(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._run_id = ""
        self._videos: list[VideoFile] = []
        self._rows: list[VideoRow] = []
        self._list = ui.with_object_name(QListWidget(), "videos.list")
        self._list.setWordWrap(True)
        self._list.setProperty("roomy", True)
        self._player = VideoPlayer(workbench.bridge, "videos.player")
        self._evaluate_button = ui.button(
            "Evaluate its policy", "videos.evaluate", lambda: workbench.page_requested.emit("policy")
        )
        self._empty = ui.EmptyState("", "", self._evaluate_button)
        split = ui.splitter(
            Qt.Orientation.Horizontal, self._list, self._player, sizes=[260, 640], stretch=1, name="videos.split"
        )
        self._stack = ui.stack(self._empty, split)
        ui.column(self._stack, parent=self, margins=ui.TAB_MARGINS)
        self._poll_timer = ui.VisibleTimer(self, POLL_INTERVAL_MS, self._poll)
        ui.VisibleTimer(self, PROGRESS_INTERVAL_MS, self._show_progress)
        self._list.currentRowChanged.connect(self._play_row)
        workbench.recordings.changed.connect(self._on_recordings_changed)

    def show_run(self, run_id: str) -> None:
        if run_id != self._run_id:
            self._run_id = run_id
            self._videos = []
            self._rows = []
            self._list.clear()
            self._player.show_video(None)
            self._evaluate_button.hide()
            self._empty.set_text("Looking for videos…")
            self._stack.setCurrentIndex(0)
        self._show_progress()
        self._poll()

    def _on_recordings_changed(self, run_id: str) -> None:
        if run_id == self._run_id:
            self._show_progress()
            self._poll()

    def _show_progress(self) -> None:
        """Show recordings that are taken or being written, before the trainer has answered."""
        if self._workbench.recordings.of_run(self._run_id):
            self._show(self._videos)

    def _poll(self) -> None:
        view = self._workbench.runs.get(self._run_id)
        if view is None:
            return
        if view.stage == "finished":
            self._poll_timer.stop()
        run_id = self._run_id
        exports = self._workbench.workspace.exports(run_id)

        def call(trainer: TrainerClient) -> list[VideoFile]:
            return list_videos(trainer, view, exports)

        def then(videos: list[VideoFile]) -> None:
            if run_id == self._run_id:
                self._show(videos)

        self._workbench.bridge.ask(call, then, self._workbench.show_error, self)

    def _show(self, videos: list[VideoFile]) -> None:
        self._videos = videos
        recordings = self._workbench.recordings.of_run(self._run_id)
        known = {video.path for video in videos}
        rows = [_recording_row(recording) for recording in recordings if recording.path not in known]
        rows += [
            VideoRow(video.path, _video_title(video), f"{video.path}\n{format_timestamp(video.written_at)}", video)
            for video in videos
        ]
        if not rows:
            view = self._workbench.runs.get_or_placeholder(self._run_id)
            self._evaluate_button.setVisible(view.checkpoint_step is not None)
            self._empty.set_text(*empty_text("videos", view))
        before, self._rows = self._rows, rows
        selected = self._list.currentRow()
        shown = before[selected] if 0 <= selected < len(before) else None
        if [(row.path, row.tooltip) for row in rows] != [(row.path, row.tooltip) for row in before]:
            with QSignalBlocker(self._list):
                self._list.clear()
                for row in rows:
                    item = QListWidgetItem(row.title)
                    item.setToolTip(row.tooltip)
                    item.setSizeHint(QSize(0, 2 * self.fontMetrics().height() + 16))
                    self._list.addItem(item)
        for at, row in enumerate(rows):
            self._list.item(at).setText(row.title)
        self._stack.setCurrentIndex(1 if rows else 0)
        self._select(rows, shown)

    def _select(self, rows: list[VideoRow], shown: VideoRow | None) -> None:
        """Keep what is selected, unless another video is requested; play it once it is complete."""
        paths = [row.path for row in rows]
        requested = self._workbench.recordings.requested_path
        if requested in paths:
            self._workbench.recordings.requested_path = None
        path = requested if requested in paths else shown.path if shown is not None else None
        at = paths.index(path) if path in paths else 0 if rows else -1
        with QSignalBlocker(self._list):
            self._list.setCurrentRow(at)
        chosen = rows[at] if rows else None
        if _player_key(chosen) != _player_key(shown):
            self._play_row(at)

    def _play_row(self, row: int) -> None:
        if 0 <= row < len(self._rows):
            self._player.show_video(self._rows[row].video)


def _player_key(row: VideoRow | None) -> tuple[PurePath, bool] | None:
    return None if row is None else (row.path, row.video is not None)


def _recording_row(recording: Recording) -> VideoRow:
    state = f"being written, {100 * recording.progress:.0f} %" if recording.is_stopped else "being recorded"
    return VideoRow(recording.path, f"{recording.path.stem}\n{state}", str(recording.path), None)


def _video_title(video: VideoFile) -> str:
    details = ["recorded in the window"] if video.local_path is not None else []
    if video.episode_return is not None:
        details.append(f"return {format_si_number(video.episode_return)}")
    if video.episode_length is not None:
        details.append(count_noun(video.episode_length, "step"))
    details.append(format_ago(video.written_at))
    return f"{video.path.stem}\n{' · '.join(details)}"
