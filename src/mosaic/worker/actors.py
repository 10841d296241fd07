"""Who acts in an environment. An actor is asked for an action again and again until it has one, and never blocks."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Protocol, runtime_checkable

import numpy as np

from mosaic.contracts.errors import BadInput, MissingExtra, MosaicError, problems_of, unknown_name_error
from mosaic.contracts.play import ActorChoice
from mosaic.worker.actor_registry import ActorDescription, discover_actors
from mosaic.worker.envs.families import EnvEntry
from mosaic.worker.envs.teams import PETTINGZOO_PREFIX
from mosaic.worker.envs.wrappers import WrappedEnv
from mosaic.worker.evaluation import make_action_clipper
from mosaic.worker.sb3_policy import SB3_SUFFIX, Sb3Policy, read_statistics


@dataclass(frozen=True)
class Turn:
    """What an actor knows when it acts."""

    agent: str
    step: int
    observation: Any
    info: Mapping[str, Any]
    legal_actions: Sequence[int] | None = None
    """Where the environment says which actions are allowed now."""
    reward: float = 0.0
    """The agent's since its last turn."""


@dataclass(frozen=True)
class Seat:
    """The place of an actor: an agent of an environment."""

    env_id: str
    agent: str
    observation_space: Any
    action_space: Any
    action_names: tuple[str, ...] = ()
    """Of a discrete action space, in its order; empty where they have no names."""
    seed: int = 0
    policy_paths: Mapping[str, str] = field(default_factory=dict)
    env: Any = None
    """The environment itself, for actors that read its symbols."""
    entry: EnvEntry | None = None
    """What the catalog says about it."""
    is_real_time: bool = False
    """Whether the environment continues without a human's key."""
    report: Callable[..., None] | None = None
    """Writes a line of the session's journal: its kind, and fields."""


class ActorFailed(MosaicError):
    """An actor has no action now and would have none at the next step either, until someone changes something."""


class Actor(Protocol):
    def start_episode(self, seed: int) -> None:
        """Called after each reset."""
        ...

    def act(self, turn: Turn) -> Any:
        """Return an action, or None if it has none yet; it is asked again soon."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class SummarizedActor(Protocol):
    """An actor whose work is worth a place in the summary of a session."""

    def summarize(self) -> Mapping[str, Any]:
        """Return totals as JSON."""
        ...


def action_count(space: Any) -> int | None:
    """Return the number of actions if they are numbered; MultiBinary has an `n` too, of switches."""
    return int(space.n) if space.shape == () and hasattr(space, "n") else None


class RandomActor:
    """Samples the action space, or the legal actions."""

    def __init__(self, choice: ActorChoice, seat: Seat) -> None:
        self._space = seat.action_space
        self._agent = zlib.crc32(seat.agent.encode())
        self._rng = np.random.default_rng()

    def start_episode(self, seed: int) -> None:
        # A stream of its own: the environment and the other agents have the same seed.
        self._rng = np.random.default_rng([seed, self._agent])
        self._space.seed(int(self._rng.integers(2**31)))

    def act(self, turn: Turn) -> Any:
        if turn.legal_actions is not None:
            return int(self._rng.choice(np.asarray(turn.legal_actions)))
        return self._space.sample()

    def close(self) -> None:
        pass


class PolicyActor:
    """A trained policy: the last checkpoint of a run, a model file of CleanRL or a zip of Stable-Baselines3."""

    def __init__(self, choice: ActorChoice, seat: Seat) -> None:
        if seat.env_id.startswith(PETTINGZOO_PREFIX) and hasattr(seat.env, "agent_iter"):
            raise BadInput(
                f"{choice}: no policy acts in {seat.env_id}, whose agents act by turns. Choose another actor."
            )
        is_stochastic, statistics = choice.options["stochastic"], choice.options["vecnormalize"]
        path = Path(seat.policy_paths.get(choice.target, choice.target)).expanduser()
        self._reset: Callable[[int], None] = lambda seed: None
        if path.suffix == SB3_SUFFIX:
            if is_stochastic:
                raise BadInput(f"{choice}: a policy of Stable-Baselines3 acts deterministically here.")
            read = None if statistics is None else read_statistics(Path(statistics).expanduser())
            self._act: Callable[[Any], Any] = Sb3Policy(path, seat.observation_space, seat.action_space, read).choose
            return
        if statistics is not None:
            raise BadInput(f"{choice}: `vecnormalize` is for the files of Stable-Baselines3.")
        from mosaic.worker.policies import load_policy_file

        policy = load_policy_file(path, choice.options["algo"], seat.env_id).for_agent(seat.agent)
        own = policy.make_env()
        own.close()
        needed, present = (", ".join(getattr(env, "specs", ())) or "none" for env in (own, seat.env))
        if needed != present:
            raise BadInput(f"{choice}: it was trained with other wrappers ({needed}) than the session has ({present}).")
        if isinstance(own, WrappedEnv) and isinstance(seat.env, WrappedEnv):
            seat.env.share_statistics(own)
            seat.env.set_frozen(True)
        expected, shape = getattr(seat.observation_space, "shape", None), policy.observation_shape
        if shape is not None and expected != shape:
            raise BadInput(
                f"{choice}: it was trained on {policy.env_id} with observations of the shape {shape}; those of "
                f"{seat.env_id} have the shape {expected}."
            )
        clip = make_action_clipper(seat.action_space)
        self._reset = policy.reset
        self._act = lambda observation: clip(policy.act(observation, not is_stochastic))

    def start_episode(self, seed: int) -> None:
        self._reset(seed)

    def act(self, turn: Turn) -> Any:
        return self._act(turn.observation)

    def close(self) -> None:
        pass


def read_options(description: ActorDescription, choice: ActorChoice) -> dict[str, Any]:
    """Return all options of an actor: those of a choice, as text or as JSON values, and the defaults of the others."""
    fields = {field.name: field for field in description.options}
    for name in choice.options:
        if name not in fields and not fields:
            raise BadInput(f"The actor {choice.kind!r} takes no options; got {name!r}.")
        if name not in fields:
            raise unknown_name_error("option", name, fields, f"the actor {choice.kind!r}")
    given = {
        name: fields[name].parse(value if isinstance(value, str) else json.dumps(value), f"The option {name}")
        for name, value in choice.options.items()
    }
    return {name: given.get(name, field.default) for name, field in fields.items()}


def make_actor(choice: ActorChoice, seat: Seat) -> Actor:
    actors = discover_actors()
    if choice.kind not in actors:
        raise unknown_name_error("actor", choice.kind, actors)
    description = actors[choice.kind]
    if description.problem:
        raise MosaicError(description.problem)
    if choice.target and not description.target:
        raise BadInput(f"The actor {choice.kind!r} takes no target; got {choice.target!r}.")
    if description.target and not choice.target:
        raise BadInput(f"The actor {choice.kind!r} needs {description.target}: {choice.kind}:…")
    if description.is_discrete_only and action_count(seat.action_space) is None:
        kind = "continuous" if hasattr(seat.action_space, "low") else seat.action_space
        raise BadInput(f"The actor {choice.kind!r} needs numbered actions; those of {seat.env_id} are {kind}.")
    if description.install_hint:
        packages = ", ".join(description.packages)
        raise MissingExtra(f"The actor {choice.kind!r} needs {packages}: {description.install_hint}.")
    make: Callable[[ActorChoice, Seat], Actor] = resolve_name(description.make)
    with problems_of("options"):
        options = read_options(description, choice)
    return make(choice.model_copy(update={"options": options}), seat)
