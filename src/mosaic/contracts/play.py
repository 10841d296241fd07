"""The config of a play session: an environment, and who acts in it."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError, model_validator

from mosaic.contracts import commands
from mosaic.contracts.errors import BadInput, FieldProblem, MosaicError, unknown_name_error
from mosaic.contracts.model import Contract, RunId, parse_contract
from mosaic.contracts.payload import AnyPath, EnvId, EnvKwargs, SafeName, Seed, Text, WrapperText
from mosaic.contracts.views import ActorTotals, PlayedEpisode, ReturnStatistics, View

PLAY_WORKER = "play"
HUMAN = "human"
BASE_URL_VARIABLE = "OPENAI_BASE_URL"
"""Where the actor `llm` finds its model, unless its options say so."""
LLM_KEY_NAME = "openai_api_key"
"""The secret that the actor `llm` sends to its server."""
MAX_EPISODES = 100_000
MAX_RATE_HZ = 240.0
ANY_AGENT = "*"
"""The key of the actor of all agents that have none of their own."""
FIRST_AGENT = "1"
"""The key of the first agent, whatever its name is."""

_HARMLESS_ACTORS = (HUMAN, "random", "policy")
"""Kinds of actors that neither execute code nor talk to anyone."""


class ActorChoice(Contract):
    """Who acts: `random`, `human`, `policy:RUN`, `llm:MODEL`, `bdi:FILE`, `script:FILE`, or that of a plug-in."""

    kind: SafeName
    target: Text = ""
    """What follows the colon: a run, a model, a file."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Settings of this kind of actor; it checks them."""

    @classmethod
    def parse(cls, text: str, options: Mapping[str, Any] | None = None) -> ActorChoice:
        kind, _, target = text.strip().partition(":")
        if not kind:
            raise BadInput(f"{text!r} does not name an actor; expected something like random or policy:RUN.")
        return parse_contract(cls, {"kind": kind, "target": target, "options": dict(options or {})}, "The actor was")

    def __str__(self) -> str:
        return f"{self.kind}:{self.target}" if self.target else self.kind

    @property
    def risk(self) -> str | None:
        """What an actor of someone else would do with this machine; None where it is harmless."""
        if self.kind == "llm":
            return f"send your API key to {self.options.get('base_url', 'the server of a model')} (actor {self})"
        return None if self.kind in _HARMLESS_ACTORS else f"run the actor {self}"


@contextmanager
def problems_of_actor(agent: str, actors: Container[str]) -> Iterator[None]:
    """Attribute an error of this block to the setting that names this agent's actor, or that has its options."""
    setting = "opponent" if agent == ANY_AGENT and FIRST_AGENT in actors else "actor"
    try:
        yield
    except MosaicError as error:
        is_option = any(problem.path == "options" for problem in error.problems)
        error.problems = (FieldProblem(f"{setting}_options" if is_option else setting, str(error)),)
        raise


