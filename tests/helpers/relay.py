"""Somebody between client and trainer, who ends the encryption with a certificate of their own and relays all bytes."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from pathlib import Path

from mosaic.base.certificates import CERTIFICATE_NAME


class Relay:
    def __init__(self, identity_file: Path, target: tuple[str, int]) -> None:
        """`identity_file` has a key and a certificate, as a trainer's."""
        self.relayed_bytes = 0
        self._target = target
        self._shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._shown.load_cert_chain(identity_file)
        self._shown.set_alpn_protocols(["h2"])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        far = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        far.check_hostname, far.verify_mode = False, ssl.CERT_NONE
        far.set_alpn_protocols(["h2"])
        while True:
            try:
                near_side = self._shown.wrap_socket(self._listener.accept()[0], server_side=True)
                far_side = far.wrap_socket(socket.create_connection(self._target), server_hostname=CERTIFICATE_NAME)
            except ssl.SSLError:
                continue  # a client that did not like what it was shown
            except OSError:
                return
            self._sockets += [near_side, far_side]
            for pair in ((near_side, far_side), (far_side, near_side)):
                threading.Thread(target=self._copy, args=pair, daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := source.recv(65536):
                self.relayed_bytes += len(data)
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
