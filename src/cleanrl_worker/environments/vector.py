"""Several environments stepped one after the other, and their recording, from which a resumed run restores them.

The wrappers that Gymnasium puts around every environment cost more than a small environment itself. Known ones are
removed and their time limit is enforced here; all others stay. The end of an episode is followed by a reset in the same
step (same-step autoreset), and the final observation is returned for bootstrapping. Classic control environments are
stepped by compiled code where it is installed, with equal results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt

from cleanrl_worker.environments.action_record import MAX_RECORDED_STEPS, ActionChunk, ActionRecord
from cleanrl_worker.environments.classic_control import CompiledStep, find_compiled_step
from cleanrl_worker.environments.env_pictures import EnvPictures, EpisodeProgress
from cleanrl_worker.environments.episode_log import EndedEpisode, EpisodeLog
from cleanrl_worker.environments.time_limits import strip_wrappers
from mosaic.worker.envs.reproducible import random_state, restore_random_state
from mosaic.worker.envs.spaces import flat_size, make_flattener
from mosaic.worker.envs.wrappers import WrappedEnv
from mosaic.worker.live_frames import LiveFrames

Array = npt.NDArray[Any]
GymEnv = gymnasium.Env[Any, Any]


HASH_INTERVAL = 128
"""Steps between two hashes of observations that are recorded besides those of the starts and ends of episodes."""


class EpisodeEnd(NamedTuple):
    """An episode that ended in the latest step."""

    env: int
    observation: Array
    """The final observation of the episode, flattened; the environment has already been reset."""
    is_terminal: bool
    """False if it was truncated, so that the value of the final observation is bootstrapped."""
    episodic_return: float
    length: int
    is_full_episode: bool = True
    """False for a lost life, which ends the learner's episode while the game continues."""


class ObservationLayout(NamedTuple):
    """Shape and type of an observation as it is passed between processes."""

    shape: tuple[int, ...]
    dtype: type[np.generic]


