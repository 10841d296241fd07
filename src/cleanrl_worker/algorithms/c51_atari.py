"""Categorical deep Q-learning (C51) for Atari games.

Like dqn_atari, but the agent learns the distribution of each action's return instead of its mean: the probabilities of
fixed values, the atoms. This is a richer training signal and usually more stable, and hardly slower, because the
convolutions take most of the time. rainbow_atari adds further improvements; ppo_atari is faster in wall-clock time.

Paper: Bellemare, Dabney, Munos, "A Distributional Perspective on Reinforcement Learning", arXiv:1707.06887 (2017).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
from pydantic import Field

from cleanrl_worker.algorithms import base, dqn_atari
from cleanrl_worker.algorithms.replay_settings import AtariValueConfig, DistributionalConfig
from cleanrl_worker.algorithms.settings import LEARNING, EpsilonGreedyConfig
from cleanrl_worker.evaluation.policies import greedy_image_policy
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.conv_network import CONV_NETWORK, ConvNetworkSizes
from cleanrl_worker.loops import value_frames
from cleanrl_worker.loops.replay_world import atari_world
from cleanrl_worker.replay.buffers import FrameReplay
from mosaic.worker.envs.atari import FRAME_STACK

if TYPE_CHECKING:
    import torch

    from cleanrl_worker.learners.torch_conv import ImageInferenceStep
    from cleanrl_worker.learners.torch_replay import TargetNetworkLearner
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
NAME = "c51_atari"
SIZES = ConvNetworkSizes()
METRIC_NAMES = ("loss", "q_values")


class Config(
    AtariValueConfig,
    EpsilonGreedyConfig,
    DistributionalConfig,
    defaults={"exp_name": NAME, "learning_rate": 2.5e-4, "end_e": 0.01, "exploration_fraction": 0.1},
):
    """Settings of categorical deep Q-learning for Atari games."""

    target_network_frequency: int = Field(default=10_000, ge=1, json_schema_extra=LEARNING)
    """Environment steps between copies of the online network to the target network."""
    tau: ClassVar[float] = 1.0
    """The target network is copied."""


class Agent(dqn_atari.Agent):
    """Three convolutions and fully connected layers; gives the logit of each atom for each action."""

    def __init__(
        self,
        action_count: int,
        n_atoms: int = 51,
        v_min: float = -10,
        v_max: float = 10,
        sizes: ConvNetworkSizes = SIZES,
    ) -> None:
        super().__init__(action_count, sizes, n_atoms)
        self.atoms = np.linspace(v_min, v_max, n_atoms, dtype=np.float32)

    def state_dict(self) -> dict[str, Array]:
        """Return the weights under CleanRL's keys, in torch's layout."""
        return {"atoms": self.atoms, **self.parameters}


# --- in torch


def distributions(
    weights: Mapping[str, torch.Tensor], images: torch.Tensor, n_atoms: int, architecture: Architecture = CONV_NETWORK
) -> torch.Tensor:
    """Return the probability of each atom [rows, actions, atoms] for images [rows, 84, 84, 4]."""
    import torch

    logits = dqn_atari.q_values(weights, images, architecture)
    return torch.softmax(logits.view(len(logits), -1, n_atoms), 2)


def q_values(
    weights: Mapping[str, torch.Tensor],
    atoms: torch.Tensor,
    images: torch.Tensor,
    architecture: Architecture = CONV_NETWORK,
) -> torch.Tensor:
    """Return the mean return of each action [rows, actions]."""
    from cleanrl_worker.learners.torch_value_heads import mean_returns

    return mean_returns(distributions(weights, images, len(atoms), architecture), atoms)


def loss(
    weights: Any,
    target: Any,
    batch: Any,
    atoms: torch.Tensor,
    gamma: float,
    architecture: Architecture = CONV_NETWORK,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cross-entropy to the target distribution, and the reported metrics."""
    import torch

    from cleanrl_worker.learners.torch_value_heads import (
        cross_entropies,
        mean_returns,
        project_onto_atoms,
        select_actions,
    )

    with torch.no_grad():
        next_pmfs = distributions(target, batch.next_observations, len(atoms), architecture)
        next_pmfs = select_actions(next_pmfs, mean_returns(next_pmfs, atoms).argmax(1))
        shifted_atoms = batch.rewards[:, None] + gamma * atoms * (1 - batch.terminals[:, None])
        target_pmfs = project_onto_atoms(next_pmfs, shifted_atoms, atoms)
    pmfs = select_actions(distributions(weights, batch.observations, len(atoms), architecture), batch.actions)
    entropy = cross_entropies(target_pmfs, pmfs).mean()
    return entropy, torch.stack([entropy, (pmfs * atoms).sum(1).mean()]).detach()


def _learner(
    config: Config, agent: Agent, target: Mapping[str, Array], replay: FrameReplay
) -> tuple[TargetNetworkLearner, ImageInferenceStep]:
    """Return the learner, and the function from images to the mean return of each action."""
    import torch

    from cleanrl_worker.learners.torch_backend import TorchContext
    from cleanrl_worker.learners.torch_replay import ReplayFeed, TargetNetworkLearner, make_inference_step

    compute = TorchContext.from_settings(config)
    atoms = torch.as_tensor(agent.atoms, device=compute.device)
    feed = ReplayFeed(replay, config.batch_size, FRAME_STACK + 1, compute)
    # The larger epsilon is from the paper.
    cross_entropy = functools.partial(loss, atoms=atoms, gamma=config.gamma, architecture=config.architecture)
    learner = TargetNetworkLearner(
        agent.parameters, target, cross_entropy, feed, config.learning_rate,
        epsilon=0.01 / config.batch_size, metric_names=METRIC_NAMES, compute=compute,
    )  # fmt: skip
    forward = functools.partial(q_values, learner.weights, atoms, architecture=config.architecture)
    return learner, make_inference_step(replay, agent.action_count, forward, compute)


# --- training


def make_agent(config: Config, action_count: int) -> Agent:
    return Agent(action_count, **config.atoms, sizes=SIZES.with_architecture(config.architecture))


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    return value_frames.check(NAME, config, env, make_agent)


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    with atari_world(config, run, num_envs=config.num_envs, **config.atoms) as world:
        value_frames.train(NAME, config, run, resume, world, make_agent, _learner)


def _load_agent(checkpoint: Checkpoint) -> Agent:
    def make_saved(sizes: ConvNetworkSizes) -> Agent:
        shape = checkpoint.facts["shape"]
        return Agent(shape["actions"], shape["n_atoms"], shape["v_min"], shape["v_max"], sizes)

    return base.load_conv_agent(NAME, checkpoint, make_saved)


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    import torch

    from cleanrl_worker.learners.torch_conv import as_tensors

    agent = _load_agent(checkpoint)
    weights = as_tensors(agent.parameters, torch.device("cpu"), is_learned=False)
    architecture = base.saved_architecture(checkpoint)
    values = functools.partial(q_values, weights, torch.as_tensor(agent.atoms), architecture=architecture)
    return greedy_image_policy(checkpoint, values)


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the model that CleanRL's script would save: the settings and the weights."""
    return {"model_weights": _load_agent(checkpoint).state_dict(), "args": checkpoint.facts["config"]}
