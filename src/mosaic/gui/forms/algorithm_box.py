"""The box of algorithms: a list that is grouped by action space and searched by typing."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtGui import QFocusEvent, QStandardItem, QStandardItemModel
from PySide6.QtWidgets import QComboBox

from mosaic.gui import theme
from mosaic.gui.forms.form_rows import WheelGuard, make_searchable

MIN_LENGTH = 16
"""Characters that are visible at least."""


class AlgorithmBox(QComboBox):
    """What is typed is searched for in the names; only a name of the list is chosen, when Return or Tab ends typing."""

    name_chosen = Signal(str)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName(name)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.installEventFilter(WheelGuard(self))
        self._model = QStandardItemModel(self)
        self.setModel(self._model)
        self._completions = make_searchable(self, MIN_LENGTH)
        self.setMaxVisibleItems(24)
        self._groups: list[tuple[str, list[str]]] = []
        self._chosen = ""
        self.setToolTip("Type a part of a name to search")
        edit = self.lineEdit()
        assert edit is not None
        edit.editingFinished.connect(self._take_text)
        self.activated.connect(lambda _: self._take_text())
        if (completer := self.completer()) is not None:
            completer.activated.connect(lambda _: self._take_text())

    def show_names(self, groups: Sequence[tuple[str, list[str]]], chosen: str) -> None:
        """List the names under the titles of their groups, without a signal."""
        shown = [(title, names) for title, names in groups if names]
        self._chosen = chosen
        with QSignalBlocker(self):
            if shown != self._groups:
                self._groups = shown
                self._fill()
            self.setCurrentIndex(self.findText(chosen))
            self.setEditText(chosen)

    def _fill(self) -> None:
        self._model.clear()
        for title, names in self._groups:
            heading = QStandardItem(title)
            heading.setEnabled(False)
            heading.setFont(theme.text_font(-1, is_bold=True))
            self._model.appendRow(heading)
            for name in names:
                self._model.appendRow(QStandardItem(name))
        self._completions.setStringList(sorted(self.names()))
        view = self.view()
        view.setMinimumWidth(view.sizeHintForColumn(0) + 2 * theme.MARGIN)

    def names(self) -> list[str]:
        return [name for _, names in self._groups for name in names]

    def _take_text(self) -> None:
        """Choose what was typed if it is a name, or if it is a part of one name alone; otherwise nothing changes."""
        text = self.currentText().strip()
        having = [name for name in self.names() if text.lower() in name.lower()] if text else []
        found = text if text in self.names() else having[0] if len(having) == 1 else self._chosen
        if found != text:
            self.setEditText(found)
        if found != self._chosen:
            self._chosen = found
            self.name_chosen.emit(found)

    def begin_typing(self) -> None:
        """Take the focus; typing replaces the name, also if the box has the focus already."""
        self.setFocus(Qt.FocusReason.ShortcutFocusReason)
        if (edit := self.lineEdit()) is not None:
            edit.selectAll()

    def focusInEvent(self, event: QFocusEvent) -> None:
        """Typing replaces the name."""
        super().focusInEvent(event)
        if (edit := self.lineEdit()) is not None and event.reason() is not Qt.FocusReason.PopupFocusReason:
            edit.selectAll()
