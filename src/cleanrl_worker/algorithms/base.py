"""What every algorithm's file offers, and the few things that all of them share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt
from pydantic import Field

from cleanrl_worker.registry import ALGORITHMS, suitable_algorithms
from cleanrl_worker.vector_envs import VectorEnvs
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.contracts.model import Contract
from mosaic.contracts.payload import EnvId, SafeName
from mosaic.envs.factory import family_of
from mosaic.envs.spaces import describe_space, flat_size, unsupported_parts

if TYPE_CHECKING:
    from mosaic.run import Checkpoint, Run
    from mosaic.run.checkpoints import CheckpointPart

Array = npt.NDArray[Any]
Backend = Literal["auto", "numpy", "torch"]
Group = dict[str, Any]
RUN: Group = {"group": "run"}
COMPUTE: Group = {"group": "compute"}
ROLLOUT: Group = {"group": "rollout"}
LEARNING: Group = {"group": "learning"}
MAX_OBSERVATION_SIZE = 1_000_000
"""In one observation. What is larger is no vector that a layer could be laid over."""


class AlgorithmConfig(Contract):
    """The settings that every algorithm has. Names and defaults are CleanRL's where CleanRL has them."""

    env_id: EnvId = Field(json_schema_extra=RUN)
    """The environment to train in, by its Gymnasium id."""
    total_timesteps: int = Field(gt=0, json_schema_extra=RUN)
    """How many environment steps to train for, over all environments together."""
    seed: int = Field(default=1, ge=0, lt=2**31, json_schema_extra=RUN)
    """The seed of everything random: equal settings and seed give equal weights."""
    exp_name: SafeName = Field(json_schema_extra=RUN)
    """The name of the experiment, part of the run's name."""
    checkpoint_every: int | None = Field(default=None, gt=0, json_schema_extra=RUN)
    """Environment steps between checkpoints; unset: a tenth of the run, between 20,000 and 250,000 steps."""
    backend: Backend = Field(default="auto", json_schema_extra=COMPUTE)
    """What computes the update: numpy (fastest for small networks on a CPU), torch, or auto to choose."""
    cuda: bool = Field(default=True, json_schema_extra=COMPUTE)
    """Whether the torch backend uses a GPU where there is one."""
    torch_deterministic: bool = Field(default=True, json_schema_extra=COMPUTE)
    """Whether the torch backend keeps to deterministic algorithms on a GPU."""

    @property
    def checkpoint_interval(self) -> int:
        """`checkpoint_every`, or its default for a run of this length."""
        return self.checkpoint_every or min(max(self.total_timesteps // 10, 20_000), 250_000)


class TrainedPolicy(Protocol):
    """A trained policy, ready to act: everything between observation and action is inside of it."""

    def act(self, observations: Array, deterministic: bool, rng: np.random.Generator) -> Array:
        """Actions for observations [n, …]: arrays and single numbers as the environment gave them, others flattened."""


class NamedParameters(Protocol):
    """A network whose parameters, and vectors of the same shape, have names."""

    def named_arrays(self, views: Any) -> Mapping[str, Array]: ...
    def assign(self, views: Any, arrays: Mapping[str, Array]) -> None: ...


class AdamState(Protocol):
    """A learner that goes by Adam's moments."""

    count: int

    @property
    def first_moment(self) -> Any: ...
    @property
    def second_moment(self) -> Any: ...


class ObservationEncoder:
    """How observations become the network's inputs. Its facts travel with the checkpoint."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.size: int = facts["size"]
        self._discrete_start: int | None = facts["first"]
        """Where observations are single numbers: the lowest of them."""

    @staticmethod
    def describe(space: gymnasium.Space[Any]) -> dict[str, Any]:
        first = int(space.start) if isinstance(space, gymnasium.spaces.Discrete) else None
        return {"size": flat_size(space), "first": first}

    def __call__(self, observations: Array) -> Array:
        if self._discrete_start is not None and observations.ndim == 1:
            vectors = np.zeros((len(observations), self.size), np.float32)
            vectors[np.arange(len(observations)), observations - self._discrete_start] = 1
            return vectors
        return np.asarray(observations).reshape(len(observations), self.size)


def replay_dtype(space: gymnasium.Space[Any]) -> npt.DTypeLike:
    """What a replay buffer keeps of observations: bytes where they are bytes, else what the network takes."""
    is_bytes = isinstance(space, gymnasium.spaces.Box) and space.dtype == np.uint8
    return np.uint8 if is_bytes else np.float32


# --- does an environment fit?


def compatible_algorithms(env: gymnasium.Env[Any, Any]) -> list[str]:
    """The algorithms here that would not refuse such an environment."""
    actions = env.action_space
    is_game = family_of(env) == "atari"
    if not is_game and not 0 < flat_size(env.observation_space) <= MAX_OBSERVATION_SIZE:
        return []
    if isinstance(actions, gymnasium.spaces.Box) and not is_continuous(actions):
        return []
    able = suitable_algorithms(type(actions).__name__, is_game)
    return able if is_bounded(actions) else [name for name in able if not ALGORITHMS[name].needs_bounds]


def is_continuous(space: gymnasium.Space[Any]) -> bool:
    """Whole numbers and empty boxes are no continuous actions."""
    return isinstance(space, gymnasium.spaces.Box) and space.dtype.kind == "f" and 0 not in space.shape


def is_bounded(space: gymnasium.Space[Any]) -> bool:
    """Whether actions can be squashed into their bounds. Some environments write the largest number for "none"."""
    if not isinstance(space, gymnasium.spaces.Box):
        return True
    with np.errstate(over="ignore"):
        return bool(np.isfinite(space.high.astype(np.float32) - space.low.astype(np.float32)).all())


def format_space(space: gymnasium.Space[Any]) -> str:
    """`Discrete(2)`, `Box(3,)`: a space as it is named in a refusal."""
    if not isinstance(space, gymnasium.spaces.Box):
        return describe_space(space)
    return f"Box{space.shape}" if space.dtype.kind == "f" else describe_space(space)


def env_name(env: gymnasium.Env[Any, Any]) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def suggest_algorithms(env: gymnasium.Env[Any, Any]) -> str:
    names = compatible_algorithms(env)
    if not names:
        return "No algorithm of this worker fits it."
    return f"{'These fit' if len(names) > 1 else 'This fits'}: {', '.join(names)}."


def unsupported_actions_error(algorithm: str, needed: str, env: gymnasium.Env[Any, Any]) -> BadInput:
    without = "" if is_bounded(env.action_space) else " without bounds"
    has = f"{format_space(env.action_space)}{without}"
    return BadInput(f"{algorithm} needs {needed}; {env_name(env)} has {has}. {suggest_algorithms(env)}")


def check_observations(algorithm: str, env: gymnasium.Env[Any, Any]) -> None:
    space = env.observation_space
    size = flat_size(space)
    if size == 0:
        raise BadInput(
            f"{algorithm} needs observations that can be made into one vector; {env_name(env)} has "
            f"{format_space(space)}. A wrapper that gives arrays of a fixed size would make it fit."
        )
    if size > MAX_OBSERVATION_SIZE:
        raise BadInput(
            f"{algorithm} makes one vector of an observation; that of {env_name(env)} would have {size:,} numbers, "
            f"more than {MAX_OBSERVATION_SIZE:,}. A wrapper that makes them smaller would make it fit."
        )


def observation_warnings(env: gymnasium.Env[Any, Any]) -> list[str]:
    """What whoever trains an agent that sees vectors should know first: a sentence each."""
    said = []
    parts = ", ".join(map(repr, unsupported_parts(env.observation_space)))
    if parts:
        said.append(
            f"The agent will not see {parts} of {env_name(env)}'s observations: it can learn from numbers only."
        )
    if family_of(env) == "atari":
        said.append(
            f"{env_name(env)} is seen as one long vector, of which little is learned. {suggest_algorithms(env)}"
        )
    return said


def resolve_backend(backend: Backend) -> str:
    """The networks of these algorithms are small: numpy is faster, even where there is a GPU."""
    return "numpy" if backend == "auto" else backend


def sample_exponentials(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Draws whose logarithm is taken: none of them is 0, which one in ten million would be."""
    drawn = rng.standard_exponential(shape, np.float32)
    return np.maximum(drawn, np.finfo(np.float32).tiny, out=drawn)


# --- what must not go on


def abort_if_not_finite(
    algorithm: str, run: Run, step: int, values: Mapping[str, float], is_gradient_finite: bool = True
) -> None:
    """Reports every value that is not finite and ends the training: what follows would be worthless."""
    bad = [tag for tag, value in values.items() if not math.isfinite(value)]
    if not bad and not is_gradient_finite:
        bad = ["gradient"]
    for tag in bad:
        run.anomaly(tag, step)
    if bad:
        raise MosaicError(
            f"{algorithm} stopped at step {step:,}: {', '.join(bad)} became infinite or not a number. The last "
            f"checkpoint from before is kept in {run.folder.checkpoints}; a lower learning_rate may help."
        )


class NonFiniteDetector(Protocol):
    """A learner that notices by itself what is not finite."""

    def first_non_finite(self) -> tuple[int, list[str]] | None:
        """How many updates ago it was first so, and in what."""


def check_async_losses(algorithm: str, run: Run, step: int, every: int, learner: NonFiniteDetector) -> None:
    """The same for updates that nobody waited for, at the step of the first bad one.

    Updates are `every` steps apart; the newest was made at `step` or at the last such step before it.
    """
    found = learner.first_non_finite()
    if found is not None:
        ago, names = found
        bad = {f"losses/{name}": math.nan for name in names}
        abort_if_not_finite(algorithm, run, (step // every - ago) * every, bad)


def abort_if_actions_not_finite(
    algorithm: str, run: Run, actions: Array, step: int, every: int, learner: NonFiniteDetector
) -> None:
    """The same before an environment meets actions that are no numbers: they come of an update that went wrong."""
    if not np.isfinite(actions).all():
        check_async_losses(algorithm, run, step, every, learner)
        abort_if_not_finite(algorithm, run, step, {"actions": math.nan})


def save_checkpoint(
    algorithm: str,
    run: Run,
    step: int,
    *,
    weights: Mapping[str, Array],
    arrays: Mapping[str, Array | CheckpointPart],
    facts: Any,
) -> None:
    """Weights that are not finite are never saved: the run ends, and the checkpoint from before is its last."""
    is_finite = all(bool(np.isfinite(part).all()) for part in weights.values())
    abort_if_not_finite(algorithm, run, step, {} if is_finite else {"weights": math.nan})
    run.save_checkpoint(step, weights=weights, arrays=arrays, facts=facts)


def abort_if_rewards_not_finite(algorithm: str, run: Run, rewards: Array, step: int) -> None:
    """The same for the rewards [steps, environments] of a rollout that began behind `step`, at the exact step."""
    is_finite = np.isfinite(rewards)
    if not is_finite.all():
        row = int(np.flatnonzero(~is_finite.all(1))[0])
        abort_if_not_finite(algorithm, run, step + (row + 1) * rewards.shape[1], {"reward": math.nan})


# --- resuming


def check_checkpoint_algorithm(algorithm: str, checkpoint: Checkpoint) -> None:
    maker = checkpoint.facts.get("algorithm")
    if maker != algorithm:
        raise BadInput(f"The checkpoint {checkpoint.path} was made by {maker!r}; expected one of {algorithm!r}.")


def check_resumable(algorithm: str, shape: Mapping[str, Any], resume: Checkpoint) -> None:
    """A checkpoint goes on only in a run of the same shape; the first difference is named."""
    found = {"algorithm": resume.facts.get("algorithm"), **resume.facts.get("shape", {})}
    for what, value in {"algorithm": algorithm, **shape}.items():
        if found.get(what) != value:
            raise BadInput(
                f"The checkpoint {resume.path} cannot be resumed by this run: its {what} is {found.get(what)!r}, "
                f"here it is {value!r}. Resume with the settings that made it, or start a new run."
            )


def restore_environments(run: Run, environments: VectorEnvs, resume: Checkpoint) -> bool:
    """Whether every environment is where it was; a warning says why not."""
    problems = environments.restore(resume.arrays, resume.facts["environments"])
    if problems:
        run.warn(
            "The run goes on, but not exactly as it would have without the interruption: " + "; ".join(problems) + ".",
            code="resumed_inexactly",
        )
    return not problems


def optimizer_arrays(network: NamedParameters, learner: AdamState) -> dict[str, Array]:
    """Adam's moments, named as the weights are, in torch's layout."""
    moments = {"adam.first": learner.first_moment, "adam.second": learner.second_moment}
    return {
        f"{kind}.{name}": part for kind, views in moments.items() for name, part in network.named_arrays(views).items()
    }


def restore_optimizer(network: NamedParameters, learner: AdamState, arrays: Mapping[str, Array], count: int) -> None:
    network.assign(learner.first_moment, select_by_prefix("adam.first.", arrays))
    network.assign(learner.second_moment, select_by_prefix("adam.second.", arrays))
    learner.count = count


def select_by_prefix(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {key.removeprefix(prefix): part for key, part in arrays.items() if key.startswith(prefix)}
