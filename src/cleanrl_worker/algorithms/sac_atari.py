"""Soft actor-critic for Atari games.

The agent learns Q-values from a replay buffer, and a stochastic policy that maximizes the return plus the entropy of
its actions; the weight of the entropy is tuned automatically. Actor and critics have separate convolutions over the
latest four frames, so an update takes several times as long as in dqn_atari. It explores by sampling from its policy.
On most games rainbow_atari and ppo_atari reach higher returns; use this one if you need an off-policy actor.

Papers: Christodoulou, "Soft Actor-Critic for Discrete Action Settings", arXiv:1910.07207 (2019).
Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", arXiv:1812.05905 (2018).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
from pydantic import Field

from cleanrl_worker.algorithms import base
from cleanrl_worker.algorithms.replay_settings import ReplayConfig
from cleanrl_worker.algorithms.settings import LEARNING, ROLLOUT, RUN, AtariConfig
from cleanrl_worker.evaluation.policies import CategoricalPolicy, image_network
from cleanrl_worker.learners.architecture import MAX_LAYERS
from cleanrl_worker.learners.conv_network import (
    ConvAgent,
    ConvNetworkSizes,
    copy_checked,
    dense_layer,
    layer_shapes,
    trunk_shapes,
)
from cleanrl_worker.learners.flat_network import select_by_prefix
from cleanrl_worker.loops import value_frames
from cleanrl_worker.loops.replay_world import atari_world
from cleanrl_worker.loops.value_frames import FrameValueLearner
from cleanrl_worker.replay.buffers import FrameReplay
from mosaic.worker.envs.atari import FRAME_SIZE_PX, FRAME_STACK

if TYPE_CHECKING:
    from torch import Tensor

    from cleanrl_worker.learners.torch_conv import ImageInferenceStep
    from cleanrl_worker.learners.torch_discrete_sac import DiscreteSacLearner
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
NAME = "sac_atari"
SIZES = ConvNetworkSizes()
HEADS = {"actor": "fc_logits", "qf1": "fc_q", "qf2": "fc_q"}
"""The networks and CleanRL's name of the last layer of each."""


class Config(
    AtariConfig,
    ReplayConfig,
    defaults={"env_id": "BeamRiderNoFrameskip-v4", "exp_name": NAME, "batch_size": 64},
):
    """Settings of soft actor-critic for Atari games."""

    total_timesteps: int = Field(default=5_000_000, gt=0, json_schema_extra=RUN)
    """Steps to train for; a step is four frames."""
    buffer_size: int = Field(default=1_000_000, ge=1, json_schema_extra=ROLLOUT)
    """The capacity of the replay buffer in transitions; a million take 7 GB of memory."""
    tau: float = Field(default=1.0, gt=0, le=1, json_schema_extra=LEARNING)
    """The fraction by which each target update moves the target networks towards the critics; 1 copies them."""
    learning_starts: int = Field(default=20_000, ge=0, json_schema_extra=LEARNING)
    """Environment steps with random actions before the first update."""
    policy_lr: float = Field(default=3e-4, gt=0, lt=1, json_schema_extra=LEARNING)
    """The learning rate of the actor; 1e-4 to 5e-4 are usual."""
    q_lr: float = Field(default=3e-4, gt=0, lt=1, json_schema_extra=LEARNING)
    """The learning rate of the critics and of the entropy coefficient; 1e-4 to 5e-4 are usual."""
    update_frequency: int = Field(default=4, ge=1, le=1_000_000, json_schema_extra=LEARNING)
    """Steps between updates."""
    target_network_frequency: int = Field(default=8_000, ge=1, json_schema_extra=LEARNING)
    """Environment steps between updates of the target networks."""
    alpha: float = Field(default=0.2, ge=0, le=100, json_schema_extra=LEARNING)
    """The entropy coefficient, if it is not tuned."""
    autotune: bool = Field(default=True, json_schema_extra=LEARNING)
    """Whether the entropy coefficient is tuned to reach the target entropy."""
    target_entropy_scale: float = Field(default=0.89, ge=0, le=1, json_schema_extra=LEARNING)
    """The target entropy as a fraction of a uniform policy's entropy; lower makes the policy more deterministic."""

    num_envs: ClassVar[int] = 1

    @property
    def train_frequency(self) -> int:
        """The loop's name of `update_frequency`."""
        return self.update_frequency

    @property
    def buffer_capacity(self) -> int:
        """The capacity that is allocated: no more than the run's number of steps."""
        return min(self.buffer_size, self.total_timesteps)


