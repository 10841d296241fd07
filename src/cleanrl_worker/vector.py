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

from mosaic.envs.spaces import flat_size, flattener
from mosaic.fastlane import FrameTap
from mosaic.run.frames import Frames

Array = npt.NDArray[Any]
Environment = gymnasium.Env[Any, Any]

RECORD_LIMIT = 100_000
"""Actions of one episode that are kept; an episode longer than this is not resumed exactly."""
LOOK_S = {False: 0.02, True: 0.002}
"""About how often it is asked whether a picture is due: while nobody watches, while somebody does."""
LONGEST_STRIDE = 1024
CHUNK = 256
"""Steps of `advance` whose actions are gathered before they are put to the record."""
_PLAIN_WRAPPERS = (OrderEnforcing, PassiveEnvChecker)


class Ending(NamedTuple):
    """An episode that ended in the newest step."""

    env: int
    observation: Array
    """The last one of the episode, flattened; the environment has been reset since."""
    is_terminal: bool
    """False where it was cut short, so that what would have followed is to be estimated."""
    episodic_return: float
    length: int
    is_episode: bool = True
    """False where the agent learns from an end that is none for people: a lost life, and the game goes on."""


class Environments:
    """`count` environments. One rollout is a number of `step` calls, then `finish`; or just call `advance`."""

    def __init__(self, make: Callable[[], Environment], count: int, seed: int, frames: Frames | None = None) -> None:
        self.seed = seed
        made = [make() for _ in range(count)]
        self.observation_space = made[0].observation_space
        self.action_space = made[0].action_space
        self._flatten = flattener(self.observation_space)
        stripped = [strip(env) for env in made]
        self._envs = [env for env, _ in stripped]
        self._limits = [limit for _, limit in stripped]
        self._cores: list[Any] = [env.unwrapped for env in self._envs]
        self._rewards: list[list[float]] = [[] for _ in made]
        self._lanes: list[tuple[int, Callable[[Any], Any], Callable[[Any], None]]] = [
            (index, env.step, rewards.append)
            for index, (env, rewards) in enumerate(zip(self._envs, self._rewards, strict=True))
        ]
        self._latest: list[Any] = [None] * count
        """The newest observation of each, as the environment gave it."""
        self._clock = 0
        """Calls of `step`. An episode's length is the time since its beginning."""
        self._began = [0] * count
        self._deadlines = [0.0] * count
        self._first_reward = [0] * count
        """Where the present episode's rewards begin in this rollout's."""
        self._earlier = [0.0] * count
        """What the present episode earned in earlier rollouts."""
        self._is_fresh = [True] * count
        """Whether the present episode began in this rollout."""
        self._seeds: list[int | None] = [None] * count
        """What the present episode was reset with, where it was the first."""
        self._before: list[Any] = [None] * count
        """The state of the environment's random generator before the present episode's reset."""
        self._actions: list[list[Array] | None] = [[] for _ in made]
        """The actions since; None where they are too many."""
        self._episodes = [0] * count
        """The number of the present episode of each, from 1."""
        self._sent: Array | None = None
        """Actions [CHUNK, environments, …] of `advance` that are not in the record yet; so many of them:"""
        self._sent_count = 0
        self._taps = [] if frames is None else frames.tapped(self._envs)
        self._camera = None if frames is None else frames.camera
        self._is_filming = False
        """Whether the present episode of the first environment is filmed."""
        self._look_at = 0.0 if self._taps else float("inf")
        """When, by our clock, to ask next whether a picture is due: no step pays for more than this comparison."""
        self._looked_s = 0.0
        self._stride = 1

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
        self._begin_film()

    def observe(self, into: Array) -> None:
        """Writes the newest observations `into` the rows of an array, flattened."""
        for index, observation in enumerate(self._latest):
            into[index] = self._flattened(observation)

    def _flattened(self, observation: Any) -> Any:
        return observation if self._flatten is None else self._flatten(observation)

    def step(self, actions: Iterable[Any], into: Array) -> Sequence[Ending]:
        """One step of each; observations go `into` its rows, rewards are kept for `finish`."""
        endings: Sequence[Ending] = ()
        latest, deadlines, flatten = self._latest, self._deadlines, self._flatten
        clock = self._clock = self._clock + 1
        for (index, step, keep), action in zip(self._lanes, actions, strict=True):
            observation, reward, is_terminal, is_truncated, _ = step(action)
            keep(reward)
            if is_terminal or is_truncated or clock >= deadlines[index]:
                endings = (*endings, self._end(index, observation, bool(is_terminal)))
                observation = latest[index]
            else:
                latest[index] = observation
            into[index] = observation if flatten is None else flatten(observation)
        if clock >= self._look_at:
            self._show(clock)
        return endings

    def advance(self, actions: Array, into: Array, rewards: Array) -> Sequence[Ending]:
        """One step of each, for algorithms that learn from every step: `rewards` are those of this step.

        Actions are kept here, so that no `finish` is needed. Whole numbers reach the environments as Python's own.
        """
        if self._sent is None:
            self._sent = np.zeros((CHUNK, *actions.shape), actions.dtype)
        elif self._sent_count == CHUNK:
            self._put_to_record()
        sent = self._sent[self._sent_count]
        sent[...] = actions
        self._sent_count += 1
        endings = self.step(sent.tolist() if sent.ndim == 1 else sent, into)
        for index, earned in enumerate(self._rewards):
            rewards[index] = earned[-1]
        return endings

    def _put_to_record(self) -> None:
        if self._sent is not None and self._sent_count:
            self.finish(self._sent[: self._sent_count])
            self._sent_count = 0

    def _show(self, clock: int) -> None:
        """Draws the environments whose picture is due."""
        if self._camera is not None and self._is_filming:
            if clock > self._began[0]:
                self._camera.shoot(self._episodes[0] - 1)
            if not self._taps:
                return
        now = time.monotonic()
        wanted_s = LOOK_S[any(tap.lane.is_watched for tap in self._taps)]
        since_s, self._looked_s = now - self._looked_s, now
        if since_s > 2 * wanted_s:
            self._stride = max(1, int(self._stride * wanted_s / since_s))
        elif since_s < wanted_s / 2:
            self._stride = min(LONGEST_STRIDE, 2 * self._stride)
        self._look_at = 0.0 if self._is_filming else clock + self._stride
        for index, tap in enumerate(self._taps):
            if tap.is_due():
                length, earned = self._progress(index)
                reward = self._rewards[index][-1] if length and self._rewards[index] else 0.0
                tap.show(self._episodes[index], length, reward, earned)

    def _progress(self, index: int) -> tuple[int, float]:
        """The length of the present episode so far, and what it earned."""
        earned = self._rewards[index][self._first_reward[index] :]
        return self._clock - self._began[index], self._earlier[index] + sum(earned)

    def _end(self, index: int, observation: Any, is_terminal: bool) -> Ending:
        earned = float(sum(self._rewards[index][self._first_reward[index] :], self._earlier[index]))
        # A copy: an environment may hand out the same array at every step.
        last = np.array(self._flattened(observation))
        ending = Ending(index, last, is_terminal, earned, self._clock - self._began[index])
        if index == 0:
            self._end_film(ending)
        self._reset(index)
        if index == 0:
            self._begin_film()
        return ending

    def _begin_film(self) -> None:
        if self._camera is not None:
            self._is_filming = self._camera.begin(self._episodes[0] - 1, self._envs[0])
            if self._is_filming:
                self._look_at = 0.0

    def _end_film(self, ending: Ending) -> None:
        if self._camera is not None and self._is_filming:
            self._camera.shoot(self._episodes[0] - 1)
            self._camera.finish(self._episodes[0] - 1, ending.episodic_return, ending.length)
            self._is_filming = False
            self._look_at = 0.0 if self._taps else float("inf")

    def _reset(self, index: int, seed: int | None = None) -> None:
        self._seeds[index] = seed
        self._before[index] = None if seed is not None else random_state(self._cores[index])
        self._latest[index], _ = self._envs[index].reset(seed=seed)
        self._episodes[index] += 1
        self._began[index] = self._clock
        self._deadlines[index] = self._clock + self._limits[index]
        self._first_reward[index] = len(self._rewards[index])
        self._earlier[index] = 0.0
        self._is_fresh[index] = True

    def finish(self, actions: Array) -> npt.NDArray[np.float64]:
        """Ends a rollout, whose actions were these [steps, environments, …]; its rewards [steps, environments]."""
        rewards = np.array(self._rewards, np.float64).T
        for index, earned in enumerate(self._rewards):
            first = self._first_reward[index]
            kept = self._actions[index]
            if self._is_fresh[index]:
                kept = self._actions[index] = []
            if kept is not None:
                kept.append(actions[first:, index].copy())
                if self._clock - self._began[index] > RECORD_LIMIT:
                    self._actions[index] = None
            # One sum through all parts of an episode: where it is cut into parts must not change its return.
            self._earlier[index] = float(sum(earned[first:], self._earlier[index]))
            self._first_reward[index] = 0
            self._is_fresh[index] = False
            earned.clear()
        return rewards

    # --- resuming

    def record(self) -> tuple[dict[str, Array], list[dict[str, Any]]]:
        """Arrays and facts (one object an environment) from which `restore` gets the environments back."""
        self._put_to_record()
        arrays: dict[str, Array] = {}
        facts: list[dict[str, Any]] = []
        for index, kept in enumerate(self._actions):
            if kept:
                arrays[f"env.{index}.actions"] = np.concatenate(kept)
            arrays[f"env.{index}.observation"] = np.array(self._flattened(self._latest[index]))
            facts.append(
                {
                    "seed": self._seeds[index],
                    "before": plain(self._before[index]),
                    "now": plain(random_state(self._cores[index])),
                    "length": self._clock - self._began[index],
                    "return": self._earlier[index],
                    "episode": self._episodes[index],
                }
            )
        return arrays, facts

    def restore(self, arrays: Mapping[str, Array], facts: Sequence[Mapping[str, Any]]) -> list[str]:
        """Plays every environment back to where it was recorded; why not, for each that had to be reset instead."""
        problems = []
        for index, fact in enumerate(facts):
            actions = arrays.get(f"env.{index}.actions")
            problem = self._replay(index, fact, actions, arrays[f"env.{index}.observation"])
            if problem is None:
                self._began[index] = self._clock - fact["length"]
                self._deadlines[index] = self._began[index] + self._limits[index]
                self._earlier[index] = fact["return"]
                self._episodes[index] = fact.get("episode", 1)
                self._actions[index] = [] if actions is None else [actions]
                self._is_fresh[index] = False
            else:
                problems.append(f"environment {index}: {problem}")
                self._reset(index)
        return problems

    def _replay(self, index: int, fact: Mapping[str, Any], actions: Array | None, last: Array) -> str | None:
        env, core = self._envs[index], self._cores[index]
        seed = fact["seed"]
        length = 0 if actions is None else len(actions)
        self._reset(index, self.seed + index if seed is None else seed)
        if length != fact["length"]:
            restore_random_state(core, fact["now"])
            return f"its episode of {fact['length']:,} steps was longer than is recorded ({RECORD_LIMIT:,})"
        if seed is None:
            if fact["before"] is None:
                return "it has no random generator that could be restored"
            restore_random_state(core, fact["before"])
            self._reset(index)
        else:
            self._seeds[index] = seed
        observation = self._latest[index]
        for action in () if actions is None else actions:
            observation, _, _, _, _ = env.step(action)
        self._latest[index] = observation
        found = np.asarray(self._flattened(observation))
        if found.tobytes() != last.tobytes() or plain(random_state(core)) != fact["now"]:
            restore_random_state(core, fact["now"])
            return "replaying its actions led to another observation; it is not deterministic"
        return None


class Watched(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that is played by itself, and may be watched."""

    def __init__(self, env: Environment, tap: FrameTap) -> None:
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


def strip(env: Environment) -> tuple[Environment, float]:
    """The environment without the wrappers that Gymnasium puts around every one, and its time limit in steps.

    Only what lies outside of any other wrapper comes off: another wrapper may rely on what is inside of it.
    """
    limit = float("inf")
    while isinstance(env, gymnasium.Wrapper):
        if type(env) is TimeLimit:
            limit = min(limit, env._max_episode_steps)
        elif type(env) not in _PLAIN_WRAPPERS:
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


def plain(state: Any) -> Any:
    """A random generator's state with arrays as lists, for JSON. Numpy takes it back in this form."""
    if isinstance(state, dict):
        return {key: plain(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, (np.ndarray, np.generic)) else state
