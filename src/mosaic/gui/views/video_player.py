"""Plays a video, or two side by side: frames are read ahead in the background, and a timer shows them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from PySide6.QtCore import QSignalBlocker, Qt, QUrl
from PySide6.QtGui import QDesktopServices, QHideEvent, QShowEvent
from PySide6.QtWidgets import QComboBox, QSizePolicy, QSlider, QWidget

from mosaic.client import TrainerClient
from mosaic.contracts.views import RunView
from mosaic.formatting import format_si_number, run_title
from mosaic.gui import theme
from mosaic.gui.bridge import Bridge
from mosaic.gui.models.lanes import FrameCell
from mosaic.gui.models.video_file import VideoFile, VideoFrame, VideoReader, list_videos
from mosaic.gui.views.frame_grid import FrameGrid
from mosaic.gui.views.widgets import (
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
from mosaic.gui.workbench import Workbench

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
