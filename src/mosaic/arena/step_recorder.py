"""Records the single steps of an evaluation: with its seed and actions, an episode can be played again."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np

from mosaic.contracts.events import Steps
from mosaic.run import Run

FLUSH_S = 0.25
MAX_ROWS_PER_EVENT = 2_000


class StepRecorder:
    """Writes the steps of its environments to the run's journal, a few times a second."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.rows: list[tuple[int | None, int, float, float, Any]] = []
        self._flush_at = 0.0

    def wrap(self, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        return RecordedEnv(env, self)

    def flush_if_due(self) -> None:
        if len(self.rows) >= MAX_ROWS_PER_EVENT or (self.rows and time.monotonic() >= self._flush_at):
            self.flush()

    def flush(self) -> None:
        self._flush_at = time.monotonic() + FLUSH_S
        for start in range(0, len(self.rows), MAX_ROWS_PER_EVENT):
            self._run.event(Steps.KIND, rows=self.rows[start : start + MAX_ROWS_PER_EVENT])
        self.rows.clear()


class RecordedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: gymnasium.Env[Any, Any], recorder: StepRecorder) -> None:
        super().__init__(env)
        self._recorder = recorder
        self._seed: int | None = None
        self._length = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._seed, self._length = seed, 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self._length += 1
        self._recorder.rows.append(
            (self._seed, self._length, time.time(), float(result[1]), np.asarray(action).tolist())
        )
        return result
