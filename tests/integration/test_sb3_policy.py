"""Policies of Stable-Baselines3 are read without unpickling, and act as that library does."""

from __future__ import annotations

import base64
import io
import json
import pickle
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.commands import mosaic

from mosaic.contracts.errors import BadInput
from mosaic.contracts.folder import Workspace
from mosaic.worker.evaluation_batches import first_evaluation_seed
from mosaic.worker.policies import load_policy_file
from mosaic.worker.sb3_policy import Sb3Policy, read_statistics

OBSERVATIONS = 50
DATA = Path(__file__).parents[1] / "data" / "sb3"
"""Files that Stable-Baselines3 wrote, and the actions that it chooses; `make.py` there made them."""


@pytest.fixture
def sb3() -> Any:
    return pytest.importorskip("stable_baselines3")


def spaces(env_id: str) -> tuple[Any, Any]:
    env = gymnasium.make(env_id)
    return env.observation_space, env.action_space


PARTS = gymnasium.spaces.Dict(
    {
        "speed": gymnasium.spaces.Box(-1, 1, (3,)),
        "place": gymnasium.spaces.Discrete(5),
        "flags": gymnasium.spaces.MultiBinary(2),
    }
)
"""As in `make.py`."""


@pytest.mark.parametrize(
    ("name", "file", "env_id"),
    [
        ("ppo_cartpole", "ppo_cartpole.zip", "CartPole-v1"),
        ("sac_pendulum", "sac_pendulum.zip", "Pendulum-v1"),
        ("normalized", "sac_pendulum.zip", "Pendulum-v1"),
    ],
)
def test_a_stored_policy_chooses_the_actions_of_the_library(name: str, file: str, env_id: str) -> None:
    """R9.1: without that library; `normalized` with the statistics of VecNormalize."""
    statistics = read_statistics(DATA / "vecnormalize.pkl") if name == "normalized" else None
    policy = Sb3Policy(DATA / file, *spaces(env_id), statistics)
    expected = json.loads((DATA / "expected.json").read_text())[name]
    actions = [policy.choose(np.array(observation, np.float32)) for observation in expected["observations"]]
    assert np.allclose(actions, expected["actions"], atol=1e-5)


def test_a_stored_policy_acts_in_a_session(workspace: Workspace) -> None:
    """R9.1: an SB3 policy as an actor, from its file alone."""
    target = f"policy:{DATA / 'ppo_cartpole.zip'}"
    played = mosaic(workspace, "play", "CartPole-v1", "--actor", target, "--episodes", "3", "--json")
    assert played.code == 0, played.err
    assert min(json.loads(played.out)["agents"]["*"]["returns"]) > 100  # at random some 20
    refused = mosaic(workspace, "play", "Acrobot-v1", "--actor", target)
    assert (refused.code, "observations of 4 values; those here have 6" in refused.err) == (2, True), refused.err
    mosaic(workspace, "daemon", "stop")


def test_a_stored_policy_is_evaluated_and_loaded_in_its_environment(workspace: Workspace) -> None:
    path, options = DATA / "ppo_lake.zip", ("--episodes", "30", "--record-episodes", "--json")
    evaluated = mosaic(workspace, "eval", str(path), "--env-id", "FrozenLake-v1", *options)
    assert evaluated.code == 0, evaluated.err
    loaded = load_policy_file(path, env_id="FrozenLake-v1")
    returns = []
    for seed in range(first_evaluation_seed(1), first_evaluation_seed(1) + 30):
        env = loaded.make_env()
        observation, _ = env.reset(seed=seed)
        is_over, total = False, 0.0
        while not is_over:
            observation, reward, is_terminated, is_truncated, _ = env.step(loaded.act(observation))
            is_over, total = is_terminated or is_truncated, total + float(reward)
        returns.append(total)
        env.close()
    assert returns == evaluated.json["returns"]
    assert mosaic(workspace, "replay", "last", "--json").json["identical"] is True
    for arguments, words in (
        ((), "does not state its environment. Give it: --env-id"),
        (("--env-id", "FrozenLake8x8-v1"), "observations of 16 values; those here have 64"),
        (("--env-id", "FrozenLake-v1", "--stochastic"), "acts deterministically here"),
    ):
        refused = mosaic(workspace, "eval", str(path), *arguments)
        assert (refused.code, words in refused.err) == (2, True), refused.err
    mosaic(workspace, "daemon", "stop")


def rewritten(path: Path, **members: bytes) -> Path:
    """The policy of CartPole with some of its members replaced."""
    with zipfile.ZipFile(DATA / "ppo_cartpole.zip") as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            compression = zipfile.ZIP_DEFLATED if name in members else zipfile.ZIP_STORED
            new.writestr(name, members.get(name, old.read(name)), compression)
    return path


def changed_data(**changes: Any) -> bytes:
    with zipfile.ZipFile(DATA / "ppo_cartpole.zip") as archive:
        return json.dumps(json.loads(archive.read("data")) | changes).encode()


