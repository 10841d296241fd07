"""Rainbow for Atari games: deep Q-learning with its main improvements combined.

Like c51_atari it learns the return distribution of each action, and adds noisy layers for exploration, dueling value
and advantage heads, double Q-learning, n-step returns and prioritized replay. It needs the fewest game steps of all
algorithms here and the most computation per step; if steps are cheap, ppo_atari is faster in wall-clock time.

Paper: Hessel et al., "Rainbow: Combining Improvements in Deep Reinforcement Learning", arXiv:1710.02298 (2017).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
from pydantic import Field

from cleanrl_worker.algorithms import base
from cleanrl_worker.algorithms.replay_settings import AtariValueConfig, DistributionalConfig
from cleanrl_worker.algorithms.settings import LEARNING, ROLLOUT
from cleanrl_worker.evaluation.policies import image_network
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.conv_network import (
    CONV_LAYERS,
    CONV_NETWORK,
    KERNEL_SIZES_AND_STRIDES,
    ConvAgent,
    ConvNetworkSizes,
    dense_layer,
    trunk_shapes,
    uniform_weights,
)
from cleanrl_worker.loops import value_frames
from cleanrl_worker.loops.replay_world import atari_world
from cleanrl_worker.loops.value_frames import FrameValueLearner
from cleanrl_worker.replay.prioritized import PrioritizedReplay
from mosaic.worker.envs.atari import FRAME_SIZE_PX, FRAME_STACK

if TYPE_CHECKING:
    import torch

    from cleanrl_worker.learners.torch_conv import ImageInferenceStep
    from cleanrl_worker.learners.torch_replay import PrioritizedLearner
    from cleanrl_worker.learners.torch_value_heads import FactorizedNoise
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
NAME = "rainbow_atari"
SIZES = ConvNetworkSizes()
HEADS = ("value_head", "advantage_head")
"""Each head is a chain of noisy layers, number 0 and 2 in CleanRL's lists."""
INITIAL_SIGMA = 0.5
"""The initial sigma of the noisy layers."""
ADAM_EPSILON = 1.5e-4
METRIC_NAMES = ("td_loss", "q_values")


class Config(
    AtariValueConfig,
    DistributionalConfig,
    defaults={"exp_name": NAME, "learning_rate": 6.25e-5, "target_network_frequency": 8_000},
):
    """Settings of Rainbow for Atari games."""

    takes_network: ClassVar[bool] = False

    tau: float = Field(default=1.0, gt=0, le=1, json_schema_extra=LEARNING)
    """The fraction by which each target update moves the target network towards the online network; 1 copies it."""
    start_e: float = Field(default=1.0, ge=0, le=1, json_schema_extra=ROLLOUT)
    """Ignored, because noisy layers explore; accepted so that commands for CleanRL's script work unchanged."""
    end_e: float = Field(default=0.01, ge=0, le=1, json_schema_extra=ROLLOUT)
    """Ignored, like `start_e`."""
    exploration_fraction: float = Field(default=0.1, ge=0, le=1, json_schema_extra=ROLLOUT)
    """Ignored, like `start_e`."""
    n_step: int = Field(default=3, ge=1, le=1000, json_schema_extra=LEARNING)
    """The number of steps of n-step returns; 3 to 5 are usual."""
    prioritized_replay_alpha: float = Field(default=0.5, ge=0, le=1, json_schema_extra=LEARNING)
    """The exponent of priorities: 0 samples uniformly, 1 proportionally to the TD error."""
    prioritized_replay_beta: float = Field(default=0.4, ge=0, le=1, json_schema_extra=LEARNING)
    """The initial exponent of the importance-sampling weights; it grows to 1 over the run."""
    prioritized_replay_eps: float = Field(default=1e-6, gt=0, le=1, json_schema_extra=LEARNING)
    """A small constant that is added to each priority, so that every transition can be sampled."""

    def beta(self, step: int) -> float:
        """Return the exponent of the importance-sampling weights at this environment step."""
        initial = self.prioritized_replay_beta
        return min(1.0, initial + step * (1 - initial) / self.total_timesteps)


