"""What is played next and by whom, as it is configured: validated, converted to a request, and remembered."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from mosaic.contracts.errors import BadInput
from mosaic.contracts.key_binding import KeyBinding
from mosaic.contracts.play import ANY_AGENT, HUMAN, MAX_EPISODES
from mosaic.contracts.setting_field import SettingField
from mosaic.contracts.views import EnvironmentDetails
from mosaic.window.form_model import FieldTexts, Form, format_object, parse_object, read_object
from mosaic.worker.actor_registry import ActorDescription, discover_actors

DEFAULT_ENVIRONMENT = "FrozenLake-v1"
DEFAULT_KIND = "random"
ENVIRONMENT_FIELDS = (
    SettingField("env_id", "str", None),
    SettingField("env_kwargs", "mapping", None, is_optional=True),
)
TURN_FIELD = SettingField("alternate_steps", "int", 20, "The human and the actor act in turns of N steps.", {"ge": 1})
SESSION_FIELDS = (
    SettingField("seed", "int", 1, "Of the first episode; each further one has the next seed.", {"ge": 0}),
    SettingField(
        "episodes", "int", None, "Empty: until it is stopped.", {"ge": 1, "le": MAX_EPISODES}, is_optional=True
    ),
    SettingField("max_steps", "int", None, "Of one episode; empty: no limit of its own.", {"ge": 1}, is_optional=True),
    SettingField(
        "pacing",
        "choice",
        "automatic",
        "Whether the environment waits for a key (turns) or continues without one (real_time).",
        {"choices": ("automatic", "turns", "real_time")},
    ),
    SettingField("record", "bool", True, "Store every episode, to replay it."),
)


@dataclass(frozen=True)
class PlayRequest:
    """The arguments of `build_play_payload`."""

    env_id: str
    actors: Mapping[str, str]
    """By agent, such as `policy:RUN`."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Those of the actors, by agent."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `PlayConfig`."""


class ControlMode(StrEnum):
    """Who acts."""

    HUMAN = "human"
    ACTOR = "actor"
    RESERVE = "reserve"
    """A human, who can hand over to an actor and take over again."""
    TURNS = "turns"
    """A human and an actor, by turns of some steps."""
    AGENTS = "agents"
    """One player for each agent."""

    @property
    def label(self) -> str:
        return _MODE_LABELS[self]

    @property
    def has_actor(self) -> bool:
        """Whether the Active Actor acts in it."""
        return self in (ControlMode.ACTOR, ControlMode.RESERVE, ControlMode.TURNS)


_MODE_LABELS = {
    ControlMode.HUMAN: "Human",
    ControlMode.ACTOR: "Actor",
    ControlMode.RESERVE: "Human, with an actor in reserve",
    ControlMode.TURNS: "Human and actor, by turns",
    ControlMode.AGENTS: "One player per agent",
}
SINGLE_AGENT_MODES = (ControlMode.HUMAN, ControlMode.ACTOR, ControlMode.RESERVE, ControlMode.TURNS)
SEVERAL_AGENTS_MODES = (ControlMode.AGENTS, ControlMode.RESERVE, ControlMode.TURNS)


@dataclass(frozen=True)
class ActorDraft:
    """An actor as configured. What was entered for other kinds is kept."""

    kind: str = DEFAULT_KIND
    targets: Mapping[str, str] = field(default_factory=dict)
    """By kind."""
    texts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Of the options that do not have their default, by kind."""

    @property
    def target(self) -> str:
        return self.targets.get(self.kind, "").strip()

    @property
    def text(self) -> str:
        """As on the command line: `policy:RUN`."""
        return f"{self.kind}:{self.target}" if self.target else self.kind

    @property
    def description(self) -> ActorDescription | None:
        """None where a plug-in that it came from is not installed any more."""
        return discover_actors().get(self.kind)

    def with_target(self, target: str) -> ActorDraft:
        return replace(self, targets={**self.targets, self.kind: target})

    @property
    def options(self) -> FieldTexts:
        return FieldTexts(() if self.description is None else self.description.options, self.texts.get(self.kind, {}))

    def with_option(self, name: str, text: str) -> ActorDraft:
        return replace(self, texts={**self.texts, self.kind: self.options.with_text(name, text).texts})

    def problem(self) -> str:
        """Why no such actor can be made; empty where nothing is known against it."""
        description = self.description
        if description is None:
            return f"The actor {self.kind!r} is not installed."
        if description.install_hint:
            return f"{description.title} is not installed: {description.install_hint}"
        if description.target and not self.target:
            return f"{description.title}: choose {description.target}."
        wrong = self.options.describe(self.options.problems())
        return wrong and f"{description.title}, {wrong}"


