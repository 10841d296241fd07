"""The part of the settings that is about W&B: the key, the proxies, and whether W&B can be reached."""

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
from mosaic.gui.models.errand import Errand
from mosaic.gui.views.made import muted, named
from mosaic.gui.workbench import Json, Workbench
from mosaic.secrets import dotenv, reach
from mosaic.secrets.proxies import STORED, SWITCH, VARIABLES, shown, usable_address
from mosaic.secrets.store import file_path

KEY = "wandb_api_key"
PLACES = {
    "environment": "set in the environment (WANDB_API_KEY)",
    "keyring": "stored in the system keyring",
    "file": "stored in {path}, which only you can read",
}
STATES = {"ok": ("mdi6.check-circle", "good"), "fail": ("mdi6.close-circle", "bad")}
FIELD_WIDTH = 320


class Known(NamedTuple):
    """What is set, without any of the secrets themselves."""

    place: str | None
    """Of the key: environment, keyring, file, or none."""
    proxies: dict[str, str]
    """By kind, as they may be shown."""
    of_dotenv: dict[str, str]


class WandbSettings(QWidget):
    def __init__(self, workbench: Workbench, command: Callable[[], list[str]] = reach.command) -> None:
        super().__init__()
        self._workbench = workbench
        self._command = command
        self._rows: dict[str, tuple[QLabel, QLabel]] = {}
        self._found: dict[str, str] = {}
        """The state of each stretch of the way, by its name."""
        self.errand = Errand(self)
        self.errand.said.connect(self._hear)
        self.errand.ended.connect(self._probed)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(theme.GAP)
        form = QFormLayout()
        form.setLabelAlignment(Qt.AlignmentFlag.AlignLeft)
        form.setHorizontalSpacing(24)
        form.addRow("API key", self._key_row())
        self._key_state = muted("", "settings.wandb.key_state")
        form.addRow("", self._key_state)
        self._fields = {kind: self._proxy_row(form, kind) for kind in STORED}
        column.addLayout(form)
        column.addWidget(
            muted(
                "Runs with “VPN proxy” on use the proxies that they name themselves, else those of the workspace's "
                ".env file, else these."
            )
        )
        column.addLayout(self._probe_part())
        workbench.theme_changed.connect(self._paint)
        workbench.closing.connect(self.errand.close)
        self._paint()

    # --- building

    def _key_row(self) -> QHBoxLayout:
        row = QHBoxLayout()
        row.setSpacing(theme.GAP)
        self._key = named(QLineEdit(), "settings.wandb.key")
        self._key.setEchoMode(QLineEdit.EchoMode.Password)
        self._key.setPlaceholderText("Paste a key here")
        self._key.setFixedWidth(FIELD_WIDTH)
        self._store = named(QPushButton("Store"), "settings.wandb.store")
        self._store.setEnabled(False)
        self._forget = named(QPushButton("Remove"), "settings.wandb.forget")
        self._key.textChanged.connect(lambda text: self._store.setEnabled(bool(text.strip())))
        self._key.returnPressed.connect(self._store_key)
        self._store.clicked.connect(self._store_key)
        self._forget.clicked.connect(lambda: self._change(lambda: secrets.forget_secret(KEY), "The key is removed."))
        for widget in (self._key, self._store, self._forget):
            row.addWidget(widget)
        row.addStretch(1)
        return row

    def _proxy_row(self, form: QFormLayout, kind: str) -> tuple[QLineEdit, QPushButton]:
        row = QHBoxLayout()
        row.setSpacing(theme.GAP)
        field = named(QLineEdit(), f"settings.wandb.{kind}_proxy")
        field.setFixedWidth(FIELD_WIDTH)
        store = named(QPushButton("Store"), f"settings.wandb.store_{kind}_proxy")
        store.setEnabled(False)
        remove = named(QPushButton("Remove"), f"settings.wandb.forget_{kind}_proxy")
        field.textChanged.connect(lambda text: store.setEnabled(bool(text.strip())))
        field.returnPressed.connect(lambda: self._store_proxy(kind))
        store.clicked.connect(lambda: self._store_proxy(kind))
        remove.clicked.connect(lambda: self._change(lambda: secrets.forget_secret(STORED[kind]), "It is removed."))
        for widget in (field, store, remove):
            row.addWidget(widget)
        row.addStretch(1)
        form.addRow(f"{kind.upper()} proxy", row)
        return field, remove

    def _probe_part(self) -> QVBoxLayout:
        part = QVBoxLayout()
        buttons = QHBoxLayout()
        buttons.setSpacing(theme.GAP)
        self._probe = named(QPushButton("Test the connection"), "settings.wandb.probe")
        self._probe.clicked.connect(lambda: self._start({}))
        self._probe_vpn = named(QPushButton("Through the proxy"), "settings.wandb.probe_vpn")
        self._probe_vpn.setToolTip("As a run with “VPN proxy” on would reach W&B")
        self._probe_vpn.clicked.connect(lambda: self._start({SWITCH: True}))
        buttons.addWidget(self._probe)
        buttons.addWidget(self._probe_vpn)
        buttons.addStretch(1)
        part.addLayout(buttons)
        self._lines = named(QWidget(), "settings.wandb.findings")
        grid = QGridLayout(self._lines)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setHorizontalSpacing(theme.GAP)
        grid.setVerticalSpacing(4)
        grid.setColumnStretch(2, 1)
        for row, name in enumerate(reach.NAMES):
            icon, words = QLabel(), named(QLabel(), f"settings.wandb.finding.{name}")
            words.setWordWrap(True)
            words.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            for place, widget in enumerate((icon, QLabel(name.capitalize() if name.islower() else name), words)):
                grid.addWidget(widget, row, place, Qt.AlignmentFlag.AlignTop)
            self._rows[name] = icon, words
        self._lines.hide()
        part.addWidget(self._lines)
        return part

    # --- what is set

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()

    def refresh(self) -> None:
        """Asked elsewhere: a keyring takes its time."""
        root = self._workbench.workspace.root

        def look() -> Known:
            told = {kind: secrets.find_secret(name) for kind, name in STORED.items()}
            values = dotenv.of_workspace(root).values
            return Known(
                secrets.place_of(KEY),
                {kind: shown(address) for kind, address in told.items() if address},
                {kind: shown(values[name]) for kind, name in VARIABLES.items() if values.get(name)},
            )

        self._workbench.bridge.work(look, self._show, self._workbench.tell_error, self)

    def _show(self, known: Known) -> None:
        words = PLACES[known.place].format(path=file_path()) if known.place else "none is stored"
        self._key_state.setText(words[:1].upper() + words[1:] + ".")
        self._forget.setEnabled(known.place in ("keyring", "file"))
        for kind, (field, remove) in self._fields.items():
            told = known.of_dotenv.get(kind)
            hint = f"{told} (from .env)" if told else "such as http://10.0.0.1:3128"
            field.setPlaceholderText(f"{known.proxies[kind]} (stored)" if kind in known.proxies else hint)
            remove.setEnabled(kind in known.proxies)

    def _store_key(self) -> None:
        value = self._key.text()
        if value.strip():
            self._key.clear()  # it is seen by nobody any more, whatever becomes of it
            self._change(lambda: secrets.put_secret(KEY, value), "The key is stored.")

    def _store_proxy(self, kind: str) -> None:
        field, _ = self._fields[kind]
        address = usable_address(field.text())
        if address is None:
            self._workbench.tell_error(BadInput("That is no proxy; expected an address such as http://10.0.0.1:3128."))
            return
        field.clear()
        self._change(lambda: secrets.put_secret(STORED[kind], address), "The proxy is stored.")

    def _change(self, call: Callable[[], object], sentence: str) -> None:
        def then(_: object) -> None:
            self._workbench.say(sentence, "good")
            self.refresh()

        self._workbench.bridge.work(call, then, self._workbench.tell_error, self)

    # --- whether it can be reached

    def _start(self, extras: Json) -> None:
        for name in reach.NAMES:
            self._rows[name][1].setText("…")
        self._found = {}
        self._lines.show()
        self._set_busy(True)
        self._paint()
        self.errand.start(self._command(), reach.question(self._workbench.workspace.root, extras))

    def _hear(self, said: Json) -> None:
        name = str(said.get("name"))
        if name in self._rows:
            self._found[name] = str(said["state"])
            self._rows[name][1].setText(f"{said['found']}. {said['todo']}" if said["todo"] else str(said["found"]))
            self._paint()

    def _probed(self, problem: str) -> None:
        self._set_busy(False)
        for name in reach.NAMES:
            if name not in self._found:
                self._rows[name][1].setText(problem or "not looked at")
        self._paint()

    def _set_busy(self, is_busy: bool) -> None:
        self._probe.setEnabled(not is_busy)
        self._probe_vpn.setEnabled(not is_busy)

    def _paint(self) -> None:
        for name, (icon, _) in self._rows.items():
            picture = STATES.get(self._found.get(name, ""), ("mdi6.circle-outline", "muted"))
            icon.setPixmap(theme.icon(*picture).pixmap(16, 16))
