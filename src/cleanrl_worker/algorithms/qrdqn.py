"""Deep Q-learning with quantile regression (QR-DQN) for discrete actions.

Like dqn, but the agent learns quantiles of each action's return instead of its mean. As in c51 this is a richer
training signal; unlike there, the range of returns need not be known. An update takes several times as long as that of
dqn.

Paper: Dabney et al., "Distributional Reinforcement Learning with Quantile Regression", arXiv:1710.10044 (2017).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
from pydantic import Field

from cleanrl_worker.algorithms import base, dqn
from cleanrl_worker.algorithms.settings import LEARNING
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.protocols import TargetValueLearner
from cleanrl_worker.loops import value_vectors

if TYPE_CHECKING:
    import torch

    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
NAME = "qrdqn"
NETWORK = dqn.NETWORK
METRIC_NAMES = ("loss", "q_values")


class Config(dqn.Config, defaults={"exp_name": NAME}):
    """Settings of deep Q-learning with quantile regression."""

    has_kernels: ClassVar[bool] = False

    n_quantiles: int = Field(default=50, ge=1, le=10_000, json_schema_extra=LEARNING)
    """The number of quantiles of each action's return; 10 to 200 are usual."""


class Agent(dqn.Agent):
    """A network that gives the quantiles of the return of each action."""

    def __init__(
        self, observation_size: int, action_count: int, architecture: Architecture = NETWORK, n_quantiles: int = 50
    ) -> None:
        super().__init__(observation_size, action_count * n_quantiles, architecture)
        self.n_quantiles = n_quantiles

    def q_values(self, outputs: Array) -> Array:
        """Return the mean return of each action [actions, rows] for the network's outputs [outputs, rows]."""
        return np.asarray(outputs.reshape(-1, self.n_quantiles, outputs.shape[-1]).mean(1))


def loss(module: Any, target: Any, batch: Any, config: Config) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the quantile regression loss, summed over the quantiles, and the reported metrics."""
    import torch

    from cleanrl_worker.learners.torch_value_heads import quantile_huber_losses, select_actions

    def quantiles(network: Any, observations: torch.Tensor) -> torch.Tensor:
        return network.network(observations).view(len(observations), -1, config.n_quantiles)  # type: ignore[no-any-return]

    with torch.no_grad():
        next_quantiles = quantiles(target, batch.next_observations)
        next_quantiles = select_actions(next_quantiles, next_quantiles.mean(2).argmax(1))
        td_targets = batch.rewards[:, None] + config.gamma * next_quantiles * (1 - batch.terminals[:, None])
    predictions = select_actions(quantiles(module, batch.observations), batch.actions[:, 0])
    error = quantile_huber_losses(predictions, td_targets).sum(1).mean()
    return error, {"loss": error.detach(), "q_values": predictions.detach().mean()}


def _learner(config: Config, agent: Agent, target: Agent) -> TargetValueLearner:
    from cleanrl_worker.learners.autograd_learners import ValueAutogradLearner

    epsilon = 0.01 / config.batch_size  # from the paper, larger than usual
    torch_loss = functools.partial(loss, config=config)
    return ValueAutogradLearner(agent, torch_loss, config, METRIC_NAMES, target=target, epsilon=epsilon)


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    return value_vectors.check(NAME, config, env, functools.partial(Agent, n_quantiles=config.n_quantiles))


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    make_agent = functools.partial(Agent, n_quantiles=config.n_quantiles)
    value_vectors.train(NAME, config, run, resume, make_agent, _learner, n_quantiles=config.n_quantiles)


def _load_agent(checkpoint: Checkpoint) -> Agent:
    base.check_checkpoint_algorithm(NAME, checkpoint)
    n_quantiles = checkpoint.facts["shape"]["n_quantiles"]
    return base.load_agent(checkpoint, functools.partial(Agent, n_quantiles=n_quantiles), NETWORK)


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    return value_vectors.load_greedy_policy(_load_agent(checkpoint), checkpoint)


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the settings and the weights, as CleanRL's C51 script saves them; it has no script of this name."""
    return {"model_weights": _load_agent(checkpoint).state_dict(), "args": checkpoint.facts["config"]}