@dataclass(frozen=True)
class GameDraft(Form):
    env_id: str = DEFAULT_ENVIRONMENT
    texts: Mapping[str, str] = field(default_factory=dict)
    """Of the session's settings, and of the environment's as one object (`env_kwargs`)."""
    mode: ControlMode = ControlMode.HUMAN
    actor: ActorDraft = ActorDraft()
    agents: Mapping[str, ActorDraft] = field(default_factory=dict)
    """By agent, where there are several."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Changed keys, by the text of their action."""

    @property
    def fields(self) -> Mapping[str, SettingField]:
        return {one.name: one for one in (*ENVIRONMENT_FIELDS, TURN_FIELD, *SESSION_FIELDS)}

    def default_text(self, name: str) -> str:
        return self.env_id if name == "env_id" else super().default_text(name)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any, env_id: str) -> GameDraft:
        """Return what was remembered for an environment; a new draft where that is nothing, or damaged."""
        try:
            given = {**_upgrade(data), "env_id": env_id, "mode": ControlMode(data["mode"])}
            agents = {str(name): _actor(one) for name, one in data["agents"].items()}
            draft = cls(**{**given, "actor": _actor(data["actor"]), "agents": agents})
        except (TypeError, KeyError, ValueError, AttributeError):
            return cls(env_id)
        return draft if _is_texts(draft.texts) and _is_texts(draft.keys) else cls(env_id)

    def for_details(self, details: EnvironmentDetails) -> GameDraft:
        """Return it with a mode and players that this environment can have."""
        modes = control_modes(details)
        mode = self.mode if self.mode in modes else modes[0]
        if not details.has_several_agents:
            return replace(self, mode=mode)
        first = {
            agent: ActorDraft(HUMAN if number == 0 else DEFAULT_KIND) for number, agent in enumerate(details.agents)
        }
        return replace(
            self, mode=mode, agents={agent: self.agents.get(agent, first[agent]) for agent in details.agents}
        )

    @property
    def has_human(self) -> bool:
        if self.agents:
            return any(player.kind == HUMAN for player in self.agents.values())
        return self.mode is not ControlMode.ACTOR


def _actor(data: Any) -> ActorDraft:
    draft = ActorDraft(**data)
    if not isinstance(draft.kind, str) or not _is_texts(draft.targets) or not all(map(_is_texts, draft.texts.values())):
        raise TypeError("not an actor")
    return draft


def _upgrade(data: Mapping[str, Any]) -> dict[str, Any]:
    """Of version 0.1, which had the settings of the environment in two parts, apart from those of the session."""
    given = {name: value for name, value in data.items() if name in GameDraft.__dataclass_fields__}
    if "session_texts" in data:
        settings: dict[str, Any] = dict(data["setting_texts"])
        for name, text in settings.items():
            with suppress(ValueError):
                settings[name] = json.loads(text)
        given["texts"] = dict(data["session_texts"])
        with suppress(BadInput):
            settings |= parse_object(data["other_arguments"])
        if settings:
            given["texts"]["env_kwargs"] = format_object(settings)
    return given


def _is_texts(data: Any) -> bool:
    return isinstance(data, dict) and all(isinstance(text, str) for text in data.values())


def control_modes(details: EnvironmentDetails | None) -> tuple[ControlMode, ...]:
    return SEVERAL_AGENTS_MODES if details is not None and details.has_several_agents else SINGLE_AGENT_MODES


def environment_arguments(draft: GameDraft, details: EnvironmentDetails | None) -> dict[str, Any]:
    """What the environment is created with; raises BadInput where a text is invalid."""
    settings, others = read_object(() if details is None else details.settings, draft.text("env_kwargs"))
    settings.require_valid()
    return {**settings.values(), **others}


