"""Actors that users write: what is wrong with them is reported in a sentence, with the line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.contracts.play import ActorChoice
from mosaic.features.play.worker_actors import EXAMPLES
from mosaic.worker.actor_registry import discover_actors
from mosaic.worker.actors import Actor, Seat, Turn, make_actor
from mosaic.worker.envs import make

NAMES = ("left", "down", "right", "up")
DISCRETE = gymnasium.spaces.Discrete(4)
BOX = gymnasium.spaces.Box(-1, 1, (2,), np.float32)


def script(path: Path, text: str | bytes, space: Any = DISCRETE) -> Actor:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    names = NAMES if space is DISCRETE else ()
    seat = Seat("FrozenLake-v1", "*", gymnasium.spaces.Discrete(16), space, action_names=names)
    return make_actor(ActorChoice.parse(f"script:{path}"), seat)


def act(actor: Actor) -> Any:
    actor.start_episode(1)
    return actor.act(Turn("*", 0, 0, {}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def act(o, i)\n", r"line 1: not valid Python: expected ':'"),
        (b"\0\xff\xfe", "not valid Python"),
        ("x = 1\n", "does not define act"),
        ("", "does not define act"),
    ],
)
def test_a_file_that_is_not_a_script_is_refused_before_it_runs(tmp_path: Path, text: str | bytes, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        script(tmp_path / "actor.py", text)


def test_a_check_runs_nothing_of_the_file(tmp_path: Path) -> None:
    """It runs in a process that answers further checks, which must not end or hang."""
    actor = script(tmp_path / "actor.py", "import sys\nsys.exit(3)\ndef act(o, i): return 1\n")
    with pytest.raises(MosaicError, match="line 2: SystemExit: 3"):
        actor.start_episode(1)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ValueError('boom')", "line 2: ValueError: boom"),
        ("import sys; sys.exit(3)", "line 2: SystemExit: 3"),
        ("return None", "returned None, which is not an action of Discrete"),
        ("return 'left'", "returned 'left', which is not"),
        ("return 1.7", "returned 1.7, which is not"),
        ("return float('nan')", "returned nan, which is not"),
        ("return 10**30", "returned 10+, which is not"),
        ("return 4", "returned 4, which is not"),
        ("return -1", "returned -1, which is not"),
        ("return [1, 2]", r"returned \[1, 2\], which is not"),
        ("return [[1], [2, 3]]", "which is not an action"),
        ("return {}", "returned {}, which is not"),
    ],
)
def test_what_goes_wrong_in_a_script_is_named(tmp_path: Path, body: str, words: str) -> None:
    actor = script(tmp_path / "actor.py", f"def act(o, i):\n    {body}\n")
    with pytest.raises(MosaicError, match=words):
        act(actor)


@pytest.mark.parametrize("value", ["2", "2.0", "True + 1", "[2]", "__import__('numpy').int32(2)"])
def test_numbers_of_all_kinds_are_actions(tmp_path: Path, value: str) -> None:
    action = act(script(tmp_path / "actor.py", f"def act(o, i): return {value}\n"))
    assert (action, type(action)) == (2, int)


def test_a_continuous_action_gets_the_type_of_its_space(tmp_path: Path) -> None:
    action = act(script(tmp_path / "actor.py", "def act(o, i): return [0.5, 1]\n", BOX))
    assert (action.dtype, action.tolist()) == (np.float32, [0.5, 1.0])
    with pytest.raises(MosaicError, match=r"returned \[0.5, 2\], which is not"):
        act(script(tmp_path / "actor.py", "def act(o, i): return [0.5, 2]\n", BOX))


@pytest.mark.parametrize("line", ["7", "-1", "1.5", "nan", "inf", "9" * 30, "1 2", "sideways", "\ufffd" * 900])
def test_a_line_that_is_not_an_action_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(BadInput, match=r"line 2: .* is not an action; expected one of left, down, right, up"):
        script(tmp_path / "actions.txt", f"left\n{line}\n")


def test_an_actor_without_a_target_takes_none() -> None:
    seat = Seat("FrozenLake-v1", "*", gymnasium.spaces.Discrete(16), DISCRETE)
    with pytest.raises(BadInput, match="'random' takes no target; got 'x'"):
        make_actor(ActorChoice.parse("random:x"), seat)


@pytest.mark.parametrize("text", ["../x", "a b:c", "random:\x01", "", ":x", "x" * 200])
def test_a_text_that_names_no_actor_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"does not name an actor|The actor was refused"):
        ActorChoice.parse(text)


def test_every_example_that_is_listed_is_shipped() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.*")} == set(discover_actors()["script"].examples)


@pytest.mark.parametrize(
    ("name", "env_id", "settings", "least"),
    [
        ("cart_pole", "CartPole-v1", {}, 400),
        ("mountain_car", "MountainCar-v0", {}, -180),
        ("frozen_lake", "FrozenLake-v1", {"is_slippery": False}, 1),
    ],
)
def test_an_example_plays_its_game(name: str, env_id: str, settings: dict[str, Any], least: float) -> None:
    env = make(env_id, **settings)
    seat = Seat(env_id, "*", env.observation_space, env.action_space, NAMES if name == "frozen_lake" else ())
    actor = make_actor(ActorChoice.parse(f"script:{name}"), seat)
    observation, info = env.reset(seed=1)
    actor.start_episode(1)
    total, is_over = 0.0, False
    while not is_over:
        observation, reward, is_terminated, is_truncated, info = env.step(actor.act(Turn("*", 0, observation, info)))
        total += float(reward)
        is_over = is_terminated or is_truncated
    assert total >= least