def compressed(names: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in names.items():
            archive.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"data": b"[" * 100_000}, "or damaged"),
        ({"data": b"[1]"}, "not what they should be"),
        ({"data": b"{}"}, "does not say which class"),
        ({"data": bytes(65 << 20)}, "larger than 67,108,864 bytes"),
        ({"data": changed_data(policy_kwargs={"squash_output": True})}, "`squash_output` is not supported"),
        ({"data": changed_data(policy_kwargs={"normalize_images": False})}, "`normalize_images=False`"),
        (
            {"data": changed_data(policy_kwargs={"activation_fn": "<class 'torch.nn.modules.activation.Mish'>"})},
            "'Mish'",
        ),
        ({"data": changed_data(policy_class={"__module__": "os"})}, "policies of 'os' cannot be read"),
        ({"data": changed_data(policy_class={"__module__": "stable_baselines3.dqn.policies"})}, "has no layers"),
        ({"policy.pth": b"nothing"}, "not a file written by torch.save"),
        ({"policy.pth": compressed({"a/data.pkl": bytes(50 << 20)})}, "it is compressed"),
        ({"policy.pth": compressed({"a/data.pkl": b".", "a/byteorder": bytes(50 << 20)})}, "it is compressed"),
    ],
)
def test_a_file_that_was_changed_is_refused(tmp_path: Path, members: dict[str, bytes], words: str) -> None:
    """F25: also one that would expand to gigabytes."""
    with pytest.raises(BadInput, match=words):
        Sb3Policy(rewritten(tmp_path / "changed.zip", **members), *spaces("CartPole-v1"))


@given(place=st.integers(0, 10_000), value=st.integers(1, 255))
@settings(deadline=None, max_examples=100)
def test_a_damaged_file_is_refused_with_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int
) -> None:
    """F14: no exception but ours."""
    data = bytearray((DATA / "ppo_cartpole.zip").read_bytes())
    data[place % len(data)] ^= value
    path = tmp_path_factory.mktemp("damage") / "model.zip"
    path.write_bytes(data)
    with suppress(BadInput):
        Sb3Policy(path, *spaces("CartPole-v1")).choose(np.zeros(4, np.float32))


@pytest.mark.parametrize(
    ("algorithm", "env_id", "options"),
    [
        ("PPO", "CartPole-v1", {}),
        ("A2C", "Pendulum-v1", {}),
        ("DQN", "CartPole-v1", {}),
        ("SAC", "Pendulum-v1", {}),
        ("TD3", "Pendulum-v1", {}),
        ("PPO", "CartPole-v1", {"policy_kwargs": {"net_arch": [16, 16, 8]}}),
    ],
)
def test_a_saved_policy_acts_as_the_library_does(
    sb3: Any, algorithm: str, env_id: str, options: dict[str, Any], tmp_path: Path
) -> None:
    env = gymnasium.make(env_id)
    model = getattr(sb3, algorithm)("MlpPolicy", env, seed=1, device="cpu", **options)
    model.save(tmp_path / "model")
    policy = Sb3Policy(tmp_path / "model.zip", env.observation_space, env.action_space)
    rng = np.random.default_rng(1)
    for _ in range(OBSERVATIONS):
        observation = rng.normal(size=env.observation_space.shape or ()).astype(np.float32)
        expected, _ = model.predict(observation, deterministic=True)
        assert np.allclose(policy.choose(observation), expected, atol=1e-5)


class PartsEnv(gymnasium.Env[Any, Any]):
    """Images and what is next to them."""

    observation_space = gymnasium.spaces.Dict(
        {
            "view": gymnasium.spaces.Box(0, 255, (36, 36, 3), np.uint8),
            "speed": gymnasium.spaces.Box(-2, 2, (2, 2)),
            "place": gymnasium.spaces.Discrete(5),
            "cards": gymnasium.spaces.MultiDiscrete([3, 4]),
        }
    )
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), float(action), False, False, {}


@pytest.mark.parametrize("algorithm", ["PPO", "A2C", "DQN"])
def test_a_policy_of_parts_with_an_image_acts_as_the_library_does(sb3: Any, algorithm: str, tmp_path: Path) -> None:
    options = {"buffer_size": 100} if algorithm == "DQN" else {}
    model = getattr(sb3, algorithm)("MultiInputPolicy", PartsEnv(), seed=1, device="cpu", **options)
    model.save(tmp_path / "model")
    policy = Sb3Policy(tmp_path / "model.zip", PartsEnv.observation_space, PartsEnv.action_space)
    for _ in range(OBSERVATIONS):
        observation = PartsEnv.observation_space.sample()
        expected, _ = model.predict(observation, deterministic=True)
        assert policy.choose(observation) == expected


