"""The on-policy loop for observations that are vectors: collect a rollout, estimate, update, report, checkpoint.

A run that is stopped during a rollout or its update resumes from before them. An algorithm derives from `PpoTraining`
and supplies how actions are drawn; one that is not PPO derives from `OnPolicyTraining` and supplies its own estimate
and update.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete

from cleanrl_worker.algorithms import base
from cleanrl_worker.algorithms.settings import PpoConfig, RolloutConfig
from cleanrl_worker.environments.vector import EpisodeEnd, VectorEnvs
from cleanrl_worker.learners import ppo_kernels
from cleanrl_worker.learners.ppo_kernels import PpoKernel, RolloutBatch, explained_variance
from cleanrl_worker.learners.protocols import ActorForward, AdamState, PpoLearner
from cleanrl_worker.loops.milestones import Milestones, TrainingState
from mosaic.worker import envs
from mosaic.worker.envs.reproducible import random_state_to_json

if TYPE_CHECKING:
    from cleanrl_worker.learners.autograd_learners import PpoLoss
    from cleanrl_worker.learners.ppo_network import PpoNetwork
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
AnyEnvs = TypeVar("AnyEnvs", bound=VectorEnvs)


@contextmanager
def open_environments(config: RolloutConfig, run: Run, kind: Callable[..., AnyEnvs]) -> Iterator[AnyEnvs]:
    make_env = functools.partial(envs.make, config.env_id, **config.env_settings)
    environments = kind(make_env, config.num_envs, config.seed, run.frames, config.env_processes or 1)
    try:
        yield environments
    finally:
        environments.close()


class OnPolicyTraining:
    """A training that learns from one rollout of all environments at a time."""

    name: str
    learner: AdamState
    milestones: Milestones

    def __init__(self, config: RolloutConfig, run: Run, environments: VectorEnvs, agent: base.FlatAgent) -> None:
        self.config, self.run, self.environments, self.agent = config, run, environments, agent
        self.rng = np.random.default_rng(config.seed)
        self.iteration = self.global_step = 0
        self.learning_rate = config.learning_rate
        steps, num_envs = config.num_steps, config.num_envs
        self.dtype = np.float32 if agent.architecture.image is None else np.uint8
        self.observations = np.zeros((steps + 1, num_envs, environments.observation_size), self.dtype)
        """The observation before each step of the rollout, and the one after its last step."""
        self.dones = np.zeros((steps, num_envs), np.bool_)
        self.truncated: list[tuple[int, int, Array]] = []
        """Step, environment and final observation of each episode of the rollout that was truncated."""

    # --- supplied by each algorithm

    def start_learner(self) -> None:
        """Make the learner, from the agent's current weights, and what acts by it."""
        raise NotImplementedError

    def begin_rollout(self) -> None:
        """Draw the random numbers of a rollout."""
        raise NotImplementedError

    def act(self, t: int) -> Iterable[Any]:
        """Return the actions of step `t` of the rollout for the environments."""
        raise NotImplementedError

    def env_actions(self) -> Array:
        """Return the actions of the whole rollout as the environments received them, [steps, environments, …]."""
        raise NotImplementedError

    def state_values(self, observations: Array) -> Array:
        """Return the values of any number of observations."""
        raise NotImplementedError

    def estimate(self, rewards: Array) -> Any:
        """Return the batch that is learned from, with the estimated returns of each step."""
        raise NotImplementedError

    def update(self, batch: Any) -> tuple[dict[str, float], bool] | None:
        """Update on the batch; return the losses, and whether every gradient was finite; None after a stop."""
        raise NotImplementedError

    def own_state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return what a checkpoint contains of this algorithm alone: arrays and facts."""
        return {}, {}

    def restore_own_state(self, resume: Checkpoint) -> None:
        """Restore it, before the environments."""

    # --- overridden where an algorithm differs

    def forget_episodes(self) -> None:
        """Start new episodes: a resumed run could not restore its environments."""

    def report_episode(self, episode_end: EpisodeEnd) -> None:
        self.run.episode(
            env=episode_end.env,
            step=self.global_step,
            episodic_return=episode_end.episodic_return,
            length=episode_end.length,
        )

    # --- the loop

    def train(self, resume: Checkpoint | None) -> None:
        """Train until `total_timesteps` or until the run ends earlier; both end with a checkpoint."""
        config, run, environments, total = self.config, self.run, self.environments, self.config.batch_size
        if resume is None:
            self.agent.initialize(self.rng)
            self.start_learner()
            environments.start()
        else:
            base.check_resumable(self.name, self._shape(), resume)
            self.iteration, self.global_step = resume.facts["iteration"], resume.facts["global_step"]
            if self.global_step + total > config.total_timesteps:
                return
            self.agent.load_state_dict(resume.weights)
            self.start_learner()
            base.restore_optimizer(self.agent.network, self.learner, resume.arrays, resume.facts["adam_count"])
            self.rng.bit_generator.state = resume.facts["rng"]
            self.restore_own_state(resume)
            if not base.restore_environments(run, environments, resume):
                self.forget_episodes()
        environments.observe(self.observations[-1])

        started_at, started_step = time.monotonic(), self.global_step
        milestones = self.milestones = Milestones(self.name, config, run, resume, self._state, keeping="recent")
        milestones.start(self.global_step)
        is_abandoned = False
        while self.global_step + total <= config.total_timesteps and not run.is_ending:
            self.iteration += 1
            if config.anneal_lr:
                self.learning_rate = config.learning_rate * (1 - (self.iteration - 1) / config.num_iterations)

            rewards = self._collect_rollout()
            result = None if rewards is None else self.update(self.estimate(rewards))
            if result is None:
                is_abandoned = True
                break

            metrics, is_finite = result
            losses = {f"losses/{name}": value for name, value in metrics.items()}
            base.abort_if_not_finite(self.name, run, self.global_step, losses, is_finite)
            sps = int((self.global_step - started_step) / (time.monotonic() - started_at))
            charts = {"charts/learning_rate": self.learning_rate, **losses, "charts/SPS": sps}
            run.scalars(self.global_step, charts)
            milestones.update(self.global_step)
        milestones.finish(None if is_abandoned else self.global_step)

    def is_stopped(self) -> bool:
        """Report the progress; return whether to abandon the rollout or update because of a stop."""
        self.run.update(self.global_step)
        return self.run.stop_requested and self.milestones.is_abandoning()

    def _collect_rollout(self) -> Array | None:
        """Step all environments `num_steps` times; return the rewards [steps, environments], None after a stop."""
        run, environments, observations, dones = self.run, self.environments, self.observations, self.dones
        num_envs = self.config.num_envs
        observations[0] = observations[-1]
        dones[...] = False
        self.truncated.clear()
        self.begin_rollout()
        for t in range(self.config.num_steps):
            actions = self.act(t)
            self.global_step += num_envs
            for episode_end in environments.step(actions, observations[t + 1]):
                dones[t, episode_end.env] = True
                if not episode_end.is_terminal:
                    self.truncated.append((t, episode_end.env, episode_end.observation))
                self.report_episode(episode_end)
            run.update(self.global_step)
            if run.stop_requested and self.milestones.is_abandoning():
                return None
        rewards = environments.finish_rollout(self.env_actions())
        base.abort_if_rewards_not_finite(self.name, run, rewards, self.global_step - self.config.batch_size)
        return rewards

    def bootstrap_truncated(self, rewards: Array) -> None:
        """Add the discounted value of its final observation to the last reward of each truncated episode.

        Otherwise the agent would learn that reaching the time limit is as bad as failing.
        """
        if self.truncated:
            values = self.state_values(np.array([observation for _, _, observation in self.truncated], self.dtype))
            for (t, env, _), value in zip(self.truncated, values.tolist(), strict=True):
                rewards[t, env] += self.config.gamma * value

    def _shape(self) -> dict[str, Any]:
        """Return what must be equal for a checkpoint to be resumed."""
        image = self.agent.architecture.image
        return {
            "env_id": self.config.env_id, "observation_size": self.environments.observation_size,
            "actions": self.agent.network.outputs, "num_envs": self.config.num_envs,
            "num_steps": self.config.num_steps, **({} if image is None else {"image": list(image)}),
        }  # fmt: skip

    def _state(self, _: bool) -> TrainingState:
        """Return copies of everything that a checkpoint contains."""
        arrays, environment_facts = self.environments.checkpoint_state()
        own_arrays, own_facts = self.own_state()
        views = {**own_arrays, **base.optimizer_arrays(self.agent.network, self.learner)}
        return TrainingState(
            weights={name: np.array(part) for name, part in self.agent.state_dict().items()},
            arrays={**arrays, **{name: np.array(part) for name, part in views.items()}},
            facts={
                "algorithm": self.name,
                "shape": self._shape(),
                "config": self.config.model_dump(mode="json"),
                "backend": base.resolve_backend(self.config, self.agent.architecture),
                "inputs": base.ObservationEncoder.describe(self.environments.observation_space),
                "iteration": self.iteration,
                "global_step": self.global_step,
                "learning_rate": self.learning_rate,
                "adam_count": self.learner.count,
                "rng": random_state_to_json(self.rng.bit_generator.state),
                "environments": environment_facts,
                **own_facts,
            },
        )


class PpoTraining(OnPolicyTraining):
    """Learns by PPO from generalized advantage estimates.

    Only the actor's outputs are computed at each step; values and log-probabilities follow in one batch.
    """

    config: PpoConfig
    learner: PpoLearner
    network: PpoNetwork
    actor: ActorForward
    make_agent: Callable[[Any, int, int], base.FlatAgent]
    """Makes the agent from the settings, the size of an observation and the number of the actor's outputs."""
    make_learner: Callable[[Any, base.FlatAgent], PpoLearner]

    def log_probs(self) -> Array:
        """Return the log-probabilities of the rollout's actions, [rows]."""
        raise NotImplementedError

    def rollout_actions(self) -> Array:
        """Return the rollout's actions as the loss takes them, [rows, …]."""
        raise NotImplementedError

    def start_learner(self) -> None:
        self.network = self.agent.network
        self.learner = self.make_learner(self.config, self.agent)
        self.learner.is_stopped = self.is_stopped
        self.actor = self.learner.actor(self.config.num_envs)

    def state_values(self, observations: Array) -> Array:
        if self.agent.architecture.image is not None:
            learner: Any = self.learner
            return np.asarray(learner.state_values(observations))
        return self.network.critic_values(observations)

    def rollout_values(self) -> Array:
        """Return the values of the rollout's observations, [steps + 1, environments]."""
        observations = self.observations
        return self.state_values(observations.reshape(-1, observations.shape[-1])).reshape(observations.shape[:-1])

    def estimate(self, rewards: Array) -> RolloutBatch:
        config, observations, total = self.config, self.observations, self.config.batch_size
        size = observations.shape[-1]
        values = self.rollout_values()
        self.bootstrap_truncated(rewards)
        advantages = ppo_kernels.gae_advantages(rewards, values, self.dones, config.gamma, config.gae_lambda)
        return RolloutBatch(
            observations=observations[:-1].reshape(total, size),
            actions=self.rollout_actions(),
            log_probs=self.log_probs(),
            advantages=advantages.reshape(total),
            returns=(advantages + values[:-1]).reshape(total),
            values=values[:-1].reshape(total),
        )

    def update(self, batch: RolloutBatch) -> tuple[dict[str, float], bool] | None:
        config, learner = self.config, self.learner
        learner.begin_update(self.learning_rate)
        for _ in range(config.update_epochs):
            self.run_epoch(batch)
            if self.is_stopped():
                return None
            if config.target_kl is not None and learner.losses().approx_kl > config.target_kl:
                break
        learner.sync_networks()
        losses = learner.losses()._asdict()
        return {**losses, **explained_variance(batch.returns, batch.values)}, learner.is_gradient_finite

    def run_epoch(self, batch: RolloutBatch) -> None:
        self.learner.run_epoch(batch, self.rng.permutation(self.config.batch_size))


