"""Proximal policy optimization for continuous actions.

The agent collects a rollout, then updates its policy on it for a few epochs, with a clipped loss that keeps the new
policy close to the old one. Actions are sampled from a Gaussian around the actor's output and clipped to the bounds of
the action space; observations and rewards are normalized by running statistics. It is robust and fast per step: a good
first choice for simulated physics. If environment steps are expensive, SAC and TD3 need fewer. For discrete actions
use ppo.

Paper: Schulman, Wolski, Dhariwal, Radford, Klimov, "Proximal Policy Optimization Algorithms", arXiv:1707.06347 (2017).
Details: Huang et al., "The 37 Implementation Details of Proximal Policy Optimization", ICLR Blog Track (2022).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt

from cleanrl_worker.algorithms import base, run_checks
from cleanrl_worker.algorithms.ppo import NETWORK, clipped_loss
from cleanrl_worker.algorithms.settings import PpoConfig
from cleanrl_worker.environments.normalization import ObservationNormalizer, RewardNormalizer
from cleanrl_worker.environments.normalized import NormalizedEnvs
from cleanrl_worker.environments.parallel import ParallelEnvs
from cleanrl_worker.environments.vector import VectorEnvs
from cleanrl_worker.evaluation.policies import BoundedPolicy, Outputs
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.ppo_kernels import GaussianKernel, PpoLosses, RolloutBatch, gaussian_log_probs
from cleanrl_worker.learners.ppo_network import FrozenPpoActor, PpoNetwork
from cleanrl_worker.learners.protocols import PpoLearner, PpoSettings
from cleanrl_worker.loops.on_policy import PpoTraining, make_ppo_learner, open_environments

if TYPE_CHECKING:
    import torch

    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
NAME = "ppo_continuous_action"


class Config(PpoConfig, defaults={
        "env_id": "HalfCheetah-v5", "total_timesteps": 1_000_000, "exp_name": NAME, "learning_rate": 3e-4,
        "num_envs": 1, "num_steps": 2048, "num_minibatches": 32, "update_epochs": 10, "ent_coef": 0.0,
        **NETWORK.settings,
    }):  # fmt: skip
    """Settings of PPO for continuous actions."""


class Agent(base.FlatAgent):
    """A Gaussian actor with a log standard deviation per action dimension, and a critic, with hidden layers each."""

    def __init__(self, observation_size: int, action_size: int, architecture: Architecture = NETWORK) -> None:
        network = functools.partial(PpoNetwork, actor="actor_mean", has_log_std=True)
        super().__init__(observation_size, action_size, architecture, network)

    def build_module(self) -> torch.nn.Module:
        import torch

        from cleanrl_worker.learners.torch_dense import dense_layers

        module = torch.nn.Module()
        module.critic = dense_layers(self.architecture, self.inputs, 1, head_gain=1.0)
        module.actor_mean = dense_layers(self.architecture, self.inputs, self.outputs, head_gain=0.01)
        module.actor_logstd = torch.nn.Parameter(torch.zeros(1, self.outputs))
        return module


def loss(module: Any, batch: Any, config: PpoSettings) -> tuple[torch.Tensor, PpoLosses]:
    """Return the reference loss of a minibatch of tensors; the numpy kernel implements its gradient by hand."""
    return clipped_loss(*policy_terms(module, batch), batch, config)


def policy_terms(module: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the log-probabilities of the actions, the mean entropy, and the values."""
    mean = module.actor_mean(batch.observations)
    return *gaussian_terms(mean, module.actor_logstd, batch.actions), module.critic(batch.observations)[:, 0]


