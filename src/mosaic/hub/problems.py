"""What the Hub and the network answer when they do not do as they are asked, in one sentence each."""

from __future__ import annotations

from mosaic.contracts.errors import BadInput, MosaicError

LOGIN_HINT = "Set HF_TOKEN to a token with write access, or log in with: hf auth login"


def explain_hub_error(error: BaseException, repo: str, endpoint: str, is_push: bool) -> MosaicError | None:
    """None for what is no answer of the Hub's: a bug, which shows its traceback."""
    for one in _cause_chain(error):
        status = getattr(getattr(one, "response", None), "status_code", None)
        if isinstance(status, int):
            return _error_for_status(status, _server_message(one), repo, endpoint, is_push)
    for one in _cause_chain(error):
        if type(one).__name__ in ("HFValidationError", "HfUriError"):
            return BadInput(f"{repo!r} is no name of a repository; expected OWNER/NAME.")
        if type(one).__name__ == "OfflineModeIsEnabled":
            return MosaicError("HF_HUB_OFFLINE is set, so the Hub is not asked. Unset it and try again.")
        module = type(one).__module__.partition(".")[0]
        if module in ("httpx", "httpx2", "requests", "urllib3", "hf_xet") or isinstance(one, ConnectionError):
            why = str(one).strip().splitlines()
            words = f" ({why[0][:160]})" if why else ""
            return MosaicError(
                f"{endpoint} cannot be reached{words}. Check the network and HF_ENDPOINT, and try again."
            )
    for one in _cause_chain(error):
        if isinstance(one, OSError):
            return MosaicError(f"{one.strerror or one}.")
        if isinstance(one, (ValueError, RuntimeError)):
            return MosaicError(f"{endpoint} refused what was sent: {_first_line(one)}")
    return None


def _error_for_status(status: int, message: str, repo: str, endpoint: str, is_push: bool) -> MosaicError:
    because = f" ({message})" if message else ""
    if status == 401:
        return BadInput(f"{endpoint} does not accept the token, or there is none (401){because}. {LOGIN_HINT}")
    if status == 403:
        return BadInput(f"The token may not {'write to' if is_push else 'read'} {repo} (403){because}. {LOGIN_HINT}")
    if status == 404:
        return BadInput(f"{endpoint} has no model {repo} in that revision, or the token may not see it (404).")
    if status in (409, 412):
        return MosaicError(f"{repo} was changed by somebody else at the same time ({status}){because}. Try again.")
    if status == 429:
        return MosaicError(f"{endpoint} asks to wait: too many requests (429). Try again in some minutes.")
    if status >= 500:
        return MosaicError(f"{endpoint} has a problem of its own ({status}){because}. Try again later.")
    return MosaicError(f"{endpoint} refused {repo} ({status}){because}.")


def _server_message(error: BaseException) -> str:
    """The server's own words, where it has any."""
    said = getattr(error, "server_message", None)
    return " ".join(str(said).split())[:200].rstrip(".") if said else ""


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _cause_chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at not in found:
        found.append(at)
        at = at.__cause__ or at.__context__
    return found
