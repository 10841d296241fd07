"""Atari games with the preprocessing of the literature.

An action is repeated for four frames; an observation is the maximum of the last two (sprites flicker), in grayscale, 84
by 84, and the last four of these are stacked. An episode starts with up to thirty no-op frames and, if the game waits
for it, with the fire button. For training, a lost life ends the episode and rewards are clipped to their sign; the
game's own score and length are available at its end. One class does all of it: seven nested wrappers take longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from mosaic.contracts.errors import BadInput, FieldProblem, MissingExtra
from mosaic.worker.envs.factory import ensure_registered, make
from mosaic.worker.envs.families import FAMILIES

FRAME_SIZE_PX = 84
FRAME_STACK = 4
FRAME_SKIP = 4
MAX_NOOP_FRAMES = 30
_FIXED_SETTINGS = ("frameskip", "obs_type")

FrameArray = npt.NDArray[np.uint8]


class AtariEnv(gymnasium.Env[FrameArray, Any]):
    """Observations are the last four frames, oldest first: bytes [4, 84, 84]."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}

    def __init__(
        self,
        env_id: str,
        *,
        terminal_on_life_loss: bool,
        clip_rewards: bool,
        render_mode: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`settings` are passed to the game: its mode, its difficulty, sticky actions, all 18 actions."""
        family = ensure_registered(env_id)
        if family is None or family.name != "atari":
            raise BadInput(f"{env_id!r} is not an Atari game. Choose one such as 'BreakoutNoFrameskip-v4'.")
        for name in _FIXED_SETTINGS:
            if name in (settings or {}):
                message = f"{name} is fixed by the preprocessing of Atari games. Leave it out."
                raise BadInput(f"env_kwargs: {message}", [FieldProblem("env_kwargs", message)])
        self._env = make(env_id, frameskip=1, **(settings or {}))
        core: Any = self._env.unwrapped
        self._resize = make_resizer()
        self._ale_env = core
        self._ale = self.ale = core.ale
        self._actions = list(core._action_set)
        meanings = core.get_action_meanings()
        self._needs_fire_on_reset = len(meanings) >= 3 and meanings[1] == "FIRE"
        self._terminal_on_life_loss = terminal_on_life_loss
        self._clip_rewards = clip_rewards
        self.spec = self._env.spec
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(0, 255, (FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))
        height, width = self._ale.getScreenDims()
        self._screens = np.zeros((2, height, width), np.uint8)
        self._frame_stack: FrameArray = np.zeros((FRAME_STACK, FRAME_SIZE_PX, FRAME_SIZE_PX), np.uint8)
        self._lives = 0
        self._is_game_over = True
        self.score = 0.0
        """Score of the current game, or of the one that ended with the last step: not clipped, over all lives."""
        self.frame_count = 0
        """Length of that game in frames."""

    @property
    def is_game_over(self) -> bool:
        """Whether the game itself has ended, not only a life."""
        return self._is_game_over

    def abandon_game(self) -> None:
        """Make the next reset start another game, instead of the next life of this one."""
        self._is_game_over = True

    def get_action_meanings(self) -> list[str]:
        names: list[str] = self._ale_env.get_action_meanings()
        return names

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FrameArray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None or self._is_game_over:
            self._start_game(seed)
        else:
            self._repeat_action(0)  # the next life of the same game
        if self._needs_fire_on_reset:
            # Some games wait for the button, and some of these for a move after it.
            for action in (1, 2):
                self._repeat_action(action)
                if self._is_game_over:
                    self._start_game(None)
        self._lives = self._ale.lives()
        self._frame_stack = np.repeat(self._preprocess_screens()[None], FRAME_STACK, 0)
        return self._frame_stack, {}

    def _start_game(self, seed: int | None) -> None:
        self._ale_env.reset(seed=seed)
        self.score, self.frame_count, self._is_game_over = 0.0, 0, False
        for _ in range(int(self.np_random.integers(1, MAX_NOOP_FRAMES + 1))):
            self._ale.act(self._actions[0], 1.0)
            self.frame_count += 1
            if self._ale.game_over():
                self._ale_env.reset()
                self.score, self.frame_count = 0.0, 0
        self._ale.getScreenGrayscale(self._screens[0])
        self._screens[1] = self._screens[0]

    def _repeat_action(self, action: int) -> float:
        """Repeat an action for FRAME_SKIP frames, keep the last two screens and return the reward."""
        ale, ale_action = self._ale, self._actions[action]
        reward = 0.0
        for frame in range(FRAME_SKIP):
            reward += ale.act(ale_action, 1.0)
            self.frame_count += 1
            if frame >= FRAME_SKIP - 2:
                ale.getScreenGrayscale(self._screens[frame - FRAME_SKIP + 2])
            if ale.game_over():
                self._is_game_over = True
                break
        self.score += reward
        return reward

    def _preprocess_screens(self) -> FrameArray:
        return np.asarray(self._resize(np.maximum(self._screens[0], self._screens[1])))

    def step(self, action: Any) -> tuple[FrameArray, float, bool, bool, dict[str, Any]]:
        raw_reward = self._repeat_action(int(action))
        self._frame_stack = np.concatenate((self._frame_stack[1:], self._preprocess_screens()[None]))
        lives = self._ale.lives()
        has_lost_life = 0 < lives < self._lives
        self._lives = lives
        is_truncated = self._is_game_over and bool(self._ale.game_truncated())
        is_terminal = (self._is_game_over and not is_truncated) or (self._terminal_on_life_loss and has_lost_life)
        reward = float(np.sign(raw_reward)) if self._clip_rewards else raw_reward
        return self._frame_stack, reward, is_terminal, is_truncated, {}

    def render(self) -> Any:
        return self._ale.getScreenRGB()

    def close(self) -> None:
        self._env.close()

    # --- snapshots

    def snapshot(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Return arrays and JSON values from which `restore` continues the game exactly."""
        state = np.frombuffer(self._ale.cloneState(include_rng=True).serialize(), np.uint8)
        arrays = {"emulator": state, "pictures": self._frame_stack, "screens": self._screens}
        facts = {"lives": self._lives, "is_over": self._is_game_over, "score": self.score, "frames": self.frame_count}
        return arrays, facts

    def restore(self, arrays: dict[str, npt.NDArray[Any]], facts: dict[str, Any]) -> None:
        import ale_py

        self._ale_env.reset()
        self._ale.restoreState(ale_py.ALEState(arrays["emulator"].tobytes()))
        self._frame_stack = arrays["pictures"]
        self._screens[...] = arrays["screens"]
        self._lives, self._is_game_over = facts["lives"], facts["is_over"]
        self.score, self.frame_count = facts["score"], facts["frames"]


def make_resizer() -> Any:
    try:
        import cv2
    except ImportError:
        family = FAMILIES["atari"]
        raise MissingExtra(
            f"Atari frames need OpenCV, a part of the {family.title} extra: {family.install_command}."
        ) from None
    cv2.setNumThreads(1)  # a frame is too small for several threads
    return lambda frame: cv2.resize(frame, (FRAME_SIZE_PX, FRAME_SIZE_PX), interpolation=cv2.INTER_AREA)
