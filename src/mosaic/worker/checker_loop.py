"""The loop of a worker's checker: a long-lived process that answers the daemon's questions.

It reads requests as JSON lines from stdin and replies to each with one JSON line on stdout:
`{"id": 1, "ask": "check", "config": {…}}` → `{"id": 1, "ok": true, "summary": {…}}` or
`{"id": 1, "ok": false, "error": "UnknownName", "message": "…"}`. It ends when stdin does.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from mosaic.contracts.errors import BadInput, MosaicError, unknown_name_error
from mosaic.contracts.folder import RUN_DIR_VARIABLE
from mosaic.contracts.model import parse_contract
from mosaic.contracts.payload import AnyPath
from mosaic.contracts.views import View

Reply = dict[str, Any]
"""The fields of a reply, about to be encoded."""


class CheckerRequest(View):
    """A decoded request. What it needs besides `ask` depends on what it asks."""

    ask: str
    config: Any = None
    path: AnyPath | None = None
    into: AnyPath | None = None
    family: str | None = None
    cleanrl: AnyPath | None = None

    def require(self, key: str) -> str:
        value: str | None = getattr(self, key)
        if not value:
            raise BadInput(f"{key}: missing.")
        return value


Handlers = Mapping[str, Callable[[CheckerRequest], Reply]]
"""By what is asked."""


def serve(handlers: Handlers, warm_up: Callable[[], None] | None = None) -> int:
    """Reply until stdin is closed. What libraries print on stdout goes to stderr instead.

    `warm_up` imports what the first request would have to wait for.
    """
    replies = os.dup(1)
    os.dup2(2, 1)
    os.environ.pop(RUN_DIR_VARIABLE, None)
    try:
        if warm_up is not None:
            warm_up()
    except ModuleNotFoundError:
        os.dup2(replies, 1)  # the caller replies what is missing
        raise
    for line in sys.stdin.buffer:
        if line.strip():
            try:
                _write(replies, _encode_line(answer_line(line, handlers)))
            except BrokenPipeError:
                break
    os.close(replies)
    return 0


def refuse_requests(worker: str, missing: ImportError | MosaicError, extras: str) -> int:
    """Reply to every request that a package is missing, until stdin is closed."""
    message = str(missing)
    if isinstance(missing, ImportError):
        message = f"The worker {worker!r} needs {missing.name}, which is not installed: pip install '{extras}'"
    for line in sys.stdin:
        reply = {"id": json.loads(line)["id"], "ok": False, "error": "MissingExtra", "message": message}
        print(json.dumps(reply), flush=True)
    return 0


def answer_line(line: bytes, handlers: Handlers) -> Reply:
    """Return the reply to one line, whatever it contains."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return {"id": None, "ok": False, "error": "BadInput", "message": "A request must be one line of JSON."}
    if not isinstance(data, dict):
        return {"id": None, "ok": False, "error": "BadInput", "message": "A request must be a JSON object."}
    request_id = data.get("id")
    handlers = {**handlers, "ping": lambda _: {"pid": os.getpid()}}
    try:
        request = parse_contract(CheckerRequest, data, "The request was")
        if request.ask not in handlers:
            raise unknown_name_error("request", request.ask, handlers)
        return {"id": request_id, "ok": True, **handlers[request.ask](request)}
    except MosaicError as error:
        refusal = {"error": type(error).__name__, "message": str(error), "problems": error.problems}
        return {"id": request_id, "ok": False, **refusal}
    except Exception as error:
        # A third-party environment may raise anything; the next request must still get its reply.
        traceback.print_exc()
        cause = f"{type(error).__name__}: {error}"
        return {"id": request_id, "ok": False, "error": "MosaicError", "message": f"The check itself failed: {cause}"}


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _encode_line(reply: Reply) -> bytes:
    """Encode a reply as one line of strict JSON: a number that is not finite becomes null."""
    try:
        return json.dumps(reply, allow_nan=False, default=str).encode() + b"\n"
    except ValueError:
        return json.dumps(_replace_non_finite(reply), default=str).encode() + b"\n"


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace_non_finite(item) for item in value]
    return None if isinstance(value, float) and (value != value or abs(value) == float("inf")) else value
