"""Charts of many tags: grouped by the text before the first slash, as many beside one another as fit.

A chart is made when it scrolls into view, and fed only while it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from PySide6.QtCore import QPoint, QRect, Qt, QTimer
from PySide6.QtGui import QColor, QHideEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QScrollArea, QToolButton, QVBoxLayout, QWidget

from mosaic.gui import theme
from mosaic.gui.models.feed import Feed, Points
from mosaic.gui.models.series import RETURN_TAG
from mosaic.gui.views.chart import REDRAW_MS, Chart
from mosaic.gui.views.crosshair import Crosshair
from mosaic.gui.views.made import named

LEAST_WIDTH = 320
HEIGHT = 216
FACTOR = 2
"""How much higher a chart is that was made larger."""


def split_tag(tag: str) -> tuple[str, str]:
    """The group and the title: `losses/value_loss` is `value_loss` of `losses`."""
    group, slash, title = tag.partition("/")
    return (group, title) if slash else ("", tag)


def _order(tag: str) -> tuple[bool, str]:
    """The return is what everybody looks for first."""
    return tag != RETURN_TAG, tag.lower()


class Cell(QWidget):
    """The place of one chart, which may not be there yet."""

    def __init__(self, tag: str, points: Points, is_timed: bool) -> None:
        super().__init__()
        self.tag = tag
        self.points = points
        self.is_timed = is_timed
        """Its points have a time and no step."""
        self.chart: Chart | None = None
        self.is_large = False
        self._feed: Feed | None = None

    def show_points(self, points: Points) -> None:
        """Another run's."""
        self.points = points
        self._feed = None

    def put_chart(self, chart: Chart) -> None:
        self.chart = chart
        chart.setParent(self)
        chart.setGeometry(self.rect())
        chart.show()

    def pull(self, kind: str, colour: QColor, label: str) -> None:
        if self.chart is None:
            return
        if self._feed is None:
            self._feed = Feed(self.points, self.tag, self.chart.put_curve("run", label, colour))
        if self.is_timed and kind != "wall":
            kind = "relative"
        self.chart.set_x_kind(kind)
        if self._feed.pull(kind):
            self.chart.touch()

    def resizeEvent(self, event: QResizeEvent) -> None:
        if self.chart is not None:
            self.chart.setGeometry(self.rect())


