"""An API key: whether one is stored, and a field that stores or removes it."""

from __future__ import annotations

from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QLineEdit, QWidget

from mosaic import secrets
from mosaic.gui.views import widgets as ui
from mosaic.gui.workbench import Workbench

LOCATION_TEXTS = {
    None: "No key is stored.",
    secrets.ENVIRONMENT: "The key is set in the environment ({variable}).",
    secrets.KEYRING: "The key is stored in the system keyring.",
    secrets.FILE: "The key is stored in {path}, which only you can read.",
}
REMOTE_TEXT = "The key is on the trainer's machine: store it there with `{command}`."


MAX_FIELD_WIDTH = 320


class SecretField(QWidget):
    """Never shows the key itself."""

    def __init__(self, workbench: Workbench, name: str, prefix: str, command: str) -> None:
        super().__init__()
        self._workbench = workbench
        self._name = name
        self._command = command
        self._state = ui.muted_label("", f"{prefix}.key_state")
        self._field = ui.with_object_name(QLineEdit(), f"{prefix}.key")
        self._field.setMaximumWidth(MAX_FIELD_WIDTH)
        self._field.setEchoMode(QLineEdit.EchoMode.Password)
        self._field.setPlaceholderText("Paste a key here")
        self._field.setAccessibleName("API key")
        self._store_button = ui.button("Store", f"{prefix}.store_key", self._store)
        self._store_button.setEnabled(False)
        self._remove_button = ui.button("Remove", f"{prefix}.remove_key", self._remove, "Delete the stored key")
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
            lambda: secrets.secret_location(self._name), self._show_location, self._workbench.show_error, self
        )

    def _show_location(self, location: str | None) -> None:
        text = LOCATION_TEXTS[location]
        self._state.setText(text.format(path=secrets.secrets_path(), variable=secrets.SECRET_VARIABLES[self._name]))
        self._remove_button.setEnabled(location in (secrets.KEYRING, secrets.FILE))

    def _store(self) -> None:
        value = self._field.text()
        if value.strip():
            self._field.clear()  # hidden even if storing fails
            self._change(lambda: secrets.put_secret(self._name, value), "Stored the key.")

    def _remove(self) -> None:
        ui.confirm(
            self.window(),
            "secret.question",
            "Remove key",
            "Remove the stored API key?",
            "It cannot be shown or restored: have a copy of it, or create another one at its provider.",
            "Remove key",
            lambda: self._change(lambda: secrets.delete_secret(self._name), "Removed the key."),
            "Keep",
        )

    def _change(self, call: ui.Call, message: str) -> None:
        def then(_: object) -> None:
            self._workbench.show_message(message, "good")
            self.refresh()

        self._workbench.bridge.run_in_background(call, then, self._workbench.show_error, self)
