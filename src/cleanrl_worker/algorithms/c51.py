"""Categorical deep Q-learning (C51) for discrete actions.

Like dqn, but the agent learns the distribution of each action's return instead of its mean: the probabilities of fixed
values, the atoms. This is a richer training signal and usually more stable. The range of returns must be given as
`v_min` and `v_max`; if it is unknown, use dqn or qrdqn.

Paper: Bellemare, Dabney, Munos, "A Distributional Perspective on Reinforcement Learning", arXiv:1707.06887 (2017).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
from pydantic import Field

from cleanrl_worker.algorithms import base, dqn
from cleanrl_worker.algorithms.replay_settings import DistributionalConfig, ValueReplayConfig
from cleanrl_worker.algorithms.settings import LEARNING, EpsilonGreedyConfig
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.flat_network import NumpyAdam
from cleanrl_worker.learners.protocols import TargetValueLearner
from cleanrl_worker.learners.value_kernels import DistributionKernel, softmax
from cleanrl_worker.loops import value_vectors

if TYPE_CHECKING:
    import torch

    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
NAME = "c51"
NETWORK = dqn.NETWORK
METRIC_NAMES = ("loss", "q_values")


class Config(
    DistributionalConfig,
    EpsilonGreedyConfig,
    ValueReplayConfig,
    defaults={
        "env_id": "CartPole-v1", "total_timesteps": 500_000, "exp_name": NAME,
        "n_atoms": 101, "v_min": -100.0, "v_max": 100.0, **NETWORK.settings,
    },
):  # fmt: skip
    """Settings of categorical deep Q-learning."""

    target_network_frequency: int = Field(default=500, ge=1, json_schema_extra=LEARNING)
    """Environment steps between copies of the online network to the target network."""
    tau: ClassVar[float] = 1.0
    """The target network is copied."""


class Agent(dqn.Agent):
    """A network that gives the logit of each atom for each action."""

    def __init__(
        self,
        observation_size: int,
        action_count: int,
        architecture: Architecture = NETWORK,
        n_atoms: int = 101,
        v_min: float = -100,
        v_max: float = 100,
    ) -> None:
        self.atoms = np.linspace(v_min, v_max, n_atoms, dtype=np.float32)
        super().__init__(observation_size, action_count * n_atoms, architecture)
        self.action_count = action_count

    def q_values(self, outputs: Array) -> Array:
        """Return the mean return of each action [actions, rows]; overwrites the network's outputs [outputs, rows]."""
        shaped = outputs.reshape(self.action_count, len(self.atoms), -1)
        softmax(shaped)
        return np.asarray(np.matmul(self.atoms[None], shaped)[:, 0])

    def state_dict(self) -> dict[str, Array]:
        """Return the weights under CleanRL's keys, in torch's layout."""
        return {"atoms": self.atoms, **super().state_dict()}

    def build_module(self) -> torch.nn.Module:
        import torch

        module = super().build_module()
        module.register_buffer("atoms", torch.from_numpy(self.atoms))
        return module


def loss(module: Any, target: Any, batch: Any, config: Config) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the reference loss of a batch of tensors; the numpy kernel implements its gradient by hand."""
    import torch

    from cleanrl_worker.learners.torch_value_heads import (
        cross_entropies,
        mean_returns,
        project_onto_atoms,
        select_actions,
    )

    def distributions(network: Any, observations: torch.Tensor) -> torch.Tensor:
        logits = network.network(observations)
        return torch.softmax(logits.view(len(logits), -1, config.n_atoms), 2)

    with torch.no_grad():
        next_pmfs = distributions(target, batch.next_observations)
        next_pmfs = select_actions(next_pmfs, mean_returns(next_pmfs, target.atoms).argmax(1))
        shifted_atoms = batch.rewards[:, None] + config.gamma * target.atoms * (1 - batch.terminals[:, None])
        target_pmfs = project_onto_atoms(next_pmfs, shifted_atoms, target.atoms)
    pmfs = select_actions(distributions(module, batch.observations), batch.actions[:, 0])
    entropy = cross_entropies(target_pmfs, pmfs).mean()
    return entropy, {"loss": entropy.detach(), "q_values": (pmfs.detach() * module.atoms).sum(1).mean()}


def _learner(config: Config, agent: Agent, target: Agent) -> TargetValueLearner:
    epsilon = 0.01 / config.batch_size  # from the paper, larger than usual
    if base.resolve_backend(config) == "numpy":
        adam = NumpyAdam(agent.network, epsilon)
        return DistributionKernel(agent.network, target.network, config.batch_size, adam, agent.atoms, config.gamma)
    from cleanrl_worker.learners.autograd_learners import ValueAutogradLearner

    torch_loss = functools.partial(loss, config=config)
    return ValueAutogradLearner(agent, torch_loss, config, METRIC_NAMES, target=target, epsilon=epsilon)


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    return value_vectors.check(NAME, config, env, functools.partial(Agent, **config.atoms))


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    make_agent = functools.partial(Agent, **config.atoms)
    value_vectors.train(NAME, config, run, resume, make_agent, _learner, **config.atoms)


def _load_agent(checkpoint: Checkpoint) -> Agent:
    base.check_checkpoint_algorithm(NAME, checkpoint)
    shape = checkpoint.facts["shape"]
    atoms = {name: shape[name] for name in ("n_atoms", "v_min", "v_max")}
    return base.load_agent(checkpoint, functools.partial(Agent, **atoms), NETWORK)


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    return value_vectors.load_greedy_policy(_load_agent(checkpoint), checkpoint)


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the model that CleanRL's script would save: the settings and the weights."""
    return {"model_weights": _load_agent(checkpoint).state_dict(), "args": checkpoint.facts["config"]}
