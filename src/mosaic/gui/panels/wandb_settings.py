"""The W&B section of the settings: the key, the proxies, and a test of the connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from PySide6.QtCore import Qt
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import (
    QFormLayout,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from mosaic import secrets
from mosaic.contracts.errors import BadInput
from mosaic.gui import theme
from mosaic.gui.models.child_process import JsonProcess
from mosaic.gui.views.widgets import muted_label, with_object_name
from mosaic.gui.workbench import Json, Workbench
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
    "environment": "set in the environment (WANDB_API_KEY)",
    "keyring": "stored in the system keyring",
    "file": "stored in {path}, which only you can read",
}
CHECK_STATE_ICONS = {"ok": ("mdi6.check-circle", "good"), "fail": ("mdi6.close-circle", "bad")}
FIELD_WIDTH = 320


class CredentialStatus(NamedTuple):
    """Which credentials are set, without the secrets themselves."""

    key_source: str | None
    """environment, keyring, file or None."""
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
        self._check_rows: dict[str, tuple[QLabel, QLabel]] = {}
        self._check_states: dict[str, str] = {}
        """The state of each check, by its name."""
        self.check_process = JsonProcess(self)
        self.check_process.message_received.connect(self._on_check_message)
        self.check_process.finished.connect(self._on_check_ended)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.GAP)
        form = QFormLayout()
        form.setLabelAlignment(Qt.AlignmentFlag.AlignLeft)
        form.setHorizontalSpacing(24)
        form.addRow("API key", self._build_key_row())
        self._key_state = muted_label("", "settings.wandb.key_state")
        form.addRow("", self._key_state)
        self._fields = {kind: self._build_proxy_row(form, kind) for kind in PROXY_SECRET_NAMES}
        column.addLayout(form)
        column.addWidget(
            muted_label(
                "Runs with “VPN proxy” on use the proxies that they name themselves, else those of the workspace's "
                ".env file, else these."
            )
        )
        column.addLayout(self._build_check())
        workbench.theme_changed.connect(self._apply_theme)
        workbench.closing.connect(self.check_process.close)
        self._apply_theme()

    # --- building

    def _build_key_row(self) -> QHBoxLayout:
        row = QHBoxLayout()
        row.setSpacing(theme.GAP)
        self._key = with_object_name(QLineEdit(), "settings.wandb.key")
        self._key.setEchoMode(QLineEdit.EchoMode.Password)
        self._key.setPlaceholderText("Paste a key here")
        self._key.setFixedWidth(FIELD_WIDTH)
        self._store = with_object_name(QPushButton("Store"), "settings.wandb.store")
        self._store.setEnabled(False)
        self._forget = with_object_name(QPushButton("Remove"), "settings.wandb.forget")
        self._key.textChanged.connect(lambda text: self._store.setEnabled(bool(text.strip())))
        self._key.returnPressed.connect(self._store_key)
        self._store.clicked.connect(self._store_key)
        self._forget.clicked.connect(
            lambda: self._run_change(lambda: secrets.delete_secret(API_KEY_NAME), "Removed the key.")
        )
        for widget in (self._key, self._store, self._forget):
            row.addWidget(widget)
        row.addStretch(1)
        return row

    def _build_proxy_row(self, form: QFormLayout, kind: str) -> tuple[QLineEdit, QPushButton]:
        row = QHBoxLayout()
        row.setSpacing(theme.GAP)
        field = with_object_name(QLineEdit(), f"settings.wandb.{kind}_proxy")
        field.setFixedWidth(FIELD_WIDTH)
        store = with_object_name(QPushButton("Store"), f"settings.wandb.store_{kind}_proxy")
        store.setEnabled(False)
        remove = with_object_name(QPushButton("Remove"), f"settings.wandb.forget_{kind}_proxy")
        field.textChanged.connect(lambda text: store.setEnabled(bool(text.strip())))
        field.returnPressed.connect(lambda: self._store_proxy(kind))
        store.clicked.connect(lambda: self._store_proxy(kind))
        remove.clicked.connect(
            lambda: self._run_change(lambda: secrets.delete_secret(PROXY_SECRET_NAMES[kind]), "Removed the proxy.")
        )
        for widget in (field, store, remove):
            row.addWidget(widget)
        row.addStretch(1)
        form.addRow(f"{kind.upper()} proxy", row)
        return field, remove

    def _build_check(self) -> QVBoxLayout:
        part = QVBoxLayout()
        buttons = QHBoxLayout()
        buttons.setSpacing(theme.GAP)
        self._check_button = with_object_name(QPushButton("Test the connection"), "settings.wandb.probe")
        self._check_button.clicked.connect(lambda: self._start_check({}))
        self._probe_vpn = with_object_name(QPushButton("Through the proxy"), "settings.wandb.probe_vpn")
        self._probe_vpn.setToolTip("As a run with “VPN proxy” on would reach W&B")
        self._probe_vpn.clicked.connect(lambda: self._start_check({"use_vpn_proxy": True}))
        buttons.addWidget(self._check_button)
        buttons.addWidget(self._probe_vpn)
        buttons.addStretch(1)
        part.addLayout(buttons)
        self._lines = with_object_name(QWidget(), "settings.wandb.findings")
        grid = QGridLayout(self._lines)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(theme.GAP)
        grid.setVerticalSpacing(4)
        grid.setColumnStretch(2, 1)
        for row, name in enumerate(wandb_connection.CHECK_NAMES):
            icon, text = QLabel(), with_object_name(QLabel(), f"settings.wandb.finding.{name}")
            text.setWordWrap(True)
            text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            for column, widget in enumerate((icon, QLabel(name.capitalize() if name.islower() else name), text)):
                grid.addWidget(widget, row, column, Qt.AlignmentFlag.AlignTop)
            self._check_rows[name] = icon, text
        self._lines.hide()
        part.addWidget(self._lines)
        return part

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
                {kind: strip_credentials(address) for kind, address in stored.items() if address},
                {kind: strip_credentials(values[name]) for kind, name in PROXY_VARIABLES.items() if values.get(name)},
            )

        self._workbench.bridge.run_in_background(read_status, self._show_status, self._workbench.show_error, self)

    def _show_status(self, status: CredentialStatus) -> None:
        text = (
            KEY_SOURCE_TEXTS[status.key_source].format(path=secrets.secrets_path())
            if status.key_source
            else "none is stored"
        )
        self._key_state.setText(text[:1].upper() + text[1:] + ".")
        self._forget.setEnabled(status.key_source in ("keyring", "file"))
        for kind, (field, remove) in self._fields.items():
            proxy = status.dotenv_proxies.get(kind)
            hint = f"{proxy} (from .env)" if proxy else "such as http://10.0.0.1:3128"
            field.setPlaceholderText(f"{status.proxies[kind]} (stored)" if kind in status.proxies else hint)
            remove.setEnabled(kind in status.proxies)

    def _store_key(self) -> None:
        value = self._key.text()
        if value.strip():
            self._key.clear()  # hidden even if storing fails
            self._run_change(lambda: secrets.put_secret(API_KEY_NAME, value), "Stored the key.")

    def _store_proxy(self, kind: str) -> None:
        field, _ = self._fields[kind]
        address = normalize_address(field.text())
        if address is None:
            self._workbench.show_error(BadInput("Not a valid proxy; expected an address such as http://10.0.0.1:3128."))
            return
        field.clear()
        self._run_change(lambda: secrets.put_secret(PROXY_SECRET_NAMES[kind], address), "Stored the proxy.")

    def _run_change(self, call: Callable[[], object], success_message: str) -> None:
        def then(_: object) -> None:
            self._workbench.show_message(success_message, "good")
            self.refresh()

        self._workbench.bridge.run_in_background(call, then, self._workbench.show_error, self)

    # --- the connection test

    def _start_check(self, wandb: Json) -> None:
        for name in wandb_connection.CHECK_NAMES:
            self._check_rows[name][1].setText("…")
        self._check_states = {}
        self._lines.show()
        self._set_busy(True)
        self._apply_theme()
        self.check_process.start(
            self._command(), wandb_connection.diagnostics_request(self._workbench.workspace.root, wandb)
        )

    def _on_check_message(self, message: Json) -> None:
        name = str(message.get("name"))
        if name in self._check_rows:
            self._check_states[name] = str(message["state"])
            self._check_rows[name][1].setText(
                f"{message['found']}. {message['todo']}" if message["todo"] else str(message["found"])
            )
            self._apply_theme()

    def _on_check_ended(self, problem: str) -> None:
        self._set_busy(False)
        for name in wandb_connection.CHECK_NAMES:
            if name not in self._check_states:
                self._check_rows[name][1].setText(problem or "not checked")
        self._apply_theme()

    def _set_busy(self, is_busy: bool) -> None:
        self._check_button.setEnabled(not is_busy)
        self._probe_vpn.setEnabled(not is_busy)

    def _apply_theme(self) -> None:
        for name, (icon, _) in self._check_rows.items():
            icon_style = CHECK_STATE_ICONS.get(self._check_states.get(name, ""), ("mdi6.circle-outline", "muted"))
            icon.setPixmap(theme.icon(*icon_style).pixmap(16, 16))