class Agent(ConvAgent):
    """Three convolutions and two heads of noisy layers: value and advantages, as logits of each atom."""

    def __init__(
        self,
        action_count: int,
        n_atoms: int = 51,
        v_min: float = -10,
        v_max: float = 10,
        sizes: ConvNetworkSizes = SIZES,
    ) -> None:
        self.atoms = np.linspace(v_min, v_max, n_atoms, dtype=np.float32)
        self.action_count = action_count
        conv_shapes = trunk_shapes(FRAME_STACK, FRAME_SIZE_PX, sizes)
        inputs = conv_shapes[f"{dense_layer(0)}.weight"][1]
        conv_shapes = {name: shape for name, shape in conv_shapes.items() if name.startswith(CONV_LAYERS)}
        self.noisy: dict[str, tuple[int, int]] = {}
        """Outputs and inputs of each noisy layer."""
        for head, outputs in zip(HEADS, (n_atoms, action_count * n_atoms), strict=True):
            for index, layer in enumerate(itertools.pairwise((inputs, *sizes.hidden, outputs))):
                self.noisy[f"{head}.{2 * index}"] = layer[::-1]
        self._conv_shapes = conv_shapes
        super().__init__(dict(conv_shapes))
        for name, weight in self.noisy.items():
            for part, shape in (("weight", weight), ("bias", weight[:1])):
                self.shapes |= {f"{name}.{part}_mu": shape, f"{name}.{part}_sigma": shape}
        self.noise = np.zeros(sum(map(sum, self.noisy.values())), np.float32)
        """The noise of each noisy layer's outputs and inputs, concatenated."""

    def initialize(self, rng: np.random.Generator) -> None:
        """Initialize means as torch does; sigmas are equal within a layer."""
        self.parameters = uniform_weights(self._conv_shapes, rng)
        for name, (outputs, inputs) in self.noisy.items():
            limit, shape = 1 / math.sqrt(inputs), (outputs, inputs)
            self.parameters |= {
                f"{name}.weight_mu": rng.uniform(-limit, limit, shape).astype(np.float32),
                f"{name}.weight_sigma": np.full(shape, INITIAL_SIGMA / math.sqrt(inputs), np.float32),
                f"{name}.bias_mu": rng.uniform(-limit, limit, outputs).astype(np.float32),
                f"{name}.bias_sigma": np.full(outputs, INITIAL_SIGMA / math.sqrt(outputs), np.float32),
            }

    def state_dict(self) -> dict[str, Array]:
        """Return the weights under CleanRL's keys, in torch's layout, with the noise of each weight."""
        state = {"support": self.atoms, **{name: self.parameters[name] for name in self._conv_shapes}}
        start = 0
        for name, (outputs, inputs) in self.noisy.items():
            output_noise, input_noise = np.split(self.noise[start : start + outputs + inputs], [outputs])
            start += outputs + inputs
            for part in ("weight_mu", "weight_sigma", "bias_mu", "bias_sigma"):
                state[f"{name}.{part}"] = self.parameters[f"{name}.{part}"]
            state |= {
                f"{name}.weight_epsilon": np.outer(output_noise, input_noise),
                f"{name}.bias_epsilon": output_noise.copy(),
            }
        return state


# --- in torch


