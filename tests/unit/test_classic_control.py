from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import AcrobotEnv, CartPoleEnv
from gymnasium.wrappers import TransformReward
from tests.helpers.algorithm_cases import assert_same_checkpoint, latest_checkpoint, train_run

from cleanrl_worker.environments import classic_control
from cleanrl_worker.environments import vector as vector_envs
from cleanrl_worker.environments.vector import EpisodeEnd, VectorEnvs
from cleanrl_worker.registry import load_algorithm
from mosaic.worker.envs.reproducible import random_state

Array = np.ndarray[Any, Any]
ENV_IDS = ("CartPole-v1", "MountainCar-v0", "Acrobot-v1", "Pendulum-v1")
ROOT = Path(__file__).parents[2]
needs_library = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler, so no compiled step")


def make_envs(
    env_id: str, num_envs: int, seed: int, *, is_compiled: bool = True, frames: Any = None, **settings: Any
) -> VectorEnvs:
    environments = VectorEnvs(
        lambda: gymnasium.make(env_id, disable_env_checker=True, **settings), num_envs, seed, frames
    )
    assert environments._compiled is not None
    if not is_compiled:
        environments._compiled = None
    environments.start()
    return environments


def choose_actions(env_id: str, observations: Array, rng: np.random.Generator) -> Array:
    """Return actions of which the first half is random; the rest balance the pole or swing to the goal."""
    count = len(observations)
    if env_id == "Pendulum-v1":
        return rng.uniform(-2.5, 2.5, (count, 1)).astype(np.float32)
    random = rng.integers(2 if env_id == "CartPole-v1" else 3, size=count)
    weights = {"CartPole-v1": [0.1, 0.2, 3, 1], "MountainCar-v0": [0, 1], "Acrobot-v1": [0, 0, 0, 0, -1, 0]}[env_id]
    skilled = (observations @ weights > 0) * (1 if env_id == "CartPole-v1" else 2)
    return np.where(np.arange(count) < count // 2, random, skilled).astype(np.int64)


def describe_end(end: EpisodeEnd) -> tuple[Any, ...]:
    env, observation, *rest = end
    return (env, observation.tobytes(), *rest, observation.dtype)


def states(environments: VectorEnvs) -> list[tuple[Any, ...]]:
    """Return the states of all environments as bytes, with their random states."""
    environments._sync_envs()
    return [
        (np.array(core.state, np.float64).tobytes(), getattr(core, "last_u", None), random_state(core))
        for core in environments._unwrapped_envs
    ]


@needs_library
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("env_id", ENV_IDS)
def test_compiled_steps_equal_gymnasiums_to_the_last_bit(env_id: str, seed: int) -> None:
    """20,000 steps of each environment, through resets and time limits."""
    steps, num_envs = 2500, 4
    compiled, reference = (make_envs(env_id, num_envs, seed, is_compiled=kind) for kind in (True, False))
    rng = np.random.default_rng(seed)
    rows, expected = (np.zeros((num_envs, compiled.observation_size), np.float32) for _ in range(2))
    compiled.observe(rows)
    actions, ends = [], []
    for step in range(steps):
        actions.append(choose_actions(env_id, rows, rng))
        own_ends = list(map(describe_end, compiled.step(actions[-1], rows)))
        assert own_ends == list(map(describe_end, reference.step(actions[-1], expected))), step
        assert rows.tobytes() == expected.tobytes(), step
        if step % 50 == 0:
            assert states(compiled) == states(reference), step
        ends += own_ends
    assert states(compiled) == states(reference)
    assert {end[2] for end in ends} == ({False} if env_id == "Pendulum-v1" else {False, True})
    rewards = [environments.finish_rollout(np.array(actions)) for environments in (compiled, reference)]
    assert rewards[0].tobytes() == rewards[1].tobytes()
    (arrays, facts), (other_arrays, other_facts) = compiled.checkpoint_state(), reference.checkpoint_state()
    assert facts == other_facts
    assert {key: array.tobytes() for key, array in arrays.items()} == {
        key: array.tobytes() for key, array in other_arrays.items()
    }
    assert compiled._compiled is not None


@needs_library
@pytest.mark.parametrize(
    ("algo", "env_id", "settings"),
    [
        ("ppo", "CartPole-v1", {}),
        ("ppo_continuous_action", "Pendulum-v1", {"num_steps": 512}),
        ("dqn", "MountainCar-v0", {"learning_starts": 500}),
        ("pqn", "Acrobot-v1", {}),
    ],
)
def test_a_training_ends_with_an_equal_checkpoint(
    algo: str, env_id: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is stopped, and resumed without the library."""
    config = load_algorithm(algo).Config(
        env_id=env_id, total_timesteps=2048, seed=3, checkpoint_every=10**9, cuda=False, **settings
    )
    compiled = train_run(tmp_path / "compiled", algo, config)
    first = train_run(tmp_path / "first", algo, config, stop_at=1024)
    monkeypatch.setattr(vector_envs, "find_compiled_step", lambda envs: None)
    own = train_run(tmp_path / "own", algo, config)
    resumed = train_run(tmp_path / "resumed", algo, config, latest_checkpoint(tmp_path / "first"))
    assert compiled.episodes == own.episodes == first.episodes + resumed.episodes
    assert len(own.episodes) > 1
    for name in ("own", "resumed"):
        assert_same_checkpoint(latest_checkpoint(tmp_path / "compiled"), latest_checkpoint(tmp_path / name))


class Camera:
    """Records the state that a video's frame would show."""

    def __init__(self) -> None:
        self.frames: list[tuple[Any, ...]] = []

    def start_episode(self, number: int, env: Any) -> bool:
        self._env = env
        return number % 2 == 0

    def capture_frame(self, number: int) -> None:
        env = self._env
        self.frames.append((number, np.array(env.state, np.float64).tobytes(), getattr(env, "last_u", None)))

    def finish_episode(self, number: int, episodic_return: float, length: int) -> None:
        self.frames.append((number, episodic_return, length))


class Frames:
    recorder = None

    def __init__(self) -> None:
        self.camera = Camera()

    def tap_all(self, envs: Any) -> list[Any]:
        return []


@needs_library
@pytest.mark.parametrize("env_id", ENV_IDS)
def test_frames_show_the_state_of_the_compiled_step(env_id: str) -> None:
    frames = Frames(), Frames()
    compiled = make_envs(env_id, 2, 1, frames=frames[0], render_mode="rgb_array")
    reference = make_envs(env_id, 2, 1, frames=frames[1], is_compiled=False)
    rng = np.random.default_rng(0)
    rows = np.zeros((2, compiled.observation_size), np.float32)
    for _ in range(650):
        actions = choose_actions(env_id, rows, rng)
        compiled.step(actions, rows)
        reference.step(actions, rows)
    assert len(frames[1].camera.frames) > 100
    assert frames[0].camera.frames == frames[1].camera.frames


class HeavyCartPole(CartPoleEnv):
    """Differs from its base class in nothing, but could."""


def with_attribute(name: str, value: Any) -> Callable[[], gymnasium.Env[Any, Any]]:
    def make() -> gymnasium.Env[Any, Any]:
        env = gymnasium.make("Acrobot-v1")
        setattr(env.unwrapped, name, value)
        return env

    return make


@needs_library
@pytest.mark.parametrize(
    "make_env",
    [
        lambda: gymnasium.make("CartPole-v1", sutton_barto_reward=True),
        lambda: gymnasium.make("CartPole-v1", render_mode="human"),
        lambda: gymnasium.make("MountainCar-v0", goal_velocity=0.01),
        lambda: gymnasium.make("Pendulum-v1", g=9.81),
        lambda: gymnasium.make("FrozenLake-v1"),
        lambda: TransformReward(gymnasium.make("CartPole-v1"), lambda reward: 2 * float(reward)),
        HeavyCartPole,
        with_attribute("dt", 0.05),
        with_attribute("step", lambda action: None),
    ],
)
def test_another_environment_steps_itself(make_env: Callable[[], gymnasium.Env[Any, Any]]) -> None:
    assert VectorEnvs(make_env, 2, seed=1)._compiled is None


@pytest.fixture
def unchecked() -> Iterator[None]:
    """The library is loaded and compared again, in this test and after it."""
    caches = classic_control.load_library, classic_control._equals_own_step
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@needs_library
@pytest.mark.usefixtures("unchecked")
def test_a_library_that_does_not_reproduce_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AcrobotEnv, "dt", 0.1)
    assert VectorEnvs(AcrobotEnv, 2, seed=1)._compiled is None


@pytest.mark.usefixtures("unchecked")
def test_environments_step_themselves_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classic_control, "LIBRARY", tmp_path / "missing.so")
    environments = VectorEnvs(CartPoleEnv, 2, seed=1)
    assert environments._compiled is None
    environments.start()
    environments.step([0, 1], np.zeros((2, 4)))


