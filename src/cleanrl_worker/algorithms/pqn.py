"""Parallelized Q-learning (PQN) for discrete actions.

Q-learning without replay buffer and target network: the agent collects a rollout from several environments and fits the
Q-values to λ-returns for a few epochs. Layer norm keeps it stable. It is simple and fast and needs little memory; use
it for discrete actions with many parallel environments. If environment steps are expensive, dqn and c51 need fewer.

Paper: Gallici et al., "Simplifying Deep Temporal Difference Learning", arXiv:2407.04811 (2024).
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt

from cleanrl_worker.algorithms import base, run_checks
from cleanrl_worker.algorithms.settings import PqnConfig
from cleanrl_worker.environments.parallel import ParallelEnvs
from cleanrl_worker.environments.vector import VectorEnvs
from cleanrl_worker.evaluation.policies import GreedyPolicy
from cleanrl_worker.learners import value_kernels
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.flat_network import NumpyRAdam
from cleanrl_worker.learners.perceptron import Perceptron
from cleanrl_worker.learners.protocols import ValueLearner
from cleanrl_worker.learners.value_kernels import ReturnBatch, ReturnsKernel
from cleanrl_worker.loops.on_policy import OnPolicyTraining, open_environments

if TYPE_CHECKING:
    import torch

    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
NAME = "pqn"
NETWORK = Architecture((120, 84), "relu")
METRIC_NAMES = ("td_loss", "q_values")


class Config(
    PqnConfig,
    defaults={"env_id": "CartPole-v1", "total_timesteps": 500_000, "exp_name": NAME, **NETWORK.settings},
):
    """Settings of parallelized Q-learning."""


class Agent(base.FlatAgent):
    """A Q-network with layer norm."""

    def __init__(self, observation_size: int, action_count: int, architecture: Architecture = NETWORK) -> None:
        network = functools.partial(Perceptron, has_layer_norm=True)
        super().__init__(observation_size, action_count, architecture, network)

    def initialize(self, rng: np.random.Generator) -> None:
        self.network.initialize_orthogonal(rng)

    def build_module(self) -> torch.nn.Module:
        import torch

        from cleanrl_worker.learners.torch_dense import dense_layers

        module = torch.nn.Module()
        module.network = dense_layers(
            self.architecture, self.inputs, self.outputs, has_layer_norm=True, head_gain=math.sqrt(2)
        )
        return module


def loss(module: Any, batch: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the reference loss of a minibatch of tensors; the numpy kernel implements its gradient by hand."""
    import torch

    values = module.network(batch.observations).gather(1, batch.actions[:, None])[:, 0]
    error = torch.nn.functional.mse_loss(values, batch.returns)
    return error, {"td_loss": error.detach(), "q_values": values.detach().mean()}


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    return run_checks.check_discrete(NAME, config, env, Agent)


def _learner(config: Config, agent: Agent) -> ValueLearner:
    if base.resolve_backend(config) == "numpy":
        return ReturnsKernel(
            agent.network, config.minibatch_size, NumpyRAdam(agent.network, max_norm=config.max_grad_norm)
        )
    from cleanrl_worker.learners.autograd_learners import ValueAutogradLearner
    from cleanrl_worker.learners.torch_backend import TorchRAdam

    return ValueAutogradLearner(agent, loss, config, METRIC_NAMES, max_norm=config.max_grad_norm, optimizer=TorchRAdam)


class Training(OnPolicyTraining):
    """Acts epsilon-greedily and fits the Q-values of the rollout's actions to their λ-returns."""

    name = NAME
    config: Config
    agent: Agent
    learner: ValueLearner

    def __init__(self, config: Config, run: Run, environments: VectorEnvs) -> None:
        space: Any = environments.action_space
        self.first_action, count = int(space.start), int(space.n)
        super().__init__(config, run, environments, Agent(environments.observation_size, count, config.architecture))
        # Numpy integers instead of Python ints: Gymnasium checks faster whether they are in the action space.
        self._env_actions = [space.dtype.type(self.first_action + index) for index in range(count)]
        self._values = np.zeros((config.num_steps + 1, count, config.num_envs), np.float32)
        """The Q-values that select the actions; the returns need them too."""

    def start_learner(self) -> None:
        self.learner = _learner(self.config, self.agent)
        self._forward = self.learner.forward(self.config.num_envs)

    def begin_rollout(self) -> None:
        config, shape = self.config, (self.config.num_steps, self.config.num_envs)
        epsilons = config.epsilons(self.global_step + config.num_envs * np.arange(1, config.num_steps + 1))
        self._is_greedy = self.rng.random(shape) >= epsilons[:, None]
        self._actions = self.rng.integers(len(self._env_actions), size=shape)

    def act(self, t: int) -> list[Any]:
        values, actions = self._values[t], self._actions[t]
        values[...] = self._forward(self.observations[t])
        np.copyto(actions, values.argmax(0), where=self._is_greedy[t])
        return [self._env_actions[index] for index in actions.tolist()]

    def env_actions(self) -> Array:
        return np.array(self._env_actions)[self._actions]

    def state_values(self, observations: Array) -> Array:
        return np.asarray(self.agent.network(observations).max(1))

    def estimate(self, rewards: Array) -> ReturnBatch:
        config, total = self.config, self.config.batch_size
        self._values[-1] = self._forward(self.observations[-1])
        self.bootstrap_truncated(rewards)
        next_values = self._values[1:].max(1)
        returns = value_kernels.q_lambda_returns(rewards, next_values, self.dones, config.gamma, config.q_lambda)
        return ReturnBatch(
            self.observations[:-1].reshape(total, -1), self._actions.reshape(total), returns.reshape(total)
        )

    def update(self, batch: ReturnBatch) -> tuple[dict[str, float], bool] | None:
        config, learner = self.config, self.learner
        orders = [self.rng.permutation(config.batch_size) for _ in range(config.update_epochs)]
        is_finite = True
        for rows in np.concatenate(orders).reshape(-1, config.minibatch_size):
            is_finite = learner.update(ReturnBatch(*(part.take(rows, 0) for part in batch)), self.learning_rate)
            if self.is_stopped():
                return None
            if not is_finite:
                break
        learner.sync_networks()
        return learner.losses(), is_finite

    def own_state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {}, {"first_action": self.first_action}


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    with open_environments(config, run, ParallelEnvs) as environments:
        Training(config, run, environments).train(resume)


def _load_agent(checkpoint: Checkpoint) -> Agent:
    base.check_checkpoint_algorithm(NAME, checkpoint)
    return base.load_agent(checkpoint, Agent, NETWORK)


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    agent, facts = _load_agent(checkpoint), checkpoint.facts
    encode = base.ObservationEncoder(facts["inputs"])
    return GreedyPolicy(
        lambda observations: np.asarray(agent.network(encode(observations))),
        facts["first_action"],
        facts["config"]["end_e"],
    )


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the model that CleanRL's script would save, if it saved one."""
    return _load_agent(checkpoint).state_dict()
