"""Servers on loopback for tests of the connection to W&B: one that replies, one that is silent, a closed port."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Talk = Callable[[socket.socket], None]


@contextmanager
def listening(talk: Talk) -> Iterator[int]:
    """Yields a port whose connections are each handled by `talk`, in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []
    callers: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                caller, _ = listener.accept()
            except OSError:
                return
            callers.append(caller)
            thread = threading.Thread(target=_quietly, args=(talk, caller))
            threads.append(thread)
            thread.start()

    accepting = threading.Thread(target=serve)
    accepting.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()
        for caller in callers:
            try:
                caller.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        for thread in threads:
            thread.join()


def _quietly(talk: Talk, caller: socket.socket) -> None:
    with caller:
        try:
            talk(caller)
        except OSError:
            return


def read_headers(caller: socket.socket) -> str:
    """Reads the headers of a request."""
    text = b""
    while b"\r\n\r\n" not in text:
        part = caller.recv(4096)
        if not part:
            break
        text += part
    return text.decode("latin-1")


def answering(status: str, body: str = "", seen: list[str] | None = None) -> Talk:
    """Sends the same reply to every request; adds their headers to `seen`."""

    def talk(caller: socket.socket) -> None:
        head = read_headers(caller)
        if seen is not None:
            seen.append(head)
        caller.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())

    return talk


def silent(caller: socket.socket) -> None:
    """Reads everything and never replies."""
    while caller.recv(4096):
        pass


@contextmanager
def refused_port() -> Iterator[int]:
    """Yields a bound port that nothing listens on."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
