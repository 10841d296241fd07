"""Access to the Hub with a time limit, and its errors in one sentence."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mosaic.contracts.errors import BadInput, MissingExtra, MosaicError
from mosaic.secrets import find_secret

if TYPE_CHECKING:
    from huggingface_hub import HfApi

TIMEOUT_S = 60.0
"""How long the Hub may take to answer a request."""
_LOGIN_HINT = "Set HF_TOKEN to a token with write access, or log in with: hf auth login"
_NETWORK_MODULES = ("httpx", "httpx2", "requests", "urllib3", "hf_xet")
_REPO_PATTERN = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*", re.ASCII)


OnProgress = Callable[[int, int], None]
"""Takes the bytes transferred so far and their total."""


@contextmanager
def hub_session(repo: str, timeout_s: float, is_push: bool = False) -> Iterator[HfApi]:
    """Yields the Hub's API, and turns its errors into a MosaicError."""
    if not _REPO_PATTERN.fullmatch(repo):
        raise BadInput(f"{repo!r} is not a valid repository name; expected OWNER/NAME.")
    for variable in ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_HUB_DISABLE_TELEMETRY"):
        os.environ.setdefault(variable, "1")  # read when the library is imported
    try:
        from huggingface_hub import HfApi, close_session, get_session
        from huggingface_hub.utils.logging import set_verbosity_error
    except ImportError as error:
        raise MissingExtra(f"The Hugging Face Hub needs {error.name}: pip install 'mosaic-rl[hub]'.") from None
    set_verbosity_error()  # type: ignore[no-untyped-call]
    # Without a token of ours, the library looks where `hf auth login` stored one.
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=find_secret("hf_token"), library_name="mosaic-rl")
    _limit_time(get_session(), timeout_s)
    try:
        yield api
    except MosaicError:
        raise
    except Exception as error:
        problem = explain_hub_error(error, repo, api.endpoint, timeout_s, is_push)
        if problem is None:
            raise
        raise problem from error
    finally:
        close_session()


def _limit_time(session: Any, timeout_s: float) -> None:
    """Limits every request: by default the library waits without a limit, or tries again several times."""
    unanswered_since: float | None = None

    def on_request(request: Any) -> None:
        nonlocal unanswered_since
        if unanswered_since is not None and time.monotonic() - unanswered_since >= timeout_s:
            raise TimeoutError  # unlike the library's own, which makes it try again
        unanswered_since = unanswered_since or time.monotonic()
        request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), timeout_s)

    def on_response(_: Any) -> None:
        nonlocal unanswered_since
        unanswered_since = None

    hooks = session.event_hooks
    session.event_hooks = {"request": [*hooks["request"], on_request], "response": [*hooks["response"], on_response]}


def explain_hub_error(
    error: BaseException, repo: str, endpoint: str, timeout_s: float, is_push: bool
) -> MosaicError | None:
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
        if isinstance(one, TimeoutError) or kind.__name__.endswith("Timeout"):
            return MosaicError(f"{endpoint} did not answer within {timeout_s:.0f} seconds. Try again later.")
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
