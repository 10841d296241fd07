"""A trained policy that acts on observations in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mosaic.base.worker_registry import discover_workers
from mosaic.contracts.errors import BadInput, MosaicError, NotAllowed, WrongWorker
from mosaic.contracts.printable import make_printable

if TYPE_CHECKING:
    import os

    from mosaic.base.worker_registry import ActingPolicy


class Policy:
    """A trained policy. `act` maps observations of its environment to actions."""

    def __init__(self, loaded: ActingPolicy, seed: int | None = None) -> None:
        self._loaded = loaded
        self._rng = np.random.default_rng(seed)
        self.reset()

    @property
    def algo(self) -> str:
        """The algorithm that trained it."""
        return self._loaded.algo

    @property
    def env_id(self) -> str:
        """The environment in which it was trained."""
        return self._loaded.env_id

    @property
    def path(self) -> Path:
        """The checkpoint or file it was loaded from."""
        return self._loaded.path

    @property
    def step(self) -> int | None:
        """The step of its checkpoint; None for a file of weights."""
        return self._loaded.step

    @property
    def observation_shape(self) -> tuple[int, ...] | None:
        """The shape of one observation; None where observations are not arrays."""
        return self._loaded.observation_shape

    def act(self, observation: Any, deterministic: bool = True) -> Any:
        """Return the action for one observation, or one action per row for a batch of observations.

        With `deterministic=False` actions are drawn as in training. A batch has one more dimension than an
        observation; of environments whose observations are not arrays, one observation is taken at a time.
        """
        rows, is_batch = self._to_rows(observation)
        actions = self._act_on_rows(rows, deterministic)
        if is_batch:
            return actions
        return actions[0].item() if np.ndim(actions[0]) == 0 else actions[0]

    def reset(self, seed: int | None = None) -> None:
        """Start a new episode. Only policies with memory need this call. What is drawn after it depends on `seed`."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        if self._loaded.reset_row is not None:
            for row in range(self._loaded.rows or 0):
                self._loaded.reset_row(row)

    def for_agent(self, agent: str) -> Policy:
        """Return what acts for one agent by its own observations: a part of a team's policy, else this policy."""
        return self if self._loaded.for_agent is None else Policy(self._loaded.for_agent(agent))

    def make_env(self, **options: Any) -> Any:
        """Make its environment, with the wrappers used in training."""
        return self._loaded.make_env(**options)

    def __repr__(self) -> str:
        step = "" if self.step is None else f", step {self.step:,}"
        return make_printable(f"Policy({self.algo} on {self.env_id}{step}, {str(self.path)!r})")

    def _to_rows(self, observation: Any) -> tuple[np.ndarray, bool]:
        shape, flatten = self._loaded.observation_shape, self._loaded.flatten
        if shape is None:
            return flatten(observation)[None], False
        array = np.asarray(observation)
        if array.shape == shape:
            return flatten(array)[None], False
        if array.shape[1:] != shape or array.ndim != len(shape) + 1:
            raise BadInput(
                f"The observation has the shape {array.shape}; {self.env_id} needs {shape}, or a batch of them "
                f"with the shape (n, {', '.join(map(str, shape))})."
            )
        return np.stack([flatten(row) for row in array]) if len(array) else array, True

    def _act_on_rows(self, rows: np.ndarray, deterministic: bool) -> np.ndarray:
        needed = self._loaded.rows
        if needed is None:
            return np.asarray(self._loaded.act(rows, deterministic, self._rng))
        if len(rows) > needed:
            raise BadInput(f"A policy with memory takes at most {needed} observations at a time; got {len(rows)}.")
        padded = np.concatenate([rows, np.repeat(rows[-1:], needed - len(rows), axis=0)])
        return np.asarray(self._loaded.act(padded, deterministic, self._rng))[: len(rows)]


def load_policy_file(path: str | os.PathLike[str], algo: str | None = None, env_id: str | None = None) -> Policy:
    """Load a checkpoint, the last one of a run folder, or a model file of CleanRL. Nothing is unpickled."""
    target = Path(path).expanduser().absolute()
    if not target.exists():
        raise BadInput(f"There is no file or folder {target}.")
    refusal: MosaicError | None = None
    other: MosaicError = NotAllowed("No worker here can load policies.")
    for worker in discover_workers().values():
        if worker.load_policy is not None:
            try:
                return Policy(worker.load_policy(target, algo, env_id))
            except WrongWorker as error:
                other = error
            except BadInput as error:
                refusal = error
    raise refusal or other
