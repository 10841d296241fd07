"""All curves of a run, and below them what it takes of the machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QFileDialog,
    QHBoxLayout,
    QLineEdit,
    QStackedWidget,
    QToolButton,
    QVBoxLayout,
    QWidget,
)
from shiboken6 import isValid

from mosaic.gui import theme
from mosaic.gui.exports import export_csv
from mosaic.gui.models.feed import X_KINDS
from mosaic.gui.models.hardware import Hardware
from mosaic.gui.models.series import Series
from mosaic.gui.run_verbs import write_export
from mosaic.gui.views.chart_grid import ChartGrid
from mosaic.gui.views.empty import Empty
from mosaic.gui.views.made import named
from mosaic.gui.views.smoothing import Smoothing
from mosaic.gui.views.words import run_title, short_id, state_of
from mosaic.gui.workbench import Json, Workbench

WAITING = {
    "queued": "The run waits for a free place. Curves begin when it has started.",
    "starting": "The run is starting. Curves begin with its first episode or update.",
    "running": "The run has logged nothing yet. Curves begin with its first episode or update.",
    "paused": "The run was paused before it logged anything. Resume it to go on.",
}
NEVER = "The run ended before it logged anything. The Logs tab may say why."


class Analytics(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._run_id = ""
        self._series: Series | None = None
        self._hardware: Hardware | None = None
        self.grid = ChartGrid("analytics")
        self._empty = Empty("No points yet")
        self._stack = QStackedWidget()
        self._stack.addWidget(self._empty)
        self._stack.addWidget(self.grid)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.GAP)
        column.addLayout(self._tools())
        column.addWidget(self._stack, 1)
        workbench.theme_changed.connect(self._repaint_theme)
        workbench.runs.changed.connect(self._run_changed)
        self._repaint_theme()

    def _tools(self) -> QHBoxLayout:
        settings = self._workbench.settings
        self.filter = named(QLineEdit(), "analytics.filter")
        self.filter.setPlaceholderText("Filter tags")
        self.filter.setClearButtonEnabled(True)
        self.filter.setMaximumWidth(220)
        self.filter.textChanged.connect(self.grid.set_filter)
        self.smoothing = Smoothing("analytics.smoothing", settings.get("chart_smoothing", 0.6))
        self.smoothing.changed.connect(self._smooth)
        self.x_axis = named(QComboBox(), "analytics.x")
        for kind, title in X_KINDS.items():
            self.x_axis.addItem(title, kind)
        self.x_axis.setToolTip("What the horizontal axis shows; hardware is always by time")
        self.x_axis.setCurrentIndex(max(0, self.x_axis.findData(settings.get("chart_x", "step"))))
        self.x_axis.currentIndexChanged.connect(self._choose_x)
        self.log = named(QCheckBox("Log y"), "analytics.log")
        self.log.setToolTip("Logarithmic vertical axis; values that are not above zero are left out")
        self.log.toggled.connect(self.grid.set_log)
        self._reset = self._button("reset", "Reset zoom", self.grid.reset_zoom)
        self._export = self._button("export", "Export all points as CSV…", self._save_csv)
        self.grid.set_smoothing(self.smoothing.weight)
        self.grid.set_x_kind(str(self.x_axis.currentData()))
        row = QHBoxLayout()
        row.setSpacing(2 * theme.GAP)
        for part in (self.filter, self.smoothing, self.x_axis, self.log):
            row.addWidget(part)
        row.addStretch(1)
        row.addWidget(self._reset)
        row.addWidget(self._export)
        return row

    def _button(self, name: str, tip: str, call: Callable[[], None]) -> QToolButton:
        button = named(QToolButton(), f"analytics.{name}")
        button.setToolTip(tip)
        button.setAccessibleName(tip)
        button.clicked.connect(lambda _: call())
        return button

    def _repaint_theme(self) -> None:
        self._reset.setIcon(theme.icon("mdi6.magnify-remove-outline"))
        self._export.setIcon(theme.icon("mdi6.download"))
        self.grid.repaint_theme()

    # --- which run

    def show_run(self, run_id: str) -> None:
        if run_id != self._run_id:
            self._leave()
            self._run_id = run_id
            view = self._workbench.runs.get(run_id) or {}
            self._series = self._workbench.series(run_id)
            self._series.loaded.connect(self._refresh)
            self._series.grown.connect(self._grown)
            self._hardware = Hardware(run_id, self._workbench.bridge, view.get("hardware"), self)
            self._hardware.grown.connect(self._grown)
            self.grid.crosshair.point(None)
        self._refresh()

    def _leave(self) -> None:
        if self._series is not None and isValid(self._series):  # the oldest of many is let go of
            self._series.loaded.disconnect(self._refresh)
            self._series.grown.disconnect(self._grown)
        if self._hardware is not None:
            self._hardware.deleteLater()

    def _grown(self, tags: set[str]) -> None:
        if not tags.issubset(self.grid.tags()):
            self._refresh()

    def _run_changed(self, run_ids: set[str]) -> None:
        if self._run_id in run_ids and self._stack.currentIndex() == 0:
            self._refresh()

    def _refresh(self) -> None:
        series, hardware = self._series, self._hardware
        if series is None or hardware is None:
            return
        view: Json = self._workbench.runs.get(self._run_id) or {"run_id": self._run_id, "stage": "queued"}
        has_points = bool(series.tags or hardware.tags)
        self._stack.setCurrentIndex(1 if has_points else 0)
        if has_points:
            self.grid.show_tags(series.tags, series, theme.run_colour(self._run_id), run_title(view), hardware)
        elif not series.is_loaded:
            self._empty.say("Loading…")
        else:
            self._empty.say("No points yet", WAITING.get(state_of(view), NEVER))

    # --- the tools

    def _smooth(self, weight: float) -> None:
        self._workbench.settings.put("chart_smoothing", weight)
        self.grid.set_smoothing(weight)

    def _choose_x(self) -> None:
        kind = str(self.x_axis.currentData())
        self._workbench.settings.put("chart_x", kind)
        self.grid.set_x_kind(kind)

    def _save_csv(self) -> None:
        view = self._workbench.runs.get(self._run_id)
        if view is None:
            return
        wanted = f"{view.get('run_name') or short_id(self._run_id)}-metrics.csv".replace("/", "_")
        path, _ = QFileDialog.getSaveFileName(self, "Export all points", wanted, "Table (*.csv)")
        if path:
            self.save_csv(Path(path))

    def save_csv(self, path: Path) -> None:
        view = self._workbench.runs.get(self._run_id) or {"run_id": self._run_id}
        write_export(self._workbench, export_csv, view, path)
