"""Proximal policy optimization for discrete actions.

The agent collects a rollout from several environments, then updates its policy on it for a few epochs, with a clipped
loss that keeps the new policy close to the old one. It is robust, needs little tuning and is a good first choice for
discrete actions, also several at once (MultiDiscrete, MultiBinary). If environment steps are expensive, a method with a
replay buffer (DQN, C51) needs fewer of them. For continuous actions use ppo_continuous_action.

Paper: Schulman, Wolski, Dhariwal, Radford, Klimov, "Proximal Policy Optimization Algorithms", arXiv:1707.06347 (2017).
Details: Huang et al., "The 37 Implementation Details of Proximal Policy Optimization", ICLR Blog Track (2022).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt

from cleanrl_worker.algorithms import base, run_checks
from cleanrl_worker.algorithms.settings import PpoConfig
from cleanrl_worker.environments.parallel import ParallelEnvs
from cleanrl_worker.environments.vector import VectorEnvs
from cleanrl_worker.evaluation.policies import CategoricalPolicy, MultiCategoricalPolicy, Outputs
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.ppo_kernels import (
    CategoricalKernel,
    MultiCategoricalKernel,
    PpoLosses,
    categorical_log_probs,
)
from cleanrl_worker.learners.ppo_network import FrozenPpoActor, PpoNetwork
from cleanrl_worker.learners.protocols import PpoLearner, PpoSettings
from cleanrl_worker.loops.on_policy import PpoTraining, choose_training, make_ppo_learner, open_environments
from mosaic.worker.envs.spaces import find_choices

if TYPE_CHECKING:
    import torch

    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
NAME = "ppo"
NETWORK = Architecture((64, 64), "tanh")


class Config(
    PpoConfig,
    defaults={"env_id": "CartPole-v1", "total_timesteps": 500_000, "exp_name": NAME, **NETWORK.settings},
):
    """Settings of PPO for discrete actions."""


class Agent(base.FlatAgent):
    """A categorical actor and a critic, each with its own hidden layers."""

    def __init__(self, observation_size: int, action_count: int, architecture: Architecture = NETWORK) -> None:
        super().__init__(observation_size, action_count, architecture, PpoNetwork)

    def build_module(self) -> torch.nn.Module:
        import torch

        from cleanrl_worker.learners.torch_dense import dense_layers

        module = torch.nn.Module()
        module.critic = dense_layers(self.architecture, self.inputs, 1, head_gain=1.0)
        module.actor = dense_layers(self.architecture, self.inputs, self.outputs, head_gain=0.01)
        return module


def loss(module: Any, batch: Any, config: PpoSettings, counts: Sequence[int] = ()) -> tuple[torch.Tensor, PpoLosses]:
    """Return the reference loss of a minibatch of tensors; the numpy kernel implements its gradient by hand."""
    return clipped_loss(*policy_terms(module, batch, counts), batch, config)


def policy_terms(
    module: Any, batch: Any, counts: Sequence[int] = ()
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the log-probabilities of the actions, the mean entropy, and the values.

    `counts` are the sizes of several independent choices, over which log-probabilities and entropies are summed.
    """
    logits, values = module.actor(batch.observations), module.critic(batch.observations)[:, 0]
    return *choice_terms(logits, batch.actions, counts), values


