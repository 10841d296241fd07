"""A field for the path of a file or folder on this machine: typed, or chosen in a dialog."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QLineEdit, QWidget

from mosaic.base import secret_store as secrets
from mosaic.window import widgets as ui
from mosaic.window.workbench import Workbench


class PathField(QWidget):
    path_chosen = Signal()
    """Another path was typed, or any was chosen in the dialog."""

    def __init__(self, name: str, title: str, placeholder: str, filters: Sequence[str] = ()) -> None:
        """Without filters of files it takes a folder."""
        super().__init__()
        self._title, self._filters, self._shown = title, filters, ""
        self.edit = ui.with_object_name(QLineEdit(), name)
        self.edit.setPlaceholderText(placeholder)
        self.edit.setAccessibleName(title)
        self.edit.editingFinished.connect(self._on_typed)
        self.setFocusProxy(self.edit)
        choose = ui.button("Choose…", f"{name}.choose", self._open_dialog)
        choose.setAutoDefault(False)
        ui.row((self.edit, 1), choose, parent=self)

    @property
    def path(self) -> str:
        """Absolute; links are kept, as the Python of a virtual environment is one."""
        text = self.edit.text().strip()
        return os.path.abspath(os.path.expanduser(text)) if text else ""

    def show_path(self, path: str) -> None:
        """Show a path, without a signal."""
        self._shown = path
        self.edit.setText(path)
        self.edit.setCursorPosition(0)

    def _on_typed(self) -> None:
        if self.path != self._shown:
            self._shown = self.path
            self.path_chosen.emit()

    def _open_dialog(self) -> None:
        start, name = Path(self.path or Path.home()), f"{self.edit.objectName()}.files"
        ui.open_path_dialog(self, name, self._title, start, self._take, self._filters)

    def _take(self, path: Path) -> None:
        self.show_path(str(path))
        self.path_chosen.emit()


# --- An API key: whether one is stored, and a field that stores or removes it.


LOCATION_TEXTS = {
    None: "No key of yours is stored.",
    secrets.ENVIRONMENT: "The key is set in the environment ({variable}).",
    secrets.KEYRING: "The key is stored in the system keyring.",
    secrets.FILE: "The key is stored in {path}, which only you can read.",
}
REMOTE_TEXT = "The key is on the trainer's machine: store it there with `{command}`."


MAX_FIELD_WIDTH = 320


class SecretField(QWidget):
    """Never shows the key itself. A subclass has another secret, which it names by `what` and `noun`."""

    def __init__(
        self, workbench: Workbench, name: str, prefix: str, command: str, what: str = "key", noun: str = "API key"
    ) -> None:
        super().__init__()
        self._workbench = workbench
        self._name = name
        self._command = command
        self._noun = noun
        self._state = ui.muted_label("", f"{prefix}.{what}_state")
        self._field = ui.with_object_name(QLineEdit(), f"{prefix}.{what}")
        self._field.setMaximumWidth(MAX_FIELD_WIDTH)
        self._field.setEchoMode(QLineEdit.EchoMode.Password)
        self._field.setPlaceholderText("Paste a key here")
        self._field.setAccessibleName(noun)
        self._store_button = ui.button("Store", f"{prefix}.store_{what}", self._store)
        self._store_button.setEnabled(False)
        self._remove_button = ui.button("Remove", f"{prefix}.remove_{what}", self._remove, f"Delete the stored {noun}")
        self._field.textChanged.connect(lambda text: self._store_button.setEnabled(bool(text.strip())))
        self._field.returnPressed.connect(self._store)
        editors = ui.row((self._field, 100), self._store_button, self._remove_button, ui.Stretch())
        self._editors = ui.widget_column(editors)
        ui.column(self._state, self._editors, parent=self, spacing=4)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()

    def refresh(self) -> None:
        """Runs in the background: a keyring may be slow."""
        self._editors.setVisible(not self._workbench.is_remote)
        if self._workbench.is_remote:
            self._state.setText(REMOTE_TEXT.format(command=self._command))
            return
        self._workbench.bridge.run_in_background(
            lambda: (secrets.secret_location(self._name), secrets.masked_config_keys(self._name)),
            lambda found: self._show_found(*found),
            self._workbench.show_error,
            self,
        )

    def _show_found(self, location: str | None, config_keys: dict[str, str]) -> None:
        text = LOCATION_TEXTS[location]
        text = text.format(path=secrets.secrets_path(), variable=secrets.SECRET_VARIABLES[self._name])
        listed = ", ".join(f"{name} ({ending})" for name, ending in config_keys.items())
        self._state.setText(text + f"\nKeys that came with configs, which Remove deletes, too: {listed}" * bool(listed))
        self._remove_button.setEnabled(bool(config_keys) or location in (secrets.KEYRING, secrets.FILE))

    def _store(self) -> None:
        value = self._field.text()
        if value.strip():
            self._field.clear()  # hidden even if storing fails
            self._change(lambda: secrets.put_secret(self._name, value), f"Stored the {self._noun}.")

    def _remove(self) -> None:
        ui.confirm(
            self.window(),
            "secret.question",
            f"Remove {self._noun}",
            f"Remove the stored {self._noun}?",
            "It cannot be shown or restored: have a copy of it, or create another one.",
            f"Remove {self._noun}",
            lambda: self._change(lambda: secrets.delete_with_config_keys(self._name), f"Removed the {self._noun}."),
            "Keep",
        )

    def _change(self, call: ui.Call, message: str) -> None:
        def then(_: object) -> None:
            self._workbench.show_message(message, "good")
            self.refresh()

        self._workbench.bridge.run_in_background(call, then, self._workbench.show_error, self)
