"""The on-policy loop for Atari frames: collect a rollout, estimate, update, report, checkpoint.

An algorithm derives from `FramePpoTraining`; one that is not PPO derives from `FrameTraining` and supplies how it
selects actions, and its estimate. Both supply the learner.

A rollout and its update take seconds on a CPU. A run that is stopped meanwhile resumes from before them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cleanrl_worker.algorithms import base
from cleanrl_worker.algorithms.settings import MinibatchConfig, PpoConfig
from cleanrl_worker.environments.vector import EpisodeEnd
from cleanrl_worker.learners import devices, ppo_kernels
from cleanrl_worker.learners.conv_network import ConvAgent, initialize_bodies, parameter_count
from cleanrl_worker.learners.ppo_kernels import categorical_log_probs, explained_variance
from cleanrl_worker.loops.milestones import Milestones, TrainingState
from mosaic.worker.envs.atari import FRAME_SIZE_PX, FRAME_STACK
from mosaic.worker.envs.reproducible import random_state_to_json

if TYPE_CHECKING:
    from cleanrl_worker.environments.atari import AtariEnvs
    from cleanrl_worker.environments.envpool_games import EnvpoolEnvs
    from cleanrl_worker.learners.torch_backend import TorchContext
    from cleanrl_worker.learners.torch_conv import RolloutLearner
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
MakeLearner = Callable[[dict[str, Array], tuple[int, ...], Any, "TorchContext"], "RolloutLearner"]
Columns = dict[str, Array]
"""What the loss needs of each step of a rollout, by name: arrays [rows, …]."""
RECENT_EPISODES = 20
"""The number of games over which the average return is reported."""


def describe_run(
    agent: ConvAgent, actions: int, channels: int = FRAME_STACK, side: int = FRAME_SIZE_PX
) -> dict[str, Any]:
    """Return the sizes and backend of a run, for an algorithm's `check`."""
    return {
        "observations": [channels, side, side],
        "actions": actions,
        "parameters": parameter_count(agent.shapes),
        "backend": "torch",
    }


