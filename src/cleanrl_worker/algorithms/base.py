"""The interfaces of the algorithms, and functions that all of them share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import gymnasium
import numpy as np
import numpy.typing as npt

from cleanrl_worker.algorithms.settings import AlgorithmConfig
from cleanrl_worker.environments.vector import VectorEnvs
from cleanrl_worker.learners.architecture import MIN_IMAGE_SIDE_PX, Architecture, find_sides
from cleanrl_worker.learners.conv_network import CONV_LAYERS, CONV_NETWORK, ConvAgent, ConvNetworkSizes, infer_sizes
from cleanrl_worker.learners.devices import missing_torch_error
from cleanrl_worker.learners.flat_network import FlatNetwork, select_by_prefix
from cleanrl_worker.learners.protocols import AdamState, NamedParameters, NonFiniteDetector
from cleanrl_worker.registry import ALGORITHMS, suitable_algorithms
from mosaic.base.checkpoint_files import list_steps
from mosaic.base.packages import has_torch
from mosaic.contracts.errors import BadInput, FieldProblem, MosaicError, problems_of, refuse_key
from mosaic.worker.envs.atari import FRAME_STACK
from mosaic.worker.envs.factory import family_of
from mosaic.worker.envs.spaces import describe_space, flat_size

if TYPE_CHECKING:
    import torch

    from mosaic.worker.checkpoints import Checkpoint, CheckpointPart
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
MAX_OBSERVATION_SIZE = 1_000_000
"""The maximum size of a flat observation: a larger one is not a useful input of a fully connected layer."""


class TrainedPolicy(Protocol):
    """A trained policy, including all preprocessing of observations and scaling of actions."""

    def act(self, observations: Array, deterministic: bool, rng: np.random.Generator) -> Array:
        """Return actions for observations [n, …]: arrays and scalars as given by the environment, others flattened."""


class ObservationEncoder:
    """Converts observations to the network's inputs. It is described in the checkpoint's facts."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.size: int = facts["size"]
        self._discrete_start: int | None = facts["first"]
        """For discrete observations: the lowest of them."""

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


class FlatAgent:
    """An agent whose weights are one flat vector, in numpy."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        architecture: Architecture,
        make_network: Callable[[int, int, Architecture], FlatNetwork[Any]],
    ) -> None:
        self.inputs, self.outputs, self.architecture = inputs, outputs, architecture
        self.network: Any
        if not architecture.is_module:
            self.network = make_network(inputs, outputs, architecture)
        else:
            from cleanrl_worker.learners.torch_dense import ModuleNetwork

            self.network = ModuleNetwork(self.build_module, inputs, outputs)
        self.parameters = self.network.flat

    def initialize(self, rng: np.random.Generator) -> None:
        self.network.initialize(rng)

    def state_dict(self) -> dict[str, Array]:
        """Return the weights under CleanRL's keys, in torch's layout."""
        return dict(self.network.named_arrays(self.network.parameters))

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.network.assign(self.network.parameters, state)

    def module(self) -> torch.nn.Module:
        """Return the same network as a torch module with these weights."""
        import torch

        module = self.build_module()
        module.load_state_dict({name: torch.from_numpy(part) for name, part in self.state_dict().items()})
        return module

    def build_module(self) -> torch.nn.Module:
        """Return the same network as a torch module with any weights."""
        raise NotImplementedError


AnyAgent = TypeVar("AnyAgent", bound=FlatAgent)
AnyConvAgent = TypeVar("AnyConvAgent", bound=ConvAgent)


def replay_dtype(space: gymnasium.Space[Any]) -> npt.DTypeLike:
    """Return the type of observations in a replay buffer: bytes if they are bytes, else the network's type."""
    is_bytes = isinstance(space, gymnasium.spaces.Box) and space.dtype == np.uint8
    return np.uint8 if is_bytes else np.float32


def load_agent(
    checkpoint: Checkpoint, make_agent: Callable[[int, int, Architecture], AnyAgent], default: Architecture
) -> AnyAgent:
    """Return the agent of a checkpoint; `default` is the architecture of checkpoints from before it was a setting."""
    shape = checkpoint.facts["shape"]
    agent = make_agent(shape["observation_size"], shape["actions"], saved_architecture(checkpoint, default))
    agent.load_state_dict(checkpoint.weights)
    return agent


def load_conv_agent(
    name: str,
    checkpoint: Checkpoint,
    make_agent: Callable[[ConvNetworkSizes], AnyConvAgent],
    default: Architecture = CONV_NETWORK,
    convolutions: Sequence[str] = CONV_LAYERS,
    frames: int = FRAME_STACK,
) -> AnyConvAgent:
    """Return the agent of a checkpoint of this algorithm, whose convolutions have these names."""
    check_checkpoint_algorithm(name, checkpoint)
    agent = make_agent(infer_sizes(checkpoint.weights, saved_architecture(checkpoint, default), convolutions, frames))
    agent.load_state_dict(checkpoint.weights)
    return agent


