"""Replays in the window: real recordings, real player processes, a real trainer."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QComboBox, QTableView, QTabWidget
from tests.helpers import shared_daemon
from tests.helpers.daemons import LiveDaemon, ended
from tests.helpers.gui import awaited, click, find, press, pump

from mosaic.contracts.folder import RECORDING_NAME
from mosaic.contracts.play import ANY_AGENT
from mosaic.features.play.core import build_play_payload
from mosaic.features.replay.window import ReplayView
from mosaic.features.replay.window_pair import ReplayPair
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window.app import Application
from mosaic.worker.recording import RecordedEpisode, RecordingHeader, RecordingWriter

plugins, workspace, live, trainer = shared_daemon.FIXTURES


@pytest.fixture(scope="module")
def runs(live: tuple[LiveDaemon, TrainerClient]) -> list[str]:
    """Sessions with two episodes of 12, 9 and 5 steps, for all tests."""
    return [play(live[1], length) for length in (12, 9, 5)]


def play(trainer: TrainerClient, length: int) -> str:
    """Play a session at random and return its run."""
    settings = {"episodes": 2, "max_steps": length}
    run_id = trainer.submit(build_play_payload(trainer, "CliffWalking-v1", {ANY_AGENT: "random"}, settings, {})).run_id
    assert ended(trainer, run_id).outcome == "succeeded"
    return run_id


def open_replay(program: Application, run_id: str) -> ReplayView:
    program.start()
    pump(lambda: program.workbench.runs.get(run_id), "the run")
    program.workbench.select(run_id, "replay")
    view: ReplayView = awaited(program.window, "replay.view", ReplayView)
    pump(lambda: view.player.step is not None, "the first step")
    return view


def shown_step(view: ReplayView) -> int:
    assert view.player.step is not None
    return view.player.step.state.step


def test_an_episode_is_chosen_stepped_scrubbed_and_played(runs: list[str], program: Application) -> None:
    """R9.5: Replay (any recorded episode, scrub and step)."""
    program.window.resize(1024, 700)
    view = open_replay(program, runs[0])
    assert view.table.horizontalHeader().length() <= view.table.viewport().width(), "the ending of an episode is cut"
    table = find(view, "replay.episodes", QTableView)
    assert table.model().rowCount() == 2
    assert table.model().index(0, 3).data() == "random"
    steps = view.transport.steps
    assert steps == view.player.episodes[0].steps == 12
    assert view.player.canvas.has_image
    click(find(view, "replay.transport.next"))
    pump(lambda: shown_step(view) == 1, "step 1")
    assert view.player.facts.text().startswith("Step 1 · random: ")
    assert "Identical so far (1 of" in view.player.verdict.text()
    press(view, Qt.Key.Key_Right)
    press(view, Qt.Key.Key_Left)
    press(table, Qt.Key.Key_Right)
    pump(lambda: shown_step(view) == 2, "step 2, by a key in the list")
    press(view, Qt.Key.Key_End)
    pump(lambda: shown_step(view) == steps, "the end")
    assert view.player.verdict.text() == "Identical: rewards and observations are the recorded ones"
    view.transport.slider.setValue(steps // 2)
    pump(lambda: shown_step(view) == steps // 2, "the middle")
    find(view, "replay.transport.speed", QComboBox).setCurrentText("16×")
    press(view, Qt.Key.Key_Space)
    pump(lambda: shown_step(view) == steps and not view.transport.is_playing, "the end, played")
    table.selectRow(1)
    pump(lambda: view.player.step is not None and view.player.step.state.episode == 1, "the other episode")
    assert (shown_step(view), view.transport.position) == (0, 0)


def test_a_replay_is_exported_from_the_window(runs: list[str], program: Application, tmp_path: Path) -> None:
    view = open_replay(program, runs[0])
    target = tmp_path / "steps.jsonl"
    view.export(0, target)
    pump(target.exists, "the file")
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, view.transport.steps + 1))
    messages: list[str] = []
    program.workbench.message_posted.connect(lambda text, kind: messages.append(text))
    view.export(0, tmp_path / "steps.txt")
    pump(lambda: messages, "a message")
    assert messages[0] == "steps.txt: expected a name that ends in .mp4, .gif, .jsonl."


def test_a_crash_a_difference_and_a_damaged_file_are_a_sentence_each(runs: list[str], program: Application) -> None:
    run_id = runs[2]
    view = open_replay(program, run_id)
    process = view.player._process._process
    assert process is not None
    os.kill(process.processId(), signal.SIGSEGV)
    pump(lambda: "ended unexpectedly with signal 11" in view.player.canvas.message, "the sentence")
    assert not view.transport.isEnabled()
    run = program.workbench.runs.get(run_id)
    assert run is not None
    recording = Path(run.run_dir, RECORDING_NAME)
    recording.unlink()
    with RecordingWriter(recording, RecordingHeader(env_id="CliffWalking-v1")) as writer:
        rewards = np.array([-1.0, -1.0, 7.0, -1.0])
        writer.append([RecordedEpisode(0, 1, None, np.zeros(4, np.int64), rewards, "truncated")])
    view.show_run(None)
    view.show_run(run_id)
    pump(lambda: view.player.step is not None, "the other recording")
    press(view, Qt.Key.Key_End)
    pump(lambda: shown_step(view) == 4, "its end")
    difference = "Differs at step 3. At step 3 the recorded reward is 7.0, the simulated one -1.0."
    assert view.player.verdict.text() == difference
    recording.write_bytes(b"something else")
    view.show_run(None)
    view.show_run(run_id)
    pump(lambda: "is not a recording" in view.player.canvas.message, "the other sentence")


def test_a_hidden_replay_has_no_process(runs: list[str], program: Application) -> None:
    view = open_replay(program, runs[0])
    press(view, Qt.Key.Key_Right)
    pump(lambda: shown_step(view) == 1, "step 1")
    program.workbench.tab_requested.emit("overview")
    pump(lambda: not view.player._process.is_running, "the end of the process")
    program.workbench.tab_requested.emit("replay")
    pump(lambda: view.player._process.is_running and not view.player.is_busy, "the process")
    pump(lambda: shown_step(view) == 1, "the same step")


def test_two_replays_are_stepped_together(runs: list[str], program: Application) -> None:
    """R7.7: two replays side by side."""
    program.start()
    pump(lambda: all(program.workbench.runs.get(run_id) for run_id in runs[:2]), "the runs")
    program.workbench.comparison_requested.emit(runs[:2])
    tables = awaited(program.window, "compare.tables", QTabWidget)
    pair = pump(lambda: program.window.findChild(ReplayPair), "the replays")
    tables.setCurrentWidget(pair)
    left, right = (side.screen for side in pair.sides)
    pump(lambda: left.step is not None and right.step is not None, "both")
    assert [left.run_id, right.run_id] == runs[:2]
    assert pair.transport.steps == 12
    click(find(pair, "compare.replay.transport.next"))
    pump(lambda: left.step.state.step == right.step.state.step == 1, "one step of both")
    press(pair, Qt.Key.Key_End)
    pump(lambda: left.step.is_end and right.step.is_end, "the end of both")
    assert (left.step.state.step, right.step.state.step) == (12, 9)
    assert all(screen.verdict.text().startswith("Identical:") for screen in (left, right))
    press(pair, Qt.Key.Key_Home)
    find(pair, "compare.replay.transport.speed", QComboBox).setCurrentText("16×")
    click(find(pair, "compare.replay.transport.play"))
    pump(lambda: left.step.is_end and right.step.is_end and not pair.transport.is_playing, "the end, played")
    find(pair, "compare.replay.right.episode", QComboBox).setCurrentIndex(1)
    pump(lambda: right.step.state.episode == 1 and left.step.state.step == right.step.state.step == 0, "a new start")
