"""Proximal policy optimization with a Transformer-XL as episodic memory.

The agent attends to earlier steps of the episode: each layer of a transformer reads the inputs that it had at these
steps. It is for tasks in which something must be remembered for long, such as a cue that is shown once; where the past
is short, ppo_lstm is cheaper and often enough. Actions are discrete, one or several at once; observations are vectors
or images.

Paper: Pleines, Pallasch, Zimmer, Preuss, "Memory Gym: Towards Endless Tasks to Benchmark Memory Capabilities of
Agents", arXiv:2309.17207 (2023).
Transformer-XL: Dai, Yang, Yang, Carbonell, Le, Salakhutdinov, arXiv:1901.02860 (2019).
"""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import gymnasium
import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from cleanrl_worker.algorithms import base, ppo, run_checks
from cleanrl_worker.algorithms.ppo_lstm import LstmPolicy
from cleanrl_worker.algorithms.settings import LEARNING, NETWORK, RUN, PpoConfig, SettingsConflict
from cleanrl_worker.environments.parallel import ParallelEnvs
from cleanrl_worker.environments.vector import EpisodeEnd
from cleanrl_worker.learners import devices
from cleanrl_worker.learners.architecture import MIN_IMAGE_SIDE_PX, Architecture, find_sides
from cleanrl_worker.learners.ppo_kernels import RolloutBatch
from cleanrl_worker.loops.on_policy import MemoryTraining, choose_training, open_environments
from mosaic.contracts.errors import refuse_key
from mosaic.contracts.payload import EnvId
from mosaic.worker import envs

if TYPE_CHECKING:
    import torch

    from cleanrl_worker.evaluation.policies import Outputs
    from cleanrl_worker.learners.torch_transformer import TransformerLearner, TransformerLosses, TransformerModule
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
NAME = "ppo_trxl"
ENDLESS_EPISODE_STEPS = 1024
"""The steps for which positions are encoded where episodes have no time limit."""
NO_HIDDEN_LAYERS = Architecture((1,))


class Config(PpoConfig, defaults={
        "total_timesteps": 200_000_000, "exp_name": NAME, "num_envs": 32, "num_steps": 512, "gamma": 0.995,
        "num_minibatches": 8, "update_epochs": 3, "norm_adv": False, "clip_coef": 0.1, "max_grad_norm": 0.25,
    }):  # fmt: skip
    """Settings of PPO with a Transformer-XL."""

    has_kernels: ClassVar[bool] = False
    learning_rate: ClassVar[Any] = property(lambda config: config.init_lr)  # type: ignore[misc]
    anneal_lr: ClassVar[bool] = False  # type: ignore[misc]
    ent_coef: ClassVar[Any] = property(lambda config: config.init_ent_coef)  # type: ignore[misc]
    hidden_sizes: ClassVar[tuple[int, ...]] = NO_HIDDEN_LAYERS.hidden  # type: ignore[misc]
    activation: ClassVar[Any] = "relu"  # type: ignore[misc]
    network: ClassVar[None] = None  # type: ignore[misc]

    env_id: EnvId = Field(default="MortarMayhem-Grid-v0", json_schema_extra=RUN)
    """The environment to train in, by its Gymnasium id; the default is one of the package memory-gym."""
    init_lr: float = Field(default=2.75e-4, gt=0, lt=1, json_schema_extra=LEARNING)
    """The learning rate of AdamW at the start; 1e-4 to 1e-3 are usual."""
    final_lr: float = Field(default=1e-5, ge=0, lt=1, json_schema_extra=LEARNING)
    """The learning rate from `anneal_steps` on."""
    anneal_steps: int = Field(default=32 * 512 * 10_000, ge=0, json_schema_extra=LEARNING)
    """Environment steps over which learning rate and entropy bonus change linearly; 0: the final ones are used."""
    init_ent_coef: float = Field(default=1e-4, ge=0, le=10, json_schema_extra=LEARNING)
    """The weight of the entropy bonus at the start; a higher value explores more."""
    final_ent_coef: float = Field(default=1e-6, ge=0, le=10, json_schema_extra=LEARNING)
    """The weight of the entropy bonus from `anneal_steps` on."""
    trxl_num_layers: int = Field(default=3, ge=1, le=32, json_schema_extra=NETWORK)
    """Layers of the transformer."""
    trxl_num_heads: int = Field(default=4, ge=1, le=64, json_schema_extra=NETWORK)
    """Heads of the attention."""
    trxl_dim: int = Field(default=384, ge=2, le=8192, multiple_of=2, json_schema_extra=NETWORK)
    """Units of each layer; a multiple of the heads."""
    trxl_memory_length: int = Field(default=119, ge=2, le=100_000, json_schema_extra=NETWORK)
    """Steps of the episode that are remembered, the current one included; at most the longest episode."""
    trxl_positional_encoding: Literal["", "absolute", "learned"] = Field(default="absolute", json_schema_extra=NETWORK)
    """How the agent knows at which step of the episode a memory is from; empty: not at all."""
    reconstruction_coef: float = Field(default=0.0, ge=0, le=100, json_schema_extra=LEARNING)
    """The weight of the loss of reconstructing an image from the features; 0: none."""

    @model_validator(mode="after")
    def _validate_heads(self) -> Self:
        if self.trxl_dim % self.trxl_num_heads:
            message = f"trxl_dim = {self.trxl_dim} is not a multiple of trxl_num_heads = {self.trxl_num_heads}"
            raise SettingsConflict(message, "trxl_dim", "trxl_num_heads")
        return self

    def schedule(self, step: int) -> tuple[float, float]:
        """Return the learning rate and the weight of the entropy bonus at an environment step."""
        left = 1 - step / self.anneal_steps if step < self.anneal_steps else 0.0
        return (
            self.final_lr + (self.init_lr - self.final_lr) * left,
            self.final_ent_coef + (self.init_ent_coef - self.final_ent_coef) * left,
        )


