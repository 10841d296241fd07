"""`mosaic play` and `mosaic replay`, as a user types them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.helpers.commands import mosaic

from mosaic.contracts.folder import Workspace


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
        ("FrozenLake-v1", "--env-kwargs", "[]"): "expected a JSON object",
        ("FrozenLake-v1", "--env-kwargs", '{"is_slipery": true}'): "does not accept these settings",
        ("pettingzoo/tic_v3",): "Did you mean",
    }
    for arguments, words in cases.items():
        result = mosaic(workspace, "play", *arguments)
        assert (result.code, words in result.err) == (2, True), (arguments, result.code, result.err)
    assert json.loads(mosaic(workspace, "runs", "--json").out) == []
    mosaic(workspace, "daemon", "stop")