class Agent(ConvAgent):
    """An actor and two critics, each with three convolutions, fully connected layers and one output per action."""

    def __init__(self, action_count: int, sizes: ConvNetworkSizes = SIZES) -> None:
        self.action_count = action_count
        one = {
            **trunk_shapes(FRAME_STACK, FRAME_SIZE_PX, sizes),
            **layer_shapes("head", action_count, sizes.hidden[-1]),
        }
        super().__init__({f"{network}.{name}": shape for network in HEADS for name, shape in one.items()})
        self.shapes["log_alpha"] = (1,)

    def initialize(self, rng: np.random.Generator) -> None:
        """Initialize with He-normal weights and zero biases."""
        for name, shape in self.shapes.items():
            self.parameters[name] = np.zeros(shape, np.float32)
            if name.endswith(".weight"):
                rng.standard_normal(dtype=np.float32, out=self.parameters[name])
                self.parameters[name] *= np.float32(math.sqrt(2 / math.prod(shape[1:])))

    def critics(self, parameters: Mapping[str, Array]) -> dict[str, Array]:
        return {name: part for name, part in parameters.items() if name.startswith("qf")}

    def state_dict(self) -> dict[str, Array]:
        """Return the weights under CleanRL's keys with its network names as prefixes, in torch's layout."""
        return {_cleanrl_key(name): part for name, part in self.parameters.items()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        self.parameters = copy_checked(self.shapes, {name: state[_cleanrl_key(name)] for name in self.shapes})


def _cleanrl_key(name: str) -> str:
    """Return CleanRL's name of a parameter."""
    network, _, rest = name.partition(".")
    for index in range(MAX_LAYERS):
        rest = rest.replace(f"{dense_layer(index)}.", f"fc{index + 1}.")
    rest = rest.replace("network.", "conv.").replace("head.", f"{HEADS.get(network)}.")
    return f"{network}.{rest}" if rest else network


# --- the losses in torch; expectations over the few discrete actions are computed exactly, without sampling


def soft_values(log_probs: Tensor, values: Tensor, alpha: Tensor) -> Tensor:
    """Return the soft state values [rows]: V(s) = Σ_a π(a|s) (Q(s, a) - α log π(a|s))."""
    return (log_probs.exp() * (values - alpha * log_probs)).sum(1)


def critic_losses(networks: Any, batch: Any, gamma: float) -> tuple[list[Tensor], list[Tensor]]:
    """Return the mean squared error of each critic, and its values of the taken actions."""
    import torch

    with torch.no_grad():
        log_probs = networks.actor(batch.next_observations).log_softmax(1)
        min_values = torch.min(*(target(batch.next_observations) for target in networks.targets))
        next_values = soft_values(log_probs, min_values, networks.alpha)
        td_targets = batch.rewards + gamma * (1 - batch.terminals) * next_values
    values = [critic(batch.observations).gather(1, batch.actions[:, None])[:, 0] for critic in networks.critics]
    return [torch.nn.functional.mse_loss(part, td_targets) for part in values], values


def actor_loss(networks: Any, batch: Any, log_probs: Tensor) -> Tensor:
    """Return the policy loss: -E[V(s)] with the smaller of the critics' values, for log π(·|s)."""
    import torch

    with torch.no_grad():
        min_values = torch.min(*(critic(batch.observations) for critic in networks.critics))
    # The mean over rows and actions, as in CleanRL, whose learning rates are meant for it.
    return -soft_values(log_probs, min_values, networks.alpha).mean() / log_probs.shape[1]


def alpha_loss(log_alpha: Tensor, log_probs: Tensor, target_entropy: float) -> Tensor:
    """Return the loss of the temperature: -α E[log π(a|s) + H]."""
    return -log_alpha.exp()[0] * (log_probs.exp() * (log_probs + target_entropy)).mean()


def _learner(
    config: Config, agent: Agent, targets: Mapping[str, Array], replay: FrameReplay
) -> tuple[DiscreteSacLearner, ImageInferenceStep]:
    """Return the learner, and the function from images to action logits."""
    from cleanrl_worker.learners.torch_backend import TorchContext
    from cleanrl_worker.learners.torch_discrete_sac import DiscreteSacLearner, DiscreteSacLosses
    from cleanrl_worker.learners.torch_replay import ReplayFeed, make_inference_step

    compute = TorchContext.from_settings(config)
    feed = ReplayFeed(replay, config.batch_size, FRAME_STACK + 1, compute)
    losses = DiscreteSacLosses(critic_losses, actor_loss, alpha_loss)
    learner = DiscreteSacLearner(agent.parameters, targets, feed, losses, config, compute)
    return learner, make_inference_step(replay, agent.action_count, learner.actor, compute)


# --- training


class SacLearner(FrameValueLearner):
    """Only the critics have target networks."""

    def _targeted(self, parts: dict[str, Any]) -> dict[str, Any]:
        return self.agent.critics(parts)  # type: ignore[no-any-return]


class SampledActions:
    """Samples the policy; before learning starts, uniformly."""

    def __init__(self, config: Config, learner: SacLearner, action_count: int, rng: np.random.Generator) -> None:
        self._learner, self._action_count, self._rng = learner, action_count, rng
        self._learning_starts = config.learning_starts

    def begin(self, steps: Array) -> None:
        self._noise = -np.log(base.sample_exponentials(self._rng, (len(steps), self._action_count)))
        self._is_random = steps < self._learning_starts

    def choose(self, t: int, observations: Array) -> Array:
        # The argmax of logits plus Gumbel noise is a sample of their softmax distribution.
        scores = self._noise[t] if self._is_random[t] else self._learner.values(observations)[0] + self._noise[t]
        return np.array([scores.argmax()])


def make_agent(config: Config, action_count: int) -> Agent:
    return Agent(action_count, SIZES.with_architecture(config.architecture))


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    facts = value_frames.check(NAME, config, env, make_agent)
    return {**facts, "parameters": facts["parameters"] - 1}


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    with atari_world(config, run, autotune=config.autotune) as world:
        value_frames.train(NAME, config, run, resume, world, make_agent, _learner, SacLearner, SampledActions)


def _load_agent(checkpoint: Checkpoint) -> Agent:
    def make_saved(sizes: ConvNetworkSizes) -> Agent:
        return Agent(checkpoint.facts["shape"]["actions"], sizes)

    convolutions = ("actor.conv.0", "actor.conv.2", "actor.conv.4")
    return base.load_conv_agent(NAME, checkpoint, make_saved, convolutions=convolutions)


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    import torch

    from cleanrl_worker.learners.torch_conv import as_tensors
    from cleanrl_worker.learners.torch_discrete_sac import DiscreteSacNetwork

    weights = as_tensors(_load_agent(checkpoint).parameters, torch.device("cpu"), is_learned=False)
    logits = image_network(DiscreteSacNetwork(weights, "actor", base.saved_architecture(checkpoint)))
    return CategoricalPolicy(logits, checkpoint.facts["first_action"])


def state_dict_of(checkpoint: Checkpoint) -> tuple[dict[str, Array], ...]:
    """Return actor and critics as CleanRL's TD3 script saves them; its SAC scripts save no model."""
    state = _load_agent(checkpoint).state_dict()
    return tuple(select_by_prefix(f"{name}.", state) for name in HEADS)
