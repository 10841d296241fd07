"""Names and values under small headings; a large number with its caption; what happened, line by line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from PySide6.QtCore import QSize, Qt
from PySide6.QtWidgets import QGridLayout, QLabel, QVBoxLayout, QWidget

from mosaic.gui import theme
from mosaic.gui.views.elided import Elided
from mosaic.gui.views.made import muted, named
from mosaic.gui.views.words import moment

Json = dict[str, Any]


class Fact(NamedTuple):
    name: str
    value: str = ""
    """Empty: the name is a heading."""
    tip: str = ""


class Facts(QWidget):
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

    def show_facts(self, facts: Sequence[Fact]) -> None:
        names = [fact.name for fact in facts]
        if names != self._names:
            self._build(facts)
            self._names = names
        for fact, label in zip(facts, self._values, strict=True):
            if fact.value:
                label.setText(fact.value)
                label.setToolTip(fact.tip or fact.value)

    def _build(self, facts: Sequence[Fact]) -> None:
        while (item := self._grid.takeAt(0)) is not None:
            if (widget := item.widget()) is not None:
                widget.hide()  # it goes with the next turn of the event loop, and must not be seen until then
                widget.deleteLater()
        self._values = []
        self._grid.setRowStretch(len(self._names), 0)  # what was the rest before is a row now
        for row, fact in enumerate(facts):
            if not fact.value:
                heading = muted(fact.name)
                heading.setContentsMargins(0, theme.GAP if row else 0, 0, 0)
                self._grid.addWidget(heading, row, 0, 1, 2)
                self._values.append(heading)
                continue
            value = Elided(mode=Qt.TextElideMode.ElideMiddle)
            value.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            self._grid.addWidget(QLabel(fact.name), row, 0)
            self._grid.addWidget(value, row, 1)
            self._values.append(value)
        self._grid.setRowStretch(len(facts), 1)


class Tile(QWidget):
    """One number that matters."""

    def __init__(self, caption: str, name: str) -> None:
        super().__init__()
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        self.caption = Elided(caption)
        self.caption.setProperty("muted", True)
        self.value = named(Elided("–"), name)
        self.value.setFont(theme.heading())
        self.below = Elided()
        self.below.setProperty("muted", True)
        for label in (self.caption, self.value, self.below):
            column.addWidget(label)

    def say(self, value: str, below: str = "", tip: str = "") -> None:
        self.value.setText(value)
        self.below.setText(below)
        self.setToolTip(tip or " ".join(filter(None, (value, below))))


class Story(QWidget):
    """What happened to a run, newest last."""

    def __init__(self) -> None:
        super().__init__()
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, theme.GAP, 0)
        self._grid.setHorizontalSpacing(theme.GAP)
        self._grid.setVerticalSpacing(4)
        self._grid.setColumnStretch(2, 1)
        self._lines: list[Json] = []
        self._end = ""

    def show_story(self, lines: Sequence[Json], end: str = "") -> None:
        """`end` is the outcome of a run that is over: the story itself knows stages only."""
        if list(lines) != self._lines or end != self._end:
            self._lines, self._end = list(lines), end
            self.rebuild()

    def rebuild(self) -> None:
        while (item := self._grid.takeAt(0)) is not None:
            if (widget := item.widget()) is not None:
                widget.hide()  # it goes with the next turn of the event loop, and must not be seen until then
                widget.deleteLater()
        for row, line in enumerate(self._lines):
            at = QLabel(moment(line["at"])[11:])
            at.setToolTip(moment(line["at"]))
            at.setProperty("muted", True)
            icon = QLabel()
            icon.setPixmap(theme.state_icon(self._end if line["stage"] == "finished" else line["stage"]).pixmap(14, 14))
            icon.setToolTip(line["stage"])
            said = QLabel(line["said"])
            said.setWordWrap(True)
            said.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            top = Qt.AlignmentFlag.AlignTop
            self._grid.addWidget(at, row, 0, top)
            self._grid.addWidget(icon, row, 1, top)
            self._grid.addWidget(said, row, 2, top)
            self._grid.setRowStretch(row, 0)  # the story was shorter before, and this row the rest
        self._grid.setRowStretch(len(self._lines), 1)
