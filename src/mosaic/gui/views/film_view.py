"""Plays a film: some pictures are read ahead elsewhere, a timer shows them."""

from __future__ import annotations

from collections import deque

from PySide6.QtCore import QRectF, QSize, Qt, QTimer, QUrl
from PySide6.QtGui import QColor, QDesktopServices, QHideEvent, QImage, QPainter, QPaintEvent
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QLabel, QSizePolicy, QSlider, QToolButton, QVBoxLayout, QWidget

from mosaic.gui import theme
from mosaic.gui.bridge import Bridge
from mosaic.gui.models.film import Film, Picture, VideoFile
from mosaic.gui.views.made import named

AHEAD = 24
"""Pictures that are read ahead; at 600 by 400 these are 17 MB."""
LOW = 10
PIXEL_WORLD = 256
"""Pictures up to this size are enlarged pixel by pixel."""
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0)
PARTS = 1000


class Canvas(QWidget):
    """One picture, as large as it can be, in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self._image: QImage | None = None
        self._said = ""
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.setMinimumSize(160, 120)

    def sizeHint(self) -> QSize:
        return QSize(480, 360)

    def show_picture(self, picture: Picture) -> None:
        image = QImage(picture.rgb, picture.width, picture.height, 3 * picture.width, QImage.Format.Format_RGB888)
        self._image, self._said = image.copy(), ""  # a copy: the bytes go, the picture stays
        self.update()

    def say(self, text: str) -> None:
        self._image, self._said = None, text
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(self.rect(), QColor(theme.tokens().window))
        if self._image is None:
            painter.setPen(QColor(theme.tokens().muted))
            painter.drawText(self.rect(), int(Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextWordWrap), self._said)
            return
        size = self._image.size().scaled(self.size(), Qt.AspectRatioMode.KeepAspectRatio)
        is_smooth = max(self._image.width(), self._image.height()) > PIXEL_WORLD
        painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform, is_smooth)
        left, top = (self.width() - size.width()) / 2, (self.height() - size.height()) / 2
        painter.drawImage(QRectF(left, top, size.width(), size.height()), self._image)


class FilmView(QWidget):
    def __init__(self, bridge: Bridge, name: str = "film") -> None:
        super().__init__()
        self.setObjectName(name)
        self._bridge = bridge
        self._film: Film | None = None
        self._pictures: deque[Picture] = deque()
        self._is_asking = False
        self._has_ended = False
        """Whether the last picture has been read."""
        self._wanted_s: float | None = None
        self._at_s = 0.0
        self._is_playing = False
        self.canvas = named(Canvas(), f"{name}.canvas")
        self._play = named(QToolButton(), f"{name}.play")
        self._slider = named(QSlider(Qt.Orientation.Horizontal), f"{name}.slider")
        self._time = named(QLabel(), f"{name}.time")
        self._speed = named(QComboBox(), f"{name}.speed")
        self._loop = named(QToolButton(), f"{name}.loop")
        self._outside = named(QToolButton(), f"{name}.outside")
        self._build()
        self.paint_icons()
        self._clock = QTimer(self)
        self._clock.setTimerType(Qt.TimerType.PreciseTimer)
        self._clock.timeout.connect(self._tick)

    def _build(self) -> None:
        self._slider.setRange(0, PARTS)
        self._slider.setToolTip("Where in the video")
        self._slider.sliderMoved.connect(self._seek)
        self._slider.actionTriggered.connect(lambda _: self._seek(self._slider.sliderPosition()))
        self._play.clicked.connect(lambda: self.play(not self._is_playing))
        self._play.setToolTip("Play or stop")
        for speed in SPEEDS:
            self._speed.addItem(f"{speed:g}×", speed)
        self._speed.setCurrentIndex(SPEEDS.index(1.0))
        self._speed.setToolTip("How fast")
        self._speed.currentIndexChanged.connect(lambda _: self._set_pace())
        self._loop.setCheckable(True)
        self._loop.setToolTip("Again from the beginning")
        self._outside.setToolTip("Open with the system's player")
        self._outside.clicked.connect(self._open_outside)
        row = QHBoxLayout()
        row.setSpacing(theme.GAP)
        for widget in (self._play, self._slider, self._time, self._speed, self._loop, self._outside):
            row.addWidget(widget, 1 if widget is self._slider else 0)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.GAP)
        column.addWidget(self.canvas, 1)
        column.addLayout(row)

    def paint_icons(self) -> None:
        self._play.setIcon(theme.icon("mdi6.pause" if self._is_playing else "mdi6.play"))
        self._loop.setIcon(theme.icon("mdi6.repeat"))
        self._outside.setIcon(theme.icon("mdi6.open-in-new"))

    # --- which film

    def show_video(self, video: VideoFile | None, is_playing: bool = True) -> None:
        self.play(False)
        if self._film is not None:
            self._bridge.work(self._film.close)
        self._film = None if video is None else Film(video.path)
        self._pictures.clear()
        self._is_asking = self._has_ended = False
        self._wanted_s = None
        self._at_s = 0.0
        self._show_place()
        self.setEnabled(video is not None)
        self.canvas.say("" if video is None else "Opening…")
        if video is not None:
            self._is_playing = is_playing
            self._ask(0.0)

    def _ask(self, from_s: float | None = None) -> None:
        film = self._film
        if film is None or self._is_asking:
            self._wanted_s = from_s if from_s is not None else self._wanted_s
            return
        self._is_asking = True

        def then(pictures: list[Picture]) -> None:
            if film is self._film:
                self._take(pictures, is_new_place=from_s is not None)

        def failed(error: Exception) -> None:
            if film is self._film:
                self._is_asking = False
                self.play(False)
                self.canvas.say(f"{error}\nThe button at the right opens it with the system's player.")

        self._bridge.work(lambda: film.read(AHEAD, from_s), then, failed, self)

    def _take(self, pictures: list[Picture], is_new_place: bool) -> None:
        self._is_asking = False
        if self._wanted_s is not None:  # the user has gone elsewhere meanwhile
            wanted, self._wanted_s = self._wanted_s, None
            self._pictures.clear()
            self._ask(wanted)
            return
        self._has_ended = len(pictures) < AHEAD
        if is_new_place:
            self._pictures.clear()
        self._pictures.extend(pictures)
        if is_new_place and self._pictures:
            self._show(self._pictures.popleft())
        if self._is_playing and not self._clock.isActive():
            self.play(True)

    # --- playing

    def play(self, is_playing: bool) -> None:
        self._is_playing = is_playing and self._film is not None
        self.paint_icons()
        if not self._is_playing:
            self._clock.stop()
            return
        if self._has_ended and not self._pictures:
            self._ask(0.0)
        self._set_pace()
        if self.isVisible():
            self._clock.start()

    def _set_pace(self) -> None:
        rate_hz = self._film.rate_hz if self._film is not None else 30.0
        self._clock.setInterval(max(8, round(1000 / (rate_hz * float(self._speed.currentData() or 1.0)))))

    def _tick(self) -> None:
        if self._pictures:
            self._show(self._pictures.popleft())
        elif self._has_ended and not self._is_asking:
            if self._loop.isChecked():
                self._ask(0.0)
            else:
                self.play(False)
            return
        if len(self._pictures) < LOW and not self._has_ended and not self._is_asking:
            self._ask()

    def _show(self, picture: Picture) -> None:
        self._at_s = picture.at_s
        self.canvas.show_picture(picture)
        self._show_place()

    def _show_place(self) -> None:
        length = self._film.length_s if self._film is not None else 0.0
        self._time.setText(f"{_clock(self._at_s)} / {_clock(length)}")
        if not self._slider.isSliderDown():
            self._slider.blockSignals(True)
            self._slider.setValue(round(PARTS * self._at_s / length) if length else 0)
            self._slider.blockSignals(False)

    def _seek(self, part: int) -> None:
        if self._film is not None:
            self._has_ended = False
            self._pictures.clear()
            self._ask(part / PARTS * self._film.length_s)

    def _open_outside(self) -> None:
        if self._film is not None:
            QDesktopServices.openUrl(QUrl.fromLocalFile(str(self._film.path)))

    def hideEvent(self, event: QHideEvent) -> None:
        self.play(False)
        super().hideEvent(event)


def _clock(seconds: float) -> str:
    return f"{int(seconds // 60)}:{seconds % 60:04.1f}"
