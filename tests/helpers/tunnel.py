"""A port on this machine that leads to another one, as `ssh -L` makes it; it can break and come back."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress


class Tunnel:
    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._door: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._is_open = False
        self.port = 0
        """The same one each time it is opened."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def open(self) -> None:
        self._door = socket.create_server(("127.0.0.1", self.port))
        self.port = self._door.getsockname()[1]
        self._is_open = True
        self._thread = threading.Thread(target=self._forward, args=(self._door,), name="tunnel")
        self._thread.start()

    def drop(self) -> None:
        """Nobody gets through any more, those who were inside least of all."""
        self._is_open = False
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _forward(self, door: socket.socket) -> None:
        across: dict[socket.socket, socket.socket] = {}
        while self._is_open:
            for end in select.select([door, *across], [], [], 0.05)[0]:
                if end is door:
                    here, there = door.accept()[0], socket.create_connection(self._target)
                    across[here], across[there] = there, here
                elif end in across and not _passed_on(end, across[end]):
                    for closed in (across[end], end):
                        del across[closed]
                        closed.close()
        for end in (door, *across):
            end.close()


def _passed_on(source: socket.socket, target: socket.socket) -> bool:
    """False where either end is gone."""
    with suppress(OSError):
        data = source.recv(65536)
        target.sendall(data)
        return bool(data)
    return False
