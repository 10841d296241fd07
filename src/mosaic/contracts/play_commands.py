"""The commands of a play session, which the daemon appends to its inbox as they come from a window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from mosaic.contracts import commands
from mosaic.contracts.errors import BadInput, unknown_name_error
from mosaic.contracts.model import Contract, parse_contract
from mosaic.contracts.payload import Seed
from mosaic.contracts.play import MAX_RATE_HZ

MAX_COMMAND_BYTES = 4096
KeyName = Annotated[str, Field(min_length=1, max_length=20)]
AgentName = Annotated[str, Field(max_length=100)]


class SessionCommand(Contract):
    kind: ClassVar[str]


class Keys(SessionCommand):
    """The state of the keyboard. A line that is lost is made up for by the next."""

    kind: ClassVar[str] = "keys"
    down: tuple[KeyName, ...] = Field(default=(), max_length=16)
    """The keys that are held."""
    pressed: tuple[KeyName, ...] = Field(default=(), max_length=16)
    """Those pressed since the last line, in order, released or not."""


class Act(SessionCommand):
    """One action of a human, as from a button."""

    kind: ClassVar[str] = "act"
    action: int | tuple[float, ...]
    agent: AgentName | None = None
    """None: the one whose turn it is."""


class TakeOver(SessionCommand):
    """A human acts instead of the standby actor."""

    kind: ClassVar[str] = "take_over"
    agent: AgentName | None = None


class HandBack(SessionCommand):
    """The standby actor acts instead of the human."""

    kind: ClassVar[str] = "hand_back"
    agent: AgentName | None = None


class Pause(SessionCommand):
    kind: ClassVar[str] = commands.PAUSE
    by_signal: Literal[False] = False


class Resume(SessionCommand):
    kind: ClassVar[str] = commands.RESUME
    by_signal: Literal[False] = False


class Step(SessionCommand):
    """One step of a paused session."""

    kind: ClassVar[str] = "step"


class Reset(SessionCommand):
    """Another episode."""

    kind: ClassVar[str] = "reset"
    seed: Seed | None = None
    """None: the next one."""


class SetRate(SessionCommand):
    kind: ClassVar[str] = "rate"
    rate_hz: Annotated[float, Field(gt=0, le=MAX_RATE_HZ)] | None = None
    """None: as fast as possible."""


COMMANDS: dict[str, type[SessionCommand]] = {
    command.kind: command for command in (Keys, Act, TakeOver, HandBack, Pause, Resume, Step, Reset, SetRate)
}


def parse_command(kind: str, fields: Mapping[str, Any]) -> SessionCommand:
    if kind not in COMMANDS:
        raise unknown_name_error("command of a session", kind, COMMANDS)
    return parse_contract(COMMANDS[kind], dict(fields), f"The command {kind!r} was")


def parse_inbox_line(body: Mapping[str, Any]) -> SessionCommand | None:
    """Return the command in a line of an inbox; None where it is not one of a session, or damaged."""
    fields = {name: value for name, value in body.items() if name not in ("seq", "at", "kind")}
    try:
        return parse_command(str(body.get("kind")), fields)
    except BadInput:
        return None
