"""Names and values under small headings, a large number with its caption, and the history of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PySide6.QtCore import QSize, Qt
from PySide6.QtWidgets import QGridLayout, QWidget

from mosaic.contracts.states import HistoryEntry
from mosaic.formatting import format_timestamp
from mosaic.gui import theme
from mosaic.gui.views.widgets import (
    ElidedLabel,
    IconLabel,
    PlainLabel,
    clear_layout,
    column,
    muted_label,
    selectable_label,
    with_object_name,
)


class Detail(NamedTuple):
    name: str
    value: str = ""
    """Empty: the name is a heading."""
    tooltip: str = ""


class _Grid(QWidget):
    """Rows of widgets at the top, the last column as wide as possible."""

    def __init__(self, columns: int, spacing: int) -> None:
        super().__init__()
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, theme.GAP, 0)
        self._grid.setHorizontalSpacing(spacing)
        self._grid.setVerticalSpacing(4)
        self._grid.setColumnStretch(columns - 1, 1)

    def _clear(self) -> None:
        for row in range(self._grid.rowCount()):
            self._grid.setRowStretch(row, 0)
        clear_layout(self._grid)


class DetailsGrid(_Grid):
    """Rebuilt only when the names change; otherwise only the values are updated."""

    def __init__(self) -> None:
        super().__init__(columns=2, spacing=2 * theme.GAP)
        self._names: list[str] = []
        self._values: list[PlainLabel] = []

    def minimumSizeHint(self) -> QSize:
        """Never lower than its lines: it scrolls instead."""
        return QSize(super().minimumSizeHint().width(), self.sizeHint().height())

    def show_details(self, details: Sequence[Detail]) -> None:
        names = [detail.name for detail in details]
        if names != self._names:
            self._build(details)
            self._names = names
        for detail, label in zip(details, self._values, strict=True):
            if detail.value:
                label.setText(detail.value)
                label.setToolTip(detail.tooltip or detail.value)

    def _build(self, details: Sequence[Detail]) -> None:
        self._clear()
        self._values = []
        for row, detail in enumerate(details):
            if not detail.value:
                heading = muted_label(detail.name)
                heading.setContentsMargins(0, theme.GAP if row else 0, 0, 0)
                self._grid.addWidget(heading, row, 0, 1, 2)
                self._values.append(heading)
                continue
            value = ElidedLabel(mode=Qt.TextElideMode.ElideMiddle)
            value.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            self._grid.addWidget(PlainLabel(detail.name), row, 0)
            self._grid.addWidget(value, row, 1)
            self._values.append(value)
        self._grid.setRowStretch(len(details), 1)


class StatTile(QWidget):
    """One number that matters."""

    def __init__(self, caption: str, name: str) -> None:
        super().__init__()
        self.caption, self.detail = ElidedLabel(caption), ElidedLabel()
        for label in (self.caption, self.detail):
            label.setProperty("muted", True)
        self.value = with_object_name(ElidedLabel("–"), name)
        self.value.setProperty("heading", True)
        column(self.caption, self.value, self.detail, parent=self, spacing=0)

    def set_value(self, value: str, detail: str = "", tooltip: str = "") -> None:
        self.value.setText(value)
        self.detail.setText(detail)
        self.setToolTip(tooltip or " ".join(filter(None, (value, detail))))


class HistoryView(_Grid):
    """The history of a run, newest last."""

    def __init__(self) -> None:
        super().__init__(columns=3, spacing=theme.GAP)
        self._lines: list[HistoryEntry] = []
        self._outcome = ""

    def show_history(self, lines: Sequence[HistoryEntry], outcome: str = "") -> None:
        """`outcome` is that of a finished run: the history itself has only stages."""
        if list(lines) == self._lines and outcome == self._outcome:
            return
        self._lines, self._outcome = list(lines), outcome
        self._clear()
        for row, line in enumerate(lines):
            at = muted_label(format_timestamp(line.at)[11:])
            at.setWordWrap(False)
            at.setToolTip(format_timestamp(line.at))
            icon = IconLabel(14)
            icon.set_icon(theme.state_icon(outcome if line.stage == "finished" else line.stage))
            icon.setToolTip(line.stage)
            for place, widget in enumerate((at, icon, selectable_label("", line.message))):
                self._grid.addWidget(widget, row, place, Qt.AlignmentFlag.AlignTop)
        self._grid.setRowStretch(len(lines), 1)