def saved_architecture(checkpoint: Checkpoint, default: Architecture = CONV_NETWORK) -> Architecture:
    """Return the architecture of a checkpoint's networks; the default if it is from before that was a setting."""
    image = checkpoint.facts.get("shape", {}).get("image")
    architecture = Architecture.from_settings(checkpoint.facts["config"], default)
    return architecture._replace(image=None if image is None else tuple(image))


def find_image(space: gymnasium.Space[Any]) -> tuple[int, ...] | None:
    """Return the shape of observations that are images: bytes, large enough for convolutions; None for others."""
    if not isinstance(space, gymnasium.spaces.Box) or space.dtype != np.uint8 or not 2 <= len(space.shape) <= 4:
        return None
    is_large = all(space.shape[axis] >= MIN_IMAGE_SIDE_PX for axis in find_sides(space.shape))
    return space.shape if is_large else None


def with_image(config: AlgorithmConfig, space: gymnasium.Space[Any], resume: Checkpoint | None = None) -> Architecture:
    """Return the architecture of the settings for these observations, with convolutions if they are images.

    A run from before there were convolutions is resumed without.
    """
    image = find_image(space)
    if image is None or (resume is not None and "image" not in resume.facts["shape"]):
        return config.architecture
    if config.backend == "numpy":
        raise refuse_key("backend", "numpy does not compute convolutions; leave backend out, or set it to torch.")
    if not has_torch():
        with problems_of("env_id"):
            raise missing_torch_error(f"The convolutional network for the images of {config.env_id}")
    return config.architecture._replace(image=image)


def image_facts(architecture: Architecture) -> dict[str, Any]:
    """Return what the check of a run reports where observations are images that are not flattened."""
    return {} if architecture.image is None else {"encodes_images": True}


def resolve_backend(config: AlgorithmConfig, architecture: Architecture | None = None) -> str:
    """Resolve `auto`: small networks are fastest in numpy, even if there is a GPU, as far as it can compute them."""
    if config.backend != "auto":
        return config.backend
    has_kernels = config.has_kernels and (architecture or config.architecture).has_kernels
    return "numpy" if has_kernels else "torch"