def test_statistics_of_parts_are_applied_as_in_the_library(sb3: Any, tmp_path: Path) -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    class Vectors(PartsEnv):
        observation_space = gymnasium.spaces.Dict(
            {name: gymnasium.spaces.Box(-2, 2, (size,)) for name, size in (("far", 2), ("near", 3))}
        )

    envs = VecNormalize(DummyVecEnv([Vectors]))
    envs.reset()
    for _ in range(20):
        envs.step(np.array([1]))
    envs.save(str(tmp_path / "statistics.pkl"))
    model = sb3.PPO("MultiInputPolicy", Vectors(), seed=1, device="cpu")
    model.save(tmp_path / "model")
    statistics = read_statistics(tmp_path / "statistics.pkl")
    policy = Sb3Policy(tmp_path / "model.zip", Vectors.observation_space, Vectors.action_space, statistics)
    for _ in range(OBSERVATIONS):
        observation = Vectors.observation_space.sample()
        expected, _ = model.predict(envs.normalize_obs(observation), deterministic=True)
        assert policy.choose(observation) == expected


class ImageEnv(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(0, 255, (36, 36, 4), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, True, False, {}


def test_a_policy_that_sees_images_acts_as_the_library_does(sb3: Any, tmp_path: Path) -> None:
    model = sb3.PPO("CnnPolicy", ImageEnv(), seed=1, device="cpu", n_steps=8, batch_size=8)
    model.save(tmp_path / "model")
    policy = Sb3Policy(tmp_path / "model.zip", ImageEnv.observation_space, ImageEnv.action_space)
    for seed in range(5):
        image = np.random.default_rng(seed).integers(0, 255, (36, 36, 4), np.uint8)
        expected, _ = model.predict(image, deterministic=True)
        assert policy.choose(image) == expected


@pytest.fixture
def model_zip() -> Path:
    return DATA / "ppo_cartpole.zip"


def test_code_in_the_file_does_not_run(model_zip: Path, tmp_path: Path) -> None:
    """F25: the library would unpickle it."""
    mark = tmp_path / "executed"

    class Payload:
        def __reduce__(self) -> Any:
            return (mark.touch, ())

    changed = tmp_path / "changed.zip"
    with zipfile.ZipFile(model_zip) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "data":
                coded = base64.b64encode(pickle.dumps(Payload())).decode()
                content = json.dumps(json.loads(content) | {"extra": {":serialized:": coded}}).encode()
            new.writestr(name, content)
    Sb3Policy(changed, *spaces("CartPole-v1")).choose(np.zeros(4))
    assert not mark.exists()


def test_a_policy_that_does_not_fit_is_refused_with_the_reason(model_zip: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="observations of 4 values; those here have 8"):
        Sb3Policy(model_zip, *spaces("LunarLander-v3"))
    observation_space, _ = spaces("CartPole-v1")
    with pytest.raises(BadInput, match="among 2 actions; here are 1"):
        Sb3Policy(model_zip, observation_space, spaces("Pendulum-v1")[1])
    (tmp_path / "other.zip").write_bytes(b"PK\x05\x06" + bytes(18))
    with pytest.raises(BadInput, match="it has no 'data'"):
        Sb3Policy(tmp_path / "other.zip", *spaces("CartPole-v1"))


@pytest.mark.parametrize(
    ("name", "space", "actions"),
    [("ppo_lake", *spaces("FrozenLake-v1")), ("ppo_parts", PARTS, gymnasium.spaces.Box(-1, 1, (2,)))],
)
def test_a_policy_of_numbers_or_of_parts_chooses_the_actions_of_the_library(
    name: str, space: Any, actions: Any
) -> None:
    """Numbered observations are one-hot vectors, those of several parts (MultiInputPolicy) their parts in order."""
    expected = json.loads((DATA / "expected.json").read_text())[name]
    policy = Sb3Policy(DATA / f"{name}.zip", space, actions)
    chosen = [policy.choose(observation) for observation in expected["observations"]]
    assert np.allclose(chosen, expected["actions"], atol=1e-5)
    rows = np.stack([policy.to_array(observation) for observation in expected["observations"]])
    assert np.allclose(policy.act(rows, True, None), expected["actions"], atol=1e-5)


def test_a_policy_of_other_parts_is_refused() -> None:
    lake, lake_actions = spaces("FrozenLake-v1")
    with pytest.raises(BadInput, match="observations of the kind Dict; those here are Discrete"):
        Sb3Policy(DATA / "ppo_parts.zip", lake, lake_actions)
    with pytest.raises(BadInput, match="observations of 16 values; those here have 64"):
        Sb3Policy(DATA / "ppo_lake.zip", spaces("FrozenLake8x8-v1")[0], lake_actions)
    parts = gymnasium.spaces.Dict({name: part for name, part in PARTS.spaces.items() if name != "flags"})
    with pytest.raises(BadInput, match="observations of 10 values; those here have 8"):
        Sb3Policy(DATA / "ppo_parts.zip", parts, gymnasium.spaces.Box(-1, 1, (2,)))


def test_statistics_with_code_are_refused(tmp_path: Path) -> None:
    """F25"""
    mark = tmp_path / "executed"

    class Payload:
        def __reduce__(self) -> Any:
            return (mark.touch, ())

    (tmp_path / "statistics.pkl").write_bytes(pickle.dumps(Payload()))
    with pytest.raises(BadInput, match="it would create"):
        read_statistics(tmp_path / "statistics.pkl")
    assert not mark.exists()
