"""Chat completions of any OpenAI-compatible endpoint, with a deadline for the whole reply.

Every way in which a call can fail has a name (`Problem`), so that callers decide by it and journals can be searched.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from itertools import count
from typing import Any, Literal, TypedDict
from urllib.parse import urlsplit

from mosaic.contracts.errors import BadInput, MissingExtra, unknown_name_error
from mosaic.worker.envs.family import DISTRIBUTION

MAX_REPLY_BYTES = 1_000_000
MAX_TRIES = 4
MAX_ERROR_LENGTH = 300
BACKOFF_S = 0.25
"""Before the second attempt; twice as long before each further one."""
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
Problem = Literal[
    "timeout", "connection", "unreachable", "busy", "server", "key", "model", "refused", "malformed", "too_long",
    "budget", "canceled", "cut_off", "empty", "no_action", "illegal_action", "failed",
]  # fmt: skip
_STATUS_PROBLEMS: dict[int, Problem] = {401: "key", 403: "key", 404: "model", 408: "timeout", 429: "busy"}
_RETRIED: tuple[Problem, ...] = ("busy", "server", "connection", "unreachable")
LASTING: tuple[Problem, ...] = ("key", "model", "unreachable", "budget")
"""Problems that the next request would have, too."""
CHECK_TIMEOUT_S = 5.0
MORE_TOKENS = 4
"""A model whose answer was cut off may write this many times as much."""
_EVENT = re.compile(rb"^data:(.*)$", re.MULTILINE)
_HINTS: dict[Problem, str] = {
    "key": "Set OPENAI_API_KEY in the environment in which the daemon starts.",
    "model": "Check the name of the model, and base_url, which usually ends in /v1.",
    "connection": "Is the server running? Check base_url.",
    "unreachable": "Is the server running? Check base_url.",
    "timeout": "Raise timeout_s, or use a faster model.",
}


class Message(TypedDict):
    role: Literal["system", "user", "assistant"]
    content: str


class ModelFailure(Exception):
    """A call without a reply, or a reply without an action."""

    def __init__(self, problem: Problem, text: str, retry_after_s: float | None = None) -> None:
        super().__init__(" ".join(filter(None, (text, _HINTS.get(problem)))))
        self.problem: Problem = problem
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Reply:
    text: str = ""
    thought: str = ""
    """What a reasoning model wrote apart from its answer."""
    tool_arguments: str | None = None
    """Of the first tool call: JSON, if the model made no mistake."""
    is_cut_off: bool = False
    input_tokens: int | None = None
    """None: the server did not count them."""
    output_tokens: int | None = None

    @property
    def answer(self) -> str:
        return self.text if self.tool_arguments is None else self.tool_arguments


@dataclass(frozen=True)
class SamplingSettings:
    """What is sent with each request; None: the server's default."""

    temperature: float | None = None
    max_tokens: int | None = None
    reasoning_effort: str | None = None


def check_base_url(text: str) -> str:
    """Return the address without a final slash, or raise what is wrong with it."""
    try:
        parts = urlsplit(text)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise BadInput(f"base_url: {text!r} is not an address; expected one such as http://127.0.0.1:11434/v1.")
    if "@" in parts.netloc or parts.query or parts.fragment:
        # The address is not repeated: it may contain a password.
        raise BadInput("base_url must not contain a user, a password or a query. Set the key as OPENAI_API_KEY.")
    return text.rstrip("/")


def is_loopback(url: str) -> bool:
    return urlsplit(url).hostname in _LOOPBACK_HOSTS


class _ConnectionCutter:
    """Ends the connections of one request at its deadline.

    httpx limits the time of each read only: a server that sends a byte now and then would hold the caller for ever.
    """

    def __init__(self, seconds: float) -> None:
        self.is_cut = False
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.name, self._timer.daemon = "llm-deadline", True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._timer.join()

    def trace(self, event: str, info: dict[str, Any]) -> None:
        """Called by httpx with all that it does."""
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            with self._lock:
                self._sockets.append(info["return_value"].get_extra_info("socket"))
            if self.is_cut:
                self._cut()

    def _cut(self) -> None:
        self.is_cut = True
        with self._lock:
            for opened in self._sockets:
                with suppress(OSError):  # closed meanwhile, or replaced by the one that encrypts
                    # Closed then, it is reset: a server that writes without end notices at once.
                    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    socket.socket.shutdown(opened, socket.SHUT_RDWR)


