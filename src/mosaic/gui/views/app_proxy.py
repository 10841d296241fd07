"""The proxy of the pages inside the window, set as long as a page that needs it is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from PySide6.QtNetwork import QNetworkProxy


def parse_proxy(address: str) -> QNetworkProxy:
    from PySide6.QtNetwork import QNetworkProxy  # only whoever has a proxy pays for it

    parts = urlsplit(address)
    kind = QNetworkProxy.ProxyType.HttpProxy
    if parts.scheme.startswith("socks"):
        kind = QNetworkProxy.ProxyType.Socks5Proxy
    port = parts.port or (1080 if parts.scheme.startswith("socks") else 80)
    return QNetworkProxy(kind, parts.hostname or "", port, unquote(parts.username or ""), unquote(parts.password or ""))


class AppProxy:
    """Chromium follows the application's proxy, also later, and leaves loopback direct."""

    def __init__(self) -> None:
        self._previous: QNetworkProxy | None = None
        self.proxy: QNetworkProxy | None = None
        """The one that is taken now."""

    def use(self, address: str | None) -> None:
        """From now on through this proxy; None: as it was before."""
        if address is None and self._previous is None:
            return
        from PySide6.QtNetwork import QNetworkProxy

        if address is None:
            if self._previous is not None:
                QNetworkProxy.setApplicationProxy(self._previous)
            self._previous = self.proxy = None
            return
        if self._previous is None:
            self._previous = QNetworkProxy.applicationProxy()
        self.proxy = parse_proxy(address)
        QNetworkProxy.setApplicationProxy(self.proxy)
