"""Duels through a real daemon: actors compared under the same seeds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.commands import MOSAIC, mosaic
from tests.helpers.daemons import running_daemon, wait_for

import mosaic as api
from mosaic.base.curves import mean_with_interval
from mosaic.contracts.errors import ConfigRefused
from mosaic.contracts.folder import Workspace
from mosaic.features.play.api import parse_duel, read_duel_file

EXAMPLE = Path(__file__).parents[2] / "examples" / "duel.yaml"
LEAN = "def act(observation, info):\n    return int(observation[2] + observation[3] > 0)\n"
"""Balances the pole."""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    folder = tmp_path_factory.mktemp("duels")
    with running_daemon(Workspace(folder / "var"), folder / "plugins", "--max-runs", "4") as (_, trainer):
        # It would otherwise start during a test, which would take it for a process of its own.
        trainer.ask_worker("cleanrl", {"ask": "ping"})
        trainer.ask_worker("play", {"ask": "ping"})
        trainer.ask_worker("bdi", {"ask": "ping"})
        yield Workspace(folder / "var")


@pytest.fixture
def client(workspace: Workspace) -> Iterator[api.Client]:
    with api.connect(workspace.root) as connected:
        yield connected


def test_actors_play_the_same_seeds_and_are_compared_in_pairs(client: api.Client, tmp_path: Path) -> None:
    """R9.1: every actor's episodes are complete; the difference is that of the same seeds."""
    (tmp_path / "lean.py").write_text(LEAN)
    result = client.duel(
        {
            "env": "CartPole-v1",
            "actors": ["random", {"actor": f"script:{tmp_path / 'lean.py'}", "label": "lean"}],
            "seeds": [3, 17, 99],
            "max_steps": 60,
        }
    )
    returns = {
        label: np.array([episode.episodic_return for episode in result.episodes if episode.actor == label])
        for label in ("random", "lean")
    }
    assert [(episode.actor, episode.seed) for episode in result.episodes] == [
        *(("random", 3), ("random", 17), ("random", 99)),
        *(("lean", 3), ("lean", 17), ("lean", 99)),
    ]
    assert returns["lean"].tolist() == [60.0, 60.0, 60.0]
    assert {episode.ending for episode in result.episodes if episode.actor == "lean"} == {"truncated"}
    first, second = result.actors
    assert first.returns is not None
    assert second.difference is not None
    expected = mean_with_interval(returns["lean"] - returns["random"])
    assert (second.difference.mean, second.difference.ci95) == (expected.point, (expected.low, expected.high))
    assert first.returns.standard_error == pytest.approx(returns["random"].std(ddof=1) / np.sqrt(3))
    assert (first.difference, first.wins, result.is_complete) == (None, None, True)

    alone = client.play("CartPole-v1", seed=17, max_steps=60, wait=True)
    assert alone.returns.tolist() == [returns["random"][1]], "It is the episode that the actor plays with this seed."
    runs = client.runs(group=result.name)
    assert sorted(run.id for run in runs) == sorted(run for actor in result.actors for run in actor.runs)
    assert {run.view.tags for run in runs} == {("duel",)}
    assert [report.is_identical for report in client.get_run(second.runs[0]).replay()] == [True] * 3
    assert result.to_frame()["return"].tolist() == [*returns["random"], *returns["lean"]]


def test_both_sides_of_a_game_are_played(client: api.Client) -> None:
    pytest.importorskip("pettingzoo.classic")
    result = client.duel({"env": "pettingzoo/tictactoe_v3", "actors": ["random"], "opponent": "random", "episodes": 3})
    (actor,) = result.actors
    assert [(episode.seed, episode.side) for episode in result.episodes] == [
        (1, 1),
        (2, 1),
        (3, 1),
        (1, 2),
        (2, 2),
        (3, 2),
    ]
    # The same two players with the same seeds: who is called the actor only changes the sign.
    sides = [[one.episodic_return for one in result.episodes if one.side == side] for side in (1, 2)]
    assert sides[0] == [-value for value in sides[1]]
    assert actor.returns is not None
    assert actor.returns.mean == 0.0, "What the first move is worth cancels out."
    assert (actor.episodes, actor.wins, actor.losses) == (6, actor.losses, 3 - (actor.draws or 0) / 2)


def test_an_actor_that_crashes_is_incomplete_and_the_others_finish(client: api.Client, tmp_path: Path) -> None:
    (tmp_path / "crash.py").write_text(
        "episode = 0\ndef reset():\n    global episode\n    episode += 1\n"
        "def act(observation, info):\n    if episode == 3:\n        raise RuntimeError('no idea')\n    return 0\n"
    )
    crash = {"actor": f"script:{tmp_path / 'crash.py'}", "label": "crash"}
    result = client.duel({"env": "CartPole-v1", "actors": [crash, "random"], "episodes": 4})
    assert not result.is_complete
    assert (result["crash"].episodes, result["crash"].expected_episodes, result["crash"].returns) == (2, 4, None)
    assert "no idea" in str(result["crash"].problem)
    assert (result["random"].episodes, result["random"].problem, result["random"].difference) == (4, None, None)
    assert [episode.seed for episode in result.episodes if episode.actor == "crash"] == [1, 2]