class EpisodeShape(NamedTuple):
    """What the network depends on besides the settings; part of a checkpoint."""

    max_episode_steps: int
    image: list[int] | None
    """Height, width and channels of an observation, if it is an image."""

    @classmethod
    def of(cls, env: gymnasium.Env[Any, Any]) -> EpisodeShape:
        steps = env.spec.max_episode_steps if env.spec is not None else None
        if not steps:
            env.reset(seed=0)  # Memory Gym's environments know it only then.
            steps = getattr(env.unwrapped, "max_episode_steps", None)
        steps = steps if steps and steps > 0 else ENDLESS_EPISODE_STEPS
        return cls(int(steps), find_image(env.observation_space))


def find_image(space: gymnasium.Space[Any]) -> list[int] | None:
    """Return height, width and channels of images in this order, which the encoder reads; others are flattened."""
    image = base.find_image(space)
    return list(image) if image is not None and len(image) == 3 and find_sides(image) == (0, 1) else None


class Agent(base.FlatAgent):
    """Actor and critic on an encoder and a transformer; it has a logit for each action of each choice."""

    def __init__(self, observation_size: int, counts: Sequence[int], config: Any, shape: EpisodeShape) -> None:
        """`config` has the settings as attributes."""
        from cleanrl_worker.learners.torch_dense import ModuleNetwork
        from cleanrl_worker.learners.torch_transformer import LOCATORS, TransformerSizes

        self._size, self._counts = observation_size, counts
        steps, image = shape
        self.sizes = TransformerSizes(
            layers=config.trxl_num_layers, heads=config.trxl_num_heads, dim=config.trxl_dim,
            window=min(config.trxl_memory_length, steps), encoding=config.trxl_positional_encoding,
            max_episode_steps=steps, image=None if image is None else (image[0], image[1], image[2]),
            reconstructs=config.reconstruction_coef > 0,
        )  # fmt: skip
        inputs, outputs = observation_size + LOCATORS, sum(counts)
        super().__init__(
            inputs, outputs, NO_HIDDEN_LAYERS, lambda *_: ModuleNetwork(self.build_module, inputs, outputs)  # type: ignore[arg-type]
        )  # fmt: skip

    def build_module(self) -> TransformerModule:
        from cleanrl_worker.learners.torch_transformer import TransformerModule

        return TransformerModule(self._size, self._counts, self.sizes)


def loss(module: Any, batch: Any, config: Any, counts: Sequence[int] = ()) -> tuple[torch.Tensor, TransformerLosses]:
    """Return PPO's loss of a minibatch of tensors, and of reconstructing its images where that has a weight.

    Gradients do not flow into memories: they are inputs, computed with the weights of the rollout.
    """
    from torch.nn.functional import binary_cross_entropy

    from cleanrl_worker.learners.torch_transformer import LOCATORS, TransformerLosses

    logits, values, features, _ = module(batch.observations)
    terms = ppo.choice_terms(logits, batch.actions, counts)
    total, losses = ppo.clipped_loss(*terms, values, batch, config)
    reconstruction = total.new_zeros(())
    if config.reconstruction_coef > 0:
        images = module.images(batch.observations[:, :-LOCATORS])
        reconstruction = binary_cross_entropy(module.transposed_cnn(features), images)
        total = total + config.reconstruction_coef * reconstruction
    # PPO's value loss is half of the squared error.
    metrics: Any = [2 * losses.value_loss, *losses[1:], total.detach(), reconstruction.detach()]
    return total, TransformerLosses(*metrics)