class FrameTraining:
    """A training that learns from one rollout of all games at a time."""

    name: str
    learner: RolloutLearner
    extra_outputs = 0
    """Outputs of the network besides one for each action."""

    def __init__(self, config: MinibatchConfig, run: Run, games: AtariEnvs | EnvpoolEnvs, agent: ConvAgent) -> None:
        self.config, self.run, self.games, self.agent = config, run, games, agent
        self.part = self.own_part(config)
        """The settings with the number of games of this process."""
        space: Any = games.action_space
        self.first_action, self.action_count = int(space.start), int(space.n)
        self.rng = np.random.default_rng(config.seed)
        self.iteration = self.global_step = 0
        self.learning_rate = config.learning_rate
        steps, num_envs = config.num_steps, self.part.num_envs
        self.observations = np.zeros((steps + 1, num_envs, *games.shape), np.uint8)
        """The observation before each step of the rollout, and the one after its last step."""
        self.outputs = np.zeros((steps + 1, num_envs, self.action_count + self.extra_outputs), np.float32)
        """The network's outputs for them."""
        self.actions = np.zeros((steps, num_envs), np.int64)
        self.dones = np.zeros((steps, num_envs), np.bool_)
        self.truncated: list[tuple[int, int, Array]] = []
        """Step, game and final observation of each game of the rollout that was truncated."""

    # --- supplied by each algorithm

    make_learner: MakeLearner
    """Makes the learner from weights, the shape of an observation, the settings and the device."""

    def begin_rollout(self) -> None:
        """Draw the random numbers of a rollout."""
        raise NotImplementedError

    def act(self, t: int) -> None:
        """Compute the outputs of step `t` of the rollout and select its actions by them."""
        raise NotImplementedError

    def state_values(self, outputs: Array) -> Array:
        """Return the values of observations by the network's outputs for them."""
        raise NotImplementedError

    def estimate(self, rewards: Array) -> Columns | None:
        """Return what is learned from, with the estimated returns of each step; None if the run was stopped."""
        raise NotImplementedError

    # --- overridden where an algorithm differs

    def own_part(self, config: Any) -> MinibatchConfig:
        """Return the settings with the number of games of this process, if several train together."""
        whole: MinibatchConfig = config
        return whole

    def prepare(self) -> bool:
        """Prepare the training after a start or resume; return whether that changed the state."""
        return False

    def after_step(self, t: int, episode_ends: Sequence[EpisodeEnd]) -> None:
        """Note what else an update needs of step `t`."""

    def last_outputs(self) -> Array:
        """Return the outputs for the observation after the last step."""
        return np.asarray(self.learner.act(self.observations[-1]))

    def final_values(self) -> Iterable[float]:
        """Return the values of the final observations of truncated games."""
        if not self.truncated:
            return []
        outputs = self.learner.outputs(np.array([observation for _, _, observation in self.truncated]))
        values: list[float] = self.state_values(outputs).tolist()
        return values

    def minibatches(self) -> Array:
        """Return the rows of each minibatch of an epoch."""
        return self.rng.permutation(self.part.batch_size).reshape(self.config.num_minibatches, -1)

    def update_minibatch(self, rows: Array) -> None:
        self.learner.update(rows)

    def can_resume_here(self) -> bool:
        """Return whether a checkpoint after this update would contain everything that resuming needs."""
        return True

    def is_update_over(self) -> bool:
        """Return whether to skip the remaining epochs."""
        return False

    def losses(self, columns: Columns) -> tuple[dict[str, float], bool]:
        """Return the losses of the update, and whether every gradient was finite."""
        return self.learner.losses()

    def report_episode(self, episode_end: EpisodeEnd) -> None:
        self.run.episode(
            env=episode_end.env,
            step=self.global_step,
            episodic_return=episode_end.episodic_return,
            length=episode_end.length,
        )

    def own_state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return copies of what a checkpoint contains of this algorithm alone: arrays and facts."""
        return {}, {}

    def restore_own_state(self, resume: Checkpoint, is_exact: bool) -> None:
        """Restore it, after the games, which `is_exact` is about."""

    # --- the loop

    def train(self, resume: Checkpoint | None) -> None:
        """Train until `total_timesteps` or until the run ends earlier; both end with a checkpoint."""
        config, run, games = self.config, self.run, self.games
        if resume is None:
            self.agent.initialize(self.rng)
            initialize_bodies(self.agent, config.architecture, games.shape, self.rng)
            self._start_learner()
            games.start()
        else:
            base.check_resumable(self.name, self._shape(), resume)
            self.iteration, self.global_step = resume.facts["iteration"], resume.facts["global_step"]
            if self.global_step >= config.trained_timesteps:
                return
            self.agent.load_state_dict(resume.weights)
            self._start_learner()
            self.learner.restore(resume.arrays, resume.facts["adam_count"])
            self.rng.bit_generator.state = resume.facts["rng"]
            is_exact = base.restore_environments(run, games, resume)
            self.restore_own_state(resume, is_exact)
        games.observe(self.observations[-1])

        milestones = Milestones(self.name, config, run, resume, self._state, keeping="latest")
        if self.prepare():
            milestones.keep()
        milestones.start(self.global_step)
        is_abandoned = False
        started_at, started_step = time.monotonic(), self.global_step
        while self.global_step < config.trained_timesteps and not run.is_ending:
            self.iteration += 1
            if config.anneal_lr:
                self.learning_rate = config.learning_rate * (1 - (self.iteration - 1) / config.num_iterations)

            columns = self._learn_from_rollout()
            if columns is None:
                is_abandoned = True
                break

            metrics, is_finite = self.losses(columns)
            losses = {f"losses/{name}": value for name, value in metrics.items()}
            base.abort_if_not_finite(self.name, run, self.global_step, losses, is_finite)
            sps = int((self.global_step - started_step) / (time.monotonic() - started_at))
            charts = {"charts/learning_rate": self.learning_rate, **losses, "charts/SPS": sps}
            run.scalars(self.global_step, charts)
            if self.can_resume_here():
                milestones.update(self.global_step)
        milestones.finish(None if is_abandoned or not self.can_resume_here() else self.global_step)

    def _learn_from_rollout(self) -> Columns | None:
        """Collect a rollout and update by it; return what was learned from, or None if the run was stopped."""
        rewards = self._collect_rollout()
        columns = None if rewards is None else self.estimate(rewards)
        if columns is None:
            return None
        self.learner.load_rollout(self.learning_rate, self._rows(self.observations[:-1]), **columns)
        return columns if self.update() else None

    def _collect_rollout(self) -> Array | None:
        """Step all games `num_steps` times; return the rewards [steps, games], or None if the run was stopped."""
        run, games, observations, dones = self.run, self.games, self.observations, self.dones
        observations[0] = observations[-1]
        dones[...] = False
        self.truncated.clear()
        self.begin_rollout()
        for t in range(self.config.num_steps):
            self.act(t)
            self.global_step += self.config.num_envs
            episode_ends = games.step(self.actions[t].tolist(), observations[t + 1])
            for episode_end in episode_ends:
                dones[t, episode_end.env] = True
                if not episode_end.is_terminal:
                    self.truncated.append((t, episode_end.env, episode_end.observation))
                if episode_end.is_full_episode:
                    self.report_episode(episode_end)
            self.after_step(t, episode_ends)
            if self.is_stopped():
                return None
        rewards = games.finish_rollout(self.actions)
        base.abort_if_rewards_not_finite(self.name, run, rewards, self.global_step - self.config.batch_size)
        return rewards

    def bootstrap_truncated(self, rewards: Array) -> None:
        """Add the discounted value of its final observation to the last reward of each truncated game.

        Otherwise the agent would learn that reaching the time limit is as bad as failing.
        """
        for (t, env, _), value in zip(self.truncated, self.final_values(), strict=True):
            rewards[t, env] += self.config.gamma * value

    def update(self) -> bool:
        """Run the epochs of an update; return False if the run was stopped before their end."""
        for _ in range(self.config.update_epochs):
            for rows in self.minibatches():
                self.update_minibatch(rows)
                if self.is_stopped():
                    return False
            if self.is_update_over():
                break
        return True

    def is_stopped(self) -> bool:
        """Report the progress; return whether the run was asked to stop."""
        self.run.update(self.global_step)
        return self.run.stop_requested

    def _rows(self, parts: Array) -> Array:
        """Return [steps, games, …] as [rows, …]."""
        return parts.reshape(self.part.batch_size, *parts.shape[2:])

    def _start_learner(self) -> None:
        from cleanrl_worker.learners.torch_backend import TorchContext

        compute = TorchContext.from_settings(self.config)
        self.learner = self.make_learner(self.agent.parameters, self.games.shape, self.config, compute)

    def _shape(self) -> dict[str, Any]:
        """Return what must be equal for a checkpoint to be resumed."""
        return {
            "env_id": self.config.env_id, "actions": self.action_count, "num_envs": self.config.num_envs,
            "num_steps": self.config.num_steps,
        }  # fmt: skip

    def _state(self, _: bool) -> TrainingState:
        """Return copies of everything that a checkpoint contains."""
        arrays, environment_facts = self.games.checkpoint_state()
        own_arrays, own_facts = self.own_state()
        return TrainingState(
            weights=self.learner.arrays(),
            arrays={**arrays, **self.learner.optimizer_state(), **own_arrays},
            facts={
                "algorithm": self.name,
                "shape": self._shape(),
                "config": self.config.model_dump(mode="json"),
                "backend": "torch",
                "threads": devices.thread_count(),
                "first_action": self.first_action,
                "iteration": self.iteration,
                "global_step": self.global_step,
                "learning_rate": self.learning_rate,
                "adam_count": self.learner.adam.count,
                "rng": random_state_to_json(self.rng.bit_generator.state),
                "environments": environment_facts,
                **own_facts,
            },
        )


class FramePpoTraining(FrameTraining):
    """Learns by PPO from generalized advantage estimates; the output after the logits is the critic's value."""

    config: PpoConfig
    extra_outputs = 1

    def begin_rollout(self) -> None:
        # The argmax of logits plus Gumbel noise is a sample of their softmax distribution.
        self._noise = base.sample_exponentials(self.rng, (*self.actions.shape, self.action_count))
        np.log(self._noise, out=self._noise)

    def act(self, t: int) -> None:
        self.outputs[t] = self.learner.act(self.observations[t])
        self.actions[t] = (self.outputs[t, :, : self.action_count] - self._noise[t]).argmax(1)

    def state_values(self, outputs: Array) -> Array:
        return outputs[..., self.action_count]

    def log_probs(self) -> Array:
        """Return the log-probabilities of the rollout's actions, [rows]."""
        return categorical_log_probs(self._rows(self.outputs[:-1, :, : self.action_count]), self._rows(self.actions))

    def estimate(self, rewards: Array) -> Columns | None:
        self.outputs[-1] = self.last_outputs()
        self.bootstrap_truncated(rewards)
        values = self.state_values(self.outputs)
        advantages = ppo_kernels.gae_advantages(rewards, values, self.dones, self.config.gamma, self.config.gae_lambda)
        return {
            "actions": self._rows(self.actions),
            "log_probs": self.log_probs(),
            "advantages": self._rows(advantages),
            "returns": self._rows(advantages + values[:-1]),
            "values": self._rows(values[:-1]),
        }

    def is_update_over(self) -> bool:
        target_kl = self.config.target_kl
        return target_kl is not None and self.learner.losses()[0]["approx_kl"] > target_kl

    def losses(self, columns: Columns) -> tuple[dict[str, float], bool]:
        metrics, is_finite = self.learner.losses()
        return {**metrics, **explained_variance(columns["returns"], columns["values"])}, is_finite


class AverageReturn(FrameTraining):
    """Also reports the average return of the latest games, as CleanRL's scripts with envpool do."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._recent: deque[float] = deque(maxlen=RECENT_EPISODES)

    def report_episode(self, episode_end: EpisodeEnd) -> None:
        super().report_episode(episode_end)
        self._recent.append(episode_end.episodic_return)
        self.run.scalar("charts/avg_episodic_return", fmean(self._recent), self.global_step)

    def own_state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays, facts = super().own_state()
        return arrays, {**facts, "recent": list(self._recent)}

    def restore_own_state(self, resume: Checkpoint, is_exact: bool) -> None:
        super().restore_own_state(resume, is_exact)
        self._recent.extend(resume.facts["recent"])
