"""The launch spec that the daemon writes to a keeper's stdin."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, TypedDict, cast


class Limits(TypedDict):
    seconds: float | None
    """Running time, without pauses."""
    memory_mb: float | None
    """Of the whole process tree, without shared pages."""


class Grace(TypedDict):
    stop: float
    """Seconds between asking the worker to stop and the first signal to its whole tree."""
    term: float
    """Seconds between that SIGTERM and SIGKILL."""


class _RequiredKeys(TypedDict):
    folder: str
    """The run folder."""
    argv: list[str]
    cwd: str
    env: dict[str, str]
    """The worker's complete environment; nothing is inherited."""
    log_name: str
    """`cleanrl` gives `logs/cleanrl.stdout.log` and `logs/cleanrl.stderr.log`."""
    limits: Limits
    inbox_offset: int
    """Where this attempt starts in the inbox: earlier commands were meant for an earlier attempt."""
    grace_s: Grace


class SidecarSpec(TypedDict):
    """A program that runs alongside the run without being part of it: not waited for, not sampled, not limited."""

    argv: list[str]
    cwd: str
    env: dict[str, str]
    log_name: str
    """`sidecar` gives `logs/sidecar.log`."""


class LaunchSpec(_RequiredKeys, total=False):
    reads_console: bool
    """Whether to parse metrics from stdout while no process of the run writes a journal."""
    sidecar: SidecarSpec


class LaunchMalformed(ValueError):
    """The launch spec does not have the expected form."""


def keeper_command() -> list[str]:
    """Return the argv that starts a keeper, which then reads a launch spec from its stdin."""
    return [sys.executable, "-I", "-S", str(Path(__file__).resolve().with_name("__main__.py"))]


def parse_launch(data: bytes) -> LaunchSpec:
    try:
        launch = json.loads(data)
    except ValueError as error:
        raise LaunchMalformed(f"The launch spec is not valid JSON: {error}.") from None
    _expect_keys(launch, LaunchSpec, "The launch spec")
    _expect_keys(launch["limits"], Limits, "limits")
    _expect_keys(launch["grace_s"], Grace, "grace_s")
    _expect(_is_text(launch["folder"]) and launch["folder"], "folder", "non-empty text", launch["folder"])
    _expect_program(launch, "")
    if "sidecar" in launch:
        _expect_keys(launch["sidecar"], SidecarSpec, "sidecar")
        _expect_program(launch["sidecar"], "sidecar.")
    offset = launch["inbox_offset"]
    _expect(isinstance(offset, int) and offset >= 0, "inbox_offset", "a number of bytes", offset)
    for name, limit in launch["limits"].items():
        _expect(limit is None or (_is_number(limit) and limit > 0), f"limits.{name}", "a number above 0 or null", limit)
    for name, grace in launch["grace_s"].items():
        _expect(_is_number(grace) and grace >= 0, f"grace_s.{name}", "a number of seconds", grace)
    return cast(LaunchSpec, launch)


def _expect_program(data: dict[str, Any], prefix: str) -> None:
    for key in ("cwd", "log_name"):
        _expect(_is_text(data[key]) and data[key], prefix + key, "non-empty text", data[key])
    argv, env = data["argv"], data["env"]
    _expect(isinstance(argv, list) and argv and all(map(_is_text, argv)), f"{prefix}argv", "a list of strings", argv)
    is_env = isinstance(env, dict) and all(_is_text(value) for value in env.values())
    # The value is not shown: an environment holds secrets.
    _expect(is_env, f"{prefix}env", "an object of strings", type(env).__name__)


def _expect_keys(data: Any, kind: type, what: str) -> None:
    if not isinstance(data, dict):
        raise LaunchMalformed(f"{what}: expected a JSON object, got {type(data).__name__}.")
    required: frozenset[str] = kind.__required_keys__  # type: ignore[attr-defined]
    known = required | kind.__optional_keys__  # type: ignore[attr-defined]
    if required - set(data) or set(data) - known:
        missing = ", ".join(sorted(required - set(data))) or "nothing"
        unknown = ", ".join(sorted(set(data) - known)) or "nothing"
        raise LaunchMalformed(f"{what}: missing: {missing}; unknown: {unknown}.")


def _expect(is_valid: object, key: str, expected: str, given: object) -> None:
    if not is_valid:
        raise LaunchMalformed(f"Launch spec, {key}: expected {expected}, got {str(given)[:80]!r}.")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
