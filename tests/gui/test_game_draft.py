"""From what is configured to the request of a play session. No widget, no daemon."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mosaic.contracts.errors import BadInput
from mosaic.contracts.key_binding import KeyBinding
from mosaic.contracts.play import PlayConfig
from mosaic.contracts.setting_field import SettingField
from mosaic.contracts.views import EnvironmentDetails
from mosaic.features.play.window_draft import (
    ActorDraft,
    ControlMode,
    GameDraft,
    build_request,
    change_key,
    current_keys,
    editable_actions,
    game_problems,
)

KEYS = (KeyBinding(("Up",), "up"), KeyBinding(("Space",), "fire"), KeyBinding(("Up", "Space"), "upfire"))
LAKE = EnvironmentDetails(
    id="FrozenLake-v1",
    family="toy_text",
    family_title="Toy text",
    about="",
    settings=(
        SettingField("is_slippery", "bool", True),
        SettingField("map_name", "choice", None, "", {"choices": ("4x4", "8x8")}, is_optional=True),
    ),
    keys=KEYS,
)
GAME = EnvironmentDetails(
    id="pettingzoo/tictactoe_v3",
    family="pettingzoo_classic",
    family_title="PettingZoo classic",
    about="",
    has_several_agents=True,
    agents=("player_1", "player_2"),
)
RANDOM = ActorDraft("random")


def test_each_mode_has_its_actors() -> None:
    """R9.1: control modes."""
    policy = ActorDraft("policy", {"policy": "RUN"}, {"policy": {"stochastic": "true"}})
    draft = GameDraft("FrozenLake-v1", actor=policy)
    assert build_request(draft, LAKE).actors == {"*": "human"}
    actor = build_request(replace(draft, mode=ControlMode.ACTOR), LAKE)
    assert (actor.actors, actor.options) == ({"*": "policy:RUN"}, {"*": {"stochastic": True}})
    reserve = build_request(replace(draft, mode=ControlMode.RESERVE), LAKE)
    assert reserve.actors == {"*": "human"}
    assert reserve.settings["standby"] == {"kind": "policy", "target": "RUN", "options": {"stochastic": True}}
    turns = build_request(replace(draft, mode=ControlMode.TURNS, texts={"alternate_steps": "5"}), LAKE)
    assert turns.settings["alternate_steps"] == 5
    for request in (reserve, turns):
        PlayConfig.model_validate({"env_id": request.env_id, "actors": {"*": {"kind": "human"}}, **request.settings})


def test_a_game_has_one_player_per_agent() -> None:
    draft = GameDraft(GAME.id).for_details(GAME)
    assert draft.mode is ControlMode.AGENTS
    assert build_request(draft, GAME).actors == {"player_1": "human", "player_2": "random"}
    assert not game_problems(draft, GAME)
    bdi = replace(draft, agents={**draft.agents, "player_2": ActorDraft("bdi")})
    assert game_problems(bdi, GAME) == {"player_2": "BDI agent: choose an .asl file or an example."}


def test_settings_and_arguments_make_the_environment() -> None:
    draft = GameDraft("FrozenLake-v1", {"env_kwargs": "is_slippery=false, success_rate=0.5"})
    assert build_request(draft, LAKE).settings == {"env_kwargs": {"is_slippery": False, "success_rate": 0.5}}
    assert build_request(GameDraft("FrozenLake-v1"), LAKE).settings == {}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"env_id": " "}, "env_id"),
        ({"texts": {"env_kwargs": '{"map_name": "9x9"}'}}, "env_kwargs"),
        ({"texts": {"env_kwargs": "[1]"}}, "env_kwargs"),
        ({"texts": {"env_kwargs": "{"}}, "env_kwargs"),
        ({"texts": {"episodes": "0"}}, "episodes"),
        ({"texts": {"seed": "x"}}, "seed"),
        ({"mode": ControlMode.ACTOR, "actor": ActorDraft("policy")}, "actor"),
        ({"mode": ControlMode.ACTOR, "actor": ActorDraft("gone")}, "actor"),
        ({"mode": ControlMode.ACTOR, "actor": ActorDraft("llm", {"llm": "m"}, {"llm": {"history": "-1"}})}, "actor"),
    ],
)
def test_what_is_wrong_is_known_by_its_field(change: dict[str, object], field: str) -> None:
    assert list(game_problems(replace(GameDraft(), **change), LAKE)) == [field]  # type: ignore[arg-type]


def test_an_actor_that_does_not_act_is_not_a_problem() -> None:
    """R9.2: off in pure human mode."""
    assert game_problems(GameDraft(actor=ActorDraft("policy")), LAKE) == {}


def test_a_draft_is_remembered_and_a_damaged_one_is_not() -> None:
    draft = GameDraft(GAME.id, mode=ControlMode.AGENTS, keys={"up": "W"}, agents={"player_1": ActorDraft("random")})
    stored = json.loads(json.dumps(draft.to_json()))
    assert GameDraft.from_json(stored, GAME.id) == draft
    for damaged in (None, 3, {}, {**stored, "mode": "x"}, {**stored, "keys": {"up": 3}}, {**stored, "actor": []}):
        assert GameDraft.from_json(damaged, GAME.id) == GameDraft(GAME.id)


def test_what_version_0_1_remembered_is_read() -> None:
    stored = {**GameDraft().to_json(), "other_arguments": '{"x": [1]}', "session_texts": {"seed": "7"}}
    stored["setting_texts"] = {"is_slippery": "false", "map_name": "8x8"}
    del stored["texts"]
    draft = GameDraft.from_json(json.loads(json.dumps(stored)), LAKE.id)
    expected = {"seed": 7, "env_kwargs": {"is_slippery": False, "map_name": "8x8", "x": [1]}}
    assert build_request(draft, LAKE).settings == expected


def test_a_key_is_changed_also_where_it_is_held_with_others() -> None:
    assert editable_actions(KEYS, {}) == ["up", "fire"]
    changes = change_key(KEYS, {}, "up", "W")
    assert changes == {"up": "W", "upfire": "W+Space"}
    assert current_keys(KEYS, changes) == {"up": ("W",), "fire": ("Space",), "upfire": ("W", "Space")}
    assert change_key(KEYS, changes, "up", "Up") == {}


@pytest.mark.parametrize("key", ["Space", "Esc", "+", ""])
def test_a_key_that_is_taken_or_reserved_is_refused(key: str) -> None:
    with pytest.raises(BadInput, match=r"is the key of 'fire'|cannot be the key"):
        change_key(KEYS, {}, "up", key)


def test_changed_keys_are_those_of_the_human() -> None:
    draft = GameDraft("FrozenLake-v1", keys={"up": "W", "of another game": "X"})
    assert build_request(draft, LAKE).options == {"*": {"keys": {"up": "W"}}}
