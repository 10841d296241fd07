"""A web page inside the window. WebEngine is loaded when the first one is made: it is large."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6.QtCore import QUrl
from PySide6.QtGui import QColor, QDesktopServices

from mosaic.contracts.errors import MissingExtra
from mosaic.gui import theme

if TYPE_CHECKING:
    from PySide6.QtWebEngineWidgets import QWebEngineView


def is_installed() -> bool:
    return importlib.util.find_spec("PySide6.QtWebEngineWidgets") is not None


def preload() -> None:
    """Imports what `made_view` needs; may be called in another thread beforehand."""
    if is_installed():
        importlib.import_module("PySide6.QtWebEngineWidgets")


def create_web_view(is_inside: Callable[[QUrl], bool], first_script: str = "") -> QWebEngineView:
    """A page that stays where `is_inside` says; what leads elsewhere opens in the user's browser.

    `first_script` runs before every page's own. Raises MissingExtra where WebEngine cannot be loaded.

    The first one holds the window for 0.1 to 0.2 s: Chromium starts in one call that Qt allows in the GUI thread alone,
    and most of it is waiting for its helpers. Call it behind a painted sign that something is under way.
    """
    try:
        from PySide6.QtWebEngineCore import QWebEngineNavigationRequest, QWebEngineNewWindowRequest, QWebEngineScript
        from PySide6.QtWebEngineWidgets import QWebEngineView
    except ImportError as error:
        raise MissingExtra(
            f"Pages inside the window need Qt WebEngine ({error}): pip install 'mosaic-rl[gui]'."
        ) from None

    view = QWebEngineView()
    page = view.page()

    def judge(request: QWebEngineNavigationRequest) -> None:
        if request.isMainFrame() and not is_inside(request.url()):
            request.reject()
            QDesktopServices.openUrl(request.url())

    def open_outside(request: QWebEngineNewWindowRequest) -> None:
        QDesktopServices.openUrl(request.requestedUrl())

    page.navigationRequested.connect(judge)
    page.newWindowRequested.connect(open_outside)
    page.setBackgroundColor(QColor(theme.tokens().window))
    if first_script:
        script = QWebEngineScript()
        script.setSourceCode(first_script)
        script.setInjectionPoint(QWebEngineScript.InjectionPoint.DocumentCreation)
        script.setWorldId(QWebEngineScript.ScriptWorldId.MainWorld)
        page.scripts().insert(script)
    return view