def sample_exponentials(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Sample exponentials whose logarithm is finite: without this, one in ten million would be 0."""
    samples = rng.standard_exponential(shape, np.float32)
    return np.maximum(samples, np.finfo(np.float32).tiny, out=samples)


# --- compatibility of environments


def compatible_algorithms(env: gymnasium.Env[Any, Any]) -> list[str]:
    """Return the algorithms that accept this environment."""
    actions = env.action_space
    is_atari = family_of(env) == "atari"
    if not is_atari and not 0 < flat_size(env.observation_space) <= MAX_OBSERVATION_SIZE:
        return []
    if isinstance(actions, gymnasium.spaces.Box) and not is_continuous(actions):
        return []
    algorithms = suitable_algorithms(type(actions).__name__, is_atari)
    return algorithms if is_bounded(actions) else [name for name in algorithms if not ALGORITHMS[name].needs_bounds]


def is_continuous(space: gymnasium.Space[Any]) -> bool:
    """Return whether this is a non-empty Box of floats."""
    return isinstance(space, gymnasium.spaces.Box) and space.dtype.kind == "f" and 0 not in space.shape


def is_bounded(space: gymnasium.Space[Any]) -> bool:
    """Return whether actions can be squashed into finite bounds. Some environments use the largest float for "none"."""
    if not isinstance(space, gymnasium.spaces.Box):
        return True
    with np.errstate(over="ignore"):
        return bool(np.isfinite(space.high.astype(np.float32) - space.low.astype(np.float32)).all())


def format_space(space: gymnasium.Space[Any]) -> str:
    """Format a space for an error message, such as `Discrete(2)` or `Box(3,)`."""
    if not isinstance(space, gymnasium.spaces.Box):
        return describe_space(space)
    return f"Box{space.shape}" if space.dtype.kind == "f" else describe_space(space)


def env_name(env: gymnasium.Env[Any, Any]) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def suggest_algorithms(env: gymnasium.Env[Any, Any]) -> str:
    names = compatible_algorithms(env)
    if not names:
        return "No algorithm of this worker supports it."
    return f"{'These fit' if len(names) > 1 else 'This fits'}: {', '.join(names)}."


def unsupported_actions_error(algorithm: str, needed: str, env: gymnasium.Env[Any, Any]) -> BadInput:
    suffix = "" if is_bounded(env.action_space) else " without bounds"
    has = f"{format_space(env.action_space)}{suffix}"
    message = f"{algorithm} needs {needed}; {env_name(env)} has {has}. {suggest_algorithms(env)}"
    return BadInput(message, [FieldProblem("env_id", message)])


@problems_of("env_id")
def check_observations(algorithm: str, env: gymnasium.Env[Any, Any]) -> None:
    space = env.observation_space
    size = flat_size(space)
    if size == 0:
        raise BadInput(
            f"{algorithm} needs observations that can be flattened to a vector; {env_name(env)} has "
            f"{format_space(space)}. Add a wrapper that gives arrays of a fixed size."
        )
    if size > MAX_OBSERVATION_SIZE:
        raise BadInput(
            f"{algorithm} flattens observations to a vector; that of {env_name(env)} would have {size:,} numbers, more "
            f"than the maximum of {MAX_OBSERVATION_SIZE:,}. Add a wrapper that gives smaller observations."
        )


# --- values that are not finite


def abort_if_not_finite(
    algorithm: str, run: Run, step: int, values: Mapping[str, float], is_gradient_finite: bool = True
) -> None:
    """Report every value that is not finite and end the training, because it cannot recover."""
    bad = [tag for tag, value in values.items() if not math.isfinite(value)]
    if not bad and not is_gradient_finite:
        bad = ["gradient"]
    for tag in bad:
        run.anomaly(tag, step)
    if bad:
        cause = "A lower learning_rate may help."
        if bad == ["reward"]:
            cause = f"{run.env_id} returned it from step(): correct how it computes its rewards."
        good = list_steps(run.folder)
        kept = f"The last good checkpoint, of step {good[-1]:,}, is in {run.folder.checkpoints}" if good else ""
        raise MosaicError(
            f"{algorithm} stopped at step {step:,}: {', '.join(bad)} became infinite or NaN. {cause} "
            f"{kept or 'There is no checkpoint yet'}."
        )


def check_async_losses(algorithm: str, run: Run, step: int, every: int, learner: NonFiniteDetector) -> None:
    """Do the same for asynchronous updates, at the step of the first bad one.

    Updates are `every` steps apart; the latest was at `step` or at the last such step before it.
    """
    report = learner.first_non_finite()
    if report is not None:
        updates_ago, names = report
        bad = {f"losses/{name}": math.nan for name in names}
        abort_if_not_finite(algorithm, run, (step // every - updates_ago) * every, bad)


def abort_if_actions_not_finite(
    algorithm: str, run: Run, actions: Array, step: int, every: int, learner: NonFiniteDetector
) -> None:
    """Do the same before an environment gets actions that are not finite, which come from a bad update."""
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
    **options: Any,
) -> None:
    """Save a checkpoint; if a weight is not finite, end the run instead, so that the previous checkpoint stays last."""
    abort_if_weights_not_finite(algorithm, run, step, weights)
    run.save_checkpoint(step, weights=weights, arrays=arrays, facts=facts, **options)


def abort_if_weights_not_finite(algorithm: str, run: Run, step: int, weights: Mapping[str, Array]) -> None:
    is_finite = all(bool(np.isfinite(part).all()) for part in weights.values())
    abort_if_not_finite(algorithm, run, step, {} if is_finite else {"weights": math.nan})


def abort_if_rewards_not_finite(algorithm: str, run: Run, rewards: Array, step: int) -> None:
    """Do the same for the rewards [steps, environments] of a rollout that started after `step`, at the exact step."""
    is_finite = np.isfinite(rewards)
    if not is_finite.all():
        row = int(np.flatnonzero(~is_finite.all(1))[0])
        abort_if_not_finite(algorithm, run, step + (row + 1) * rewards.shape[1], {"reward": math.nan})


# --- resuming


def check_checkpoint_algorithm(algorithm: str, checkpoint: Checkpoint) -> None:
    saved_by = checkpoint.facts.get("algorithm")
    if saved_by != algorithm:
        raise BadInput(f"The checkpoint {checkpoint.path} was saved by {saved_by!r}; expected one of {algorithm!r}.")


def check_resumable(algorithm: str, shape: Mapping[str, Any], resume: Checkpoint) -> None:
    """Raise unless the checkpoint is from a run of the same shape; the message names the first difference."""
    saved = {"algorithm": resume.facts.get("algorithm"), **resume.facts.get("shape", {})}
    for key, value in {"algorithm": algorithm, **shape}.items():
        if saved.get(key) != value:
            raise BadInput(
                f"The checkpoint {resume.path} cannot be resumed by this run: its {key} is {saved.get(key)!r}, "
                f"but the run's is {value!r}. Resume with the original settings, or start a new run."
            )


def restore_environments(run: Run, environments: VectorEnvs, resume: Checkpoint) -> bool:
    """Restore the environments; warn and return False if one of them could not be restored exactly."""
    problems = environments.restore(resume.arrays, resume.facts["environments"])
    if problems:
        run.warn(
            "The run resumes, but not exactly as if it had not been interrupted: " + "; ".join(problems) + ".",
            code="resumed_inexactly",
        )
    return not problems


def optimizer_arrays(network: NamedParameters, learner: AdamState) -> dict[str, Array]:
    """Return Adam's moments under the names of the weights, in torch's layout."""
    moments = {"adam.first": learner.first_moment, "adam.second": learner.second_moment}
    return {
        f"{kind}.{name}": part for kind, views in moments.items() for name, part in network.named_arrays(views).items()
    }


def restore_optimizer(network: NamedParameters, learner: AdamState, arrays: Mapping[str, Array], count: int) -> None:
    network.assign(learner.first_moment, select_by_prefix("adam.first.", arrays))
    network.assign(learner.second_moment, select_by_prefix("adam.second.", arrays))
    learner.count = count
