"""The W&B section of the settings: the key, the proxies, and a test of the connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QGridLayout, QLineEdit, QWidget

from mosaic import secrets
from mosaic.contracts.errors import BadInput
from mosaic.gui import theme
from mosaic.gui.forms.secret_field import SecretField
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

PREFIX = "settings.wandb"
CHECK_STATE_ICONS = {"ok": ("mdi6.check-circle", "good"), "fail": ("mdi6.close-circle", "bad")}
EXAMPLE_PROXY = "http://10.0.0.1:3128"


class ProxyField(SecretField):
    """The address of a proxy, which is shown without the password that it may contain."""

    def __init__(self, workbench: Workbench, kind: str) -> None:
        super().__init__(workbench, PROXY_SECRET_NAMES[kind], PREFIX, "", f"{kind}_proxy", "proxy")
        self._variable = PROXY_VARIABLES[kind]
        self._field.setEchoMode(QLineEdit.EchoMode.Normal)
        self._state.hide()

    def refresh(self) -> None:
        """This machine's own, also where the trainer is on another one: the window uses it for W&B's page."""
        root = self._workbench.workspace.root

        def read() -> tuple[str, str]:
            return secrets.find_secret(self._name) or "", load_workspace_dotenv(root).values.get(self._variable) or ""

        def then(found: tuple[str, str]) -> None:
            stored, in_dotenv = map(strip_credentials, found)
            hint = f"{in_dotenv} (from .env)" if in_dotenv else f"such as {EXAMPLE_PROXY}"
            self._field.setPlaceholderText(f"{stored} (stored)" if stored else hint)
            self._remove_button.setEnabled(bool(stored))

        self._workbench.bridge.run_in_background(read, then, self._workbench.show_error, self)

    def _store(self) -> None:
        address = normalize_address(self._field.text())
        if address is None:
            self._workbench.show_error(BadInput(f"Not a valid proxy; expected an address such as {EXAMPLE_PROXY}."))
            return
        self._field.setText(address)
        super()._store()


class WandbSettingsForm(QWidget):
    def __init__(
        self, workbench: Workbench, command: Callable[[], list[str]] = wandb_connection.diagnostics_command
    ) -> None:
        super().__init__()
        self._workbench = workbench
        self._command = command
        self._check_rows: dict[str, tuple[ui.IconLabel, ui.PlainLabel]] = {}
        self.check_process = JsonProcess(self)
        self.check_process.message_received.connect(self._on_check_message)
        self.check_process.finished.connect(self._on_check_ended)
        key = SecretField(workbench, "wandb_api_key", PREFIX, "mosaic wandb login")
        proxies = [(f"{kind.upper()} proxy", ProxyField(workbench, kind)) for kind in PROXY_SECRET_NAMES]
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
            ui.form(("API key", key), *proxies),
            note,
            ui.row(self._check_button, self._vpn_check_button, ui.Stretch()),
            self._build_check_results(),
            parent=self,
        )
        workbench.closing.connect(self.check_process.close)

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