class ChatClient:
    """Calls one model. Any thread may call it."""

    def __init__(self, base_url: str, model: str, key: str | None, sampling: SamplingSettings) -> None:
        try:
            import httpx
        except ModuleNotFoundError:
            raise MissingExtra(f"The actor 'llm' needs httpx: pip install '{DISTRIBUTION}[llm]'.") from None
        if key is not None and not (key.isascii() and key.isprintable()):
            raise BadInput("OPENAI_API_KEY is not a valid key: it has characters that a header cannot contain.")
        self._httpx = httpx
        self._url = f"{base_url}/chat/completions"
        self._models_url = f"{base_url}/models"
        self._takes_system = True
        """Whether the model has a role `system`; else that text precedes the user's first one."""
        self._model = model
        self._key = key
        self._parameters = {name: value for name, value in vars(sampling).items() if value is not None}
        self._retry_at = 0.0
        # A proxy for the internet does not know this machine's own addresses. Each request has a connection of its own,
        # which is closed at its deadline.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(trust_env=not is_loopback(base_url), follow_redirects=False, limits=limits)

    def close(self) -> None:
        self._client.close()

    def mask(self, text: str) -> str:
        """Return the text without the key: servers repeat it in their replies and errors."""
        return text.replace(self._key, "***") if self._key else text

    def check(self) -> None:
        """Raise BadInput if the server cannot be reached, refuses the key, or lists other models.

        Not every server has a list, and one that has a single model often takes any name for it.
        """
        try:
            found = json.loads(self._send("GET", self._models_url, None, time.monotonic() + CHECK_TIMEOUT_S))["data"]
            names = [str(model["id"]) for model in found]
        except ModelFailure as failure:
            if failure.problem in ("key", "unreachable"):
                raise BadInput(str(failure)) from None
            return
        except (ValueError, KeyError, TypeError, RecursionError):
            return
        if len(names) > 1 and self._model not in {*names, *(name.removesuffix(":latest") for name in names)}:
            raise unknown_name_error("model", self._model, names, self._models_url)

    def complete(
        self,
        messages: Sequence[Message],
        deadline: float,
        canceled: threading.Event,
        before_call: Callable[[], None],
        has_more_tokens: bool = False,
    ) -> Reply:
        """Return the model's reply. Where the server is busy, fails or hangs up, try again until the deadline.

        `before_call` is called before each attempt and may raise ModelFailure.
        """
        self._wait(max(0.0, self._retry_at - time.monotonic()), deadline, canceled)
        for attempt in count(1):
            before_call()
            try:
                return self._post(messages, deadline, has_more_tokens)
            except ModelFailure as failure:
                if failure.retry_after_s is not None:
                    self._retry_at = time.monotonic() + failure.retry_after_s
                if self._adapt_parameters(failure):
                    continue
                if failure.problem not in _RETRIED or attempt >= MAX_TRIES:
                    raise
                wait_s = BACKOFF_S * 2 ** (attempt - 1) if failure.retry_after_s is None else failure.retry_after_s
                if time.monotonic() + wait_s >= deadline:
                    raise
                self._wait(wait_s, deadline, canceled)
        raise AssertionError

    def _wait(self, seconds: float, deadline: float, canceled: threading.Event) -> None:
        if time.monotonic() + seconds >= deadline:
            raise ModelFailure("busy", f"The server wants no request for another {seconds:.0f} s.")
        if canceled.wait(seconds):
            raise ModelFailure("canceled", "The session has moved on.")

    def _adapt_parameters(self, failure: ModelFailure) -> bool:
        """Leave out a parameter that the server or the model does not accept; return whether one was changed."""
        if failure.problem != "refused":
            return False
        text = str(failure)
        if self._takes_system and re.search(
            r"\bsystem\b.*(role|support|message)|role.*\bsystem\b", text, re.IGNORECASE
        ):
            self._takes_system = False
            return True
        if "stream" in text.lower() and "stream" not in self._parameters:
            self._parameters["stream"] = True
            return True
        if "max_tokens" in text and "max_tokens" in self._parameters:
            self._parameters["max_completion_tokens"] = self._parameters.pop("max_tokens")
            return True
        named = [name for name in ("temperature", "reasoning_effort") if name in text] or ["reasoning_effort"]
        sent = [name for name in named if name in self._parameters]
        for name in sent:
            self._parameters.pop(name, None)  # another thread may have done so
        return bool(sent)

    def _post(self, messages: Sequence[Message], deadline: float, has_more_tokens: bool) -> Reply:
        parameters = dict(self._parameters)
        for name in ("max_tokens", "max_completion_tokens") if has_more_tokens else ():
            if name in parameters:
                parameters[name] *= MORE_TOKENS
        sent = list(messages)
        if not self._takes_system and sent[0]["role"] == "system":
            sent[:2] = [{"role": "user", "content": f"{sent[0]['content']}\n\n{sent[1]['content']}"}]
        body = json.dumps({"model": self._model, "messages": sent, **parameters})
        return self._decode(self._send("POST", self._url, body, deadline))

    def _send(self, method: str, url: str, body: str | None, deadline: float) -> bytes:
        httpx = self._httpx
        left = deadline - time.monotonic()
        if left <= 0:
            raise ModelFailure("timeout", "There was no time left for another request.")
        headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = bytearray()
        cutter = _ConnectionCutter(left)
        try:
            request = self._client.build_request(
                method, url, content=body, headers=headers, timeout=left, extensions={"trace": cutter.trace}
            )
            with cutter, closing(self._client.send(request, stream=True)) as response:
                for part in response.iter_raw():
                    data += part
                    if len(data) > MAX_REPLY_BYTES:
                        raise ModelFailure("too_long", f"The reply has more than {MAX_REPLY_BYTES:,} bytes.")
        except httpx.TimeoutException:
            raise ModelFailure("timeout", "The server did not reply in time.") from None
        except httpx.TransportError as error:
            if not cutter.is_cut:
                text = self.mask(str(error) or type(error).__name__)
                problem: Problem = "unreachable" if isinstance(error, httpx.ConnectError) else "connection"
                raise ModelFailure(problem, f"The connection to {url} failed: {text}.") from None
        if cutter.is_cut:
            raise ModelFailure("timeout", "The reply was not complete in time.")
        if response.status_code != 200:
            raise self._status_error(response.status_code, bytes(data), response.headers.get("retry-after"))
        return bytes(data)

    def _status_error(self, status: int, data: bytes, retry_after: str | None) -> ModelFailure:
        problem = _STATUS_PROBLEMS.get(status, "server" if status >= 500 else "refused")
        text = self._error_text(data)
        return ModelFailure(
            problem, f"The server replied with status {status}: {text}.", _parse_retry_after(retry_after)
        )

    def _decode(self, data: bytes) -> Reply:
        try:
            body = _join_events(data) if data.lstrip()[:5] in (b"data:", b"event") else json.loads(data)
            choice = body["choices"][0]
            message = choice["message"]
            calls = message.get("tool_calls") or []
            arguments = calls[0]["function"]["arguments"] if calls else None
            usage = body.get("usage") or {}
            return Reply(
                text=self.mask(_text(message.get("content"))),
                thought=self.mask(_text(message.get("reasoning_content") or message.get("reasoning"))),
                tool_arguments=None if arguments is None else self.mask(_text(arguments)),
                is_cut_off=choice.get("finish_reason") == "length",
                input_tokens=_token_count(usage.get("prompt_tokens")),
                output_tokens=_token_count(usage.get("completion_tokens")),
            )
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            text = self._error_text(data)
            raise ModelFailure("malformed", f"The reply is not a chat completion: {text}.") from None

    def _error_text(self, data: bytes) -> str:
        """Return the message in an error's JSON, or else its beginning."""
        text = data.decode("utf-8", "replace")
        try:
            body = json.loads(data)
            error = body.get("error") or body.get("message") or body.get("detail")
            text = str(error.get("message") or error) if isinstance(error, dict) else str(error or text)
        except (ValueError, AttributeError, RecursionError):
            pass
        return " ".join(self.mask(text).split())[:MAX_ERROR_LENGTH].rstrip(".") or "an empty body"


