"""Identifies a process beyond its number, which may be reused. Standard library only."""

from __future__ import annotations

from typing import TypedDict


class ProcessIdentity(TypedDict):
    pid: int
    start: str
    """Start time as reported by the kernel, in its own unit; empty where it is unknown."""
    boot_id: str
    """Which boot of the machine."""
