"""The slider that sets how strongly curves are smoothed."""

from __future__ import annotations

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtWidgets import QHBoxLayout, QLabel, QSlider, QWidget

from mosaic.gui import theme
from mosaic.gui.views.widgets import with_object_name

DEFAULT_SMOOTHING = 0.6
MAX_SMOOTHING = 0.99


class SmoothingSlider(QWidget):
    changed = Signal(float)
    """The weight, from 0 to 0.99; while the slider moves, ten times a second at most."""

    def __init__(self, name: str, weight: float = DEFAULT_SMOOTHING) -> None:
        super().__init__()
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(theme.GAP)
        self.slider = with_object_name(QSlider(Qt.Orientation.Horizontal), name)
        self.slider.setRange(0, round(MAX_SMOOTHING * 100))
        self.slider.setFixedWidth(120)
        self.slider.setToolTip("How strongly the line is smoothed; the faint line shows the measured values")
        self._number = QLabel()
        self._number.setFixedWidth(self._number.fontMetrics().horizontalAdvance("0.00"))
        label = QLabel("Smoothing")
        label.setBuddy(self.slider)
        for part in (label, self.slider, self._number):
            row.addWidget(part)
        self._timer = QTimer(self, singleShot=True, interval=100)
        self._timer.timeout.connect(lambda: self.changed.emit(self.weight))
        self.slider.setValue(round(weight * 100))
        self.slider.valueChanged.connect(self._on_moved)
        self._number.setText(f"{self.weight:.2f}")

    @property
    def weight(self) -> float:
        return self.slider.value() / 100

    def _on_moved(self) -> None:
        self._number.setText(f"{self.weight:.2f}")
        if not self._timer.isActive():
            self._timer.start()
