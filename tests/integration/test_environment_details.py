"""What the play worker tells about environments, through a real daemon, and `mosaic envs ENV`."""

from __future__ import annotations

import pytest
from tests.helpers.commands import mosaic

from mosaic.contracts.errors import UnknownName
from mosaic.contracts.folder import Workspace
from mosaic.trainer.client.trainer_client import TrainerClient


def test_environments_of_all_families_can_be_played(trainer: TrainerClient) -> None:
    """R9.4: families."""
    listings = {listing.id: listing for listing in trainer.environments("play")}
    families = {listing.family for listing in listings.values()}
    assert {"toy_text", "classic_control", "atari", "minigrid", "pettingzoo_classic"} <= families
    assert listings["pettingzoo/tictactoe_v3"].extra == "pettingzoo"
    assert {listing.family for listing in trainer.environments("play", "toy_text")} == {"toy_text"}


def test_an_environment_is_described_with_settings_actions_and_keys(trainer: TrainerClient) -> None:
    lake = trainer.environment("FrozenLake-v1", {"desc": ["SG"], "is_slippery": False})
    assert [setting.name for setting in lake.settings] == ["is_slippery", "map_name", "desc"]
    assert lake.action_names == ("left", "down", "right", "up")
    assert [binding.keys for binding in lake.keys] == [("Left",), ("Down",), ("Right",), ("Up",)]
    assert (lake.observation_space, lake.agents, lake.problem) == ("Discrete(2)", (), "")

    game = trainer.environment("pettingzoo/connect_four_v3")
    assert (game.agents, game.has_several_agents) == (("player_0", "player_1"), True)


def test_settings_that_do_not_fit_are_a_problem_and_an_unknown_game_is_refused(trainer: TrainerClient) -> None:
    lake = trainer.environment("FrozenLake-v1", {"map_name": "9x9"})
    assert lake.problem == "env_kwargs: map_name must be one of 4x4, 8x8, not '9x9'."
    assert lake.settings, "what the catalog says is shown all the same"
    with pytest.raises(UnknownName, match="tictactoe_v3"):
        trainer.environment("pettingzoo/tictacto_v3")


def test_the_command_explains_an_environment(trainer: TrainerClient, workspace: Workspace) -> None:
    result = mosaic(workspace, "envs", "Taxi-v4")
    assert result.code == 0, result.err
    for words in ("fickle_passenger", "pickup", "P ", "Discrete(500)"):
        assert words in result.out, words
    assert mosaic(workspace, "envs", "Taxi-v4", "--json").json["rate_hz"] is None
    assert "Did you mean" in mosaic(workspace, "envs", "Taxy-v4").err
