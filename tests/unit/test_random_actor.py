"""The actor `random`."""

from __future__ import annotations

from gymnasium.spaces import Discrete

from mosaic.contracts.play import ActorChoice
from mosaic.worker.actors import RandomActor, Seat, Turn


def draw(agent: str, seed: int) -> list[int]:
    space = Discrete(7)
    actor = RandomActor(ActorChoice(kind="random"), Seat("game", agent, observation_space=space, action_space=space))
    actor.start_episode(seed)
    return [actor.act(Turn(agent, step, 0, {}, legal_actions=range(7))) for step in range(20)]


def test_agents_of_one_game_draw_different_actions_and_a_seed_draws_the_same_again() -> None:
    assert draw("player_1", 3) == draw("player_1", 3)
    assert draw("player_1", 3) != draw("player_2", 3)
    assert draw("player_1", 3) != draw("player_1", 4)
