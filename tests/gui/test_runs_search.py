"""The search line over the runs."""

from __future__ import annotations

import pytest
from tests.helpers.gui_runs import running, view

from mosaic.window.palette import parse_query

RUNS = [
    view(1, algo="ppo", env_id="CartPole-v1", seed=1, tags=["baseline"]),
    view(2, algo="ppo_atari", env_id="ALE/Pong-v5", seed=2, outcome="failed", group="sweep-1"),
    view(3, algo="dqn", env_id="Acrobot-v1", seed=3, outcome="lost", notes="odd loss at the end"),
    running(4, algo="sac", env_id="HalfCheetah-v5", seed=12, tags=["tuned", "good"]),
    running(5, algo="dqn", env_id="CartPole-v1", seed=1, is_stalled=True, kind="policy_eval"),
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [1, 2, 3, 4, 5]),
        ("   ", [1, 2, 3, 4, 5]),
        ("cartpole", [1, 5]),
        ("algo:ppo", [1, 2]),
        ("ALGO:PPO env:cart", [1]),
        ("env:Pong", [2]),
        ("tag:good", [4]),
        ("tag:go", [4]),
        ("status:failed", [2]),
        ("status:failed,lost", [2, 3]),
        ("status:active", [4, 5]),
        ("status:running", [4, 5]),
        ("status:stalled", [5]),
        ("status:fin", [1, 2, 3]),
        ("seed:1", [1, 5]),
        ("seed:2-12", [2, 3, 4]),
        ("group:sweep", [2]),
        ("kind:eval", [5]),
        ("-tag:baseline", [2, 3, 4, 5]),
        ("-cartpole dqn", [3]),
        ('note:"odd loss"', [3]),
        ('"odd loss"', [3]),
        ("dqn cartpole", [5]),
        ("nothing-like-this", []),
        ("id:00003", [3]),
    ],
)
def test_a_search_matches_all_of_its_terms(text: str, expected: list[int]) -> None:
    query = parse_query(text)
    assert [number for number, run in enumerate(RUNS, 1) if query.matches(run)] == expected


@pytest.mark.parametrize("text", ["algo:", "status: ", "tag:,", "-", '"', "seed:x"])
def test_an_incomplete_search_raises_no_error(text: str) -> None:
    [parse_query(text).matches(run) for run in RUNS]


def test_a_key_without_its_value_hides_nothing() -> None:
    assert all(parse_query("algo:").matches(run) for run in RUNS)


def test_an_unknown_key_is_searched_as_text() -> None:
    own = view(6, env_id="my_module:Maze-v0")
    assert parse_query("my_module:maze").matches(own)
    assert not parse_query("my_module:maze").matches(RUNS[0])
