"""Settings of environments: checked by the catalog, else by the constructor's signature."""

from __future__ import annotations

import inspect
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.registration import load_env_creator

from cleanrl_worker.shell.checker import check_request
from cleanrl_worker.shell.worker_config import parse_request
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.contracts.setting_field import SettingField
from mosaic.worker.envs import make
from mosaic.worker.envs.factory import find_family
from mosaic.worker.envs.symbols import frozen_lake


@pytest.mark.parametrize(
    ("env_id", "settings", "message"),
    [
        ("FrozenLake-v1", {"is_slippery": "no"}, "is_slippery must be true or false, not 'no'"),
        ("FrozenLake-v1", {"map_name": "9x9"}, "map_name must be one of 4x4, 8x8, not '9x9'"),
        ("FrozenLake-v1", {"success_rate": "high"}, "success_rate must be a number, not 'high'"),
        ("FrozenLake-v1", {"is_slipery": False}, "Did you mean 'is_slippery'"),
        ("Pendulum-v1", {"g": True}, "g must be a number of at least 0, not True"),
        ("Acrobot-v1", {"torque": 3}, "No setting 'torque' in Acrobot-v1"),
        ("ALE/Pong-v5", {"frameskip": [5, 2]}, "frameskip must be a whole number .*, or a range such as 2,5, not"),
        ("CartPole-v1", {"max_episode_steps": 0}, "max_episode_steps must be a whole number of at least 1"),
    ],
)
def test_an_unknown_name_or_a_wrong_value_names_what_is_expected(
    env_id: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        make(env_id, **settings)
    assert [problem.path for problem in caught.value.problems] == ["env_kwargs"]


def test_what_the_environment_accepts_reaches_it() -> None:
    env: Any = make("FrozenLake-v1", is_slippery=False, desc=["SFG"], max_episode_steps=7)
    assert env.unwrapped.ncol == 3
    assert env.spec.max_episode_steps == 7
    assert env.unwrapped.P[0][2] == [(1.0, 1, 0.0, False)]


@pytest.mark.parametrize(("text", "value"), [("2,5", [2, 5]), ("[2, 5]", [2, 5]), ("3", 3)])
def test_frames_per_action_may_be_a_range(text: str, value: Any) -> None:
    field = SettingField("frameskip", "int", 4, "", {"ge": 1, "le": 60, "is_range": True})
    assert field.parse(text) == value
    assert field.accepts(value)
    assert not any(map(field.accepts, ([5, 2], [2], [0, 4], [2, 61], [1.5, 2], "2,5")))
    with pytest.raises(BadInput, match=r"or a range such as 2,5, not '5,2'"):
        field.parse("5,2")
    env: Any = make("ALE/Pong-v5", frameskip=value)
    env.reset(seed=1)
    env.close()


@pytest.mark.parametrize(
    "env_id",
    ["FrozenLake-v1", "FrozenLake8x8-v1", "CliffWalking-v1", "CliffWalkingSlippery-v1", "Blackjack-v1", "Taxi-v4",
     "CartPole-v1", "Pendulum-v1", "LunarLander-v3", "LunarLanderContinuous-v3", "BipedalWalker-v3",
     "BipedalWalkerHardcore-v3", "CarRacing-v3"],
)  # fmt: skip
def test_the_catalog_has_the_defaults_that_an_id_is_registered_with(env_id: str) -> None:
    spec, family = gymnasium.spec(env_id), find_family(env_id)
    entry = None if family is None else family.find_entry(env_id)
    assert entry is not None
    parameters = inspect.signature(load_env_creator(str(spec.entry_point))).parameters
    for field in entry.settings:
        assert field.default == spec.kwargs.get(field.name, parameters[field.name].default), field.name


def test_a_map_with_other_letters_can_be_drawn() -> None:
    env: Any = make("FrozenLake-v1", desc=["SXG"])
    env.reset(seed=1)
    assert frozen_lake(env.unwrapped, ()).rows == (("start+agent", "ice", "goal"),)


def test_a_number_in_quotation_marks_is_not_a_number() -> None:
    field = SettingField("limit", "int", 3, constraints={"ge": 1})
    assert field.accepts(3)
    assert not field.accepts("3")
    assert not field.accepts(True)
    assert not field.accepts(0)
    assert not field.accepts(None)


def training(algo: str, env_id: str, **env_kwargs: Any) -> dict[str, Any]:
    return {"algo": algo, "env_id": env_id, "algo_params": {"env_kwargs": env_kwargs}}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (training("ppo", "FrozenLake-v1", is_slippery=1), "is_slippery must be true or false, not 1"),
        (training("ppo", "FrozenLake-v1", render_mode="human"), "'render_mode' is set by MOSAIC"),
        (training("dqn_atari", "ALE/Pong-v5", frameskip=1), "frameskip is fixed by the preprocessing"),
        (training("ppo_atari_envpool", "Pong-v5", mode=1), "envpool's, which take no settings"),
    ],
)
def test_a_training_is_refused_at_the_check(config: dict[str, Any], message: str) -> None:
    with pytest.raises(MosaicError, match=message) as caught:
        check_request(parse_request(config))
    assert all(problem.path.endswith("env_kwargs") for problem in caught.value.problems)


def test_settings_of_an_atari_game_reach_the_game() -> None:
    summary = check_request(parse_request(training("ppo_atari", "ALE/Pong-v5", full_action_space=True)))
    assert summary.environment.action_space == "Discrete(18)"