class PlayConfig(Contract):
    env_id: EnvId
    env_kwargs: EnvKwargs = Field(default_factory=dict)
    """Passed to the environment."""
    wrappers: tuple[WrapperText, ...] = ()
    """Put around the environment: those with which its policies were trained."""
    actors: dict[str, ActorChoice] = Field(default_factory=lambda: {ANY_AGENT: ActorChoice(kind="random")})
    """By agent; `*` for all others. An environment without named agents has one, `*`."""
    standby: ActorChoice | None = None
    """Who acts instead of a human that has handed over, or every other `alternate_steps`."""
    seed: Seed = 1
    """Of the first episode; each further one has the next seed."""
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1, max_length=MAX_EPISODES)] | None = None
    """Of all episodes, where they are not consecutive ones from `seed`; then there are as many episodes."""
    episodes: Annotated[int, Field(ge=1, le=MAX_EPISODES)] | None = None
    """None: until stopped."""
    max_steps: Annotated[int, Field(ge=1)] | None = None
    """Of one episode, where the environment has no lower limit."""
    alternate_steps: Annotated[int, Field(ge=1)] | None = None
    """The actor and the standby act in turns of this many steps."""
    rate_hz: Annotated[float, Field(gt=0, le=MAX_RATE_HZ)] | None = None
    """Steps per second; None: as fast as possible, with a human the environment's own rate."""
    pacing: Literal["automatic", "turns", "real_time"] = "automatic"
    """Whether the environment waits for a human's key (`turns`), or continues without one."""
    record: bool = True
    compare_frames: bool = False
    """Whether a hash of the rendered frame is recorded with that of the observation, for a replay to compare."""
    pauses_on_failure: bool = False
    """Whether an actor that lastingly fails, as without a server, pauses the session instead of ending it as failed."""
    is_paused: bool = False
    """Whether it waits for `resume` or `step` before the first step."""
    run_id: RunId | None = None
    policy_paths: dict[str, AnyPath] = Field(default_factory=dict)
    """By the target of an actor `policy`: where its checkpoint is."""

    @model_validator(mode="after")
    def _check_actors(self) -> Self:
        if not self.actors:
            raise ValueError("no actor is given")
        if self.alternate_steps is not None and self.standby is None:
            raise ValueError("alternate_steps needs a standby, which acts in every other turn")
        if self.standby is not None and self.alternate_steps is None and not self.has_human:
            raise ValueError("a standby needs a human who hands over to it, or alternate_steps")
        if self.seeds is not None and self.episodes not in (None, len(self.seeds)):
            raise ValueError(f"episodes: {self.episodes} does not match the {len(self.seeds)} seeds")
        return self

    @property
    def episode_count(self) -> int | None:
        """None: until stopped."""
        return self.episodes if self.seeds is None else len(self.seeds)

    def assign_actors(self, agents: Sequence[str]) -> dict[str, ActorChoice]:
        """Return who acts for each agent of the environment."""
        known = {ANY_AGENT, FIRST_AGENT, *agents}
        if unknown := sorted(set(self.actors) - known):
            names = ", ".join(agents)
            raise BadInput(f"actors: {self.env_id} has no agent {unknown[0]!r}; its agents are {names}.")
        chosen = {agent: self.actors.get(agent) or self.actors.get(ANY_AGENT) for agent in agents}
        chosen[agents[0]] = self.actors.get(agents[0]) or self.actors.get(FIRST_AGENT) or chosen[agents[0]]
        missing = [agent for agent, choice in chosen.items() if choice is None]
        if missing:
            raise BadInput(f"actors: no actor is given for {missing[0]!r}.")
        return {agent: choice for agent, choice in chosen.items() if choice is not None}

    @property
    def has_human(self) -> bool:
        return any(actor.kind == HUMAN for actor in (*self.actors.values(), self.standby) if actor is not None)


def list_risks(config: Mapping[str, Any]) -> list[str]:
    """Return what the actors of a config would do that needs trust; none where it is not valid, and so refused."""
    try:
        parsed = PlayConfig.model_validate(dict(config))
    except ValidationError:
        return []
    choices = [*parsed.actors.values(), *([] if parsed.standby is None else [parsed.standby])]
    return [choice.risk for choice in choices if choice.risk is not None]


# --- The commands of a play session, which the daemon appends to its inbox as they come from a window.


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


# --- The result of a play session: every complete episode, and statistics by agent.


class AgentSummary(ReturnStatistics):
    """The returns of one agent."""

    actor: str
    """Who acted, such as `policy:RUN`."""
    steps_by_actor: dict[str, int] = {}
    """In how many steps each acted, where a human or a standby took turns with it."""
    totals: dict[str, ActorTotals] = {}
    """By actor, what it counted, such as fallbacks and tokens."""

    @property
    def who_acted(self) -> str:
        """`policy:RUN`, or of several: `human 301 steps, policy:RUN 569 steps`."""
        shares = [f"{actor} {steps:,} steps" for actor, steps in self.steps_by_actor.items() if steps]
        return ", ".join(shares) if len(shares) > 1 else self.actor


class PlaySummary(View):
    env_id: str
    episodes: tuple[PlayedEpisode, ...]
    agents: dict[str, AgentSummary]
    """By agent, in the order of the environment; an environment without named agents has one, `*`."""
