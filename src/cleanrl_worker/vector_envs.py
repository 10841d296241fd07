"""Several environments stepped one after the other, and the record from which a resumed run gets them back.

The wrappers that Gymnasium puts around every environment cost more than a small environment itself. Those that are
known are taken off and their time limit is kept here; any other stays. An episode's end is followed by a reset in
the same step (same-step autoreset), and the last observation is handed over for bootstrapping.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from mosaic.envs.spaces import flat_size, make_flattener
from mosaic.fastlane import FrameTap
from mosaic.run.live_frames import LiveFrames

Array = npt.NDArray[Any]
GymEnv = gymnasium.Env[Any, Any]

MAX_RECORDED_STEPS = 100_000
"""Actions of one episode that are kept; an episode longer than this is not resumed exactly."""
FRAME_CHECK_INTERVAL_S = {False: 0.02, True: 0.002}
"""About how often it is asked whether a picture is due: while nobody watches, while somebody does."""
MAX_FRAME_CHECK_STRIDE = 1024
ACTION_CHUNK_STEPS = 256
"""Steps of `advance` whose actions are gathered before they are put to the record."""
_REMOVABLE_WRAPPERS = (OrderEnforcing, PassiveEnvChecker)


class EpisodeEnd(NamedTuple):
    """An episode that ended in the newest step."""

    env: int
    observation: Array
    """The last one of the episode, flattened; the environment has been reset since."""
    is_terminal: bool
    """False where it was cut short, so that what would have followed is to be estimated."""
    episodic_return: float
    length: int
    is_full_episode: bool = True
    """False where the agent learns from an end that is none for people: a lost life, and the game goes on."""


class VectorEnvs:
    """`count` environments. One rollout is a number of `step` calls, then `finish`; or just call `advance`."""

    def __init__(
        self, make_env: Callable[[], GymEnv], num_envs: int, seed: int, frames: LiveFrames | None = None
    ) -> None:
        self.seed = seed
        made = [make_env() for _ in range(num_envs)]
        self.observation_space = made[0].observation_space
        self.action_space = made[0].action_space
        self._flatten = make_flattener(self.observation_space)
        stripped = [strip_wrappers(env) for env in made]
        self._envs = [env for env, _ in stripped]
        self._time_limits = [limit for _, limit in stripped]
        self._unwrapped_envs: list[Any] = [env.unwrapped for env in self._envs]
        self._rewards: list[list[float]] = [[] for _ in made]
        self._env_steppers: list[tuple[int, Callable[[Any], Any], Callable[[Any], None]]] = [
            (index, env.step, rewards.append)
            for index, (env, rewards) in enumerate(zip(self._envs, self._rewards, strict=True))
        ]
        self._latest_observations: list[Any] = [None] * num_envs
        """The newest observation of each, as the environment gave it."""
        self._step_count = 0
        """Calls of `step`. An episode's length is the time since its beginning."""
        self._episode_starts = [0] * num_envs
        self._deadlines = [0.0] * num_envs
        self._first_reward = [0] * num_envs
        """Where the present episode's rewards begin in this rollout's."""
        self._earlier_returns = [0.0] * num_envs
        """What the present episode earned in earlier rollouts."""
        self._began_in_rollout = [True] * num_envs
        """Whether the present episode began in this rollout."""
        self._seeds: list[int | None] = [None] * num_envs
        """What the present episode was reset with, where it was the first."""
        self._random_states_before_reset: list[Any] = [None] * num_envs
        """The state of the environment's random generator before the present episode's reset."""
        self._actions: list[list[Array] | None] = [[] for _ in made]
        """The actions since; None where they are too many."""
        self._episode_numbers = [0] * num_envs
        """The number of the present episode of each, from 1."""
        self._action_chunk: Array | None = None
        """Actions [CHUNK, environments, …] of `advance` that are not in the record yet; so many of them:"""
        self._action_chunk_size = 0
        self._taps = [] if frames is None else frames.tap_all(self._envs)
        self._camera = None if frames is None else frames.camera
        self._is_recording_video = False
        """Whether the present episode of the first environment is filmed."""
        self._next_frame_check_step = 0.0 if self._taps else float("inf")
        """When, by our clock, to ask next whether a picture is due: no step pays for more than this comparison."""
        self._last_frame_check_s = 0.0
        self._frame_check_stride = 1

    def __len__(self) -> int:
        return len(self._envs)

    @property
    def observation_size(self) -> int:
        return flat_size(self.observation_space)

    def close(self) -> None:
        for tap in self._taps:
            tap.close()
        for env in self._envs:
            env.close()

    # --- stepping

    def start(self) -> None:
        """The first reset of each environment."""
        for index in range(len(self)):
            self._reset(index, self.seed + index)
        self._start_video()

    def observe(self, into: Array) -> None:
        """Writes the newest observations `into` the rows of an array, flattened."""
        for index, observation in enumerate(self._latest_observations):
            into[index] = self._flatten_observation(observation)

    def _flatten_observation(self, observation: Any) -> Any:
        return observation if self._flatten is None else self._flatten(observation)

    def step(self, actions: Iterable[Any], into: Array) -> Sequence[EpisodeEnd]:
        """One step of each; observations go `into` its rows, rewards are kept for `finish`."""
        endings: Sequence[EpisodeEnd] = ()
        latest, deadlines, flatten = self._latest_observations, self._deadlines, self._flatten
        clock = self._step_count = self._step_count + 1
        for (index, step, keep), action in zip(self._env_steppers, actions, strict=True):
            observation, reward, is_terminal, is_truncated, _ = step(action)
            keep(reward)
            if is_terminal or is_truncated or clock >= deadlines[index]:
                endings = (*endings, self._end_episode(index, observation, bool(is_terminal)))
                observation = latest[index]
            else:
                latest[index] = observation
            into[index] = observation if flatten is None else flatten(observation)
        if clock >= self._next_frame_check_step:
            self._publish_frames(clock)
        return endings

    def advance(self, actions: Array, into: Array, rewards: Array) -> Sequence[EpisodeEnd]:
        """One step of each, for algorithms that learn from every step: `rewards` are those of this step.

        Actions are kept here, so that no `finish` is needed. Whole numbers reach the environments as Python's own.
        """
        if self._action_chunk is None:
            self._action_chunk = np.zeros((ACTION_CHUNK_STEPS, *actions.shape), actions.dtype)
        elif self._action_chunk_size == ACTION_CHUNK_STEPS:
            self._flush_action_chunk()
        sent = self._action_chunk[self._action_chunk_size]
        sent[...] = actions
        self._action_chunk_size += 1
        endings = self.step(sent.tolist() if sent.ndim == 1 else sent, into)
        for index, earned in enumerate(self._rewards):
            rewards[index] = earned[-1]
        return endings

    def _flush_action_chunk(self) -> None:
        if self._action_chunk is not None and self._action_chunk_size:
            self.finish_rollout(self._action_chunk[: self._action_chunk_size])
            self._action_chunk_size = 0

    def _publish_frames(self, step_count: int) -> None:
        """Draws the environments whose picture is due."""
        if self._camera is not None and self._is_recording_video:
            if step_count > self._episode_starts[0]:
                self._camera.capture_frame(self._episode_numbers[0] - 1)
            if not self._taps:
                return
        now = time.monotonic()
        wanted_s = FRAME_CHECK_INTERVAL_S[any(tap.lane.is_watched for tap in self._taps)]
        since_s, self._last_frame_check_s = now - self._last_frame_check_s, now
        if since_s > 2 * wanted_s:
            self._frame_check_stride = max(1, int(self._frame_check_stride * wanted_s / since_s))
        elif since_s < wanted_s / 2:
            self._frame_check_stride = min(MAX_FRAME_CHECK_STRIDE, 2 * self._frame_check_stride)
        self._next_frame_check_step = 0.0 if self._is_recording_video else step_count + self._frame_check_stride
        for index, tap in enumerate(self._taps):
            if tap.is_due():
                length, earned = self._episode_progress(index)
                reward = self._rewards[index][-1] if length and self._rewards[index] else 0.0
                tap.publish_frame(self._episode_numbers[index], length, reward, earned)

    def _episode_progress(self, index: int) -> tuple[int, float]:
        """The length of the present episode so far, and what it earned."""
        earned = self._rewards[index][self._first_reward[index] :]
        return self._step_count - self._episode_starts[index], self._earlier_returns[index] + sum(earned)

    def _end_episode(self, index: int, observation: Any, is_terminal: bool) -> EpisodeEnd:
        earned = float(sum(self._rewards[index][self._first_reward[index] :], self._earlier_returns[index]))
        # A copy: an environment may hand out the same array at every step.
        last = np.array(self._flatten_observation(observation))
        ending = EpisodeEnd(index, last, is_terminal, earned, self._step_count - self._episode_starts[index])
        if index == 0:
            self._finish_video(ending)
        self._reset(index)
        if index == 0:
            self._start_video()
        return ending

    def _start_video(self) -> None:
        if self._camera is not None:
            self._is_recording_video = self._camera.start_episode(self._episode_numbers[0] - 1, self._envs[0])
            if self._is_recording_video:
                self._next_frame_check_step = 0.0

    def _finish_video(self, episode_end: EpisodeEnd) -> None:
        if self._camera is not None and self._is_recording_video:
            self._camera.capture_frame(self._episode_numbers[0] - 1)
            self._camera.finish_episode(self._episode_numbers[0] - 1, episode_end.episodic_return, episode_end.length)
            self._is_recording_video = False
            self._next_frame_check_step = 0.0 if self._taps else float("inf")

    def _reset(self, index: int, seed: int | None = None) -> None:
        self._seeds[index] = seed
        self._random_states_before_reset[index] = (
            None if seed is not None else random_state(self._unwrapped_envs[index])
        )
        self._latest_observations[index], _ = self._envs[index].reset(seed=seed)
        self._episode_numbers[index] += 1
        self._episode_starts[index] = self._step_count
        self._deadlines[index] = self._step_count + self._time_limits[index]
        self._first_reward[index] = len(self._rewards[index])
        self._earlier_returns[index] = 0.0
        self._began_in_rollout[index] = True

    def finish_rollout(self, actions: Array) -> npt.NDArray[np.float64]:
        """Ends a rollout, whose actions were these [steps, environments, …]; its rewards [steps, environments]."""
        rewards = np.array(self._rewards, np.float64).T
        for index, earned in enumerate(self._rewards):
            first = self._first_reward[index]
            kept = self._actions[index]
            if self._began_in_rollout[index]:
                kept = self._actions[index] = []
            if kept is not None:
                kept.append(actions[first:, index].copy())
                if self._step_count - self._episode_starts[index] > MAX_RECORDED_STEPS:
                    self._actions[index] = None
            # One sum through all parts of an episode: where it is cut into parts must not change its return.
            self._earlier_returns[index] = float(sum(earned[first:], self._earlier_returns[index]))
            self._first_reward[index] = 0
            self._began_in_rollout[index] = False
            earned.clear()
        return rewards

    # --- resuming

    def checkpoint_state(self) -> tuple[dict[str, Array], list[dict[str, Any]]]:
        """Arrays and facts (one object an environment) from which `restore` gets the environments back."""
        self._flush_action_chunk()
        arrays: dict[str, Array] = {}
        facts: list[dict[str, Any]] = []
        for index, kept in enumerate(self._actions):
            if kept:
                arrays[f"env.{index}.actions"] = np.concatenate(kept)
            arrays[f"env.{index}.observation"] = np.array(self._flatten_observation(self._latest_observations[index]))
            facts.append(
                {
                    "seed": self._seeds[index],
                    "before": random_state_to_json(self._random_states_before_reset[index]),
                    "now": random_state_to_json(random_state(self._unwrapped_envs[index])),
                    "length": self._step_count - self._episode_starts[index],
                    "return": self._earlier_returns[index],
                    "episode": self._episode_numbers[index],
                }
            )
        return arrays, facts

    def restore(self, arrays: Mapping[str, Array], facts: Sequence[Mapping[str, Any]]) -> list[str]:
        """Plays every environment back to where it was recorded; why not, for each that had to be reset instead."""
        problems = []
        for index, fact in enumerate(facts):
            actions = arrays.get(f"env.{index}.actions")
            problem = self._replay_actions(index, fact, actions, arrays[f"env.{index}.observation"])
            if problem is None:
                self._episode_starts[index] = self._step_count - fact["length"]
                self._deadlines[index] = self._episode_starts[index] + self._time_limits[index]
                self._earlier_returns[index] = fact["return"]
                self._episode_numbers[index] = fact.get("episode", 1)
                self._actions[index] = [] if actions is None else [actions]
                self._began_in_rollout[index] = False
            else:
                problems.append(f"environment {index}: {problem}")
                self._reset(index)
        return problems

    def _replay_actions(
        self, index: int, fact: Mapping[str, Any], actions: Array | None, expected_observation: Array
    ) -> str | None:
        env, core = self._envs[index], self._unwrapped_envs[index]
        seed = fact["seed"]
        length = 0 if actions is None else len(actions)
        self._reset(index, self.seed + index if seed is None else seed)
        if length != fact["length"]:
            restore_random_state(core, fact["now"])
            return f"its episode of {fact['length']:,} steps was longer than is recorded ({MAX_RECORDED_STEPS:,})"
        if seed is None:
            if fact["before"] is None:
                return "it has no random generator that could be restored"
            restore_random_state(core, fact["before"])
            self._reset(index)
        else:
            self._seeds[index] = seed
        observation = self._latest_observations[index]
        for action in () if actions is None else actions:
            observation, _, _, _, _ = env.step(action)
        self._latest_observations[index] = observation
        found = np.asarray(self._flatten_observation(observation))
        if found.tobytes() != expected_observation.tobytes() or random_state_to_json(random_state(core)) != fact["now"]:
            restore_random_state(core, fact["now"])
            return "replaying its actions led to another observation; it is not deterministic"
        return None


class TappedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that is played by itself, and may be watched."""

    def __init__(self, env: GymEnv, tap: FrameTap) -> None:
        super().__init__(env)
        self._tap = tap

    def step(self, action: Any) -> Any:
        observation, reward, is_terminal, is_truncated, info = self.env.step(action)
        self._tap.step(float(reward), is_terminal or is_truncated)
        return observation, reward, is_terminal, is_truncated, info

    def reset(self, **options: Any) -> Any:
        self._tap.reset()
        return self.env.reset(**options)

    def close(self) -> None:
        self._tap.close()
        super().close()


def strip_wrappers(env: GymEnv) -> tuple[GymEnv, float]:
    """The environment without the wrappers that Gymnasium puts around every one, and its time limit in steps.

    Only what lies outside of any other wrapper comes off: another wrapper may rely on what is inside of it.
    """
    limit = float("inf")
    while isinstance(env, gymnasium.Wrapper):
        if type(env) is TimeLimit:
            limit = min(limit, env._max_episode_steps)
        elif type(env) not in _REMOVABLE_WRAPPERS:
            break
        env = env.env
    return env, limit


def random_state(core: Any) -> Any:
    """The state of an environment's own random generator, where it has one."""
    generator = getattr(core, "np_random", None)
    return generator.bit_generator.state if isinstance(generator, np.random.Generator) else None


def restore_random_state(core: Any, state: Any) -> None:
    generator = getattr(core, "np_random", None)
    if isinstance(generator, np.random.Generator) and state is not None:
        generator.bit_generator.state = state


def random_state_to_json(state: Any) -> Any:
    """A random generator's state with arrays as lists, for JSON. Numpy takes it back in this form."""
    if isinstance(state, dict):
        return {key: random_state_to_json(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, (np.ndarray, np.generic)) else state
