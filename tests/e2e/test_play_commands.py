"""`mosaic play` and `mosaic replay`, as a user types them."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from tests.helpers.commands import mosaic

from mosaic.contracts.folder import Workspace
from mosaic.contracts.views import SessionState


def test_a_session_is_played_and_replayed_also_in_a_copy_of_the_workspace(workspace: Workspace, tmp_path: Path) -> None:
    """R1.5, R6.4, R9.1"""
    played = mosaic(workspace, "play", "FrozenLake-v1", "--episodes", "3", "--seed", "7", "--json")
    assert played.code == 0, played.err
    summary = json.loads(played.out)
    assert [episode["seed"] for episode in summary["episodes"]] == [7, 8, 9]
    assert summary["agents"]["*"]["actor"] == "random"
    mosaic(workspace, "daemon", "stop")
    copy = Workspace(tmp_path / "elsewhere")
    shutil.copytree(workspace.root, copy.root)
    replayed = mosaic(copy, "replay", summary["run_id"], "--json")
    assert replayed.code == 0, replayed.err
    report = json.loads(replayed.out)
    assert report["identical"] is True
    assert [episode["steps"] for episode in report["episodes"]] == [
        episode["length"] for episode in summary["episodes"]
    ]
    one = mosaic(copy, "replay", "last", "--episode", "1")
    assert (one.code, "identical" in one.out) == (0, True), one.err
    mosaic(copy, "daemon", "stop")


def test_bad_input_gets_one_sentence(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "actions.txt").write_text("sideways\n")
    cases = {
        ("FrozenLake-v1", "--actor", "human"): "only a window sends them",
        ("FrozenLake-v1", "--actor", "policy"): "needs a run or a file",
        ("FrozenLake-v1", "--actor", f"script:{tmp_path / 'actions.txt'}"): "line 1: 'sideways' is not an action",
        ("FrozenLake-v1", "--env-kwargs", "[]"): "must be name=value pairs",
        ("FrozenLake-v1", "--env-kwargs", '{"is_slipery": true}'): "Did you mean 'is_slippery'?",
        ("FrozenLake-v1", "--env-kwargs", '{"render_mode": "human"}'): "render_mode",
        ("FrozenLake-v1", "--env-kwargs", '{"desc": []}'): "does not accept these settings (desc)",
        ("FrozenLake-v1", "--env-kwargs", '{"map_name": "nope"}'): "map_name",
        ("FrozenLake-v1", "--actor", "../x"): "The actor was refused",
        ("FrozenLake-v1", "--actor", "random:x"): "takes no target",
        ("pettingzoo/tic_v3",): "Did you mean",
    }
    for arguments, words in cases.items():
        result = mosaic(workspace, "play", *arguments)
        assert (result.code, words in result.err) == (2, True), (arguments, result.code, result.err)
    assert json.loads(mosaic(workspace, "runs", "--json").out) == []
    mosaic(workspace, "daemon", "stop")


def test_rewards_that_are_not_finite_are_played_shown_and_replayed(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "odd_rewards.py").write_text(
        "import gymnasium, math\n"
        "from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv\n"
        "class Odd(FrozenLakeEnv):\n"
        "    def step(self, action):\n"
        "        observation, _, *rest = super().step(action)\n"
        "        return observation, (math.nan, math.inf)[int(self.np_random.integers(2))], *rest\n"
        "gymnasium.register('Odd-v0', Odd, max_episode_steps=5)\n"
    )
    variables = {"PYTHONPATH": str(tmp_path)}
    played = mosaic(workspace, "play", "odd_rewards:Odd-v0", "--json", **variables)
    assert played.code == 0, played.err
    summary = json.loads(played.out, parse_constant=pytest.fail)
    assert summary["agents"]["*"]["returns"] == [None]
    folder = workspace.run(summary["run_id"])
    state = SessionState.model_validate_json(folder.session_state.read_bytes())
    assert not math.isfinite(state.seats[0].episodic_return)
    json.loads(folder.play_summary.read_text(), parse_constant=pytest.fail)
    replayed = mosaic(workspace, "replay", "last", "--json", **variables)
    assert (replayed.code, json.loads(replayed.out, parse_constant=pytest.fail)["identical"]) == (0, True), replayed.err
    mosaic(workspace, "daemon", "stop")