def distributions(
    weights: Mapping[str, torch.Tensor],
    noise: FactorizedNoise | None,
    images: torch.Tensor,
    n_atoms: int,
    architecture: Architecture = CONV_NETWORK,
) -> torch.Tensor:
    """Return the probability of each atom [rows, actions, atoms] for images [rows, 84, 84, 4]."""
    import torch
    from torch.nn.functional import conv2d, relu

    from cleanrl_worker.learners.torch_dense import ACTIVATIONS
    from cleanrl_worker.learners.torch_value_heads import noisy_linear

    features = images.permute(0, 3, 1, 2).float()
    for number, (name, (_, stride)) in enumerate(zip(CONV_LAYERS, KERNEL_SIZES_AND_STRIDES, strict=True)):
        # The scaling of bytes to 0..1 is folded into the first layer's weights, which are fewer.
        weight = weights[f"{name}.weight"] if number else weights[f"{name}.weight"] / 255
        features = relu(conv2d(features, weight, weights[f"{name}.bias"], stride=stride))
    activate, _ = ACTIVATIONS[architecture.activation]
    flat = features.flatten(1)

    def logits(head: str) -> torch.Tensor:
        hidden = flat
        for index in range(len(architecture.hidden)):
            hidden = activate(noisy_linear(weights, noise, f"{head}.{2 * index}", hidden))
        last = f"{head}.{2 * len(architecture.hidden)}"
        return noisy_linear(weights, noise, last, hidden).view(len(images), -1, n_atoms)

    value, advantages = map(logits, HEADS)
    return torch.softmax(value + advantages - advantages.mean(1, keepdim=True), 2)


def q_values(
    weights: Mapping[str, torch.Tensor],
    noise: FactorizedNoise | None,
    atoms: torch.Tensor,
    images: torch.Tensor,
    architecture: Architecture = CONV_NETWORK,
) -> torch.Tensor:
    """Return the mean return of each action [rows, actions]."""
    from cleanrl_worker.learners.torch_value_heads import mean_returns

    return mean_returns(distributions(weights, noise, images, len(atoms), architecture), atoms)


