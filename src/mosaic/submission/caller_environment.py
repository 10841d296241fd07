"""The environment variables that the submitter's own programs run with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mosaic.contracts.errors import NotAllowed
from mosaic.contracts.options import value_at
from mosaic.workers import get_worker


def caller_environment() -> dict[str, str]:
    """Return this process's environment; values that are not valid text are left out."""

    def is_text(word: str) -> bool:
        return not any("\ud800" <= char <= "\udfff" for char in word)

    return {name: value for name, value in os.environ.items() if is_text(name + value)}


def program_environment(payload: Mapping[str, Any]) -> dict[str, str] | None:
    """Return this process's environment if a run's config names a program, which needs one; otherwise None."""
    choice = payload["metadata"]["worker"]
    if choice["config"].get("attached"):
        raise NotAllowed("This run was produced by a program that called mosaic.start_run. Run that program again.")
    keys = get_worker(choice["id"]).programs
    has_program = any(value_at(choice["config"], key) is not None for key in keys)
    return caller_environment() if has_program else None