@needs_library
def test_actions_of_another_type_are_left_to_the_environments() -> None:
    compiled, reference = (make_envs("CartPole-v1", 2, 1, is_compiled=kind) for kind in (True, False))
    rows, expected = np.zeros((2, 4)), np.zeros((2, 4))
    for dtype in (np.int64, np.int64, np.int32, np.int64):
        for environments, into in ((compiled, rows), (reference, expected)):
            environments.step(np.array([0, 1], dtype), into)
        assert (rows == expected).all()
    assert compiled._compiled is None


@needs_library
def test_an_invalid_action_is_refused_by_the_environment() -> None:
    with pytest.raises(AssertionError, match="invalid"):
        make_envs("CartPole-v1", 2, 1).step([0, 2], np.zeros((2, 4)))


@pytest.fixture
def generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module that compiles the library, with another place for it."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "scripts" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "LIBRARY", tmp_path / "library.so")
    return module


@pytest.mark.parametrize("compiler", ["/no/such/compiler", "false"])
def test_an_install_without_a_working_compiler_has_no_library(
    compiler: str, generator: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", compiler)
    generator.LIBRARY.write_bytes(b"of an earlier version")
    assert not generator.update_library()
    assert not generator.LIBRARY.exists()
    assert "classic_control.c is not compiled" in capsys.readouterr().err


@needs_library
def test_the_installed_library_is_what_the_compiler_makes_of_the_source(generator: Any) -> None:
    assert generator.update_library()
    assert generator.LIBRARY.read_bytes() == classic_control.LIBRARY.read_bytes(), "It is out of date: make stubs"
