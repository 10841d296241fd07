"""Deep Q-learning for discrete actions.

The agent learns the Q-value of each action and acts epsilon-greedily. Transitions are stored in a replay buffer and
learned from many times, with targets from an older copy of the network. It needs few environment steps and suits
discrete actions with frequent rewards. If steps are cheap, ppo and pqn are more stable and faster in wall-clock time;
c51 learns the distribution of returns instead of the mean.

Paper: Mnih et al., "Human-level control through deep reinforcement learning", Nature 518 (2015).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy.typing as npt
from pydantic import Field

from cleanrl_worker.algorithms import base
from cleanrl_worker.algorithms.replay_settings import ValueReplayConfig
from cleanrl_worker.algorithms.settings import LEARNING, EpsilonGreedyConfig
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.flat_network import NumpyAdam
from cleanrl_worker.learners.perceptron import Perceptron
from cleanrl_worker.learners.protocols import TargetValueLearner
from cleanrl_worker.learners.value_kernels import QKernel
from cleanrl_worker.loops import value_vectors

if TYPE_CHECKING:
    import torch

    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
NAME = "dqn"
NETWORK = Architecture((120, 84), "relu")
METRIC_NAMES = ("td_loss", "q_values")


class Config(
    EpsilonGreedyConfig,
    ValueReplayConfig,
    defaults={"env_id": "CartPole-v1", "total_timesteps": 500_000, "exp_name": NAME, **NETWORK.settings},
):
    """Settings of deep Q-learning."""

    tau: float = Field(default=1.0, gt=0, le=1, json_schema_extra=LEARNING)
    """The fraction by which each target update moves the target network towards the online network; 1 copies it."""


class Agent(base.FlatAgent):
    """A Q-network."""

    def __init__(self, observation_size: int, action_count: int, architecture: Architecture = NETWORK) -> None:
        super().__init__(observation_size, action_count, architecture, Perceptron)

    def q_values(self, outputs: Array) -> Array:
        """Return the value of each action [actions, rows] for the network's outputs."""
        return outputs

    def build_module(self) -> torch.nn.Module:
        import torch

        from cleanrl_worker.learners.torch_dense import dense_layers

        module = torch.nn.Module()
        module.network = dense_layers(self.architecture, self.inputs, self.outputs)
        return module


def loss(module: Any, target: Any, batch: Any, config: Config) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the reference loss of a batch of tensors; the numpy kernel implements its gradient by hand."""
    import torch

    with torch.no_grad():
        next_values = target.network(batch.next_observations).max(1).values
        td_targets = batch.rewards + config.gamma * next_values * (1 - batch.terminals)
    values = module.network(batch.observations).gather(1, batch.actions)[:, 0]
    error = torch.nn.functional.mse_loss(values, td_targets)
    return error, {"td_loss": error.detach(), "q_values": values.detach().mean()}


def _learner(config: Config, agent: Agent, target: Agent) -> TargetValueLearner:
    if base.resolve_backend(config) == "numpy":
        adam = NumpyAdam(agent.network)
        return QKernel(agent.network, target.network, config.batch_size, adam, config.gamma)
    from cleanrl_worker.learners.autograd_learners import ValueAutogradLearner

    return ValueAutogradLearner(agent, functools.partial(loss, config=config), config, METRIC_NAMES, target=target)


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    return value_vectors.check(NAME, config, env, Agent)


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    value_vectors.train(NAME, config, run, resume, Agent, _learner)


def _load_agent(checkpoint: Checkpoint) -> Agent:
    base.check_checkpoint_algorithm(NAME, checkpoint)
    return base.load_agent(checkpoint, Agent, NETWORK)


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    return value_vectors.load_greedy_policy(_load_agent(checkpoint), checkpoint)


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the model that CleanRL's script would save."""
    return _load_agent(checkpoint).state_dict()
