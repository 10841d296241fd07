"""What an actor or a game needs and does not have is named, with what to do."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mosaic.contracts.errors import BadInput, MissingExtra
from mosaic.contracts.play import ActorChoice
from mosaic.features.play.worker import EnvironmentQuestion, describe_environment, list_play_environments
from mosaic.worker import actor_registry
from mosaic.worker.actors import Seat, make_actor
from mosaic.worker.envs import family
from mosaic.worker.play_envs import make_play_env
from mosaic.worker.recording import RecordingHeader

MODELS = Path(__file__).parents[1] / "data"


def sit(env_id: str, choice: ActorChoice) -> Any:
    env = make_play_env(RecordingHeader(env_id=env_id))
    try:
        agent = env.agents[0]
        spaces = env.observation_space(agent), env.action_space(agent)
        return make_actor(choice, Seat(env_id, agent, *spaces, env=env.env))
    finally:
        env.close()


def test_an_actor_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_registry, "find_spec", lambda name: None)
    for actor, words in (
        ("bdi:frozen_lake", r"'bdi' needs agentspeak: pip install 'mosaic-rl\[bdi\]'"),
        ("llm:m", r"'llm' needs httpx: pip install 'mosaic-rl\[llm\]'"),
    ):
        with pytest.raises(MissingExtra, match=words):
            sit("FrozenLake-v1", ActorChoice.parse(actor))


@pytest.mark.parametrize(
    ("env_id", "package"),
    [("chess_v6", "chess"), ("texas_holdem_v4", "rlcard"), ("leduc_holdem_v4", "rlcard"), ("pistonball_v6", "pymunk"),
     ("hanabi_v5", "'shimmy[openspiel]'")],
)  # fmt: skip
def test_a_game_without_its_package_is_not_listed_as_installed(
    monkeypatch: pytest.MonkeyPatch, env_id: str, package: str
) -> None:
    gone = ("chess", "rlcard", "pymunk", "pyspiel")
    monkeypatch.setattr(family, "find_spec", lambda name: None if name in gone else find_spec(name))
    listed = {listing["id"]: listing for listing in list_play_environments(None)}
    assert listed["pettingzoo/tictactoe_v3"]["is_installed"]
    listing = listed[f"pettingzoo/{env_id}"]
    assert (listing["is_installed"], listing["package"]) == (False, package)
    details = describe_environment(EnvironmentQuestion(env_id=f"pettingzoo/{env_id}"))
    assert details.install_hint == f"pip install {package}"
    with pytest.raises(MissingExtra) as caught:
        make_play_env(RecordingHeader(env_id=f"pettingzoo/{env_id}"))
    assert f"pip install {package}." in str(caught.value)


@pytest.mark.parametrize("name", ["x.cleanrl_model", "x.zip"])
def test_no_policy_acts_by_turns_and_that_is_what_is_said(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="no policy acts in pettingzoo/tictactoe_v3, whose agents act by turns"):
        sit("pettingzoo/tictactoe_v3", ActorChoice(kind="policy", target=str(tmp_path / name)))


def test_a_file_that_does_not_state_its_algorithm_gets_it_by_an_option(tmp_path: Path) -> None:
    model = next(MODELS.rglob("ppo.cleanrl_model"))
    path = shutil.copy(model, tmp_path / "weights.cleanrl_model")
    with pytest.raises(BadInput, match=r"does not state its algorithm.*such as algo=ppo"):
        sit("CartPole-v1", ActorChoice(kind="policy", target=str(path)))
    with pytest.raises(BadInput, match="do not fit ppo"):  # read as those of ppo, with its default sizes
        sit("CartPole-v1", ActorChoice(kind="policy", target=str(path), options={"algo": "ppo"}))