def gaussian_terms(
    mean: torch.Tensor, log_std: torch.Tensor, actions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probabilities of actions [rows, size] and the mean entropy."""
    import torch

    # Without argument validation, which would wait for the device.
    normal = torch.distributions.Normal(mean, log_std.exp(), validate_args=False)
    entropy = normal.entropy().sum(1).mean()  # type: ignore[no-untyped-call]
    return normal.log_prob(actions).sum(1), entropy  # type: ignore[no-untyped-call]


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    return run_checks.check_continuous(NAME, config, env, Agent, base.with_image(config, env.observation_space))


def make_agent(config: Any, observation_size: int, outputs: int) -> base.FlatAgent:
    return Agent(observation_size, outputs, config.architecture)


def make_learner(config: Config, agent: base.FlatAgent) -> PpoLearner:
    return make_ppo_learner(config, agent, GaussianKernel, loss)


class NormalizedTraining(PpoTraining):
    """PPO with observations, unless they are images, and rewards that are normalized by running statistics."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._scale = RewardNormalizer(self.config.num_envs, self.config.gamma)

    def estimate(self, rewards: Array) -> RolloutBatch:
        terminals = self.dones.copy()
        for t, env, _ in self.truncated:
            terminals[t, env] = False
        return super().estimate(self._scale(rewards, terminals))

    def own_state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays, facts = super().own_state()
        if isinstance(self.environments, NormalizedEnvs):
            normalize = self.environments.normalize
            arrays = {**arrays, **normalize.arrays(), "inputs": self.environments.inputs}
            facts = {**facts, "observation_count": normalize.count}
        return arrays, {**facts, "rewards": self._scale.facts()}

    def restore_own_state(self, resume: Checkpoint) -> None:
        super().restore_own_state(resume)
        if isinstance(self.environments, NormalizedEnvs):
            self.environments.normalize.restore(resume.arrays, resume.facts["observation_count"])
        self._scale.restore(resume.facts["rewards"])


class Training(NormalizedTraining):
    """Draws actions from a Gaussian around the actor's means."""

    name = NAME
    make_agent = staticmethod(make_agent)
    make_learner = staticmethod(make_learner)

    def __init__(self, config: Config, run: Run, environments: VectorEnvs) -> None:
        space: Any = environments.action_space
        size = math.prod(space.shape)
        if isinstance(environments, NormalizedEnvs):
            agent = self.make_agent(config, environments.observation_size, size)
        else:
            architecture = base.with_image(config, environments.observation_space)
            agent = Agent(environments.observation_size, size, architecture)
        super().__init__(config, run, environments, agent)
        self._space, self._low, self._high = space, space.low.ravel(), space.high.ravel()
        self._actions = np.zeros((config.num_steps, config.num_envs, size), np.float32)
        self._clipped = np.zeros(self._actions.shape, space.dtype)
        """The actions within the bounds of the action space."""
        self._log_std: Array = self.agent.network.log_std

    def begin_rollout(self) -> None:
        self.actor.refresh()
        self._noise: Any = self.rng.standard_normal(self._actions.shape, np.float32)
        self._scaled_noise = self._noise * np.exp(self._log_std.T)

    def act(self, t: int) -> Array:
        actions, clipped = self._actions[t], self._clipped[t]
        self.actor(self.observations[t], actions)
        np.add(actions, self._scaled_noise[t], out=actions)
        np.maximum(actions, self._low, out=clipped)
        np.minimum(clipped, self._high, out=clipped)
        return np.asarray(clipped).reshape(-1, *self._space.shape)

    def env_actions(self) -> Array:
        return self._clipped.reshape(*self._clipped.shape[:2], *self._space.shape)

    def rollout_actions(self) -> Array:
        return self._actions.reshape(-1, len(self._low))

    def log_probs(self) -> Array:
        return gaussian_log_probs(self._noise.reshape(-1, len(self._low)), self._log_std)

    def own_state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays, facts = super().own_state()
        return {**arrays, "action.low": self._space.low, "action.high": self._space.high}, facts


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    with open_environments(config, run, environment_maker(config, resume)) as environments:
        Training(config, run, environments).train(resume)


def environment_maker(config: Config, resume: Checkpoint | None) -> Callable[..., VectorEnvs]:
    """Return what makes the environments: with normalized observations, unless these are images."""

    def make_environments(make_env: Callable[[], Any], *args: Any) -> VectorEnvs:
        env = make_env()
        env.close()
        is_image = base.with_image(config, env.observation_space, resume).image is not None
        return (ParallelEnvs if is_image else NormalizedEnvs)(make_env, *args)

    return make_environments


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    base.check_checkpoint_algorithm(NAME, checkpoint)
    return gaussian_policy(checkpoint)


def gaussian_policy(checkpoint: Checkpoint) -> BoundedPolicy:
    """Return the policy of a Gaussian actor with normalized observations, in numpy, or with images, in torch."""
    agent = base.load_agent(checkpoint, Agent, NETWORK)
    actor, encode = FrozenPpoActor(agent.network), normalized_encoder(checkpoint)
    return bounded_policy(checkpoint, lambda observations: actor(encode(observations)), agent.network.log_std)


def normalized_encoder(checkpoint: Checkpoint) -> Outputs:
    """Return a function from observations to the network's inputs."""
    encode = base.ObservationEncoder(checkpoint.facts["inputs"])
    if "observation_count" not in checkpoint.facts:  # images
        return encode
    normalizer = ObservationNormalizer(encode.size)
    normalizer.restore(checkpoint.arrays, checkpoint.facts["observation_count"])
    return lambda observations: normalizer.normalize_frozen(encode(observations))


def bounded_policy(checkpoint: Checkpoint, means: Outputs, log_std: Array) -> BoundedPolicy:
    """Return a policy that samples from a Gaussian around these means."""
    std = np.exp(log_std.T)

    def sample(means: Array, rng: np.random.Generator | None) -> Array:
        return means if rng is None else means + rng.standard_normal(means.shape) * std

    return BoundedPolicy(means, sample, checkpoint.arrays["action.low"], checkpoint.arrays["action.high"])


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the model that CleanRL's script would save, in its order: a checkpoint sorts the names."""
    return base.load_agent(checkpoint, Agent, NETWORK).state_dict()
