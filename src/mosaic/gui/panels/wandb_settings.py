"""The W&B section of the settings: the key, the proxies, and a test of the connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from PySide6.QtCore import Qt
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QGridLayout, QHBoxLayout, QLineEdit, QPushButton, QWidget

from mosaic import secrets
from mosaic.contracts.errors import BadInput
from mosaic.gui import theme
from mosaic.gui.models.child_process import JsonProcess
from mosaic.gui.views import widgets as ui
from mosaic.gui.workbench import Workbench
from mosaic.sidecar import wandb_connection
from mosaic.sidecar.wandb_environment import (
    PROXY_SECRET_NAMES,
    PROXY_VARIABLES,
    load_workspace_dotenv,
    normalize_address,
    strip_credentials,
)

API_KEY_NAME = "wandb_api_key"
KEY_SOURCE_TEXTS = {
    None: "No key of yours is stored.",
    "environment": "Set in the environment (WANDB_API_KEY).",
    "keyring": "Stored in the system keyring.",
    "file": "Stored in {path}, which only you can read.",
}
CHECK_STATE_ICONS = {"ok": ("mdi6.check-circle", "good"), "fail": ("mdi6.close-circle", "bad")}
FIELD_WIDTH = 320
EXAMPLE_PROXY = "http://10.0.0.1:3128"


class CredentialStatus(NamedTuple):
    """Which credentials are set, without the secrets themselves."""

    key_source: str | None
    """environment, keyring, file or None."""
    config_keys: dict[str, str]
    """Those that were submitted in configs, by name, masked."""
    proxies: dict[str, str]
    """By kind, without credentials."""
    dotenv_proxies: dict[str, str]


class WandbSettingsForm(QWidget):
    def __init__(
        self, workbench: Workbench, command: Callable[[], list[str]] = wandb_connection.diagnostics_command
    ) -> None:
        super().__init__()
        self._workbench = workbench
        self._command = command
        self._fields: dict[str, QLineEdit] = {}
        self._remove_buttons: dict[str, QPushButton] = {}
        self._check_rows: dict[str, tuple[ui.IconLabel, ui.PlainLabel]] = {}
        self.check_process = JsonProcess(self)
        self.check_process.message_received.connect(self._on_check_message)
        self.check_process.finished.connect(self._on_check_ended)
        self._key_state = ui.muted_label("", "settings.wandb.key_state")
        key_row = self._build_secret_row("key", "", self._store_key, API_KEY_NAME, "Removed the key.")
        self._fields["key"].setEchoMode(QLineEdit.EchoMode.Password)
        self._fields["key"].setPlaceholderText("Paste a key here")
        self._config_keys = ui.muted_label("", "settings.wandb.config_keys")
        proxy_rows = [(f"{kind.upper()} proxy", self._build_proxy_row(kind)) for kind in PROXY_SECRET_NAMES]
        note = ui.muted_label(
            "Runs with “VPN proxy” on use the proxies that they name themselves, else those of the workspace's "
            ".env file, else these."
        )
        self._check_button = ui.button("Test the connection", "settings.wandb.probe", lambda: self._start_check({}))
        self._vpn_check_button = ui.button(
            "Test through the proxy",
            "settings.wandb.probe_vpn",
            lambda: self._start_check({"use_vpn_proxy": True}),
            "As a run with “VPN proxy” on would reach W&B",
        )
        ui.column(
            ui.form(("API key", key_row), ("", self._key_state), ("", self._config_keys), *proxy_rows),
            note,
            ui.row(self._check_button, self._vpn_check_button, ui.Stretch()),
            self._build_check_results(),
            parent=self,
        )
        workbench.closing.connect(self.check_process.close)

    # --- building

    def _build_secret_row(
        self, name: str, suffix: str, store: Callable[[], None], secret: str, removed_message: str
    ) -> QHBoxLayout:
        """A field, a button that stores it as `secret`, and one that removes what is stored."""
        field = self._fields[name] = ui.with_object_name(QLineEdit(), f"settings.wandb.{name}")
        field.setFixedWidth(FIELD_WIDTH)
        store_button = ui.button("Store", f"settings.wandb.store{suffix}", store)
        store_button.setEnabled(False)
        field.textChanged.connect(lambda text: store_button.setEnabled(bool(text.strip())))
        field.returnPressed.connect(store)
        remove = self._remove_buttons[name] = ui.button(
            "Remove",
            f"settings.wandb.forget{suffix}",
            lambda: self._ask_removal(name, secret, removed_message),
        )
        return ui.row(field, store_button, remove, ui.Stretch())

    def _build_proxy_row(self, kind: str) -> QHBoxLayout:
        name = f"{kind}_proxy"
        secret = PROXY_SECRET_NAMES[kind]
        return self._build_secret_row(
            name, f"_{name}", lambda: self._store_proxy(name, secret), secret, "Removed the proxy."
        )

    def _build_check_results(self) -> QWidget:
        self._check_results = ui.with_object_name(QWidget(), "settings.wandb.findings")
        grid = QGridLayout(self._check_results)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(theme.GAP)
        grid.setVerticalSpacing(4)
        grid.setColumnStretch(2, 1)
        for number, name in enumerate(wandb_connection.CHECK_NAMES):
            icon, text = ui.IconLabel(), ui.selectable_label(f"settings.wandb.finding.{name}")
            for place, widget in enumerate((icon, ui.PlainLabel(name.capitalize() if name.islower() else name), text)):
                grid.addWidget(widget, number, place, Qt.AlignmentFlag.AlignTop)
            self._check_rows[name] = icon, text
        self._check_results.hide()
        return self._check_results

    # --- the stored credentials

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()

    def refresh(self) -> None:
        """Runs in the background: a keyring may be slow."""
        root = self._workbench.workspace.root

        def read_status() -> CredentialStatus:
            stored = {kind: secrets.find_secret(name) for kind, name in PROXY_SECRET_NAMES.items()}
            values = load_workspace_dotenv(root).values
            return CredentialStatus(
                secrets.secret_location(API_KEY_NAME),
                secrets.masked_config_keys(API_KEY_NAME),
                {kind: strip_credentials(address) for kind, address in stored.items() if address},
                {kind: strip_credentials(values[name]) for kind, name in PROXY_VARIABLES.items() if values.get(name)},
            )

        self._workbench.bridge.run_in_background(read_status, self._show_status, self._workbench.show_error, self)

    def _show_status(self, status: CredentialStatus) -> None:
        self._key_state.setText(KEY_SOURCE_TEXTS[status.key_source].format(path=secrets.secrets_path()))
        listed = ", ".join(f"{name} ({ending})" for name, ending in status.config_keys.items())
        self._config_keys.setText(f"Keys of configs that were submitted, which Remove deletes, too: {listed}")
        self._config_keys.setVisible(bool(listed))
        self._remove_buttons["key"].setEnabled(bool(listed) or status.key_source in ("keyring", "file"))
        for kind in PROXY_SECRET_NAMES:
            name = f"{kind}_proxy"
            proxy = status.dotenv_proxies.get(kind)
            hint = f"{proxy} (from .env)" if proxy else f"such as {EXAMPLE_PROXY}"
            stored = status.proxies.get(kind)
            self._fields[name].setPlaceholderText(f"{stored} (stored)" if stored else hint)
            self._remove_buttons[name].setEnabled(bool(stored))

    def _store_key(self) -> None:
        field = self._fields["key"]
        value = field.text()
        if value.strip():
            field.clear()  # hidden even if storing fails
            self._run_change(lambda: secrets.put_secret(API_KEY_NAME, value), "Stored the key.")

    def _store_proxy(self, name: str, secret: str) -> None:
        field = self._fields[name]
        address = normalize_address(field.text())
        if address is None:
            self._workbench.show_error(BadInput(f"Not a valid proxy; expected an address such as {EXAMPLE_PROXY}."))
            return
        field.clear()
        self._run_change(lambda: secrets.put_secret(secret, address), "Stored the proxy.")

    def _ask_removal(self, name: str, secret: str, removed_message: str) -> None:
        what = "API key" if name == "key" else "proxy"
        ui.confirm(
            self.window(),
            "secret.question",
            f"Remove {what}",
            f"Remove the stored {what} of W&B?",
            f"It cannot be restored: have a copy of it. Runs do not use the {what} any more.",
            f"Remove {what}",
            lambda: self._run_change(lambda: secrets.delete_with_config_keys(secret), removed_message),
            "Keep",
        )

    def _run_change(self, call: Callable[[], object], success_message: str) -> None:
        def then(_: object) -> None:
            self._workbench.show_message(success_message, "good")
            self.refresh()

        self._workbench.bridge.run_in_background(call, then, self._workbench.show_error, self)

    # --- the connection test

    def _start_check(self, wandb: dict[str, Any]) -> None:
        for name in self._check_rows:
            self._show_check(name, "", "…")
        self._check_results.show()
        self._set_busy(True)
        self.check_process.start(
            self._command(), wandb_connection.diagnostics_request(self._workbench.workspace.root, wandb)
        )

    def _show_check(self, name: str, state: str, text: str) -> None:
        icon, label = self._check_rows[name]
        icon.set_icon(theme.icon(*CHECK_STATE_ICONS.get(state, ("mdi6.circle-outline", "muted"))))
        label.setText(text)

    def _on_check_message(self, message: dict[str, Any]) -> None:
        name = str(message.get("name"))
        if name in self._check_rows:
            text = f"{message['found']}. {message['todo']}" if message["todo"] else str(message["found"])
            self._show_check(name, str(message["state"]), text)

    def _on_check_ended(self, problem: str) -> None:
        self._set_busy(False)
        for name, (_, label) in self._check_rows.items():
            if label.text() == "…":
                self._show_check(name, "", problem or "not checked")

    def _set_busy(self, is_busy: bool) -> None:
        self._check_button.setEnabled(not is_busy)
        self._vpn_check_button.setEnabled(not is_busy)
