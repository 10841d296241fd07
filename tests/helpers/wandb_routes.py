"""What may stand between us and W&B, on loopback: a server that knows keys, a proxy, and things that go wrong."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Talk = Callable[[socket.socket], None]


@contextmanager
def listening(talk: Talk) -> Iterator[int]:
    """A port where each caller is handed to `talk`, in a thread."""
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


def request_of(caller: socket.socket) -> str:
    """The head of a request."""
    text = b""
    while b"\r\n\r\n" not in text:
        part = caller.recv(4096)
        if not part:
            break
        text += part
    return text.decode("latin-1")


def answering(status: str, body: str = "", seen: list[str] | None = None) -> Talk:
    """One answer for everybody; what they asked is kept in `seen`."""

    def talk(caller: socket.socket) -> None:
        head = request_of(caller)
        if seen is not None:
            seen.append(head)
        caller.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())

    return talk


def silent(caller: socket.socket) -> None:
    """Takes everything and never answers."""
    while caller.recv(4096):
        pass


@contextmanager
def refused_port() -> Iterator[int]:
    """One that nobody listens on, held so that nobody will."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