def make_learner(config: Config, agent: Agent, counts: Sequence[int] = ()) -> TransformerLearner:
    from cleanrl_worker.learners.torch_backend import TorchContext
    from cleanrl_worker.learners.torch_transformer import TransformerLearner

    settings = SimpleNamespace(
        norm_adv=config.norm_adv, clip_coef=config.clip_coef, clip_vloss=config.clip_vloss,
        vf_coef=2 * config.vf_coef, max_grad_norm=config.max_grad_norm, reconstruction_coef=config.reconstruction_coef,
    )  # fmt: skip
    own_loss: Any = functools.partial(loss, counts=counts)
    return TransformerLearner(
        agent.network, agent.module(), own_loss, config, settings, TorchContext.from_settings(config)
    )


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""

    def make_agent(size: int, outputs: int, _: Architecture) -> Agent:
        shape = EpisodeShape.of(env)
        check_reconstruction(config, shape.image, env)
        return Agent(size, [outputs], config, shape)

    facts = run_checks.check_choices(NAME, config, env, make_agent)
    return {**facts, "encodes_images": find_image(env.observation_space) is not None}


def check_reconstruction(config: Config, image: Sequence[int] | None, env: gymnasium.Env[Any, Any]) -> None:
    if config.reconstruction_coef == 0:
        return
    # The transposed convolutions restore a side only where the strides divide it without a rest.
    if image is None or any((side - MIN_IMAGE_SIDE_PX) % 8 for side in image[:2]):
        raise refuse_key(
            "reconstruction_coef",
            f"images of bytes with sides of {MIN_IMAGE_SIDE_PX} plus a multiple of 8 pixels, such as 84, can be "
            f"reconstructed; {base.env_name(env)} has {base.format_space(env.observation_space)}. Leave it out.",
        )


class Training(MemoryTraining):
    """PPO whose rows also say where their memories are; memories are written while acting."""

    name = NAME
    config: Config
    learner: TransformerLearner

    def __init__(self, shape: EpisodeShape, *args: Any) -> None:
        self.shape = shape
        super().__init__(*args)
        steps, num_envs, self._size = self.observations.shape
        self.inputs = np.zeros((steps, num_envs, self.agent.network.inputs), np.float32)
        """Each observation, its environment, its position in the table of memories, and its step of the episode."""
        self.observations = self.inputs[..., : self._size]
        agent: Any = self.agent
        self.inputs[..., -3] = np.arange(num_envs)
        self.inputs[..., -2] = agent.sizes.window - 1 + np.arange(steps)[:, None]
        self._values = np.zeros(self.dones.shape, np.float32)
        self._recent: deque[tuple[float, float]] = deque(maxlen=100)
        """Return and length of the latest episodes."""
        self._t = 0

    def __call__(self, observations: Array, out: Array) -> None:
        """Act by the inputs of the current step; remember its values."""
        outputs = self._step(self.inputs[self._t])
        out[...], self._values[self._t] = outputs[:, :-1], outputs[:, -1]

    def begin_rollout(self) -> None:
        super().begin_rollout()
        self.learning_rate, self._ent_coef = self.config.schedule(self.global_step)
        self.learner.begin_rollout(self._ent_coef)
        self.inputs[0, :, -1] = self.inputs[-1, :, -1]

    def act(self, t: int) -> Any:
        self._t = t
        self._count_steps(t)
        return super().act(t)

    def _count_steps(self, t: int) -> None:
        if t:
            self.inputs[t, :, -1] = np.where(self.dones[t - 1], 0, self.inputs[t - 1, :, -1] + 1)

    def report_episode(self, episode_end: EpisodeEnd) -> None:
        super().report_episode(episode_end)
        self._recent.append((episode_end.episodic_return, episode_end.length))

    def state_values(self, inputs: Array) -> Array:
        return np.asarray(self.learner.values(inputs))

    def rollout_values(self) -> Array:
        self._count_steps(self.config.num_steps)
        return np.concatenate([self._values, self.state_values(self.inputs[-1])[None]])

    def _row_after(self, t: int, env: int, observation: Array) -> Array:
        """Return the inputs of the final observation of an episode whose last step was `t`."""
        return np.array([*observation, *self.inputs[t + 1, env, -3:-1], self.inputs[t, env, -1] + 1], np.float32)

    def bootstrap_truncated(self, rewards: Array) -> None:
        self.truncated = [(t, env, self._row_after(t, env, end)) for t, env, end in self.truncated]
        super().bootstrap_truncated(rewards)

    def estimate(self, rewards: Array) -> RolloutBatch:
        batch = super().estimate(rewards)
        return dataclasses.replace(batch, observations=self.inputs[:-1].reshape(self.config.batch_size, -1))

    def update(self, batch: RolloutBatch) -> tuple[dict[str, float], bool] | None:
        charts = {
            "charts/entropy_coefficient": self._ent_coef,
            "episode/value_mean": float(batch.values.mean()),
            "episode/advantage_mean": float(batch.advantages.mean()),
        }
        if self._recent:
            charts["episode/r_mean"], charts["episode/l_mean"] = np.mean(self._recent, 0).tolist()
        self.run.scalars(self.global_step, charts)
        return super().update(batch)

    def _shape(self) -> dict[str, Any]:
        return {**super()._shape(), **self.shape._asdict()}

    def own_state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays, facts = super().own_state()
        memory = self.learner.latest_memories.cpu().numpy().copy()
        own = {"memory": memory, "memory.steps": self.inputs[-1, :, -1].copy(), "recent": np.array(self._recent)}
        return {**arrays, **own}, facts

    def restore_own_state(self, resume: Checkpoint) -> None:
        super().restore_own_state(resume)
        self.learner.restore_memories(resume.arrays["memory"])
        self.inputs[-1, :, -1] = resume.arrays["memory.steps"]
        self._recent.extend(map(tuple, resume.arrays["recent"].tolist()))

    def forget_episodes(self) -> None:
        self.inputs[-1, :, -1] = 0


