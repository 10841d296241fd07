"""Who submitted a run: a login name, with the host of a client on another machine (`ann`, `ann@laptop`)."""

from __future__ import annotations

MAX_SUBMITTER_LENGTH = 128


def validate_submitter(text: str) -> str:
    """What the client states; nobody verifies it, so it is shown and searched for, and decides nothing."""
    if not text or len(text) > MAX_SUBMITTER_LENGTH or not text.isprintable() or " " in text:
        raise ValueError(f"expected a login name of at most {MAX_SUBMITTER_LENGTH} characters, without spaces")
    return text
