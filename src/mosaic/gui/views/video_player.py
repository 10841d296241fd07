"""Plays a video: a worker thread reads frames ahead, a timer shows them."""

from __future__ import annotations

from collections import deque

from PySide6.QtCore import QRectF, QSize, Qt, QTimer, QUrl
from PySide6.QtGui import QColor, QDesktopServices, QHideEvent, QImage, QPainter, QPaintEvent
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QLabel, QSizePolicy, QSlider, QToolButton, QVBoxLayout, QWidget

from mosaic.client import TrainerClient
from mosaic.gui import theme
from mosaic.gui.bridge import Bridge
from mosaic.gui.models.video_file import DecodedFrame, VideoFile, VideoReader
from mosaic.gui.views.widgets import with_object_name

FRAMES_READ_AHEAD = 24
"""Frames to read ahead; at 600 by 400 these are 17 MB."""
MIN_BUFFERED_FRAMES = 10
MAX_PIXELATED_SIDE_PX = 256
"""Frames up to this size are enlarged without smoothing."""
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0)
SLIDER_STEPS = 1000


class VideoCanvas(QWidget):
    """One frame, as large as fits, centered."""

    def __init__(self) -> None:
        super().__init__()
        self._image: QImage | None = None
        self._text = ""
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.setMinimumSize(160, 120)

    def sizeHint(self) -> QSize:
        return QSize(480, 360)

    def show_frame(self, frame: DecodedFrame) -> None:
        image = QImage(frame.rgb, frame.width, frame.height, 3 * frame.width, QImage.Format.Format_RGB888)
        self._image, self._text = image.copy(), ""  # a copy: the image outlives the bytes
        self.update()

    def show_text(self, text: str) -> None:
        self._image, self._text = None, text
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(self.rect(), QColor(theme.tokens().window))
        if self._image is None:
            painter.setPen(QColor(theme.tokens().muted))
            painter.drawText(self.rect(), int(Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextWordWrap), self._text)
            return
        size = self._image.size().scaled(self.size(), Qt.AspectRatioMode.KeepAspectRatio)
        is_smooth = max(self._image.width(), self._image.height()) > MAX_PIXELATED_SIDE_PX
        painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform, is_smooth)
        left, top = (self.width() - size.width()) / 2, (self.height() - size.height()) / 2
        painter.drawImage(QRectF(left, top, size.width(), size.height()), self._image)