class DiscreteTraining(Training, ppo.Training):
    make_learner: Any = staticmethod(make_learner)

    def make_agent(self, config: Any, observation_size: int, outputs: int) -> Agent:
        return Agent(observation_size, [outputs], config, self.shape)


class MultiTraining(Training, ppo.MultiTraining):
    def make_agent(self, config: Any, observation_size: int, outputs: int) -> Agent:
        return Agent(observation_size, self._counts, config, self.shape)

    def make_learner(self, config: Any, agent: Any) -> TransformerLearner:
        return make_learner(config, agent, self._counts)


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    env = envs.make(config.env_id, **config.env_settings)
    shape = EpisodeShape.of(env)
    env.close()
    with open_environments(config, run, ParallelEnvs) as environments:
        kind = choose_training(environments.action_space, DiscreteTraining, MultiTraining)
        kind(shape, config, run, environments).train(resume)


class TransformerPolicy(LstmPolicy):
    """Acts with memory; needs torch. Each row of observations is a separate episode with its own memories."""

    def __init__(self, agent: Agent, encode: Outputs, select: base.TrainedPolicy) -> None:
        """`select` selects actions by the actor's outputs."""
        import torch

        torch.set_num_threads(devices.thread_count())
        module: Any = agent.module()
        self._module, self._encode, self._select = module, encode, select
        self._steps: Array = np.zeros(0, np.float32)

    def reset_state(self, row: int) -> None:
        """Forget the memories of a row, in which a new episode starts."""
        self._steps[row : row + 1] = 0

    def _step(self, observations: Array) -> Array:
        import torch

        inputs = self._encode(observations).astype(np.float32)
        module: Any = self._module
        if len(self._steps) != len(inputs):
            self._steps = np.zeros(len(inputs), np.float32)
            module.allocate_memory(len(inputs), 1)
        position = np.full(len(inputs), module.first_position)
        rows = np.column_stack([inputs, np.arange(len(inputs)), position, self._steps]).astype(np.float32)
        module.begin_rollout()
        with torch.no_grad():
            outputs = module.step(torch.from_numpy(rows)).numpy()
        self._steps += 1
        return np.asarray(outputs[:, :-1])


def _load_agent(checkpoint: Checkpoint) -> Agent:
    base.check_checkpoint_algorithm(NAME, checkpoint)
    facts, arrays = checkpoint.facts, checkpoint.arrays
    shape = facts["shape"]
    counts = arrays["action.counts"].ravel().tolist() if "action.counts" in arrays else [shape["actions"]]
    episodes = EpisodeShape(shape["max_episode_steps"], shape["image"])
    agent = Agent(shape["observation_size"], counts, Config(**facts["config"]), episodes)
    agent.load_state_dict(checkpoint.weights)
    return agent


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    agent, encode = _load_agent(checkpoint), base.ObservationEncoder(checkpoint.facts["inputs"])
    return TransformerPolicy(agent, encode, ppo.choice_policy(checkpoint, lambda outputs: outputs))


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the model that CleanRL's script would save, which includes the constants of the positional encoding."""
    agent = _load_agent(checkpoint)
    state = agent.state_dict()
    if agent.sizes.encoding == "absolute":
        state["transformer.pos_embedding.inv_freqs"] = agent.build_module().inverse_frequencies.numpy()
    return state