class VectorEnvs:
    """`num_envs` environments. A rollout is several calls of `step`, then `finish_rollout`; or just call `advance`."""

    def __init__(
        self,
        make_env: Callable[[], GymEnv],
        num_envs: int,
        seed: int,
        frames: LiveFrames | None = None,
        first_index: int = 0,
    ) -> None:
        self.seed = seed
        """The seed of the first environment; those of the others follow it."""
        self._first_index = first_index
        """The index of the first environment among those of the run, for the names in checkpoints."""
        envs = [make_env() for _ in range(num_envs)]
        self.observation_space = envs[0].observation_space
        self.action_space = envs[0].action_space
        self._flatten = make_flattener(self.observation_space)
        self._wrapped = [env for env in envs if isinstance(env, WrappedEnv)]
        """The environments, if the config puts wrappers around them: learners get the rewards of these."""
        for env in self._wrapped[1:]:
            env.share_statistics(self._wrapped[0])
        stripped = [strip_wrappers(env) for env in envs]
        self._envs = [env for env, _ in stripped]
        self._time_limits = [limit for _, limit in stripped]
        self._unwrapped_envs: list[Any] = [env.unwrapped for env in self._envs]
        self._rewards: list[list[float]] = [[] for _ in envs]
        self._env_steppers: list[tuple[int, Callable[[Any], Any], Callable[[Any], None]]] = [
            (index, env.step, rewards.append)
            for index, (env, rewards) in enumerate(zip(self._envs, self._rewards, strict=True))
        ]
        self._latest_observations: list[Any] = [None] * num_envs
        """The latest observation of each environment, not flattened."""
        self._step_count = 0
        """Calls of `step`. The length of an episode is the difference to its start."""
        self._episode_starts = [0] * num_envs
        self._deadlines = [0.0] * num_envs
        self._first_reward = [0] * num_envs
        """The index of the current episode's first reward in this rollout."""
        self._earlier_returns = [0.0] * num_envs
        """The return of the current episode in earlier rollouts."""
        self._seeds: list[int | None] = [None] * num_envs
        """The seed of the current episode's reset, if it is the first."""
        self._random_states_before_reset: list[Any] = [None] * num_envs
        """The random state of the environment before the current episode's reset."""
        self._episode_numbers = [0] * num_envs
        """The number of each environment's current episode, from 1."""
        self._action_record, self._action_chunk = ActionRecord(num_envs), ActionChunk()
        self._compiled = find_compiled_step(self._envs)
        self._pictures = EnvPictures(self._envs, frames, self._describe_episode)
        self._episode_log = EpisodeLog(None if frames is None else frames.recorder, num_envs)

    def __len__(self) -> int:
        return len(self._envs)

    @classmethod
    def observation_layout(cls, space: Any, **settings: Any) -> ObservationLayout:
        """Return how observations of this space are passed on, exactly. `settings` are the constructor's."""
        # Not the type of the space: environments return others, and float64 holds every float32 and byte.
        return ObservationLayout((flat_size(space),), np.float64)

    @property
    def observation_size(self) -> int:
        return flat_size(self.observation_space)

    @property
    def action_count(self) -> int:
        """The number of actions, if they are discrete."""
        space: Any = self.action_space
        return int(space.n)

    @property
    def has_compiled_step(self) -> bool:
        return self._compiled is not None

    @property
    def has_statistics(self) -> bool:
        """Whether wrappers have statistics, which all environments share."""
        return any(env.has_statistics for env in self._wrapped)

    def close(self) -> None:
        self._pictures.close()
        for env in self._envs:
            env.close()

    # --- stepping

    def start(self) -> None:
        """Reset each environment to its first episode; an episode that is under way is not recorded."""
        self._flush_action_chunk()
        for index in range(len(self._envs)):
            self._reset(index, self.seed + index)
            self._episode_log.start(index)
        self._pictures.start_video()

    def observe(self, into: Array) -> None:
        """Write the latest observations, flattened, to the rows of `into`."""
        self._sync_envs()
        for index, observation in enumerate(self._latest_observations):
            into[index] = self._flatten_observation(observation)

    def _flatten_observation(self, observation: Any) -> Any:
        return observation if self._flatten is None else self._flatten(observation)

    def step(self, actions: Iterable[Any], into: Array) -> Sequence[EpisodeEnd]:
        """Step each environment; observations go to the rows of `into`, rewards are kept for `finish_rollout`."""
        step_count = self._step_count = self._step_count + 1
        compiled = self._compiled
        if compiled is not None and (terminated := compiled.step(actions)) >= 0:
            episode_ends = self._finish_compiled_step(compiled, terminated, into)
        else:
            if compiled is not None:
                self._sync_envs()
                self._compiled = None
            episode_ends = self._step_envs(actions, into)
        if step_count % HASH_INTERVAL == 0 and self._episode_log.recorder is not None:
            self._sync_envs()
            for index in range(len(self._envs)):
                self._add_hash(index)
        if step_count >= self._pictures.next_check_step:
            self._publish_frames(step_count)
        return episode_ends

    def _step_envs(self, actions: Iterable[Any], into: Array) -> Sequence[EpisodeEnd]:
        episode_ends: Sequence[EpisodeEnd] = ()
        latest, deadlines, flatten = self._latest_observations, self._deadlines, self._flatten
        step_count = self._step_count
        for (index, step, append_reward), action in zip(self._env_steppers, actions, strict=True):
            observation, reward, is_terminal, is_truncated, _ = step(action)
            append_reward(reward)
            if is_terminal or is_truncated or step_count >= deadlines[index]:
                episode_ends = (*episode_ends, self._end_episode(index, observation, bool(is_terminal)))
                observation = latest[index]
            else:
                latest[index] = observation
            into[index] = observation if flatten is None else flatten(observation)
        return episode_ends

    def _finish_compiled_step(self, compiled: CompiledStep, terminated: int, into: Array) -> Sequence[EpisodeEnd]:
        """Do after a compiled step what `_step_envs` does after each environment's."""
        episode_ends: Sequence[EpisodeEnd] = ()
        step_count, deadlines = self._step_count, self._deadlines
        into[...] = compiled.observations
        for (_, _, append_reward), reward in zip(self._env_steppers, compiled.latest_rewards(), strict=True):
            append_reward(reward)
        if terminated or step_count >= min(deadlines):
            for index, is_terminal in enumerate(compiled.is_terminal.tolist()):
                if is_terminal or step_count >= deadlines[index]:
                    compiled.write_back_one(index)
                    final_observation = compiled.observations[index]
                    episode_ends = (*episode_ends, self._end_episode(index, final_observation, is_terminal))
                    into[index] = self._latest_observations[index]
        return episode_ends

    def _sync_envs(self) -> None:
        """Bring the environments and their latest observations up to date with the compiled step."""
        if self._compiled is not None:
            for index in self._compiled.write_back():
                self._latest_observations[index] = self._compiled.observations[index].copy()

    def advance(self, actions: Array, into: Array, rewards: Array) -> Sequence[EpisodeEnd]:
        """Step each environment and write the rewards of this step to `rewards`, for algorithms without rollouts.

        Actions are recorded here, so that no `finish_rollout` is needed. Discrete actions are passed as Python ints.
        """
        if self._action_chunk.is_full:
            self._flush_action_chunk()
        step_actions = self._action_chunk.add(actions)
        episode_ends = self.step(step_actions.tolist() if step_actions.ndim == 1 else step_actions, into)
        self.read_rewards(rewards)
        return episode_ends

    def read_rewards(self, into: Array) -> None:
        """Write the rewards of the latest step."""
        for index, env_rewards in enumerate(self._rewards):
            into[index] = env_rewards[-1]
        for index, env in enumerate(self._wrapped):
            into[index] = env.learner_rewards[-1]

    def _flush_action_chunk(self) -> None:
        actions = self._action_chunk.take()
        if actions is not None:
            self.finish_rollout(actions)

    def _publish_frames(self, step_count: int) -> None:
        """Publish frames of the environments for which one is due."""
        self._sync_envs()
        self._pictures.publish(step_count, has_stepped=step_count > self._episode_starts[0])

    def _describe_episode(self, index: int) -> EpisodeProgress:
        length, episodic_return = self._episode_progress(index)
        reward = self._rewards[index][-1] if length and self._rewards[index] else 0.0
        return EpisodeProgress(self._episode_numbers[index], length, reward, episodic_return)

    def _episode_progress(self, index: int) -> tuple[int, float]:
        """Return the length and the return of the current episode so far."""
        rewards = self._rewards[index][self._first_reward[index] :]
        return self._step_count - self._episode_starts[index], self._earlier_returns[index] + sum(rewards)

    def _end_episode(self, index: int, observation: Any, is_terminal: bool) -> EpisodeEnd:
        episodic_return = float(sum(self._rewards[index][self._first_reward[index] :], self._earlier_returns[index]))
        # A copy: an environment may return the same array at every step.
        final_observation = np.array(self._flatten_observation(observation))
        episode_end = EpisodeEnd(
            index, final_observation, is_terminal, episodic_return, self._step_count - self._episode_starts[index]
        )
        if index == 0:
            self._pictures.finish_video(episode_end.episodic_return, episode_end.length)
        self._mark_episode_end(index, observation, is_terminal)
        self._reset(index)
        if index == 0:
            self._pictures.start_video()
        return episode_end

    def _mark_episode_end(self, index: int, observation: Any, is_terminal: bool) -> None:
        seed, state = self._seeds[index], self._random_states_before_reset[index]
        ended = EndedEpisode(len(self._rewards[index]), seed, state, is_terminal)
        self._episode_log.mark_end(index, ended, self._hashed_part(index, observation))

    def _add_hash(self, index: int) -> None:
        """Record the hash of an environment's latest observation."""
        observed = self._hashed_part(index, self._latest_observations[index])
        self._episode_log.add_hash(index, len(self._rewards[index]), observed)

    def _hashed_part(self, index: int, observation: Any) -> Any:
        env = self._envs[index]
        return env.hashed_part(observation) if isinstance(env, WrappedEnv) else observation

    def _reset(self, index: int, seed: int | None = None) -> None:
        self._seeds[index] = seed
        self._random_states_before_reset[index] = (
            None if seed is not None else random_state(self._unwrapped_envs[index])
        )
        self._latest_observations[index], _ = self._envs[index].reset(seed=seed)
        self._add_hash(index)
        if self._compiled is not None:
            self._compiled.load(index)
        self._episode_numbers[index] += 1
        self._episode_starts[index] = self._step_count
        self._deadlines[index] = self._step_count + self._time_limits[index]
        self._first_reward[index] = len(self._rewards[index])
        self._earlier_returns[index] = 0.0
        self._action_record.start(index)

    def finish_rollout(self, actions: Array) -> npt.NDArray[np.float64]:
        """End a rollout with these actions [steps, environments, …]; return its rewards [steps, environments]."""
        rewards = np.array(self._rewards, np.float64).T
        for index, env_rewards in enumerate(self._rewards):
            first = self._first_reward[index]
            length = self._step_count - self._episode_starts[index]
            self._action_record.add_rollout(index, actions[first:, index], length)
            # Sum in the order of the steps: how an episode is split into rollouts must not change its return.
            self._earlier_returns[index] = float(sum(env_rewards[first:], self._earlier_returns[index]))
            self._episode_log.add_rollout(index, actions[:, index], rewards[:, index])
            self._first_reward[index] = 0
            env_rewards.clear()
        if self._wrapped:
            return np.array([env.take_learner_rewards() for env in self._wrapped], np.float64).T
        return rewards

    # --- resuming

    def checkpoint_state(self) -> tuple[dict[str, Array], list[dict[str, Any]]]:
        """Return arrays and JSON facts (one object per environment) from which `restore` restores the environments."""
        self._flush_action_chunk()
        self._sync_envs()
        self._episode_log.flush()
        arrays: dict[str, Array] = self._wrapped[0].statistics() if self._wrapped else {}
        facts: list[dict[str, Any]] = []
        for index in range(len(self._envs)):
            prefix, actions = f"env.{self._first_index + index}", self._action_record.actions_of(index)
            if actions is not None:
                arrays[f"{prefix}.actions"] = actions
            arrays[f"{prefix}.observation"] = np.array(self._flatten_observation(self._latest_observations[index]))
            facts.append(
                {
                    "seed": self._seeds[index],
                    "before": self._random_states_before_reset[index],
                    "now": random_state(self._unwrapped_envs[index]),
                    "length": self._step_count - self._episode_starts[index],
                    "return": self._earlier_returns[index],
                    "episode": self._episode_numbers[index],
                }
            )
        for index, env in enumerate(self._wrapped):
            if env.normalizes_observations:
                arrays[f"env.{self._first_index + index}.own_observation"] = env.own_observation
            facts[index]["discounted_rewards"] = env.discounted_rewards
        return arrays, facts

    def restore(self, arrays: Mapping[str, Array], facts: Sequence[Mapping[str, Any]]) -> list[str]:
        """Replay each environment to its recorded state; return the reason for each that was reset instead."""
        problems = []
        for env in self._wrapped:
            env.restore_statistics(arrays)
            env.set_frozen(True)
        for index, fact in enumerate(facts):
            number = self._first_index + index
            actions = arrays.get(f"env.{number}.actions")
            problem = self._replay_actions(index, fact, actions, arrays)
            if problem is None:
                self._episode_starts[index] = self._step_count - fact["length"]
                self._deadlines[index] = self._episode_starts[index] + self._time_limits[index]
                self._earlier_returns[index] = fact["return"]
                self._episode_numbers[index] = fact.get("episode", 1)
                self._action_record.restore(index, actions)
            else:
                problems.append(f"environment {number}: {problem}")
                self._reset(index)
        for env, fact in zip(self._wrapped, facts, strict=False):
            env.set_frozen(False)
            env.take_learner_rewards()
            env.discounted_rewards = fact["discounted_rewards"]
        return problems

    def _replay_actions(
        self, index: int, fact: Mapping[str, Any], actions: Array | None, arrays: Mapping[str, Array]
    ) -> str | None:
        prefix = f"env.{self._first_index + index}"
        expected_observation = arrays[f"{prefix}.observation"]
        env, core = self._envs[index], self._unwrapped_envs[index]
        seed = fact["seed"]
        length = 0 if actions is None else len(actions)
        self._reset(index, self.seed + index if seed is None else seed)
        if length != fact["length"]:
            restore_random_state(core, fact["now"])
            return f"its episode of {fact['length']:,} steps is longer than what is recorded ({MAX_RECORDED_STEPS:,})"
        if seed is None:
            if fact["before"] is None:
                return "it has no random generator that can be restored"
            restore_random_state(core, fact["before"])
            self._reset(index)
        else:
            self._seeds[index] = seed
        observation = self._latest_observations[index]
        rewards: list[Any] = []
        for action in () if actions is None else actions:
            observation, reward, _, _, _ = env.step(action)
            rewards.append(reward)
        if self._compiled is not None:
            self._compiled.load(index)
        self._latest_observations[index] = observation
        replayed = np.asarray(self._flatten_observation(observation))
        if isinstance(env, WrappedEnv) and env.normalizes_observations:
            # It was normalized by the statistics of its time.
            self._latest_observations[index] = expected_observation.reshape(np.shape(observation))
            replayed, expected_observation = env.own_observation, arrays[f"{prefix}.own_observation"]
        if replayed.tobytes() != expected_observation.tobytes() or random_state(core) != fact["now"]:
            restore_random_state(core, fact["now"])
            return "replaying its actions led to a different observation; it is not deterministic"
        self._episode_log.resume(index, actions, rewards)
        return None
