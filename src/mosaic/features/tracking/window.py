"""The W&B tab: the sync state of a run, its upload, and its page on the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QDesktopServices, QHideEvent, QShowEvent
from PySide6.QtWidgets import QGridLayout, QLineEdit, QProgressBar, QWidget

from mosaic.base import secret_store as secrets
from mosaic.base.formatting import format_size, format_timestamp
from mosaic.contracts.errors import BadInput, MissingExtra
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.payload import WandbArtifacts
from mosaic.contracts.views import WandbStatus
from mosaic.features.tracking.sidecar import sync_state, wandb_connection
from mosaic.features.tracking.sidecar.wandb_environment import (
    PROXY_SECRET_NAMES,
    PROXY_VARIABLES,
    Proxies,
    load_workspace_dotenv,
    normalize_address,
    resolve_proxies,
    strip_credentials,
)
from mosaic.features.tracking.window_tensorboard import TensorBoardTab
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window import theme, web
from mosaic.window import widgets as ui
from mosaic.window.child_process import JsonProcess
from mosaic.window.fields import SecretField
from mosaic.window.runs import empty_text
from mosaic.window.specs import RunTab
from mosaic.window.tables import Detail, DetailsGrid
from mosaic.window.web import AppProxy, WebTab
from mosaic.window.workbench import Workbench

if TYPE_CHECKING:
    from PySide6.QtNetwork import QAuthenticator

POLL_INTERVAL_MS = 2_000
"""How often the state of an active run, or of one being uploaded, is queried."""
_ICONS = {
    "offline": ("mdi6.cloud-off-outline", "muted"),
    "syncing": ("mdi6.cloud-upload-outline", "accent"),
    "synced": ("mdi6.cloud-check-outline", "good"),
    "online": ("mdi6.cloud-check-outline", "good"),
    "failed": ("mdi6.cloud-alert-outline", "bad"),
}
_DESCRIPTIONS = {
    "offline": "Everything is stored on this machine. Nothing is lost while W&B cannot be reached; Sync uploads it.",
    "syncing": "The run is being uploaded.",
    "synced": "The complete run is on W&B's server.",
    "online": "The script itself uploads to W&B.",
    "failed": "The upload failed. Everything is stored on this machine and can be synced again.",
}
STATES_WITH_PAGE = ("online", "syncing", "synced")
"""States in which there is a page to show."""


class WandbRunStatus(NamedTuple):
    state: WandbStatus | None
    proxies: Proxies
    """Used for its web page."""


class WandbTab(WebTab):
    def __init__(
        self,
        workbench: Workbench,
        command: Callable[[], list[str]] = sync_state.uploader_command,
        has_web: Callable[[], bool] = web.is_installed,
    ) -> None:
        settings = ui.flat_button(
            "Settings",
            "wandb.settings",
            lambda: workbench.page_requested.emit("settings"),
            "API key, proxies, and a test of the connection",
            "mdi6.cog-outline",
        )
        self._details_button = ui.flat_button(
            "Details",
            "wandb.details",
            tip="Show the local details instead of W&B's page",
            icon="mdi6.information-outline",
        )
        self._details_button.setCheckable(True)
        self._sync = ui.accent_button("Sync", "wandb.sync", lambda: self._start_upload())
        buttons = (settings, self._details_button)
        super().__init__(workbench, "wandb", self._build_details(), has_web, buttons, (self._sync,))
        self._command = command
        self._tracking_status: WandbRunStatus | None = None
        self._problem = ""
        """Why something cannot be shown."""
        self._loaded_url = ""
        self._uploading_run_id = ""
        self._app_proxy = AppProxy()
        self.upload_process = JsonProcess(self)
        self.upload_process.message_received.connect(self._on_upload_message)
        self.upload_process.finished.connect(self._on_upload_ended)
        self._details_button.toggled.connect(lambda _: self._refresh())
        self._poll_timer = ui.VisibleTimer(self, POLL_INTERVAL_MS, self._poll_if_active)
        self._refresh()

    def _build_details(self) -> QWidget:
        self._sentence = ui.muted_label("", "wandb.sentence")
        self._error = ui.selectable_label("wandb.error")
        self._error.setProperty("error", True)
        self._progress = ui.with_object_name(QProgressBar(), "wandb.progress")
        self._progress.setProperty("thin", True)
        self._progress.setTextVisible(False)
        self._progress.setMaximumWidth(400)
        self._facts = DetailsGrid()
        parts = (self._sentence, self._progress, self._error, self._facts)
        for widget in parts:
            widget.setMaximumWidth(min(widget.maximumWidth(), 880))
        return ui.widget_column(*parts, ui.Stretch(), margins=(0, theme.GAP, 0, 0))

    # --- which run

    def show_run(self, run_id: str) -> None:
        if run_id != self._run_id:
            self._run_id = run_id
            self._tracking_status = None
            self._problem = self._loaded_url = ""
            self._details_button.setChecked(False)
            self._refresh()
        self._poll()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._poll()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._app_proxy.use(None)

    def _poll_if_active(self) -> None:
        """Skips finished runs that are not being uploaded: their state does not change."""
        state = self._state_record
        if state is None or not self._is_finished() or state.process or state.state == "syncing":
            self._poll()

    def _poll(self) -> None:
        run_id = self._run_id
        if not self.isVisible() or self._workbench.runs.get(run_id) is None:
            return
        root = self._workbench.workspace.root

        def then(status: WandbRunStatus) -> None:
            if run_id == self._run_id:
                self._tracking_status = status
                self._refresh()

        def fetch(trainer: TrainerClient) -> WandbRunStatus:
            wandb = WandbArtifacts.model_validate(trainer.config(run_id).get("artifacts", {}).get("wandb") or {})
            return WandbRunStatus(next(iter(trainer.read_wandb(run_id)), None), resolve_proxies(wandb, root))

        self._workbench.bridge.ask(fetch, then, lambda error: self._show_problem(str(error)), owner=self)

    def _show_problem(self, problem: str) -> None:
        self._problem = problem
        self._refresh()

    # --- the state

    @property
    def _state_record(self) -> WandbStatus | None:
        return self._tracking_status.state if self._tracking_status else None

    @property
    def _url(self) -> str:
        return (self._state_record.url or "") if self._state_record else ""

    def _refresh(self) -> None:
        state = self._state_record
        name = state.state if state else "offline"
        self._icon.set_icon(theme.icon(*_ICONS.get(name, _ICONS["offline"])))
        self._state.setText(format_headline(state) if self._tracking_status else "…")
        self._sentence.setText(self._state_sentence(state) if self._tracking_status else "")
        problems = [self._problem, (state.error or "") if state else "", *self._proxy_problems()]
        self._error.setText("\n".join(dict.fromkeys(filter(None, problems))))
        self._error.setVisible(bool(self._error.text()))
        self._facts.show_details([Detail(*row) for row in detail_rows(state)] if state else [])
        self._show_progress(state)
        is_busy = self.upload_process.is_running
        self._sync.setVisible(_can_sync(state))
        self._sync.setEnabled(not is_busy and self._is_finished() and not self._workbench.is_remote)
        self._sync.setToolTip(self._sync_tooltip())
        self._browser.setVisible(bool(self._url))
        has_page = bool(self._url) and name in STATES_WITH_PAGE and self._has_web() and not self._problem
        self._details_button.setVisible(has_page)
        self._reload.setVisible(has_page)
        if has_page and not self._details_button.isChecked() and self.isVisible():
            self._show_page()
        else:
            self._stack.setCurrentIndex(0)
            self._app_proxy.use(None)

    def _state_sentence(self, state: WandbStatus | None) -> str:
        if state is None:
            return empty_text("wandb", self._workbench.runs.get_or_placeholder(self._run_id)).as_line()
        if state.state == "offline" and not self._is_finished():
            return "Everything is stored on this machine and uploaded when W&B can be reached."
        if self._workbench.is_remote and _can_sync(state):
            return f"It is stored on the trainer's machine. Sync it there: mosaic wandb sync {self._run_id}"
        return _DESCRIPTIONS.get(state.state, "")

    def _proxy_problems(self) -> list[str]:
        return self._tracking_status.proxies.problems if self._tracking_status else []

    def _is_finished(self) -> bool:
        view = self._workbench.runs.get(self._run_id)
        return view is not None and view.stage == "finished"

    def _sync_tooltip(self) -> str:
        if self.upload_process.is_running:
            return "An upload is in progress"
        return "Upload it to W&B now" if self._is_finished() else "An active run uploads automatically"

    def _show_progress(self, state: WandbStatus | None) -> None:
        is_ours = self.upload_process.is_running and self._uploading_run_id == self._run_id
        self._progress.setVisible(is_ours or (state is not None and state.state == "syncing"))
        entries = state.runs.values() if state else ()
        done, total = sum(entry.sent_bytes for entry in entries), sum(entry.size_bytes for entry in entries)
        # W&B's program reports only the end: until then the bar is indeterminate.
        self._progress.setRange(0, 1000 if done else 0)
        self._progress.setValue(1000 * done // total if total else 0)

    # --- uploading

    def _start_upload(self) -> None:
        view = self._workbench.runs.get(self._run_id)
        if view is None or self.upload_process.is_running:
            return
        self._uploading_run_id = self._run_id
        self._problem = ""
        self.upload_process.start(self._command(), sync_state.upload_request([RunFolder(view.run_dir)]))
        self._refresh()

    def _on_upload_message(self, message: dict[str, Any]) -> None:
        for problem in message.pop("problems", ()):
            self._workbench.show_message(problem, "warning")
        if message.pop("is_last", False):
            is_good = message["state"] == "synced"
            self._workbench.show_message(
                "The run is synced with W&B." if is_good else str(message["error"]), "good" if is_good else "bad"
            )
        if self._tracking_status is not None and message.get("run_id") == self._run_id and "runs" in message:
            known = self._state_record.model_dump() if self._state_record else {"stage": "finished"}
            state = WandbStatus.model_validate({**known, **message})
            self._tracking_status = self._tracking_status._replace(state=state)
        self._refresh()

    def _on_upload_ended(self, problem: str) -> None:
        if problem and self._uploading_run_id == self._run_id:
            self._problem = f"The upload ended unexpectedly. {problem}"
        self._refresh()
        self._poll()

    # --- the page

    def _show_page(self) -> None:
        if self.web is None:
            try:
                view = self._create_page(lambda url: url.scheme() in ("https", "http", "about", "data", "blob"))
                view.page().proxyAuthenticationRequired.connect(self._authenticate)
            except MissingExtra as error:
                self._show_problem(str(error))
                return
        assert self.web is not None
        assert self._tracking_status is not None
        self._app_proxy.use(self._tracking_status.proxies.https)
        self._stack.setCurrentWidget(self.web)
        if self._loaded_url != self._url:
            self._load()

    def _load(self) -> None:
        if self.web is not None:
            self._loaded_url = self._url
            self.web.load(QUrl(self._url))

    def _open_in_browser(self) -> None:
        QDesktopServices.openUrl(QUrl(self._url))

    def _on_load_finished(self, is_ok: bool) -> None:
        if not is_ok and self._loaded_url:
            self._show_problem("W&B's page could not be loaded. Check the connection: mosaic wandb probe")

    def _authenticate(self, _: QUrl, authenticator: QAuthenticator, __: str) -> None:
        proxy = self._app_proxy.proxy
        if proxy is not None:
            authenticator.setUser(proxy.user())
            authenticator.setPassword(proxy.password())

    def _on_closing(self) -> None:
        self._poll_timer.stop()
        self._app_proxy.use(None)
        self.upload_process.close()
        self._loaded_url = ""
        super()._on_closing()


def _can_sync(state: WandbStatus | None) -> bool:
    return state is not None and state.state in ("offline", "failed")


def format_headline(state: WandbStatus | None) -> str:
    """`offline · 120 records · 3.4 MB`."""
    if state is None:
        return "nothing yet"
    words = [str(state.state)]
    records = _total_records(state)
    if records is not None:
        words.append(f"{records:,} records")
    words.append(format_size(sum(entry.size_bytes for entry in state.runs.values())))
    return " · ".join(words)


def detail_rows(state: WandbStatus) -> list[tuple[str, str, str]]:
    """Returns name, value and tooltip of everything that is known."""
    records = _total_records(state)
    entries = state.runs
    newest = max((entry.updated_at or 0.0 for entry in entries.values()), default=0.0)
    rows = [
        ("Project", state.project or "", ""),
        ("Entity", state.entity or "", ""),
        ("Address", state.url or "", ""),
        ("Records", "" if records is None else f"{records:,}", "Rows of scalars"),
        ("Changed", format_timestamp(newest) if newest else "", ""),
    ]
    for name, entry in entries.items():
        rows.append(("Folder", f"{name} ({entry.state}, {format_size(entry.size_bytes)})", entry.error or ""))
    return [row for row in rows if row[1]]


def _total_records(state: WandbStatus) -> int | None:
    known = [entry.records for entry in state.runs.values() if entry.records is not None]
    return sum(known) if known else None


# --- The W&B section of the settings: the key, the proxies, and a test of the connection.


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


RUN_TABS = (
    RunTab("tensorboard", "TensorBoard", TensorBoardTab, position=4),
    RunTab("wandb", "W&B", WandbTab, is_available=lambda view: bool(view.has_wandb), position=5),
)
