"""Small environments and runs for the tests of the algorithms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from cleanrl_worker.algorithms.settings import AlgorithmConfig
from cleanrl_worker.learners.conv_network import ConvNetworkSizes
from cleanrl_worker.registry import load_algorithm
from mosaic.base.journal import read_all
from mosaic.contracts.folder import RunFolder
from mosaic.worker.checkpoints import Checkpoint, last_good_checkpoint
from mosaic.worker.run import Run
from mosaic.worker.torch_files import save_state_dict


class Corridor(gymnasium.Env[Any, Any]):
    """A walk on a line with a random start; never terminal, so that only a time limit ends it."""

    def __init__(self, observation: str = "box", actions: str = "discrete", noise: str = "own") -> None:
        spaces: dict[str, gymnasium.Space[Any]] = {
            "box": Box(-np.inf, np.inf, (2,), np.float64),
            "image": Box(-np.inf, np.inf, (2, 3), np.float32),
            "dict": Dict({"position": Box(-np.inf, np.inf, (1,), np.float32), "parity": Discrete(2)}),
            "number": Discrete(5, start=10),
        }
        self._kind = observation
        self.observation_space = spaces[observation]
        self.action_space = {
            "discrete": Discrete(3, start=-1),
            "box": Box(-0.5, 0.5, (2, 1), np.float32),
        }[actions]
        self._noise = np.random.default_rng() if noise == "foreign" else None
        self._position = 0.0
        self.received: list[Any] = []

    def _observe(self) -> Any:
        observations: dict[str, Any] = {
            "box": np.array([self._position, 1.0]),
            "image": np.full((2, 3), self._position, np.float32),
            "dict": {"position": np.array([self._position], np.float32), "parity": int(self._position) % 2},
            "number": np.int64(10 + int(self._position) % 5),
        }
        return observations[self._kind]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._position = float((self._noise or self.np_random).uniform(-1, 1))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.received.append(action)
        self._position += float(np.sum(action)) + float((self._noise or self.np_random).normal()) * 0.1
        return self._observe(), 1.0, False, False, {}


class NanRewardEnv(Corridor):
    """Gives a NaN reward in its tenth step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, *rest = super().step(action)
        return observation, float("nan") if len(self.received) == 10 else reward, *rest


@contextmanager
def register_env(limit: int | None = 7, kind: type[Corridor] = Corridor, **settings: Any) -> Iterator[str]:
    """Register the environment under an id inside the block."""
    env_id = "AlgorithmCase-v0"
    gymnasium.register(env_id, entry_point=kind, max_episode_steps=limit, kwargs=settings)  # type: ignore[arg-type]
    try:
        yield env_id
    finally:
        del gymnasium.registry[env_id]


class Killed(Exception):
    """Simulates a kill -9: nothing is written after it."""


class RecordingRun(Run):
    """A run that records its episodes and can be killed or stopped at a step."""

    episodes: list[tuple[int, int, float, int]]
    kill_at: int | None = None
    stop_at: int | None = None

    def episode(self, *, env: int, step: int, episodic_return: SupportsFloat, length: int) -> None:
        self.episodes.append((env, step, float(episodic_return), length))
        super().episode(env=env, step=step, episodic_return=episodic_return, length=length)

    def update(self, global_step: int) -> None:
        super().update(global_step)
        if self.kill_at is not None and global_step >= self.kill_at:
            raise Killed
        if self.stop_at is not None and global_step >= self.stop_at:
            self.stop_requested = True


@contextmanager
def open_run(
    path: Path, config: AlgorithmConfig, resume: Checkpoint | None = None, keep: int = 100
) -> Iterator[RecordingRun]:
    run = RecordingRun(
        RunFolder(path),
        worker="cleanrl",
        version="0",
        keep_checkpoints=keep,
        checkpoint_every=config.checkpoint_interval,
        total_timesteps=config.total_timesteps,
    )
    run.episodes = []
    with run:
        run.hello(resume)
        yield run


def train_run(path: Path, name: str, config: Any, resume: Checkpoint | None = None, **orders: Any) -> RecordingRun:
    """Train, or resume a training, in this process; `orders` are set as attributes of the run."""
    with open_run(path, config, resume) as run:
        for order, value in orders.items():
            setattr(run, order, value)
        load_algorithm(name).train(config, run, resume)
    return run


def latest_checkpoint(path: Path) -> Checkpoint:
    checkpoint = last_good_checkpoint(RunFolder(path))
    assert checkpoint is not None
    return checkpoint


def assert_same_checkpoint(one: Checkpoint, other: Checkpoint) -> None:
    assert one.step == other.step
    for kind in ("weights", "arrays"):
        parts, others = getattr(one, kind), getattr(other, kind)
        assert parts.keys() == others.keys()
        for key in parts:
            assert parts[key].tobytes() == others[key].tobytes(), key
    assert {key: part.sha256 for key, part in one.parts.items()} == {
        key: part.sha256 for key, part in other.parts.items()
    }
    assert {**one.facts, "config": None} == {**other.facts, "config": None}


def events(path: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_all(RunFolder(path).journal) if event["kind"] == kind]


def write_teacher(path: Path, actions: int) -> str:
    """Write a model file of dqn_atari with new weights, to learn from; return its path."""
    agent = load_algorithm("dqn_atari").Agent(actions, ConvNetworkSizes((4, 4, 4), (512,)))
    agent.initialize(np.random.default_rng(5))
    path.parent.mkdir(parents=True, exist_ok=True)
    save_state_dict(path, agent.state_dict())
    return str(path)