def loss(
    weights: Any,
    target: Any,
    batch: Any,
    noise: FactorizedNoise,
    target_noise: FactorizedNoise,
    atoms: torch.Tensor,
    architecture: Architecture = CONV_NETWORK,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weighted cross-entropy to the n-step target distribution, and the reported metrics.

    The online network selects the next action and the target network evaluates it (double Q-learning). The loss of each
    row is written to `batch.td_errors`, for its priority.
    """
    import torch

    from cleanrl_worker.learners.torch_value_heads import cross_entropies, project_onto_atoms, select_actions

    noise.resample()
    target_noise.resample()
    with torch.no_grad():
        next_actions = q_values(weights, noise, atoms, batch.next_observations, architecture).argmax(1)
        next_pmfs = select_actions(
            distributions(target, target_noise, batch.next_observations, len(atoms), architecture), next_actions
        )
        target_pmfs = project_onto_atoms(next_pmfs, batch.rewards[:, None] + batch.discounts[:, None] * atoms, atoms)
    pmfs = select_actions(distributions(weights, noise, batch.observations, len(atoms), architecture), batch.actions)
    entropies = cross_entropies(target_pmfs, pmfs)
    batch.td_errors.copy_(entropies.detach())
    weighted_loss = (entropies * batch.weights).mean()
    return weighted_loss, torch.stack([weighted_loss, (pmfs * atoms).sum(1).mean()]).detach()


def _learner(
    config: Config, agent: Agent, target: Mapping[str, Array], replay: PrioritizedReplay
) -> tuple[PrioritizedLearner, ImageInferenceStep, FactorizedNoise]:
    """Return the learner, the function from images to the mean return of each action, and its noise."""
    import torch

    from cleanrl_worker.learners.torch_backend import TorchContext
    from cleanrl_worker.learners.torch_replay import BATCH_COLUMNS, PrioritizedLearner, ReplayFeed, make_inference_step
    from cleanrl_worker.learners.torch_value_heads import FactorizedNoise

    compute = TorchContext.from_settings(config)
    atoms = torch.as_tensor(agent.atoms, device=compute.device)
    noise, target_noise = (FactorizedNoise(agent.noisy, compute.device) for _ in range(2))
    noise.resample()
    feed = ReplayFeed(replay, config.batch_size, 2 * FRAME_STACK, compute, (*BATCH_COLUMNS, "discounts", "weights"))
    cross_entropy = functools.partial(
        loss, noise=noise, target_noise=target_noise, atoms=atoms, architecture=config.architecture
    )
    learner = PrioritizedLearner(
        agent.parameters, target, cross_entropy, feed,
        config.learning_rate, ADAM_EPSILON, METRIC_NAMES, compute, state_tensors=[noise.flat, target_noise.flat],
    )  # fmt: skip

    forward = functools.partial(q_values, learner.weights, noise, atoms, architecture=config.architecture)
    return learner, make_inference_step(replay, agent.action_count, forward, compute), noise


# --- training


class RainbowLearner(FrameValueLearner):
    """Explores by the noise of its layers and samples by priority."""

    def _restore(self, resume: Checkpoint) -> None:
        super()._restore(resume)
        self.noise.copy_from(resume.arrays["noise"])

    @property
    def noise(self) -> FactorizedNoise:
        noise: FactorizedNoise = self.more[0]
        return noise

    def update(self, replay: PrioritizedReplay, step: int) -> bool:
        self._beta = replay.beta = self.config.beta(step)
        return super().update(replay, step)

    def skip_update(self) -> None:
        """Resample the noise, as a gradient step would."""
        self.noise.resample()

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "charts/beta": self._beta}

    def checkpoint_state(self, replay: PrioritizedReplay) -> tuple[dict[str, Array], dict[str, Array], int]:
        _, arrays, count = super().checkpoint_state(replay)
        return {"support": self.agent.atoms, **self.agent.parameters}, {**arrays, "noise": self.noise.to_array()}, count


class NoisyExploration:
    """Chooses the best action: the noise of the network explores."""

    def __init__(self, config: Config, learner: RainbowLearner, action_count: int, rng: np.random.Generator) -> None:
        self._values = learner.values

    def begin(self, steps: Array) -> None:
        """Draw nothing."""

    def choose(self, t: int, observations: Array) -> Array:
        return np.asarray(self._values(observations).argmax(1))


def make_agent(config: Config, action_count: int) -> Agent:
    return Agent(action_count, **config.atoms, sizes=SIZES.with_architecture(config.architecture))


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    return value_frames.check(NAME, config, env, make_agent, PrioritizedReplay)


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    replay = functools.partial(
        PrioritizedReplay, n_step=config.n_step, gamma=config.gamma, alpha=config.prioritized_replay_alpha,
        beta=config.beta(0), epsilon=config.prioritized_replay_eps,
    )  # fmt: skip
    with atari_world(config, run, replay, num_envs=config.num_envs, **config.atoms) as world:
        value_frames.train(NAME, config, run, resume, world, make_agent, _learner, RainbowLearner, NoisyExploration)


class NoisyPolicy:
    """Selects the best action by the mean weights; unless `deterministic`, with the noise that training ended with."""

    def __init__(self, agent: Agent, first_action: int, architecture: Architecture) -> None:
        import torch

        from cleanrl_worker.learners.torch_conv import as_tensors
        from cleanrl_worker.learners.torch_value_heads import FactorizedNoise

        weights = as_tensors(agent.parameters, torch.device("cpu"), is_learned=False)
        noise = FactorizedNoise(agent.noisy, torch.device("cpu"))
        noise.copy_from(agent.noise)
        atoms = torch.as_tensor(agent.atoms)
        self._noisy, self._mean = (
            image_network(functools.partial(q_values, weights, part, atoms, architecture=architecture))
            for part in (noise, None)
        )
        self._first_action = first_action

    def act(self, observations: Array, deterministic: bool, rng: np.random.Generator) -> Array:
        values = (self._mean if deterministic else self._noisy)(observations)
        return np.asarray(values.argmax(1) + self._first_action)


def _load_agent(checkpoint: Checkpoint) -> Agent:
    def make_saved(sizes: ConvNetworkSizes) -> Agent:
        shape = checkpoint.facts["shape"]
        return Agent(shape["actions"], shape["n_atoms"], shape["v_min"], shape["v_max"], sizes)

    agent = base.load_conv_agent(NAME, checkpoint, make_saved)
    agent.noise[...] = checkpoint.arrays["noise"]
    return agent


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    agent = _load_agent(checkpoint)
    return NoisyPolicy(agent, checkpoint.facts["first_action"], base.saved_architecture(checkpoint))


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the state of CleanRL's network in its order; CleanRL's script saves no model."""
    return _load_agent(checkpoint).state_dict()