class MemoryTraining(PpoTraining):
    """PPO with a network that remembers: the training itself is the actor, because acting also writes memories."""

    learner: Any

    def start_learner(self) -> None:
        self.network = self.agent.network
        self.learner = self.make_learner(self.config, self.agent)
        self.learner.is_stopped = self.is_stopped
        self._step = self.learner.step(self.config.num_envs)
        self.actor = self

    def refresh(self) -> None:
        """Do nothing: it uses the weights themselves."""

    def __call__(self, observations: Array, out: Array) -> None:
        """Act by the inputs of the current step."""
        raise NotImplementedError


def choose_training(space: gymnasium.Space[Any], discrete: Any, several: Any, continuous: Any = None) -> Any:
    """Return the kind of training for these actions: discrete, several of these at once, or continuous."""
    if isinstance(space, Box):
        return continuous
    return discrete if isinstance(space, Discrete) else several


def make_ppo_learner(
    config: PpoConfig, agent: base.FlatAgent, kernel: Callable[..., PpoKernel], loss: PpoLoss
) -> PpoLearner:
    """Return PPO's learner: the kernel in numpy, or in torch autograd of the loss."""
    if base.resolve_backend(config, agent.architecture) == "numpy":
        return kernel(agent.network, config.minibatch_size, config)
    from cleanrl_worker.learners.autograd_learners import PpoAutogradLearner, PpoByteLearner
    from cleanrl_worker.learners.torch_backend import TorchContext

    is_image = agent.architecture.image is not None
    # One thread: more make small networks slower, and results would depend on their number.
    compute = TorchContext.from_settings(config, threads=None if is_image else 1)
    kind = PpoByteLearner if is_image else PpoAutogradLearner
    return kind(agent.network, agent.module(), loss, config.minibatch_size, config, compute)
