"""The W&B tab: how a run stands with W&B, its upload, and its page on the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, QTimer, QUrl
from PySide6.QtGui import QColor, QDesktopServices, QHideEvent, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QProgressBar, QPushButton, QStackedWidget, QVBoxLayout, QWidget
from shiboken6 import delete

from mosaic.contracts.errors import MissingExtra
from mosaic.contracts.folder import RunFolder
from mosaic.gui import theme
from mosaic.gui.models import wandb
from mosaic.gui.models.errand import Errand
from mosaic.gui.models.wandb import Standing
from mosaic.gui.views import web
from mosaic.gui.views.facts import Fact, Facts
from mosaic.gui.views.made import accent_button, muted, named, state_label
from mosaic.gui.views.way import Way
from mosaic.gui.workbench import Json, Workbench
from mosaic.sidecar import errand

if TYPE_CHECKING:
    from PySide6.QtNetwork import QAuthenticator
    from PySide6.QtWebEngineWidgets import QWebEngineView

LOOK_MS = 2_000
"""How often a run that goes on, or is being uploaded, is looked at again."""
UPLOADING = ("online", "syncing", "synced")
"""States in which there is a page to show."""


class WandbTab(QWidget):
    def __init__(
        self,
        workbench: Workbench,
        command: Callable[[], list[str]] = errand.command,
        has_web: Callable[[], bool] = web.is_installed,
    ) -> None:
        super().__init__()
        self._workbench = workbench
        self._command = command
        self._has_web = has_web
        self._run_id = ""
        self._standing: Standing | None = None
        self._problem = ""
        """Why there is less to see than there should be."""
        self._loaded_url = ""
        self._uploaded_run = ""
        self._way = Way()
        self.web: QWebEngineView | None = None
        self.errand = Errand(self)
        self.errand.said.connect(self._hear)
        self.errand.ended.connect(self._ended)
        self._stack = QStackedWidget()
        self._stack.addWidget(self._details())
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, theme.GAP)
        column.setSpacing(theme.GAP)
        column.addLayout(self._bar())
        column.addWidget(self._stack, 1)
        self._clock = QTimer(self, interval=LOOK_MS)
        self._clock.timeout.connect(self._tick)
        workbench.theme_changed.connect(self._theme)
        workbench.closing.connect(self._close)
        self._theme()

    # --- building

    def _bar(self) -> QHBoxLayout:
        bar = QHBoxLayout()
        bar.setSpacing(4)
        self._icon = QLabel()
        self._state = state_label("wandb.state")
        self._sync = accent_button("Sync", "wandb.sync")
        self._sync.clicked.connect(self._start)
        self._settings = named(QPushButton("Settings"), "wandb.settings")
        self._settings.setToolTip("The key, the proxies, and whether W&B can be reached")
        self._settings.clicked.connect(lambda: self._workbench.page_wanted.emit("settings"))
        self._as_page = named(QPushButton("Details"), "wandb.details")
        self._as_page.setToolTip("Show what is known here instead of W&B's page")
        self._as_page.setCheckable(True)
        self._as_page.toggled.connect(lambda _: self._show())
        self._reload = named(QPushButton("Reload"), "wandb.reload")
        self._reload.clicked.connect(self._load)
        self._browser = named(QPushButton("Open in browser"), "wandb.browser")
        self._browser.clicked.connect(lambda: QDesktopServices.openUrl(QUrl(self._url)))
        bar.addWidget(self._icon)
        bar.addWidget(self._state, 1)
        for button in (self._settings, self._as_page, self._reload, self._browser):
            button.setProperty("flat", True)
            bar.addWidget(button)
        bar.addWidget(self._sync)
        return bar

    def _details(self) -> QWidget:
        details = QWidget()
        column = QVBoxLayout(details)
        column.setContentsMargins(0, theme.GAP, 0, 0)
        column.setSpacing(theme.GAP)
        self._sentence = muted("", "wandb.sentence")
        self._error = named(QLabel(), "wandb.error")
        self._error.setProperty("error", True)
        self._error.setWordWrap(True)
        self._error.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._progress = named(QProgressBar(), "wandb.progress")
        self._progress.setProperty("thin", True)
        self._progress.setTextVisible(False)
        self._progress.setMaximumWidth(400)
        self._facts = Facts()
        for widget in (self._sentence, self._progress, self._error, self._facts):
            widget.setMaximumWidth(min(widget.maximumWidth(), 880))
            column.addWidget(widget)
        column.addStretch(1)
        return details

    def _theme(self) -> None:
        self._reload.setIcon(theme.icon("mdi6.refresh"))
        self._browser.setIcon(theme.icon("mdi6.open-in-new"))
        self._as_page.setIcon(theme.icon("mdi6.information-outline"))
        self._settings.setIcon(theme.icon("mdi6.cog-outline"))
        if self.web is not None:
            self.web.page().setBackgroundColor(QColor(theme.tokens().window))
        self._show()

    # --- which run

    def show_run(self, run_id: str) -> None:
        if run_id != self._run_id:
            self._run_id = run_id
            self._standing = None
            self._problem = self._loaded_url = ""
            self._as_page.setChecked(False)
            self._show()
        self._look()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._clock.start()
        self._look()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._clock.stop()
        self._way.take(None)

    def _tick(self) -> None:
        """Nothing changes by itself once the run is over and nobody uploads it."""
        state = self._told
        if state is None or not self._is_over() or state.get("process") or state["state"] == "syncing":
            self._look()

    def _look(self) -> None:
        run_id = self._run_id
        if not run_id or not self.isVisible():
            return
        if self._workbench.runs.get(run_id) is None:
            return
        root = self._workbench.workspace.root

        def then(standing: Standing) -> None:
            if run_id == self._run_id:
                self._standing = standing
                self._show()

        self._workbench.bridge.ask(
            lambda trainer: wandb.look(trainer, run_id, root), then, lambda error: self._fail(str(error)), owner=self
        )

    def _fail(self, problem: str) -> None:
        self._problem = problem
        self._show()

    # --- how it stands

    @property
    def _told(self) -> Json | None:
        return self._standing.state if self._standing else None

    @property
    def _url(self) -> str:
        return str((self._told or {}).get("url") or "")

    def _show(self) -> None:
        state = self._told
        word = state["state"] if state else "offline"
        self._icon.setPixmap(theme.icon(*wandb.ICONS.get(word, wandb.ICONS["offline"])).pixmap(16, 16))
        self._state.setText(wandb.headline(state) if self._standing else "…")
        self._sentence.setText(self._words(state) if self._standing else "")
        problems = [self._problem, str((state or {}).get("error") or ""), *self._ways_problems()]
        self._error.setText("\n".join(dict.fromkeys(filter(None, problems))))
        self._error.setVisible(bool(self._error.text()))
        self._facts.show_facts([Fact(*row) for row in wandb.facts(state)] if state else [])
        self._show_progress(state)
        is_busy = self.errand.is_under_way
        self._sync.setVisible(wandb.can_sync(state))
        self._sync.setEnabled(not is_busy and self._is_over() and not self._workbench.is_remote)
        self._sync.setToolTip(self._sync_words())
        self._browser.setVisible(bool(self._url))
        has_page = bool(self._url) and word in UPLOADING and self._has_web() and not self._problem
        self._as_page.setVisible(has_page)
        self._reload.setVisible(has_page)
        if has_page and not self._as_page.isChecked() and self.isVisible():
            self._show_page()
        else:
            self._stack.setCurrentIndex(0)
            self._way.take(None)

    def _words(self, state: Json | None) -> str:
        if state is None:
            return wandb.NOTHING
        if state["state"] == "offline" and not self._is_over():
            return "Everything is kept on this machine, and uploaded when W&B can be reached."
        if self._workbench.is_remote and wandb.can_sync(state):
            return f"It is kept on the trainer's machine. Sync it there: mosaic wandb sync {self._run_id}"
        return wandb.SENTENCES.get(state["state"], "")

    def _ways_problems(self) -> list[str]:
        return self._standing.way.problems if self._standing else []

    def _is_over(self) -> bool:
        view = self._workbench.runs.get(self._run_id)
        return view is not None and view["stage"] == "finished"

    def _sync_words(self) -> str:
        if self.errand.is_under_way:
            return "An upload is under way"
        return "Upload it to W&B now" if self._is_over() else "It uploads by itself while the run goes on"

    def _show_progress(self, state: Json | None) -> None:
        is_ours = self.errand.is_under_way and self._uploaded_run == self._run_id
        self._progress.setVisible(is_ours or (state is not None and state["state"] == "syncing"))
        done, total = wandb.progress(state) if state else (0, 0)
        # W&B's program tells of nothing but the end: until something is through, the bar only says that it moves.
        self._progress.setRange(0, 1000 if done else 0)
        self._progress.setValue(1000 * done // total if total else 0)

    # --- uploading

    def _start(self) -> None:
        view = self._workbench.runs.get(self._run_id)
        if view is None or self.errand.is_under_way:
            return
        self._uploaded_run = self._run_id
        self._problem = ""
        self.errand.start(self._command(), errand.request([RunFolder(view["run_dir"])]))
        self._show()

    def _hear(self, said: Json) -> None:
        for problem in said.pop("said", ()):
            self._workbench.say(problem, "warning")
        if said.pop("is_last", False):
            is_good = said["state"] == "synced"
            self._workbench.say(
                "The run is synced with W&B." if is_good else str(said["error"]), "good" if is_good else "bad"
            )
        if self._standing is not None and said.get("run_id") == self._run_id and "runs" in said:
            self._standing = self._standing._replace(state={**(self._told or {}), **said})
        self._show()

    def _ended(self, problem: str) -> None:
        if problem and self._uploaded_run == self._run_id:
            self._problem = f"The upload broke off. {problem}"
        self._show()
        self._look()

    # --- its page

    def _show_page(self) -> None:
        if self.web is None:
            try:
                self._make_page()
            except MissingExtra as error:
                self._fail(str(error))
                return
        assert self.web is not None
        assert self._standing is not None
        self._way.take(self._standing.way.https)
        self._stack.setCurrentWidget(self.web)
        if self._loaded_url != self._url:
            self._load()

    def _make_page(self) -> None:
        view = named(
            web.made_view(lambda url: url.scheme() in ("https", "http", "about", "data", "blob")), "wandb.page"
        )
        view.loadFinished.connect(self._loaded)
        view.page().proxyAuthenticationRequired.connect(self._authenticate)
        self._stack.addWidget(view)
        self.web = view

    def _load(self) -> None:
        if self.web is not None:
            self._loaded_url = self._url
            self.web.load(QUrl(self._url))

    def _loaded(self, is_fine: bool) -> None:
        if not is_fine and self._loaded_url:
            self._fail("W&B's page could not be loaded. Find out why in Settings, or with: mosaic wandb probe")

    def _authenticate(self, _: QUrl, asked: QAuthenticator, __: str) -> None:
        proxy = self._way.proxy
        if proxy is not None:
            asked.setUser(proxy.user())
            asked.setPassword(proxy.password())

    def _close(self) -> None:
        """The window goes, and the page first: Qt's end would trip over it."""
        self._clock.stop()
        self._way.take(None)
        self.errand.close()
        if self.web is not None:
            view, self.web = self.web, None
            self._loaded_url = ""
            self._stack.removeWidget(view)
            delete(view)
