"""Suppresses known, harmless warnings of libraries that would look like errors in a log."""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from collections.abc import Callable

_HARMLESS_WARNINGS = (
    r".*The environment \S+ is out of date",  # an older version was requested by name
    r".*Using the latest versioned environment",
    r".*Overriding environment \S+ already in registry",
    r".*Box (low|high)'s precision lowered",
    r".*builtin type \w+ has no __module__ attribute",  # Box2D's bindings
    r".*pkg_resources is deprecated",  # pygame
    r".*system is avx2 capable but pygame",
)
_HARMLESS_MUJOCO = re.compile(r"compiler attribute '\w+' is deprecated")


def silence_warnings() -> None:
    for message in _HARMLESS_WARNINGS:
        warnings.filterwarnings("ignore", message=message)


def silence_mujoco() -> None:
    """Replace MuJoCo's warning handler, which would also write MUJOCO_LOG.TXT to the current folder."""
    mujoco = importlib.import_module("mujoco")
    set_handler: Callable[[Callable[[str], None]], None] | None = getattr(mujoco, "set_mju_user_warning", None)
    if set_handler is not None:
        set_handler(_show_mujoco)


def _show_mujoco(text: str) -> None:
    if not _HARMLESS_MUJOCO.match(text):
        print(f"MuJoCo: {text}", file=sys.stderr)