def _join_events(data: bytes) -> dict[str, Any]:
    """Return the parts of a reply that was streamed as the one that it would have been."""
    message: dict[str, Any] = {}
    joined: dict[str, Any] = {"choices": [{"message": message}]}
    for event in _EVENT.findall(data):
        if event.strip() == b"[DONE]":
            break
        part = json.loads(event)
        joined["usage"] = part.get("usage") or joined.get("usage")
        for choice in part.get("choices", ())[:1]:
            joined["choices"][0]["finish_reason"] = choice.get("finish_reason")
            delta = choice.get("delta") or choice.get("message") or {}
            for name in ("content", "reasoning_content", "reasoning"):
                message[name] = message.get(name, "") + _text(delta.get(name))
            for call in delta.get("tool_calls") or ():
                function = message.setdefault("tool_calls", [{"function": {"arguments": ""}}])[0]["function"]
                function["arguments"] += _text((call.get("function") or {}).get("arguments"))
    return joined


def _text(value: Any) -> str:
    """A content is text, null, or a list of parts, each with a text."""
    if isinstance(value, list):
        return "".join(str(part.get("text") or "") for part in value if isinstance(part, dict))
    if isinstance(value, dict):
        return json.dumps(value)
    return "" if value is None else str(value)


def _token_count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None


def _parse_retry_after(text: str | None) -> float | None:
    """Seconds, or a date."""
    if text is None:
        return None
    try:
        return min(max(0.0, float(text)), 1e9)
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
