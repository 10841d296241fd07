"""The keys of a human: shown, changed by pressing another one, and reset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QGridLayout, QPushButton, QWidget

from mosaic.contracts.errors import BadInput
from mosaic.contracts.key_binding import KeyBinding
from mosaic.gui import theme
from mosaic.gui.forms.field_rows import LABEL_WIDTH
from mosaic.gui.forms.form_rows import MARK_WIDTH
from mosaic.gui.models.key_changes import change_key, current_keys, editable_actions
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.key_capture import key_name

KEY_WIDTH = 96


class KeyMap(QWidget):
    edited = Signal(object)
    """The changed keys, by the text of their action."""
    cleared = Signal(object)
    """The keys that were changed before they were reset."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix
        self._bindings: tuple[KeyBinding, ...] = ()
        self._changes: dict[str, str] = {}
        self._buttons: dict[str, QPushButton] = {}
        self._waiting: str | None = None
        """The action whose key is pressed next."""
        self._rows = QWidget()
        self._grid = QGridLayout(self._rows)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(theme.GAP)
        self._grid.setVerticalSpacing(theme.GAP // 2)
        self._grid.setColumnMinimumWidth(0, MARK_WIDTH + LABEL_WIDTH)
        self._grid.setColumnStretch(2, 1)
        self._together = ui.muted_label("Keys that are held together combine.", f"{prefix}.together")
        self._problem = ui.muted_label("", f"{prefix}.problem")
        self._problem.setProperty("error", True)
        self._reset = ui.button("Reset keys", f"{prefix}.reset", self._on_reset, "Back to the keys of the catalog")
        ui.column(
            self._rows,
            self._together,
            self._problem,
            ui.row(MARK_WIDTH + theme.GAP // 2, self._reset, ui.Stretch(), spacing=0),
            parent=self,
        )
        self._show_problem("")

    def show_keys(self, bindings: Sequence[KeyBinding], changes: Mapping[str, str]) -> None:
        """Show these keys, without a signal."""
        actions = editable_actions(bindings, changes)
        self._bindings, self._changes = tuple(bindings), dict(changes)
        if actions != list(self._buttons):
            self._build(actions)
        keys = current_keys(bindings, changes)
        for action, button in self._buttons.items():
            if action != self._waiting:
                button.setText(keys[action][0].replace("&", "&&"))
            is_changed = action in changes
            button.setToolTip(f"Click, then press the key for {action!r}{' (changed)' if is_changed else ''}")
        self._together.setVisible(len(actions) < len(keys))
        self._reset.setEnabled(bool(changes))

    def _build(self, actions: Sequence[str]) -> None:
        ui.clear_layout(self._grid)
        self._buttons = {}
        self._waiting = None
        for number, action in enumerate(actions):
            button = ui.button("", f"{self._prefix}.{action}", partial(self._start_waiting, action))
            button.setAccessibleName(f"Key of {action}")
            button.setFixedWidth(KEY_WIDTH)
            button.installEventFilter(self)
            self._buttons[action] = button
            label = ui.PlainLabel(action)
            label.setContentsMargins(MARK_WIDTH + theme.GAP // 2, 0, 0, 0)
            self._grid.addWidget(label, number, 0)
            self._grid.addWidget(button, number, 1)

    def _show_problem(self, text: str) -> None:
        self._problem.setText(text)
        self._problem.setVisible(bool(text))

    # --- changing

    def _start_waiting(self, action: str) -> None:
        self._stop_waiting()
        self._show_problem("")
        self._waiting = action
        self._buttons[action].setText("Press a key…")
        self._buttons[action].setFocus()

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting = None
            self.show_keys(self._bindings, self._changes)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """While one is awaited, every key is the new key and nothing else; Escape leaves the old one."""
        if self._waiting is None:
            return False
        if event.type() == QEvent.Type.FocusOut:
            self._stop_waiting()
        elif event.type() == QEvent.Type.ShortcutOverride:
            event.accept()
            return True
        elif isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress:
            self._take(event)
            return True
        return False

    def _take(self, event: QKeyEvent) -> None:
        action = self._waiting
        assert action is not None
        name = key_name(event.key())
        if event.key() == Qt.Key.Key_Escape:
            self._stop_waiting()
        elif name or event.key() not in (Qt.Key.Key_Control, Qt.Key.Key_Alt, Qt.Key.Key_AltGr, Qt.Key.Key_Meta):
            self._stop_waiting()
            try:
                changes = change_key(self._bindings, self._changes, action, name)
            except BadInput as error:
                self._show_problem(str(error))
                return
            self._change(changes)

    def _on_reset(self) -> None:
        before = dict(self._changes)
        self._show_problem("")
        self._change({})
        self.cleared.emit(before)

    def _change(self, changes: dict[str, str]) -> None:
        self.show_keys(self._bindings, changes)
        self.edited.emit(changes)
