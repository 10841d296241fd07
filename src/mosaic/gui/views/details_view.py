"""Names and values under small headings; a large number with its caption; what happened, line by line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from PySide6.QtCore import QSize, Qt
from PySide6.QtWidgets import QGridLayout, QLabel, QVBoxLayout, QWidget

from mosaic.formatting import format_timestamp
from mosaic.gui import theme
from mosaic.gui.views.elided_label import ElidedLabel
from mosaic.gui.views.widgets import muted_label, with_object_name

if TYPE_CHECKING:
    from mosaic.contracts.states import HistoryEntry


class Detail(NamedTuple):
    name: str
    value: str = ""
    """Empty: the name is a heading."""
    tooltip: str = ""


class DetailsGrid(QWidget):
    """Rebuilt only when other names come; else only the values are written."""

    def __init__(self) -> None:
        super().__init__()
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, theme.GAP, 0)
        self._grid.setHorizontalSpacing(2 * theme.GAP)
        self._grid.setVerticalSpacing(4)
        self._grid.setColumnStretch(1, 1)
        self._names: list[str] = []
        self._values: list[QLabel] = []

    def minimumSizeHint(self) -> QSize:
        """Never lower than its lines are: it scrolls instead."""
        return QSize(super().minimumSizeHint().width(), self.sizeHint().height())

    def show_details(self, details: Sequence[Detail]) -> None:
        names = [fact.name for fact in details]
        if names != self._names:
            self._build(details)
            self._names = names
        for fact, label in zip(details, self._values, strict=True):
            if fact.value:
                label.setText(fact.value)
                label.setToolTip(fact.tooltip or fact.value)

    def _build(self, details: Sequence[Detail]) -> None:
        while (item := self._grid.takeAt(0)) is not None:
            if (widget := item.widget()) is not None:
                widget.hide()  # it goes with the next turn of the event loop, and must not be seen until then
                widget.deleteLater()
        self._values = []
        self._grid.setRowStretch(len(self._names), 0)  # what was the rest before is a row now
        for row, fact in enumerate(details):
            if not fact.value:
                heading = muted_label(fact.name)
                heading.setContentsMargins(0, theme.GAP if row else 0, 0, 0)
                self._grid.addWidget(heading, row, 0, 1, 2)
                self._values.append(heading)
                continue
            value = ElidedLabel(mode=Qt.TextElideMode.ElideMiddle)
            value.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            self._grid.addWidget(QLabel(fact.name), row, 0)
            self._grid.addWidget(value, row, 1)
            self._values.append(value)
        self._grid.setRowStretch(len(details), 1)


class StatTile(QWidget):
    """One number that matters."""

    def __init__(self, caption: str, name: str) -> None:
        super().__init__()
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        self.caption = ElidedLabel(caption)
        self.caption.setProperty("muted", True)
        self.value = with_object_name(ElidedLabel("–"), name)
        self.value.setFont(theme.heading_font())
        self.detail = ElidedLabel()
        self.detail.setProperty("muted", True)
        for label in (self.caption, self.value, self.detail):
            column.addWidget(label)

    def set_value(self, value: str, detail: str = "", tooltip: str = "") -> None:
        self.value.setText(value)
        self.detail.setText(detail)
        self.setToolTip(tooltip or " ".join(filter(None, (value, detail))))


class HistoryView(QWidget):
    """What happened to a run, newest last."""

    def __init__(self) -> None:
        super().__init__()
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, theme.GAP, 0)
        self._grid.setHorizontalSpacing(theme.GAP)
        self._grid.setVerticalSpacing(4)
        self._grid.setColumnStretch(2, 1)
        self._lines: list[HistoryEntry] = []
        self._outcome = ""

    def show_history(self, lines: Sequence[HistoryEntry], outcome: str = "") -> None:
        """`outcome` is that of a finished run: the history itself has only stages."""
        if list(lines) != self._lines or outcome != self._outcome:
            self._lines, self._outcome = list(lines), outcome
            self.rebuild()

    def rebuild(self) -> None:
        while (item := self._grid.takeAt(0)) is not None:
            if (widget := item.widget()) is not None:
                widget.hide()  # it goes with the next turn of the event loop, and must not be seen until then
                widget.deleteLater()
        for row, line in enumerate(self._lines):
            at = QLabel(format_timestamp(line.at)[11:])
            at.setToolTip(format_timestamp(line.at))
            at.setProperty("muted", True)
            icon = QLabel()
            icon.setPixmap(theme.state_icon(self._outcome if line.stage == "finished" else line.stage).pixmap(14, 14))
            icon.setToolTip(line.stage)
            message = QLabel(line.message)
            message.setWordWrap(True)
            message.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            top = Qt.AlignmentFlag.AlignTop
            self._grid.addWidget(at, row, 0, top)
            self._grid.addWidget(icon, row, 1, top)
            self._grid.addWidget(message, row, 2, top)
            self._grid.setRowStretch(row, 0)  # the history was shorter before, and this row took the remaining space
        self._grid.setRowStretch(len(self._lines), 1)
