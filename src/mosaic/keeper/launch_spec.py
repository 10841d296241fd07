"""The launch spec that the daemon writes to a keeper's stdin."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast


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
    save: NotRequired[float]
    """Seconds after the stop for which the signals wait while the worker writes a checkpoint; 0 where left out."""


class ProgramSpec(TypedDict):
    argv: list[str]
    cwd: str
    env: dict[str, str]
    """Its complete environment; nothing is inherited. The keeper adds its mark to the worker's."""
    log_name: str
    """`cleanrl` gives `logs/cleanrl.stdout.log` and `logs/cleanrl.stderr.log`; a sidecar has one log, `<name>.log`."""


class LaunchSpec(ProgramSpec):
    folder: str
    """The run folder."""
    limits: Limits
    inbox_offset: int
    """Where this attempt starts in the inbox: earlier commands were meant for an earlier attempt."""
    grace_s: Grace
    reads_console: NotRequired[bool]
    """Whether to parse metrics from stdout while no process of the run writes a journal."""
    source_folders: NotRequired[list[str]]
    """Where code of the user's is: the commits of its repositories are recorded."""
    umask: NotRequired[int]
    """Of a user's program, which may write outside of the run folder; without it, files are private."""
    is_interrupted_first: NotRequired[bool]
    """Whether a stop is also sent as SIGINT, because the program does not read the inbox."""
    lifeline_fd: NotRequired[int]
    """The reading end of a pipe whose writing end is held by a process that vouches for the run, such as the actor of a
    cluster. When that process has ended, however, the worker is stopped after `lifeline_s`."""
    lifeline_s: NotRequired[float]
    """Seconds between the end of that process and the stop; needed with `lifeline_fd`."""
    is_signalled_by_cluster: NotRequired[bool]
    """Whether a cluster's scheduler signals the processes of the run. SIGUSR2, by which it announces the end of a job
    to the process that vouches for the run, is then ignored by all of them, and a SIGTERM to the keeper counts as the
    loss of that process: the executor knows why it was sent."""
    end_key: NotRequired[str]
    """What the event that ends the attempt contains, so that nobody else can write that event."""
    sidecar: NotRequired[ProgramSpec]
    """A program that runs alongside the run without being part of it: not waited for, not sampled, not limited."""


class LaunchMalformed(ValueError):
    """The launch spec does not have the expected form."""


DETACH_OPTION = "--detach"


def keeper_command() -> list[str]:
    """Return the argv that starts a keeper, which then reads a launch spec from its stdin."""
    return [sys.executable, "-I", "-S", str(Path(__file__).resolve().with_name("__main__.py"))]


def detached_keeper_command() -> list[str]:
    """Return the argv that starts a keeper that is not a child of the caller, and prints its process id.

    For callers whose children are killed with them, such as the actors of Ray.
    """
    return [*keeper_command(), DETACH_OPTION]


def parse_launch(data: bytes) -> LaunchSpec:
    try:
        launch = json.loads(data)
    except ValueError as error:
        raise LaunchMalformed(f"The launch spec is not valid JSON: {error}.") from None
    _check(launch, LaunchSpec, "")
    if ("lifeline_fd" in launch) != ("lifeline_s" in launch):
        raise LaunchMalformed("The launch spec has one of lifeline_fd and lifeline_s; expected both or none.")
    return cast(LaunchSpec, launch)


def _check(data: Any, kind: type, section: str) -> None:
    what = section or "The launch spec"
    if not isinstance(data, dict):
        raise LaunchMalformed(f"{what}: expected a JSON object, got {type(data).__name__}.")
    required: frozenset[str] = kind.__required_keys__  # type: ignore[attr-defined]
    known = required | kind.__optional_keys__  # type: ignore[attr-defined]
    if required - set(data) or set(data) - known:
        missing = ", ".join(sorted(required - set(data))) or "nothing"
        unknown = ", ".join(sorted(set(data) - known)) or "nothing"
        raise LaunchMalformed(f"{what}: missing: {missing}; unknown: {unknown}.")
    for key, value in data.items():
        name = f"{section}.{key}" if section else key
        if key in _SECTIONS:
            _check(value, _SECTIONS[key], name)
            continue
        is_valid, expected = _RULES[key]
        if not is_valid(value):
            # An environment is not shown: it holds secrets.
            given = type(value).__name__ if key == "env" else str(value)[:80]
            raise LaunchMalformed(f"Launch spec, {name}: expected {expected}, got {given!r}.")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_SECTIONS = {"limits": Limits, "grace_s": Grace, "sidecar": ProgramSpec}
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("folder", "cwd", "log_name"), (lambda value: _is_text(value) and value != "", "non-empty text")),
    "source_folders": (
        lambda value: isinstance(value, list) and all(map(_is_text, value)),
        "a list of folders",
    ),
    "argv": (lambda value: isinstance(value, list) and value != [] and all(map(_is_text, value)), "a list of strings"),
    "env": (lambda value: isinstance(value, dict) and all(map(_is_text, value.values())), "an object of strings"),
    "end_key": (_is_text, "text"),
    "umask": (lambda value: isinstance(value, int) and 0 <= value <= 0o777, "a umask"),
    "inbox_offset": (lambda value: isinstance(value, int) and value >= 0, "a number of bytes"),
    "lifeline_fd": (lambda value: isinstance(value, int) and value > 2, "a file descriptor"),
    "lifeline_s": (lambda value: _is_number(value) and value >= 0, "a number of seconds"),
    **dict.fromkeys(
        ("reads_console", "is_interrupted_first", "is_signalled_by_cluster"),
        (lambda value: isinstance(value, bool), "true or false"),
    ),
    **dict.fromkeys(
        Limits.__annotations__,
        (lambda value: value is None or (_is_number(value) and value > 0), "a number above 0 or null"),
    ),
    **dict.fromkeys(("stop", "term", "save"), (lambda value: _is_number(value) and value >= 0, "a number of seconds")),
}