REFUSED: dict[str, dict[str, Any]] = {
    "epsodes: unknown key": {"epsodes": 3},
    "actors.1.lable: unknown key": {"actors": ["random", {"actor": "random", "lable": "x"}]},
    "actors: field required|actors: missing": {"actors": None},
    "seeds.values.1: expected a whole number": {"seeds": [1, "a"]},
    "seeds.values.0: input should be greater than or equal to 0": {"seeds": [-1]},
    "seeds.from: unknown key": {"seeds": {"from": 3}},
    "a seed is listed twice": {"seeds": [4, 4]},
    "not both": {"seeds": {"values": [1], "count": 2}},
    "episodes: 3 does not match the number of seeds, 2": {"seeds": [1, 2], "episodes": 3},
    "rate_hz: input should be less than or equal to 240": {"rate_hz": 1000},
    "two actors are called 'random'; give each a label": {"actors": ["random", "random"]},
    "at least two actors": {"actors": ["random"]},
    "env: expected an environment id": {"env": "a b"},
    "seeds.start: a number must fit into 64 bits": {"seeds": {"start": 2**70}},
}


@pytest.mark.parametrize("words", REFUSED)
def test_wrong_keys_and_values_are_refused_by_their_path(words: str) -> None:
    data = {"env": "CartPole-v1", "actors": ["random", {"actor": "random", "label": "other"}], **REFUSED[words]}
    with pytest.raises(ConfigRefused) as refused:
        parse_duel({key: value for key, value in data.items() if value is not None})
    assert any(one in str(refused.value) for one in words.split("|")), refused.value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("env: A\nenv: B\n", "line 1: the key 'env' occurs twice"),
        ("env: &a A\nactors: [*a]\n", "line 2: aliases"),
        ("- random\n", "expected keys such as env"),
        ("env: [\n", "not valid YAML"),
        ("env: A\nenv_kwargs: {day: 2020-01-01}\n", "not a text, number, list or map"),
        ("[" * 3000, "not valid YAML"),
    ],
)
def test_a_file_that_is_not_a_duel_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "duel.yaml").write_text(text)
    with pytest.raises(ConfigRefused, match=words):
        read_duel_file(tmp_path / "duel.yaml")


def test_what_only_the_worker_knows_is_refused_before_anything_starts(client: api.Client) -> None:
    before = len(client.runs())
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"actors": ["random", "radom", "human"]},
            r"actors\.1: No actor 'radom'.*actors\.2: The actor 'human'",
        ),
        ({"env": "CartPol-v1"}, r"refused: env: .*CartPole-v1"),
        ({"opponent": "random"}, "opponent: CartPole-v1 has a single agent"),
        ({"env": "pettingzoo/tictactoe_v3"}, "opponent: missing; pettingzoo/tictactoe_v3 has the agents player_1"),
    ]
    for change, words in cases:
        with pytest.raises(ConfigRefused, match=words):
            client.duel({"env": "CartPole-v1", "actors": ["random", {"actor": "random", "label": "x"}], **change})
    assert len(client.runs()) == before


def test_the_example_runs_from_the_command_line(workspace: Workspace, tmp_path: Path) -> None:
    pytest.importorskip("agentspeak")
    planned = mosaic(workspace, "duel", str(EXAMPLE), "--dry-run", "--json")
    assert planned.json["seeds"] == list(range(100, 110))
    assert planned.json["sessions"] == [{"actor": "random", "side": 1}, {"actor": "plans", "side": 1}]
    out = tmp_path / "results.jsonl"
    played = mosaic(workspace, "duel", str(EXAMPLE), "--out", str(out), "--json")
    assert played.code == 0, played.err
    assert "2 of 2 sessions have ended, 20 of 20 episodes" in played.err
    by_label = {actor["label"]: actor for actor in played.json["actors"]}
    assert by_label["plans"]["returns"]["mean"] == 1.0
    assert by_label["plans"]["difference"]["mean"] == 1.0 - by_label["random"]["returns"]["mean"]
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(lines) == 20
    assert list(lines[0]) == ["actor", "seed", "return", "length", "ending", "run"]
    assert mosaic(workspace, "duel", str(EXAMPLE), "--out", str(tmp_path / "no" / "f.jsonl")).code == 2
    assert "is_slippery" not in mosaic(workspace, "duel", str(EXAMPLE), "--dry-run").out


def test_ctrl_c_cancels_the_sessions(workspace: Workspace, client: api.Client, tmp_path: Path) -> None:
    duel = tmp_path / "slow.yaml"
    duel.write_text("env: CartPole-v1\nname: slow\nactors: [random, {actor: random, label: other}]\nrate_hz: 1\n")
    with subprocess.Popen(
        [MOSAIC, "duel", str(duel)],
        env={**os.environ, "MOSAIC_VAR": str(workspace.root)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            wait_for(lambda: len(client.runs(tags="duel", status="running")) == 2, "two sessions")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=100)
        finally:
            process.kill()
            for run in client.runs(tags="duel", status=("queued", "starting", "running")):
                run.cancel().wait()
    assert process.returncode == 130, err
    assert "other is incomplete: cancelled" in err
    assert "0 of 20" in out
    assert [run.status for run in client.runs(limit=2)] == ["cancelled", "cancelled"]