def game_problems(draft: GameDraft, details: EnvironmentDetails | None) -> dict[str, str]:
    """What is wrong, by field or agent, in the order of the form."""
    found = draft.problems()
    if not draft.env_id.strip():
        found["env_id"] = "Choose an environment."
    elif details is not None and details.install_hint:
        found["env_id"] = f"Is not installed: {details.install_hint}"
    with suppress(BadInput):  # which its own field states
        settings, _ = read_object(() if details is None else details.settings, draft.text("env_kwargs"))
        if wrong := settings.describe(settings.problems()):
            found["env_kwargs"] = wrong
    players = {"actor": draft.actor} if draft.mode.has_actor else {}
    if details is not None and details.has_several_agents:
        players |= draft.agents
    found |= {name: problem for name, player in players.items() if (problem := player.problem())}
    return {name: found[name] for name in ("env_id", "env_kwargs", *players, *draft.fields) if name in found}


def build_request(draft: GameDraft, details: EnvironmentDetails | None) -> PlayRequest:
    """Raises BadInput where a text is invalid."""
    draft.require_valid()
    names = [field.name for field in SESSION_FIELDS if field.name in draft.texts]
    settings = {name: draft.value(name) for name in names if draft.value(name) is not None}
    if arguments := environment_arguments(draft, details):
        settings["env_kwargs"] = arguments
    human = ActorDraft(HUMAN)
    if draft.agents:
        players: Mapping[str, ActorDraft] = draft.agents
    else:
        players = {ANY_AGENT: draft.actor if draft.mode is ControlMode.ACTOR else human}
    if draft.mode in (ControlMode.RESERVE, ControlMode.TURNS):
        choice = {"kind": draft.actor.kind, "target": draft.actor.target, "options": draft.actor.options.values()}
        settings["standby"] = {name: value for name, value in choice.items() if value}
    if draft.mode is ControlMode.TURNS:
        settings["alternate_steps"] = draft.value(TURN_FIELD.name)
    keys = valid_changes(() if details is None else details.keys, draft.keys)
    options = {
        agent: ({"keys": keys} if keys else {}) if player.kind == HUMAN else player.options.values()
        for agent, player in players.items()
    }
    return PlayRequest(
        draft.env_id.strip(), {agent: player.text for agent, player in players.items()}, options, settings
    )


SEPARATOR = "+"
"""Between keys that are held together, as the actor of a human reads them."""
RESERVED_KEYS = ("Esc", SEPARATOR)


def current_keys(bindings: Sequence[KeyBinding], changes: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The keys of each action, by its text."""
    return {
        binding.text: tuple(changes[binding.text].split(SEPARATOR)) if binding.text in changes else binding.keys
        for binding in bindings
    }


def editable_actions(bindings: Sequence[KeyBinding], changes: Mapping[str, str]) -> list[str]:
    """Actions with a key of their own; those of several keys follow from these."""
    return [text for text, keys in current_keys(bindings, changes).items() if len(keys) == 1]


def change_key(bindings: Sequence[KeyBinding], changes: Mapping[str, str], action: str, key: str) -> dict[str, str]:
    """Return the changes with another key for an action, also where that key is held together with others.

    Raises BadInput where the key is that of another action, or cannot be one.
    """
    keys = current_keys(bindings, changes)
    if not key or key in RESERVED_KEYS:
        raise BadInput(f"{key or 'This key'} cannot be the key of an action. Choose another.")
    taken = next((text for text, others in keys.items() if others == (key,) and text != action), None)
    if taken is not None:
        raise BadInput(f"{key} is the key of {taken!r}. Choose another, or change that one first.")
    (old,) = keys[action]
    changed = {text: tuple(key if one == old else one for one in others) for text, others in keys.items()}
    return {
        binding.text: SEPARATOR.join(changed[binding.text])
        for binding in bindings
        if changed[binding.text] != binding.keys
    }


def valid_changes(bindings: Sequence[KeyBinding], changes: Mapping[str, str]) -> dict[str, str]:
    """Leave out changes of actions that the environment does not have with its present settings."""
    known = {binding.text for binding in bindings}
    return {text: key for text, key in changes.items() if text in known}