class VideoPlayer(QWidget):
    def __init__(self, bridge: Bridge, name: str = "film") -> None:
        super().__init__()
        self.setObjectName(name)
        self._bridge = bridge
        self._video: VideoFile | None = None
        self._reader: VideoReader | None = None
        self._frames: deque[DecodedFrame] = deque()
        self._is_reading = False
        self._has_ended = False
        """Whether the last frame has been read."""
        self._pending_seek_s: float | None = None
        self._at_s = 0.0
        self._is_playing = False
        self.canvas = with_object_name(VideoCanvas(), f"{name}.canvas")
        self._play = with_object_name(QToolButton(), f"{name}.play")
        self._slider = with_object_name(QSlider(Qt.Orientation.Horizontal), f"{name}.slider")
        self._time = with_object_name(QLabel(), f"{name}.time")
        self._speed = with_object_name(QComboBox(), f"{name}.speed")
        self._loop = with_object_name(QToolButton(), f"{name}.loop")
        self._open_button = with_object_name(QToolButton(), f"{name}.outside")
        self._build()
        self.paint_icons()
        self._frame_timer = QTimer(self)
        self._frame_timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._frame_timer.timeout.connect(self._tick)

    def _build(self) -> None:
        self._slider.setRange(0, SLIDER_STEPS)
        self._slider.setToolTip("Where in the video")
        self._slider.sliderMoved.connect(self._seek)
        self._slider.actionTriggered.connect(lambda _: self._seek(self._slider.sliderPosition()))
        self._play.clicked.connect(lambda: self.play(not self._is_playing))
        self._play.setToolTip("Play or stop")
        for speed in SPEEDS:
            self._speed.addItem(f"{speed:g}×", speed)
        self._speed.setCurrentIndex(SPEEDS.index(1.0))
        self._speed.setToolTip("How fast")
        self._speed.currentIndexChanged.connect(lambda _: self._update_interval())
        self._loop.setCheckable(True)
        self._loop.setToolTip("Play again from the start")
        self._open_button.setToolTip("Open with the system's player")
        self._open_button.clicked.connect(self._open_externally)
        row = QHBoxLayout()
        row.setSpacing(theme.GAP)
        for widget in (self._play, self._slider, self._time, self._speed, self._loop, self._open_button):
            row.addWidget(widget, 1 if widget is self._slider else 0)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.GAP)
        column.addWidget(self.canvas, 1)
        column.addLayout(row)

    def paint_icons(self) -> None:
        self._play.setIcon(theme.icon("mdi6.pause" if self._is_playing else "mdi6.play"))
        self._loop.setIcon(theme.icon("mdi6.repeat"))
        self._open_button.setIcon(theme.icon("mdi6.open-in-new"))

    # --- which film

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
        self.canvas.show_text("" if video is None else "Opening…")
        if video is not None:
            self._is_playing = is_playing
            self._read_frames(0.0)

    def _read_frames(self, from_s: float | None = None) -> None:
        reader, video = self._reader, self._video
        if reader is None or video is None or self._is_reading:
            self._pending_seek_s = from_s if from_s is not None else self._pending_seek_s
            return
        self._is_reading = True

        def read(trainer: TrainerClient) -> list[DecodedFrame]:
            if reader.path is None:
                reader.path = trainer.open_file(video.run_id, video.name)
            return reader.read(FRAMES_READ_AHEAD, from_s)

        def then(frames: list[DecodedFrame]) -> None:
            if reader is self._reader:
                self._on_frames(frames, is_seek=from_s is not None)

        def failed(error: Exception) -> None:
            if reader is self._reader:
                self._is_reading = False
                self.play(False)
                self.canvas.show_text(f"{error}\nThe button at the right opens it with the system's player.")

        self._bridge.ask(read, then, failed, self)

    def _on_frames(self, frames: list[DecodedFrame], is_seek: bool) -> None:
        self._is_reading = False
        if self._pending_seek_s is not None:  # the user has gone elsewhere meanwhile
            wanted, self._pending_seek_s = self._pending_seek_s, None
            self._frames.clear()
            self._read_frames(wanted)
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
        self.paint_icons()
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
        self._frame_timer.setInterval(max(8, round(1000 / (rate_hz * float(self._speed.currentData() or 1.0)))))

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

    def _show_frame(self, frame: DecodedFrame) -> None:
        self._at_s = frame.at_s
        self.canvas.show_frame(frame)
        self._show_position()

    def _show_position(self) -> None:
        length = self._reader.duration_s if self._reader is not None else 0.0
        self._time.setText(f"{_format_time(self._at_s)} / {_format_time(length)}")
        if not self._slider.isSliderDown():
            self._slider.blockSignals(True)
            self._slider.setValue(round(SLIDER_STEPS * self._at_s / length) if length else 0)
            self._slider.blockSignals(False)

    def _seek(self, part: int) -> None:
        if self._reader is not None:
            self._has_ended = False
            self._frames.clear()
            self._read_frames(part / SLIDER_STEPS * self._reader.duration_s)

    def _open_externally(self) -> None:
        if self._reader is not None and self._reader.path is not None:
            QDesktopServices.openUrl(QUrl.fromLocalFile(str(self._reader.path)))

    def hideEvent(self, event: QHideEvent) -> None:
        self.play(False)
        super().hideEvent(event)


def _format_time(seconds: float) -> str:
    return f"{int(seconds // 60)}:{seconds % 60:04.1f}"
