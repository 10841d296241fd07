"""Web pages inside the window. WebEngine is loaded when the first page is created: it is large."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from PySide6.QtCore import QUrl
from PySide6.QtGui import QColor, QDesktopServices
from PySide6.QtWidgets import QWidget
from shiboken6 import delete

from mosaic.contracts.errors import MissingExtra
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.workbench import Workbench

if TYPE_CHECKING:
    from PySide6.QtNetwork import QNetworkProxy
    from PySide6.QtWebEngineWidgets import QWebEngineView


def is_installed() -> bool:
    return importlib.util.find_spec("PySide6.QtWebEngineWidgets") is not None


def preload() -> None:
    """Imports what `create_web_view` needs; may be called in another thread beforehand."""
    if is_installed():
        importlib.import_module("PySide6.QtQuick")
        importlib.import_module("PySide6.QtWebEngineWidgets")


def _draw_without_opengl() -> None:
    """Lets Qt Quick, and with it web pages, draw in memory, unless the user has chosen another backend.

    A page drawn by OpenGL needs a window that is drawn by it, too: Qt would replace the window, which has none, by
    another one, black for a second or more. Pages then have no WebGL; TensorBoard's charts do without it.
    """
    from PySide6.QtQuick import QQuickWindow, QSGRendererInterface

    if "QT_QUICK_BACKEND" not in os.environ:
        QQuickWindow.setGraphicsApi(QSGRendererInterface.GraphicsApi.Software)


def create_web_view(is_inside: Callable[[QUrl], bool], first_script: str = "") -> QWebEngineView:
    """A page that stays where `is_inside` is true; other links open in the user's browser.

    `first_script` runs before every page's own. Raises MissingExtra where WebEngine cannot be loaded.

    The first one blocks the window for 0.1 to 0.2 s: Chromium starts in one call that Qt allows in the GUI thread only,
    and most of it is waiting for its helper processes. Call it after a busy indicator was painted.
    """
    try:
        from PySide6.QtWebEngineCore import QWebEngineNavigationRequest, QWebEngineNewWindowRequest, QWebEngineScript
        from PySide6.QtWebEngineWidgets import QWebEngineView
    except ImportError as error:
        raise MissingExtra(
            f"Pages inside the window need Qt WebEngine ({error}): pip install 'mosaic-rl[gui]'."
        ) from None

    _draw_without_opengl()
    view = QWebEngineView()
    page = view.page()

    def check_navigation(request: QWebEngineNavigationRequest) -> None:
        if request.isMainFrame() and not is_inside(request.url()):
            request.reject()
            QDesktopServices.openUrl(request.url())

    def open_outside(request: QWebEngineNewWindowRequest) -> None:
        QDesktopServices.openUrl(request.requestedUrl())

    page.navigationRequested.connect(check_navigation)
    page.newWindowRequested.connect(open_outside)
    page.setBackgroundColor(QColor(theme.tokens().window))
    if first_script:
        script = QWebEngineScript()
        script.setSourceCode(first_script)
        script.setInjectionPoint(QWebEngineScript.InjectionPoint.DocumentCreation)
        script.setWorldId(QWebEngineScript.ScriptWorldId.MainWorld)
        page.scripts().insert(script)
    return view


class WebTab(QWidget):
    """A tab of the run page with a state line, the same buttons, and a web page that is created when it is needed."""

    def __init__(
        self,
        workbench: Workbench,
        name: str,
        placeholder: QWidget,
        has_web: Callable[[], bool],
        other_buttons: tuple[QWidget, ...] = (),
        last_button: tuple[QWidget, ...] = (),
    ) -> None:
        super().__init__()
        self._workbench = workbench
        self._name = name
        self._has_web = has_web
        self._run_id = ""
        self.web: QWebEngineView | None = None
        self._icon = ui.IconLabel()
        self._state = ui.status_label(f"{name}.state")
        self._reload = ui.flat_button("Reload", f"{name}.reload", self._load, icon="mdi6.refresh")
        self._browser = ui.flat_button(
            "Open in browser", f"{name}.browser", self._open_in_browser, icon="mdi6.open-in-new"
        )
        bar = ui.row(self._icon, (self._state, 1), *other_buttons, self._reload, self._browser, *last_button, spacing=4)
        self._stack = ui.stack(placeholder)
        ui.column(bar, (self._stack, 1), parent=self, margins=ui.TAB_MARGINS)
        workbench.theme_changed.connect(self._apply_theme)
        workbench.closing.connect(self._on_closing)

    def _load(self) -> None:
        raise NotImplementedError

    def _open_in_browser(self) -> None:
        raise NotImplementedError

    def _on_load_finished(self, is_ok: bool) -> None:
        raise NotImplementedError

    def _create_page(self, is_inside: Callable[[QUrl], bool], first_script: str = "") -> QWebEngineView:
        """Raises MissingExtra where WebEngine cannot be loaded."""
        self.web = ui.with_object_name(create_web_view(is_inside, first_script), f"{self._name}.page")
        self.web.loadFinished.connect(self._on_load_finished)
        self._stack.addWidget(self.web)
        return self.web

    def _apply_theme(self) -> None:
        if self.web is not None:
            self.web.page().setBackgroundColor(QColor(theme.tokens().window))

    def _on_closing(self) -> None:
        """Deletes the page before the window, at once: Qt crashes otherwise."""
        if self.web is not None:
            view, self.web = self.web, None
            self._stack.removeWidget(view)
            delete(view)


def parse_proxy(address: str) -> QNetworkProxy:
    from PySide6.QtNetwork import QNetworkProxy  # loaded only where there is a proxy

    parts = urlsplit(address)
    is_socks = parts.scheme.startswith("socks")
    kind = QNetworkProxy.ProxyType.Socks5Proxy if is_socks else QNetworkProxy.ProxyType.HttpProxy
    port = parts.port or (1080 if is_socks else 80)
    return QNetworkProxy(kind, parts.hostname or "", port, unquote(parts.username or ""), unquote(parts.password or ""))


class AppProxy:
    """The application's proxy, which Chromium follows, also later; it connects to loopback directly."""

    def __init__(self) -> None:
        self.proxy: QNetworkProxy | None = None
        """The one in use; None: the one that was set before."""
        self._previous: QNetworkProxy | None = None

    def use(self, address: str | None) -> None:
        """Use this proxy from now on; None: the one that was set before."""
        if address is None and self.proxy is None:
            return
        from PySide6.QtNetwork import QNetworkProxy

        self._previous = self._previous or QNetworkProxy.applicationProxy()
        self.proxy = None if address is None else parse_proxy(address)
        QNetworkProxy.setApplicationProxy(self.proxy or self._previous)
