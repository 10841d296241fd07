"""The process that talks to the Hub: `python -m mosaic.hub.hub_process`, a request on stdin, JSON lines on stdout.

It is a process of its own because `huggingface_hub` takes long to import and may block without a time limit; this one
exits when the Hub has not answered for too long. The token is passed in the environment.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import TypeAdapter

from mosaic.contracts.errors import BadInput, MissingExtra, MosaicError
from mosaic.hub.description import PullRequest, PushRequest

MIN_BYTES_PER_S = 50_000
"""The slowest connection that a transfer is given time for."""
_LOGIN_HINT = "Set HF_TOKEN to a token with write access, or log in with: hf auth login"
_NETWORK_MODULES = ("httpx", "httpx2", "requests", "urllib3", "hf_xet")


class ReplyWriter:
    """Writes one JSON line per reply, and exits the process when a request to the Hub exceeds its time limit."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self.timeout_s = 60.0
        self.endpoint = ""

    def send(self, kind: str, **fields: Any) -> None:
        with self._lock:
            os.write(self._descriptor, json.dumps({"kind": kind, **fields}).encode() + b"\n")

    def send_progress(self, file: str, done_bytes: int, total_bytes: int) -> None:
        self.send("progress", file=file, done_bytes=done_bytes, total_bytes=total_bytes)

    def send_error(self, error: MosaicError) -> None:
        self.send("failed", error=type(error).__name__, message=str(error))

    @contextmanager
    def time_limit(self, size_bytes: int = 0) -> Iterator[None]:
        limit_s = self.timeout_s + size_bytes / MIN_BYTES_PER_S
        timer = threading.Timer(limit_s, self._abort, [limit_s])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _abort(self, limit_s: float) -> None:
        self.send_error(MosaicError(f"{self.endpoint} did not answer within {limit_s:.0f} seconds. Try again later."))
        os._exit(1)  # the main thread is blocked on a socket


def explain_hub_error(error: BaseException, repo: str, endpoint: str, is_push: bool) -> MosaicError | None:
    """Turns an error of the Hub or the network into one sentence; None for a bug, which shows its traceback."""
    chain = list(_cause_chain(error))
    for one in chain:
        status = getattr(getattr(one, "response", None), "status_code", None)
        if isinstance(status, int):
            server_message = " ".join(str(getattr(one, "server_message", None) or "").split())[:200].rstrip(".")
            return _error_for_status(status, f" ({server_message})" if server_message else "", repo, endpoint, is_push)
    for one in chain:
        kind = type(one)
        if kind.__name__ in ("HFValidationError", "HfUriError"):
            return BadInput(f"{repo!r} is not a valid repository name; expected OWNER/NAME.")
        if kind.__name__ == "OfflineModeIsEnabled":
            return MosaicError("HF_HUB_OFFLINE is set, so the Hub is not contacted. Unset it and try again.")
        if kind.__module__.partition(".")[0] in _NETWORK_MODULES or isinstance(one, ConnectionError):
            return MosaicError(
                f"{endpoint} cannot be reached ({_first_line(one)}). Check the network and HF_ENDPOINT, and try again."
            )
    for one in chain:
        if isinstance(one, OSError):
            return MosaicError(f"{one.strerror or one}.")
        if isinstance(one, (ValueError, RuntimeError)):
            return MosaicError(f"{endpoint} refused the request: {_first_line(one)}")
    return None


def _error_for_status(status: int, details: str, repo: str, endpoint: str, is_push: bool) -> MosaicError:
    verb = "write to" if is_push else "read"
    known = {
        401: BadInput(f"{endpoint} does not accept the token, or there is none (401){details}. {_LOGIN_HINT}"),
        403: BadInput(f"The token may not {verb} {repo} (403){details}. {_LOGIN_HINT}"),
        404: BadInput(f"{endpoint} has no model {repo} in that revision, or the token may not see it (404)."),
        409: MosaicError(f"{repo} was changed by another client at the same time ({status}){details}. Try again."),
        429: MosaicError(f"{endpoint} received too many requests (429). Try again in a few minutes."),
        500: MosaicError(f"{endpoint} has an internal problem ({status}){details}. Try again later."),
    }
    fallback = MosaicError(f"{endpoint} refused {repo} ({status}){details}.")
    return known.get(500 if status > 500 else 409 if status == 412 else status, fallback)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _cause_chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__


def main() -> int:
    replies = ReplyWriter(os.dup(1))
    os.dup2(2, 1)  # what libraries print is not a reply
    request: PushRequest | PullRequest = TypeAdapter(PushRequest | PullRequest).validate_json(sys.stdin.read())
    try:
        try:
            from huggingface_hub import HfApi
        except ImportError as error:
            raise MissingExtra(f"The Hugging Face Hub needs {error.name}: pip install 'mosaic-rl[hub]'.") from None
        from mosaic.hub.pull import pull
        from mosaic.hub.push import push

        api = HfApi(library_name="mosaic-rl")
        replies.timeout_s, replies.endpoint = request.timeout_s, api.endpoint
        is_push = isinstance(request, PushRequest)
        try:
            result = push(api, request, replies) if isinstance(request, PushRequest) else pull(api, request, replies)
        except MosaicError:
            raise
        except Exception as error:
            problem = explain_hub_error(error, request.repo, api.endpoint, is_push)
            if problem is None:
                raise
            raise problem from error
    except MosaicError as error:
        replies.send_error(error)
        return 1
    replies.send("done", result=result.model_dump(mode="json"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
