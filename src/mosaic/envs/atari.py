"""Atari games as the papers play them.

An action is held for four frames; what is seen are the newest two of them blended (sprites flicker), in grey, 84 by 84,
and the last four such pictures together. An episode begins with up to thirty idle frames and, where the game waits for
it, with the fire button. For training a lost life ends the episode and rewards count by their sign alone; the game's
own score and length are told at its end. One class does all of it: seven wrappers around each other take longer.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from mosaic.contracts.errors import BadInput, MissingExtra
from mosaic.envs.catalogue import FAMILIES
from mosaic.envs.factory import make, prepare

SIDE = 84
STACK = 4
HELD_FRAMES = 4
MOST_IDLE_FRAMES = 30

Pictures = npt.NDArray[np.uint8]


class AtariGame(gymnasium.Env[Pictures, Any]):
    """Observations are the newest pictures, oldest first: bytes [4, 84, 84]."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}

    def __init__(
        self, env_id: str, *, ends_with_life: bool, clips_rewards: bool, render_mode: str | None = None
    ) -> None:
        family = prepare(env_id)
        if family is None or family.name != "atari":
            raise BadInput(f"{env_id!r} is no Atari game. Choose one such as 'BreakoutNoFrameskip-v4'.")
        self._made = make(env_id, frameskip=1)
        core: Any = self._made.unwrapped
        self._resize = _resizer()
        self._core = core
        self._ale = core.ale
        self._actions = list(core._action_set)
        meanings = core.get_action_meanings()
        self._begins_with_fire = len(meanings) >= 3 and meanings[1] == "FIRE"
        self._ends_with_life = ends_with_life
        self._clips_rewards = clips_rewards
        self.spec = self._made.spec
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(0, 255, (STACK, SIDE, SIDE), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))
        height, width = self._ale.getScreenDims()
        self._screens = np.zeros((2, height, width), np.uint8)
        self._pictures: Pictures = np.zeros((STACK, SIDE, SIDE), np.uint8)
        self._lives = 0
        self._is_over = True
        self.score = 0.0
        """Of the present game, or of the one that ended with the newest step: not clipped, over all lives."""
        self.frames = 0
        """Its length in frames."""

    @property
    def is_over(self) -> bool:
        """Whether the game itself has ended, and not only a life."""
        return self._is_over

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Pictures, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None or self._is_over:
            self._begin(seed)
        else:
            self._hold(0)  # the next life of the same game
        if self._begins_with_fire:
            # Some games wait for the button, and some of these for a move behind it.
            for action in (1, 2):
                self._hold(action)
                if self._is_over:
                    self._begin(None)
        self._lives = self._ale.lives()
        self._pictures = np.repeat(self._seen()[None], STACK, 0)
        return self._pictures, {}

    def _begin(self, seed: int | None) -> None:
        self._core.reset(seed=seed)
        self.score, self.frames, self._is_over = 0.0, 0, False
        for _ in range(int(self.np_random.integers(1, MOST_IDLE_FRAMES + 1))):
            self._ale.act(self._actions[0], 1.0)
            self.frames += 1
            if self._ale.game_over():
                self._core.reset()
                self.score, self.frames = 0.0, 0
        self._ale.getScreenGrayscale(self._screens[0])
        self._screens[1] = self._screens[0]

    def _hold(self, action: int) -> float:
        """Holds an action for some frames, and looks at the newest two."""
        ale, held = self._ale, self._actions[action]
        earned = 0.0
        for frame in range(HELD_FRAMES):
            earned += ale.act(held, 1.0)
            self.frames += 1
            if frame >= HELD_FRAMES - 2:
                ale.getScreenGrayscale(self._screens[frame - HELD_FRAMES + 2])
            if ale.game_over():
                self._is_over = True
                break
        self.score += earned
        return earned

    def _seen(self) -> Pictures:
        return np.asarray(self._resize(np.maximum(self._screens[0], self._screens[1])))

    def step(self, action: Any) -> tuple[Pictures, float, bool, bool, dict[str, Any]]:
        earned = self._hold(int(action))
        self._pictures = np.concatenate((self._pictures[1:], self._seen()[None]))
        lives = self._ale.lives()
        has_lost_life = 0 < lives < self._lives
        self._lives = lives
        is_truncated = self._is_over and bool(self._ale.game_truncated())
        is_terminal = (self._is_over and not is_truncated) or (self._ends_with_life and has_lost_life)
        reward = float(np.sign(earned)) if self._clips_rewards else earned
        return self._pictures, reward, is_terminal, is_truncated, {}

    def render(self) -> Any:
        return self._ale.getScreenRGB()

    def close(self) -> None:
        self._made.close()

    # --- coming back

    def snapshot(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
        """Arrays and facts from which `restore` brings the game back, exactly."""
        state = np.frombuffer(self._ale.cloneState(include_rng=True).serialize(), np.uint8)
        arrays = {"emulator": state, "pictures": self._pictures, "screens": self._screens}
        facts = {"lives": self._lives, "is_over": self._is_over, "score": self.score, "frames": self.frames}
        return arrays, facts

    def restore(self, arrays: dict[str, npt.NDArray[Any]], facts: dict[str, Any]) -> None:
        import ale_py

        self._core.reset()
        self._ale.restoreState(ale_py.ALEState(arrays["emulator"].tobytes()))
        self._pictures = arrays["pictures"]
        self._screens[...] = arrays["screens"]
        self._lives, self._is_over = facts["lives"], facts["is_over"]
        self.score, self.frames = facts["score"], facts["frames"]


def _resizer() -> Any:
    try:
        import cv2
    except ImportError:
        family = FAMILIES["atari"]
        raise MissingExtra(
            f"Atari pictures need OpenCV, a part of the {family.title} extra: {family.install}."
        ) from None
    cv2.setNumThreads(1)  # a picture is too small to be shared out
    return lambda picture: cv2.resize(picture, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
