"""`mosaic replay` as a user types it: what is found, compared and exported."""

from __future__ import annotations

import json
from pathlib import Path

import av
import pytest
from tests.helpers.commands import mosaic

from mosaic.contracts.folder import Workspace

LOTTERY = '''
import random

import gymnasium
import numpy as np


class Lottery(gymnasium.Env):
    """Its tickets are drawn from a generator that nothing seeds."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Discrete(100)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return 0, {}

    def step(self, action):
        self.count += 1
        return self.count, random.random(), self.count == 6, False, {}

    def render(self):
        return np.full((64, 96, 3), 40 * self.count, np.uint8)


gymnasium.register("Lottery-v0", entry_point=Lottery, nondeterministic=True)
'''


def test_a_session_is_found_and_exported(workspace: Workspace, tmp_path: Path) -> None:
    """R6.4"""
    play = ("play", "CliffWalking-v1", "--episodes", "2", "--max-steps", "8", "--json")
    run_id = json.loads(mosaic(workspace, *play).out)["run_id"]
    assert mosaic(workspace, *play, "--no-record").code == 0  # newer, and without a recording
    steps = tmp_path / "it's.jsonl"
    result = mosaic(workspace, "replay", "last", "--export", str(steps), "--json")
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert (report["run_id"], report["file"]) == (run_id, str(steps))
    assert (report["identical"], report["first_difference"]) == (True, None)
    rows = [json.loads(line) for line in steps.read_text().splitlines()]
    assert [(row["episode"], row["step"]) for row in rows] == [(e, s) for e in (0, 1) for s in range(1, 9)]
    episodes = tmp_path / "episodes.jsonl"
    assert mosaic(workspace, "export", run_id, "--episodes", str(episodes)).code == 0
    listed = [json.loads(line) for line in episodes.read_text().splitlines()]
    assert [(row["return"], row["length"]) for row in listed] == [(rows[7]["return"], 8), (rows[15]["return"], 8)]
    refused = mosaic(workspace, "replay", run_id, "--export", "steps.txt")
    assert (refused.code, "ends in .mp4, .gif, .jsonl" in refused.err) == (2, True), refused.err


def test_frames_are_stored_where_an_episode_cannot_be_simulated_again(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lottery.py").write_text(LOTTERY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    played = mosaic(workspace, "play", "lottery:Lottery-v0", "--episodes", "2", "--json")
    assert played.code == 0, played.err
    run_id = json.loads(played.out)["run_id"]
    journal = (workspace.runs / run_id / "journal.jsonl").read_text()
    assert "its frames are stored as videos" in journal
    (tmp_path / "lottery.py").unlink()  # the frames are shown without it
    video = tmp_path / "lottery.mp4"
    replayed = mosaic(workspace, "replay", run_id, "--export", str(video), "--json")
    assert replayed.code == 0, replayed.err
    report = json.loads(replayed.out)
    assert report["identical"] is None
    note = "Not simulated again: frames were stored, because it is registered as nondeterministic."
    assert [episode["note"] for episode in report["episodes"]] == [note, note]
    with av.open(str(video)) as container:
        gray = [int(frame.to_ndarray(format="rgb24").mean()) for frame in container.decode(video=0)]
    assert len(gray) == 14
    assert all(abs(value - 40 * (number % 7)) < 4 for number, value in enumerate(gray)), gray