class Section(QWidget):
    """A heading that folds, and the cells below it."""

    def __init__(self, title: str, name: str, moved: Callable[[], None]) -> None:
        super().__init__()
        self.cells: dict[str, Cell] = {}
        self._moved = moved
        self._columns = 1
        self.heading = named(QToolButton(), name)
        self.heading.setText(title)
        self.heading.setCheckable(True)
        self.heading.setProperty("heading", True)
        self.heading.setChecked(True)
        self.heading.setProperty("flat", True)
        self.heading.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.heading.clicked.connect(lambda _: self._fold())
        self.body = QWidget()
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.GAP // 2)
        column.addWidget(self.heading, 0, Qt.AlignmentFlag.AlignLeft)
        column.addWidget(self.body)
        self.repaint_theme()

    def _fold(self) -> None:
        self.body.setVisible(self.heading.isChecked())
        self.repaint_theme()
        self._moved()

    def repaint_theme(self) -> None:
        is_open = self.heading.isChecked()
        self.heading.setIcon(theme.icon("mdi6.chevron-down" if is_open else "mdi6.chevron-right", "muted"))
        for cell in self.cells.values():
            if cell.chart is not None:
                cell.chart.repaint_theme()

    def add(self, cell: Cell) -> None:
        cell.setParent(self.body)
        self.cells[cell.tag] = cell

    def remove(self, tag: str) -> None:
        self.cells.pop(tag).deleteLater()

    def arrange(self, width: int, is_wanted: Callable[[str], bool]) -> None:
        """Puts the wanted cells into rows; a large one takes a row of its own."""
        columns = max(1, (width + theme.GAP) // (LEAST_WIDTH + theme.GAP))
        each = (width - (columns - 1) * theme.GAP) // columns
        top = column = 0
        shown = 0
        for tag in sorted(self.cells, key=_order):
            cell = self.cells[tag]
            cell.setVisible(is_wanted(tag))
            if not is_wanted(tag):
                continue
            shown += 1
            if column and (cell.is_large or column == columns):
                top, column = top + HEIGHT + theme.GAP, 0
            if cell.is_large:
                cell.setGeometry(QRect(0, top, width, FACTOR * HEIGHT))
                top += FACTOR * HEIGHT + theme.GAP
            else:
                cell.setGeometry(QRect(column * (each + theme.GAP), top, each, HEIGHT))
                column += 1
        self.body.setFixedHeight(max(0, top + (HEIGHT if column else -theme.GAP)))
        self.setVisible(shown > 0)


class ChartGrid(QScrollArea):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName(f"{name}.grid")
        self._name = name
        self.setWidgetResizable(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOn)
        self.crosshair = Crosshair(self)
        self._clock = Crosshair(self)
        """For charts that are always by time, such as hardware."""
        self._sections: dict[str, Section] = {}
        self._filter = ""
        self._weight, self._is_log, self._kind = 0.0, False, "step"
        self._colour, self._label = QColor(), ""
        self._inside = QWidget()
        self._column = QVBoxLayout(self._inside)
        self._column.setContentsMargins(0, 0, theme.GAP, theme.GAP)
        self._column.setSpacing(theme.GAP)
        self._column.addStretch(1)
        self.setWidget(self._inside)
        self._making = QTimer(self, singleShot=True, interval=0)
        self._making.timeout.connect(self._make_one)
        self._feeding = QTimer(self, interval=REDRAW_MS)
        self._feeding.timeout.connect(self.feed)
        self.verticalScrollBar().valueChanged.connect(lambda _: self._seek())

    # --- what is shown

    def show_tags(self, tags: Iterable[str], points: Points, colour: QColor, label: str, timed: Points) -> None:
        """The charts of one run: of its tags, and of the tags of `timed`, which have no steps, below them."""
        self._colour, self._label = colour, label
        wanted = {tag: (points, split_tag(tag)[0] or "other", False) for tag in tags}
        wanted |= dict.fromkeys(timed.tags, (timed, "hardware", True))
        for group, section in self._sections.items():
            for tag in [tag for tag in section.cells if tag not in wanted or wanted[tag][1] != group]:
                section.remove(tag)
        for tag, (source, group, is_timed) in wanted.items():
            section = self._section(group, is_timed)
            if tag not in section.cells:
                section.add(Cell(tag, source, is_timed))
            elif section.cells[tag].points is not source:
                section.cells[tag].show_points(source)
        self.arrange()

    def _section(self, group: str, is_last: bool) -> Section:
        if group not in self._sections:
            section = Section(group, f"{self._name}.group.{group}", self._seek)
            ahead = [name for name in self._sections if is_last or (name < group and name != "hardware")]
            self._sections[group] = section
            self._column.insertWidget(len(ahead), section)
        return self._sections[group]

    def tags(self) -> list[str]:
        return [cell.tag for cell in self._cells()]

    def charts(self) -> list[Chart]:
        """Those that have been made."""
        return [cell.chart for cell in self._cells() if cell.chart is not None]

    def _stepped_charts(self) -> list[Chart]:
        return [cell.chart for cell in self._cells() if cell.chart is not None and not cell.is_timed]

    def _cells(self) -> list[Cell]:
        return [cell for section in self._sections.values() for cell in section.cells.values()]

    def set_filter(self, text: str) -> None:
        self._filter = text.strip().lower()
        self.arrange()

    def set_smoothing(self, weight: float) -> None:
        self._weight = weight
        for chart in self._stepped_charts():
            chart.set_smoothing(weight)

    def set_log(self, is_log: bool) -> None:
        self._is_log = is_log
        for chart in self._stepped_charts():
            chart.set_log(is_log)

    def set_x_kind(self, kind: str) -> None:
        self._kind = kind
        self.crosshair.point(None)
        self.feed()

    def reset_zoom(self) -> None:
        for chart in self.charts():
            chart.reset_zoom()

    def repaint_theme(self) -> None:
        for section in self._sections.values():
            section.repaint_theme()

    # --- room

    def arrange(self) -> None:
        width = self.viewport().width() - theme.GAP
        for section in self._sections.values():
            section.arrange(width, lambda tag: all(word in tag.lower() for word in self._filter.split()))
        self._seek()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.arrange()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._feeding.start()
        self._seek()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._feeding.stop()

    # --- making and feeding what is seen

    def _seen(self) -> list[Cell]:
        """By place: Qt's own visible region leaves out what a child covers, and the chart covers its cell."""
        sight = self.viewport().rect()
        shown = [cell for cell in self._cells() if cell.isVisible()]
        return [cell for cell in shown if sight.intersects(QRect(cell.mapTo(self.viewport(), QPoint()), cell.size()))]

    def _seek(self, *_: Any) -> None:
        if self.isVisible() and not self._making.isActive():
            self._making.start()

    def _make_one(self) -> None:
        """One at a time: the window stays awake while a page of charts is made."""
        cell = next((cell for cell in self._seen() if cell.chart is None), None)
        if cell is None:
            self.feed()
            return
        crosshair = self._clock if cell.is_timed else self.crosshair
        chart = Chart(split_tag(cell.tag)[1], f"{self._name}.chart.{cell.tag}", crosshair)
        chart.plot.wheel_needs_ctrl = True
        chart.has_zero = cell.is_timed
        chart.set_smoothing(0.0 if cell.is_timed else self._weight)
        chart.set_log(self._is_log and not cell.is_timed)
        chart.expand.show()
        chart.expand_wanted.connect(lambda: self._enlarge(cell))
        cell.put_chart(chart)
        cell.pull(self._kind, self._colour, self._label)
        chart.redraw()
        self._making.start()

    def _enlarge(self, cell: Cell) -> None:
        cell.is_large = not cell.is_large
        self.arrange()
        QTimer.singleShot(0, self, lambda: self.ensureWidgetVisible(cell))

    def feed(self) -> None:
        if self.isVisible():
            for cell in self._seen():
                cell.pull(self._kind, self._colour, self._label)