def choice_terms(
    logits: torch.Tensor, actions: torch.Tensor, counts: Sequence[int] = ()
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probabilities and the mean entropy of one choice, or of several ones of these sizes."""
    import torch

    if not counts:
        return categorical_terms(logits, actions)
    parts = zip(torch.split(logits, list(counts), 1), actions.long().unbind(1), strict=True)
    log_probs, entropies = zip(*(categorical_terms(part, taken) for part, taken in parts), strict=True)
    return sum(log_probs[1:], log_probs[0]), sum(entropies[1:], entropies[0])


def categorical_loss(
    logits: torch.Tensor, values: torch.Tensor, batch: Any, config: PpoSettings
) -> tuple[torch.Tensor, PpoLosses]:
    """Return PPO's loss for actions from the softmax distribution of the logits."""
    return clipped_loss(*categorical_terms(logits, batch.actions), values, batch, config)


def categorical_terms(logits: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probabilities of actions [rows] under the softmax of logits [rows, actions], and its entropy."""
    import torch

    log_probs = torch.log_softmax(logits, dim=1)
    entropy = -(log_probs.exp() * log_probs).sum(1).mean()
    return log_probs.gather(1, actions[:, None])[:, 0], entropy


def clipped_loss(
    log_probs: torch.Tensor, entropy: torch.Tensor, values: torch.Tensor, batch: Any, config: PpoSettings
) -> tuple[torch.Tensor, PpoLosses]:
    """Return PPO's loss from the new log-probabilities of the actions, the mean entropy, and the new values."""
    import torch

    log_ratio = log_probs - batch.log_probs
    ratio = log_ratio.exp()

    advantages = batch.advantages
    if config.norm_adv:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped_ratio = ratio.clamp(1 - config.clip_coef, 1 + config.clip_coef)
    policy_loss = torch.max(-advantages * ratio, -advantages * clipped_ratio).mean()

    squares = (values - batch.returns) ** 2
    if config.clip_vloss:
        clipped_values = batch.values + (values - batch.values).clamp(-config.clip_coef, config.clip_coef)
        squares = torch.max(squares, (clipped_values - batch.returns) ** 2)
    value_loss = 0.5 * squares.mean()

    kl = ((ratio - 1) - log_ratio).mean()
    clipfrac = ((ratio - 1).abs() > config.clip_coef).float().mean()
    metrics: Any = [part.detach() for part in (value_loss, policy_loss, entropy, -log_ratio.mean(), kl, clipfrac)]
    return policy_loss - config.ent_coef * entropy + config.vf_coef * value_loss, PpoLosses(*metrics)


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    return run_checks.check_choices(NAME, config, env, Agent)


def make_agent(config: Any, observation_size: int, outputs: int) -> base.FlatAgent:
    return Agent(observation_size, outputs, config.architecture)


def make_learner(config: Config, agent: base.FlatAgent, counts: Sequence[int] = ()) -> PpoLearner:
    if not counts:
        return make_ppo_learner(config, agent, CategoricalKernel, loss)
    kernel = functools.partial(MultiCategoricalKernel, counts=counts)
    return make_ppo_learner(config, agent, kernel, functools.partial(loss, counts=counts))


class Training(PpoTraining):
    """Draws actions from the softmax distribution of the actor's logits."""

    name = NAME
    make_agent = staticmethod(make_agent)
    make_learner = staticmethod(make_learner)

    def __init__(self, config: Config, run: Run, environments: VectorEnvs) -> None:
        space: Any = environments.action_space
        self.first_action, count = int(space.start), int(space.n)
        super().__init__(config, run, environments, self.make_agent(config, environments.observation_size, count))
        # Numpy integers instead of Python ints: Gymnasium checks faster whether they are in the action space.
        self._env_actions = [space.dtype.type(self.first_action + index) for index in range(count)]
        self._logits = np.zeros((config.num_steps, config.num_envs, count), np.float32)
        self._scores = np.zeros((config.num_envs, count), np.float32)
        self._actions = np.zeros((config.num_steps, config.num_envs), np.intp)

    def begin_rollout(self) -> None:
        self.actor.refresh()
        # The argmax of logits plus Gumbel noise is a sample of their softmax distribution.
        self._noise = base.sample_exponentials(self.rng, self._logits.shape)
        np.log(self._noise, out=self._noise)

    def act(self, t: int) -> list[Any]:
        logits, actions = self._logits[t], self._actions[t]
        self.actor(self.observations[t], logits)
        np.subtract(logits, self._noise[t], out=self._scores)
        self._scores.argmax(1, out=actions)
        env_actions = self._env_actions
        return [env_actions[index] for index in actions.tolist()]

    def env_actions(self) -> Array:
        return np.array(self._env_actions)[self._actions]

    def rollout_actions(self) -> Array:
        return self._actions.reshape(-1)

    def log_probs(self) -> Array:
        return categorical_log_probs(self._logits.reshape(-1, len(self._env_actions)), self.rollout_actions())

    def own_state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {}, {"first_action": self.first_action}


class MultiTraining(PpoTraining):
    """Makes several independent choices in each step, each from the softmax distribution of its logits."""

    name = NAME
    make_agent = staticmethod(make_agent)

    def __init__(self, config: PpoConfig, run: Run, environments: VectorEnvs) -> None:
        choices = find_choices(environments.action_space)
        assert choices is not None
        self._counts, self._first = choices.counts.ravel().tolist(), choices.first
        outputs = sum(self._counts)
        super().__init__(config, run, environments, self.make_agent(config, environments.observation_size, outputs))
        self._ends = np.cumsum(self._counts)[:-1]
        self._logits = np.zeros((config.num_steps, config.num_envs, outputs), np.float32)
        self._actions = np.zeros((config.num_steps, config.num_envs, len(self._counts)), np.intp)

    def make_learner(self, config: Any, agent: base.FlatAgent) -> PpoLearner:
        return make_learner(config, agent, self._counts)

    def begin_rollout(self) -> None:
        self.actor.refresh()
        self._noise = np.log(base.sample_exponentials(self.rng, self._logits.shape))

    def act(self, t: int) -> Array:
        self.actor(self.observations[t], self._logits[t])
        for index, scores in enumerate(np.split(self._logits[t] - self._noise[t], self._ends, 1)):
            self._actions[t, :, index] = scores.argmax(1)
        return self._to_env(self._actions[t])

    def _to_env(self, actions: Array) -> Array:
        """Return indices [..., choices] as the environments expect them."""
        return np.asarray(actions.reshape(*actions.shape[:-1], *self._first.shape) + self._first, self._first.dtype)

    def env_actions(self) -> Array:
        return self._to_env(self._actions)

    def rollout_actions(self) -> Array:
        return self._actions.reshape(-1, len(self._counts))

    def log_probs(self) -> Array:
        logits = np.split(self._logits.reshape(-1, sum(self._counts)), self._ends, 1)
        return np.asarray(np.sum(list(map(categorical_log_probs, logits, self.rollout_actions().T)), 0))

    def own_state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        return {"action.first": self._first, "action.counts": np.reshape(self._counts, self._first.shape)}, {}


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    with open_environments(config, run, ParallelEnvs) as environments:
        kind = choose_training(environments.action_space, Training, MultiTraining)
        kind(config, run, environments).train(resume)


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    base.check_checkpoint_algorithm(NAME, checkpoint)
    return categorical_policy(checkpoint)


def categorical_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Return the policy of an actor with logits; needs only numpy."""
    actor = FrozenPpoActor(base.load_agent(checkpoint, Agent, NETWORK).network)
    encode = base.ObservationEncoder(checkpoint.facts["inputs"])
    return choice_policy(checkpoint, lambda observations: actor(encode(observations).astype(np.float32)))


def choice_policy(checkpoint: Checkpoint, logits: Outputs) -> CategoricalPolicy | MultiCategoricalPolicy:
    """Return a policy that makes one choice or several ones by their logits."""
    facts, arrays = checkpoint.facts, checkpoint.arrays
    if "action.counts" in arrays:
        return MultiCategoricalPolicy(logits, arrays["action.counts"], arrays["action.first"])
    return CategoricalPolicy(logits, facts["first_action"])


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the model that CleanRL's script would save, in its order: a checkpoint sorts the names."""
    return base.load_agent(checkpoint, Agent, NETWORK).state_dict()
