"""The settings of the algorithms, each stated once. An algorithm's `Config` inherits them and states what differs.

Names and defaults are CleanRL's if it has the setting. Another default of an inherited setting goes into the table
`defaults`; a setting with another text or limit is stated again:

    class Config(PpoConfig, defaults={"env_id": "HalfCheetah-v5", "exp_name": NAME, "learning_rate": 3e-4}):
        rpo_alpha: float = Field(default=0.5, ge=0, json_schema_extra=LEARNING)
        '''The range of the noise on action means.'''
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator
from pydantic.fields import FieldInfo

from cleanrl_worker.learners.architecture import MAX_LAYERS, MAX_UNITS, Activation, Architecture
from mosaic.contracts.imports import is_module_name
from mosaic.contracts.model import Contract
from mosaic.contracts.payload import EnvId, EnvKwargs, SafeName, WrapperText

Array = npt.NDArray[Any]
Backend = Literal["auto", "numpy", "torch"]


class SettingsConflict(ValueError):
    """Settings whose values do not fit together, by their names: a form marks them."""

    def __init__(self, message: str, *names: str) -> None:
        super().__init__(message)
        self.names = names


def _validate_class_name(value: str) -> str:
    module, _, name = value.rpartition(":")
    if not is_module_name(module) or not name.isidentifier():
        raise ValueError("expected a class as module:Class, such as my_nets:Wide")
    return value


ClassName = Annotated[str, Field(max_length=200), AfterValidator(_validate_class_name)]
Units = Annotated[int, Field(ge=1, le=MAX_UNITS)]
Group = dict[str, Any]
RUN: Group = {"group": "run"}
COMPUTE: Group = {"group": "compute"}
ROLLOUT: Group = {"group": "rollout"}
LEARNING: Group = {"group": "learning"}
NETWORK: Group = {"group": "network"}
TORCH_BACKEND = FieldInfo(
    annotation=Literal["auto", "torch"],
    default="auto",
    description="The library that computes: torch.",
    json_schema_extra=COMPUTE,
)
"""The setting `backend` of algorithms without numpy kernels."""


class AlgorithmConfig(Contract):
    """The settings that every algorithm has."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    has_kernels: ClassVar[bool] = True
    """Whether numpy computes its updates too; otherwise `backend` is `TORCH_BACKEND`."""

    def __init_subclass__(cls, defaults: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)

    @classmethod
    def __pydantic_init_subclass__(cls, defaults: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        """Change inherited settings. Models are built on first use, so that this is in time."""
        super().__pydantic_init_subclass__(**kwargs)
        for name, default in (defaults or {}).items():
            if name not in cls.model_fields:
                known = ", ".join(cls.model_fields)
                raise TypeError(f"{cls.__module__}: there is no setting {name!r} to give a default. Known: {known}.")
            field = copy.copy(cls.model_fields[name])
            field.default = default
            cls.model_fields[name] = field
        if not cls.has_kernels and "numpy" in get_args(cls.model_fields["backend"].annotation):
            cls.model_fields["backend"] = TORCH_BACKEND

    env_id: EnvId = Field(default=..., json_schema_extra=RUN)
    """The environment to train in, by its Gymnasium id."""
    total_timesteps: int = Field(default=..., gt=0, json_schema_extra=RUN)
    """Environment steps to train for, summed over all environments."""
    seed: int = Field(default=1, ge=0, lt=2**31, json_schema_extra=RUN)
    """The seed of all random generators: equal settings and seed give equal weights."""
    env_kwargs: EnvKwargs | None = Field(default=None, json_schema_extra=RUN)
    """Settings of the environment, such as is_slippery=false, or as JSON, such as {"is_slippery": false}."""
    wrappers: tuple[WrapperText, ...] | None = Field(default=None, json_schema_extra={**RUN, "type": "wrappers"})
    """Wrappers around the environment, innermost first: by name, frame-stack(stack_size=4), or my_module:Class."""
    exp_name: SafeName = Field(default=..., json_schema_extra=RUN)
    """The name of the experiment; part of the run's name."""
    checkpoint_every: int | None = Field(default=None, gt=0, json_schema_extra=RUN)
    """Environment steps between checkpoints; unset: a tenth of the run, between 20,000 and 250,000 steps."""
    checkpoint_minutes: float = Field(default=5.0, ge=0, le=10_000, json_schema_extra=RUN)
    """Minutes of training after which there is another checkpoint, which replaces the one before it; 0: none."""
    eval_every: int = Field(default=0, ge=0, json_schema_extra=RUN)
    """Environment steps between evaluations during training, which then choose the best checkpoint; 0: none."""
    num_eval_episodes: int = Field(default=10, ge=1, le=100_000, json_schema_extra=RUN)
    """Episodes of each evaluation during training, with the best actions and seeds that training never uses."""
    stop_at_return: float | None = Field(default=None, json_schema_extra=RUN)
    """The mean return of an evaluation, or without evaluations of the last 100 episodes, that ends the training."""
    backend: Backend = Field(default="auto", json_schema_extra=COMPUTE)
    """The library that computes updates: numpy (fastest for small networks on a CPU), torch, or auto to choose."""
    cuda: bool = Field(default=True, json_schema_extra=COMPUTE)
    """Whether the torch backend uses a GPU if there is one."""
    torch_deterministic: bool = Field(default=True, json_schema_extra=COMPUTE)
    """Whether the torch backend uses only deterministic algorithms on a GPU."""
    cuda_graphs: bool = Field(default=True, json_schema_extra=COMPUTE)
    """Whether a GPU runs each update as one CUDA graph; many times faster, with the same results."""
    compile: bool = Field(default=False, json_schema_extra=COMPUTE)
    """Whether the torch backend compiles its updates; needs a C++ compiler and takes a minute at the start."""
    env_processes: int | None = Field(default=None, ge=1, le=256, json_schema_extra=COMPUTE)
    """Processes that step the environments, with equal results; unset: chosen by a measurement at the start."""

    hidden_sizes: tuple[Units, ...] = Field(
        default=(64, 64), min_length=1, max_length=MAX_LAYERS, json_schema_extra=NETWORK
    )
    """Units of each hidden layer of every network, such as 256,256."""
    activation: Activation = Field(default="tanh", json_schema_extra=NETWORK)
    """The activation function after each hidden layer; other ones than tanh and relu are computed by torch."""
    network: ClassName | None = Field(default=None, json_schema_extra=NETWORK)
    """A torch.nn.Module of your own as module:Class, instead of the hidden layers of each network."""

    @field_validator("backend", mode="before")
    @classmethod
    def _refuse_numpy(cls, backend: Any) -> Any:
        if backend == "numpy" and not cls.has_kernels:
            raise ValueError("numpy has no kernels for this algorithm, so torch computes it. Leave it out.")
        return backend

    @model_validator(mode="after")
    def _validate_backend(self) -> Self:
        if self.backend == "numpy" and not self.architecture.has_kernels:
            own = "network" if self.network else "activation"
            raise SettingsConflict(
                "backend = numpy computes hidden layers with activation = tanh and relu only, not "
                f"{own} = {getattr(self, own)}; leave backend out, or set it to torch",
                *("backend", own),
            )
        return self

    @property
    def architecture(self) -> Architecture:
        """The hidden part of the networks."""
        return Architecture(self.hidden_sizes, self.activation, self.network)

    @property
    def env_settings(self) -> dict[str, Any]:
        """What each environment is created with besides its id."""
        return {**(self.env_kwargs or {}), **({"wrappers": list(self.wrappers)} if self.wrappers else {})}

    @property
    def checkpoint_interval(self) -> int:
        """`checkpoint_every`, or its default for a run of this length."""
        return self.checkpoint_every or min(max(self.total_timesteps // 10, 20_000), 250_000)


class AtariConfig(AlgorithmConfig):
    """Of algorithms for Atari games. Comes first among the bases, so that it replaces their environment."""

    has_kernels: ClassVar[bool] = False

    env_id: EnvId = Field(default="BreakoutNoFrameskip-v4", json_schema_extra=RUN)
    """The game to train in, by its Gymnasium id."""
    total_timesteps: int = Field(default=10_000_000, gt=0, json_schema_extra=RUN)
    """Steps to train for, summed over all games; a step is four frames."""
    hidden_sizes: tuple[Units, ...] = Field(
        default=(512,), min_length=1, max_length=MAX_LAYERS, json_schema_extra=NETWORK
    )
    """Units of each fully connected layer after the convolutions, such as 512,256."""
    activation: Activation = Field(default="relu", json_schema_extra=NETWORK)
    """The activation function after each of these layers; that of the convolutions is ReLU."""
    takes_network: ClassVar[bool] = True
    """Whether a network of the user's own can replace its convolutions and fully connected layers."""

    @field_validator("network")
    @classmethod
    def _refuse_network(cls, network: str | None) -> str | None:
        if network is not None and not cls.takes_network:
            raise ValueError("this algorithm takes no network of your own. Leave it out.")
        return network


class EnvpoolConfig(AtariConfig):
    """Of algorithms for Atari games that run in envpool."""

    env_id: EnvId = Field(default="Breakout-v5", json_schema_extra=RUN)
    """The game to train in, by its id in envpool (`Breakout-v5`) or in Gymnasium."""
    env_processes: Literal[1] = Field(default=1, json_schema_extra=COMPUTE)
    """Always 1: envpool steps the games in threads of its own."""


class EpsilonGreedyConfig(AlgorithmConfig):
    """Of algorithms that select a random action with probability epsilon, else the best one."""

    start_e: float = Field(default=1.0, ge=0, le=1, json_schema_extra=ROLLOUT)
    """The initial epsilon: the probability of a random action."""
    end_e: float = Field(default=0.05, ge=0, le=1, json_schema_extra=ROLLOUT)
    """The final epsilon."""
    exploration_fraction: float = Field(default=0.5, ge=0, le=1, json_schema_extra=ROLLOUT)
    """The fraction of the run over which epsilon falls from `start_e` to `end_e`."""

    def epsilons(self, steps: Array) -> Array:
        """Return epsilon at these environment steps."""
        duration = max(1.0, self.exploration_fraction * self.total_timesteps)
        progress = np.minimum(steps / duration, 1.0)
        return np.asarray(self.start_e + (self.end_e - self.start_e) * progress)


# --- on-policy


class RolloutConfig(AlgorithmConfig):
    """Of algorithms that collect a rollout, learn from it and discard it."""

    learning_rate: float = Field(default=2.5e-4, gt=0, lt=1, json_schema_extra=LEARNING)
    """The learning rate of Adam; 1e-4 to 1e-3 are usual."""
    num_envs: int = Field(default=4, ge=1, le=4096, json_schema_extra=ROLLOUT)
    """The number of parallel environments."""
    num_steps: int = Field(default=128, ge=1, le=1_000_000, json_schema_extra=ROLLOUT)
    """Steps per environment in a rollout."""
    anneal_lr: bool = Field(default=True, json_schema_extra=LEARNING)
    """Whether the learning rate falls linearly to zero over the run."""
    gamma: float = Field(default=0.99, ge=0, le=1, json_schema_extra=ROLLOUT)
    """The discount factor of future rewards."""
    max_grad_norm: float = Field(default=0.5, gt=0, json_schema_extra=LEARNING)
    """The maximum norm of a gradient; a larger one is clipped."""
    cycle_name: ClassVar[str] = "an update"
    """What a training consists of: it ends only after a whole one."""

    @model_validator(mode="after")
    def _validate_rollout(self) -> Self:
        self._validate_minibatches()
        if self.total_timesteps < self.batch_size:
            raise SettingsConflict(
                f"total_timesteps = {self.total_timesteps} is less than one rollout of num_envs × num_steps = "
                f"{self.batch_size} steps",
                *("total_timesteps", "num_envs", "num_steps"),
            )
        return self

    def _validate_minibatches(self) -> None:
        """Raise if the rollout cannot be split as the settings say."""

    @property
    def batch_size(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def minibatch_size(self) -> int:
        """Rows per gradient step."""
        return self.batch_size

    @property
    def cycle_steps(self) -> int:
        """Environment steps of what `cycle_name` names."""
        return self.batch_size

    @property
    def trained_timesteps(self) -> int:
        """`total_timesteps` without those of an incomplete cycle."""
        return self.total_timesteps // self.cycle_steps * self.cycle_steps

    @property
    def num_iterations(self) -> int:
        return self.total_timesteps // self.batch_size


class MinibatchConfig(RolloutConfig):
    """Of those that learn from it in minibatches."""

    num_minibatches: int = Field(default=4, ge=1, json_schema_extra=LEARNING)
    """Minibatches per rollout; each is one gradient step."""
    update_epochs: int = Field(default=4, ge=1, le=1000, json_schema_extra=LEARNING)
    """Epochs per update: passes over the rollout."""

    def _validate_minibatches(self) -> None:
        if self.batch_size % self.num_minibatches:
            raise SettingsConflict(
                f"num_envs × num_steps = {self.batch_size} rows cannot be split into num_minibatches = "
                f"{self.num_minibatches} equal parts",
                *("num_envs", "num_steps", "num_minibatches"),
            )

    @property
    def minibatch_size(self) -> int:
        return self.batch_size // self.num_minibatches


class AdvantageConfig(RolloutConfig):
    """Of those with an actor that learns from advantages, and a critic."""

    gae_lambda: float = Field(default=0.95, ge=0, le=1, json_schema_extra=ROLLOUT)
    """The lambda of generalized advantage estimation: 0 uses one step (biased), 1 the whole episode (noisy)."""
    ent_coef: float = Field(default=0.01, ge=0, le=10, json_schema_extra=LEARNING)
    """The weight of the entropy bonus; a higher value explores more."""
    vf_coef: float = Field(default=0.5, ge=0, le=100, json_schema_extra=LEARNING)
    """The weight of the value loss."""


class PpoConfig(AdvantageConfig, MinibatchConfig):
    """Of proximal policy optimization."""

    num_steps: int = Field(default=128, ge=2, le=1_000_000, json_schema_extra=ROLLOUT)
    """Steps per environment in a rollout."""
    norm_adv: bool = Field(default=True, json_schema_extra=LEARNING)
    """Whether the advantages of each minibatch are normalized to mean 0 and standard deviation 1."""
    clip_coef: float = Field(default=0.2, gt=0, le=10, json_schema_extra=LEARNING)
    """The clipping range of the probability ratio in the policy loss."""
    clip_vloss: bool = Field(default=True, json_schema_extra=LEARNING)
    """Whether the value loss is clipped in the same way."""
    target_kl: float | None = Field(default=None, gt=0, json_schema_extra=LEARNING)
    """The KL divergence at which an update stops early; unset: never."""

    def _validate_minibatches(self) -> None:
        super()._validate_minibatches()
        if self.norm_adv and self.minibatch_size < 2:
            message = "norm_adv needs minibatches of at least 2 rows: lower num_minibatches"
            raise SettingsConflict(message, "norm_adv", "num_minibatches")


class PqnConfig(EpsilonGreedyConfig, MinibatchConfig, defaults={"max_grad_norm": 10.0}):
    """Of parallelized Q-learning."""

    learning_rate: float = Field(default=2.5e-4, gt=0, lt=1, json_schema_extra=LEARNING)
    """The learning rate of RAdam; 1e-4 to 1e-3 are usual."""
    q_lambda: float = Field(default=0.65, ge=0, le=1, json_schema_extra=ROLLOUT)
    """The lambda of the returns: 0 uses one step (biased), 1 the whole rollout (noisy)."""
