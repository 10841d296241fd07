"""An OpenAI-compatible server on loopback that replies as a test says, well or badly."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TRICKLE_S = 0.05


@dataclass(frozen=True)
class Sent:
    """One request."""

    body: dict[str, Any]
    headers: Mapping[str, str]

    @property
    def prompt(self) -> str:
        return "\n".join(message["content"] for message in self.body["messages"])


@dataclass(frozen=True)
class Answer:
    """What the server does with one request."""

    data: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    way: str = "whole"
    """`whole`, `hang` (until the server is released, then the data), `trickle`, `drop` or `half`."""


def says(content: Any = None, finish: str = "stop", usage: Any = (12, 3), way: str = "whole", **message: Any) -> Answer:
    """A chat completion."""
    counts = None if usage is None else dict(zip(("prompt_tokens", "completion_tokens"), usage, strict=True))
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}, "finish_reason": finish}
    return Answer(json.dumps({"object": "chat.completion", "choices": [choice], "usage": counts}).encode(), way=way)


def stream(*contents: str, arguments: tuple[str, ...] = (), usage: Any = (12, 3)) -> Answer:
    """A chat completion in parts, as `text/event-stream`."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", **({"content": part} if part else {})} for part in contents]
    deltas += [{"tool_calls": [{"index": 0, "function": {"arguments": part}}]} for part in arguments]
    parts: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    parts[-1]["choices"][0]["finish_reason"] = "stop"
    parts.append({"choices": [], "usage": dict(zip(("prompt_tokens", "completion_tokens"), usage, strict=True))})
    lines = [f"data: {json.dumps(part)}\n\n" for part in parts]
    return Answer("".join([*lines, "data: [DONE]\n\n"]).encode(), headers={"Content-Type": "text/event-stream"})


def fails(status: int, text: str = "no", **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(json.dumps({"error": {"message": text}}).encode(), status, named)


def lists(*models: str) -> Answer:
    """A list of models."""
    return Answer(json.dumps({"object": "list", "data": [{"id": model} for model in models]}).encode())


class LlmServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[Answer | Callable[[Sent], Answer]] = []
        """One for each request; the last is repeated."""
        self.models = fails(404, "no such route")
        """The answer to GET /models."""
        self.sent: list[Sent] = []
        self.released = threading.Event()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def next_answer(self, sent: Sent) -> Answer:
        with self._lock:
            self.sent.append(sent)
            answer = self.answers[min(len(self.sent), len(self.answers)) - 1]
        return answer(sent) if callable(answer) else answer

    def handle_error(self, request: Any, client_address: Any) -> None: ...


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # headers and body in one packet: two cost 40 ms for each reply
    server: LlmServer

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        assert self.path == "/v1/models"
        answer = self.server.models
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(answer.data)))
        self.end_headers()
        self.wfile.write(answer.data)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/v1/chat/completions"
        answer = self.server.next_answer(Sent(body, dict(self.headers)))
        if answer.way == "hang":
            self.server.released.wait()
        self.close_connection = answer.way in ("drop", "half")
        if answer.way == "drop":
            return
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(answer.data)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if answer.way == "trickle":
            with suppress(OSError):
                for byte in answer.data:
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
                    if self.server.released.wait(TRICKLE_S):
                        return
        else:
            self.wfile.write(answer.data[: len(answer.data) // (2 if answer.way == "half" else 1)])


class SlowHeaders(socketserver.ThreadingTCPServer):
    """Answers each request with the beginning of a head, and more of it for as long as the client stays."""

    daemon_threads = True

    def __init__(self, beginning: bytes, more: bytes, pause_s: float) -> None:
        super().__init__(("127.0.0.1", 0), _SlowHandler)
        self.beginning, self.more, self.pause_s = beginning, more, pause_s
        self.open = 0
        """Connections whose client has not left."""
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None: ...


class _SlowHandler(socketserver.BaseRequestHandler):
    server: SlowHeaders

    def handle(self) -> None:
        self.server.open += 1
        with suppress(OSError):
            self.request.recv(1 << 20)
            self.request.sendall(self.server.beginning)
            while not self.server.released.wait(self.server.pause_s):
                self.request.sendall(self.server.more)
        self.server.open -= 1


@contextmanager
def running_slow_headers(beginning: bytes, more: bytes, pause_s: float) -> Iterator[SlowHeaders]:
    with SlowHeaders(beginning, more, pause_s) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            server.shutdown()
            thread.join()


@contextmanager
def running_llm_server() -> Iterator[LlmServer]:
    server = LlmServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def wait_until(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.002)
