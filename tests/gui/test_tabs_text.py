"""Config, notes, events and videos of a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from PySide6.QtCore import QPoint
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import (
    QCheckBox,
    QListWidget,
    QMenu,
    QPlainTextEdit,
    QPushButton,
    QTableView,
    QTableWidget,
    QTabWidget,
)
from tests.helpers.gui import click, find, pump, type_text
from tests.helpers.gui_runs import FakeTrainer, run_id, running, start_with, view

from mosaic.contracts import names as semconv
from mosaic.contracts.errors import BadInput, NotAllowed, refuse_key
from mosaic.contracts.events import PackagesListed
from mosaic.contracts.folder import RunFolder
from mosaic.features.runs.window_videos import VideoPlayer, VideoReader, list_videos
from mosaic.window.app import Application
from mosaic.window.events import MAX_EVENT_LINES, EventFilter, EventLine
from mosaic.worker.recorders import EpisodeVideo


@pytest.fixture
def fake(program: Application) -> FakeTrainer:
    trainer = FakeTrainer([view(1), running(2, notes="second")])
    start_with(program, trainer)
    return trainer


# --- config


def shown_rows(table: QTableWidget) -> dict[str, tuple[str, str]]:
    """By setting, its value and its default; headings have none."""
    texts = [[table.item(row, column) for column in range(3)] for row in range(table.rowCount())]
    return {name.text(): (value.text(), default.text()) for name, value, default in texts if name and value and default}


def test_every_setting_is_shown_and_those_that_differ_can_be_shown_alone(
    program: Application, fake: FakeTrainer
) -> None:
    config = fake.payload["metadata"]["worker"]["config"]
    config |= {"seed": 5, "algo_params": {"learning_rate": 0.001, "gamma": 0.99}}
    packages = {"torch": "2.6.0", "numpy": "2.2.0", "other": "1.0"}
    fake.events = [PackagesListed(kind="packages", seq=1, python="3.11.7", packages=packages)]
    program.workbench.select(run_id(1), "config")
    table = pump(lambda: program.window.findChild(QTableWidget, "config.settings"), "the tab")
    pump(table.isVisible, "the settings")
    rows = shown_rows(table)
    assert rows["learning_rate"] == ("0.001", "0.00025")
    assert rows["num_envs"] == ("4", "4")
    assert rows["algorithm"] == ("ppo", "")
    assert (rows["Python"], rows["torch"], rows["all packages"]) == (("3.11.7", ""), ("2.6.0", ""), ("3 packages", ""))
    changed = next(
        item for row in range(table.rowCount()) if (item := table.item(row, 0)) and item.text() == "learning_rate"
    )
    assert changed.font().bold() or changed.font().weight() > 400
    find(program.window, "config.only", QCheckBox).setChecked(True)
    assert {name for name, (value, _) in shown_rows(table).items() if value} == {"seed", "learning_rate"}
    config.pop("algo_params")
    config["seed"] = 1
    program.workbench.select(run_id(2), "config")
    pump(lambda: find(program.window, "config.filter").isVisible() and not table.isVisible(), "no difference")
    find(program.window, "config.only", QCheckBox).setChecked(False)
    pump(table.isVisible, "all settings")
    type_text(find(program.window, "config.filter"), "gam")
    assert {name for name, (value, _) in shown_rows(table).items() if value} == {"gamma"}


def test_the_config_is_copied_and_opened_in_the_form(program: Application, fake: FakeTrainer) -> None:
    fake.payload["metadata"]["worker"]["config"]["seed"] = 5
    program.workbench.select(run_id(1), "config")
    table = pump(lambda: program.window.findChild(QTableWidget, "config.settings"), "the tab")
    pump(table.isVisible, "the settings")
    menu = find(program.window, "config.copy.menu", QMenu)
    copied = {}
    for action in menu.actions():
        if action.isEnabled():
            action.trigger()
            copied[action.text()] = QGuiApplication.clipboard().text()
    assert list(copied) == ["As a command", "As Python", "As JSON", "As a table"], "its packages are not known"
    assert copied["As a command"].startswith("mosaic train ppo --env-id CartPole-v1")
    assert "--seed 5" in copied["As a command"]
    assert "    seed=5,\n" in copied["As Python"]
    assert json.loads(copied["As JSON"]) == fake.payload
    assert "learning_rate\t0.00025\t0.00025\n" in copied["As a table"]
    click(find(program.window, "config.as_json"))
    shown = find(program.window, "config.json", QPlainTextEdit)
    assert shown.isVisible()
    assert json.loads(shown.toPlainText()) == fake.payload
    wanted: list[Any] = []
    program.workbench.edit_requested.connect(lambda _, payload: wanted.append(payload))
    click(find(program.window, "config.edit", QPushButton))
    assert wanted == [fake.payload]


# --- notes


def test_another_runs_note_is_shown_and_what_was_typed_is_saved_first(program: Application, fake: FakeTrainer) -> None:
    note = find(program.window, "notes.run", QPlainTextEdit)
    program.workbench.select(run_id(1))
    note.setPlainText("mine")
    program.workbench.select(run_id(2))
    assert note.toPlainText() == "second"
    pump(lambda: fake.asked == [("annotate", run_id(1), [], [], "mine", None)], "the note")


def test_a_note_changed_elsewhere_does_not_overwrite_unsaved_text(program: Application, fake: FakeTrainer) -> None:
    note = find(program.window, "notes.run", QPlainTextEdit)
    program.workbench.select(run_id(2))
    program.workbench.runs.update([running(2, notes="from elsewhere")])
    assert note.toPlainText() == "from elsewhere"
    note.setPlainText("half a sent")
    program.workbench.runs.update([running(2, notes="again")])
    assert note.toPlainText() == "half a sent"


def test_the_scratch_page_receives_verdicts_and_is_saved(
    program: Application, fake: FakeTrainer, make_program: Callable[[], Application]
) -> None:
    """R7.2: dry run to the notes."""
    find(program.window, "notes.scratch", QPlainTextEdit).setPlainText("todo: tune\n")
    program.workbench.notes.append_scratch("Dry run: ok")
    scratch = find(program.window, "notes.scratch", QPlainTextEdit)
    assert scratch.toPlainText().startswith("todo: tune\n[")
    assert scratch.toPlainText().endswith("Dry run: ok\n")
    assert find(program.window, "notes.tabs", QTabWidget).currentWidget() is scratch
    program.workbench.notes.append_scratch("Dry run: refused\n" + 40 * "  a line\n")
    top = scratch.cursorForPosition(QPoint(2, 2)).block().text()
    assert top.endswith("Dry run: refused"), "its first line is at the top"
    again = make_program()
    assert find(again.window, "notes.scratch", QPlainTextEdit).toPlainText() == scratch.toPlainText()


# --- events


def test_events_are_filtered_by_kind_run_and_text(program: Application, fake: FakeTrainer) -> None:
    events = program.workbench.events
    table = EventFilter(events)
    events._append(
        [EventLine(1.0, run_id(1), "checkpoint", "step=5"), EventLine(2.0, run_id(2), "warning", "Slow disk")]
    )

    def shown() -> list[str]:
        lines = [table.line(row) for row in range(table.rowCount())]
        return [line.kind for line in lines if line.kind != "trainer_connected"]

    assert shown() == ["checkpoint", "warning"]
    table.filter(kind="warning")
    assert shown() == ["warning"]
    table.filter(run_id=run_id(1))
    assert shown() == ["checkpoint"]
    table.filter(text="slow")
    assert shown() == ["warning"]
    events._append([EventLine(3.0, run_id(2), "warning", "slow again"), EventLine(3.0, run_id(2), "warning", "fast")])
    assert shown() == ["warning", "warning"]
    table.deleteLater()


def test_the_number_of_kept_events_is_limited(program: Application, fake: FakeTrainer) -> None:
    events = program.workbench.events
    events._append([EventLine(float(number), "", "step", str(number)) for number in range(MAX_EVENT_LINES)])
    events._append([EventLine(0.0, "", "step", "newest")])
    table = find(program.window, "log.table", QTableView)
    model = table.model()
    assert model.rowCount() == MAX_EVENT_LINES
    assert model.index(MAX_EVENT_LINES - 1, 3).data() == "newest"


def test_events_of_the_window_are_in_its_log_file(program: Application, fake: FakeTrainer) -> None:
    """R1.2, R6.2: refusals and live frames are found by their name in `logs/gui.log`."""
    workbench = program.workbench
    workbench.workspace.logs.mkdir(parents=True, exist_ok=True)
    workbench.show_error(refuse_key("metadata.worker.config.seed", "expected an integer."))
    workbench.show_error(NotAllowed("Not now."))
    workbench.events.add(semconv.FASTLANE_CONNECTED, "1 environment", run_id(1))
    program.window.show_page("policy")
    *lines, opened = [json.loads(line) for line in workbench.workspace.gui_log.read_text().splitlines()]
    assert (opened["event"], opened["topic"], opened["message"]) == ("ui_form_opened", "ui.form_opened", "policy")
    assert [(line["event"], line["topic"]) for line in lines] == [
        ("ui_mainwindow_invalid_config", "ui.mainwindow_invalid_config"),
        ("ui_error", "ui.error"),
        ("fastlane_connected", "fastlane.connected"),
    ]
    assert [line["message"] for line in lines[:2]] == [
        "LOG705 metadata.worker.config.seed: expected an integer.",
        "LOG708: Not now.",
    ]
    assert lines[2]["run_id"] == run_id(1)


# --- videos


@pytest.fixture
def recorded(tmp_path: Path) -> RunFolder:
    """A run with two videos of 40 and 10 frames, each frame a grey of its own, and one that is no video."""
    folder = RunFolder(tmp_path / run_id(1))
    for number, length in enumerate((40, 10)):
        video = EpisodeVideo(folder.videos / f"episode-{number}.mp4", fps=20)
        for frame in range(length):
            video.add_frame(np.full((64, 96, 3), frame * 5, np.uint8))
        video.finish(f"e{number}", 12.5 + number, length)
    (folder.videos / "broken.mp4").write_bytes(b"no video")
    return folder


def test_videos_are_listed_with_their_details(recorded: RunFolder, tmp_path: Path) -> None:
    run_view = view(1, run_dir=str(recorded.path))
    videos = {video.path.name: video for video in list_videos(cast("Any", FakeTrainer([run_view])), run_view, tmp_path)}
    assert set(videos) == {"episode-0.mp4", "episode-1.mp4", "broken.mp4"}
    assert (videos["episode-1.mp4"].episode_return, videos["episode-1.mp4"].episode_length) == (13.5, 10)
    assert videos["broken.mp4"].episode_return is None
    nowhere = view(1, run_dir=str(recorded.path / "nowhere"))
    assert list_videos(cast("Any", FakeTrainer([nowhere])), nowhere, tmp_path) == []


def test_a_video_is_decoded_in_parts_and_from_any_position(recorded: RunFolder) -> None:
    reader = VideoReader(recorded.videos / "episode-0.mp4")
    first, second = reader.read(24), reader.read(24)
    assert (len(first), len(second), reader.read(24)) == (24, 16, [])
    assert (reader.rate_hz, first[0].image.width(), first[0].image.height()) == (20.0, 96, 64)
    assert reader.duration_s == pytest.approx(2.0, abs=0.1)
    grays = [frame.image.pixelColor(0, 0).red() for frame in (*first, *second)]
    assert grays == sorted(grays)
    (middle,) = reader.read(1, 1.0)
    assert middle.at_s == pytest.approx(1.0, abs=0.026)
    reader.close()
    with pytest.raises(BadInput, match="cannot be played"):
        VideoReader(recorded.videos / "broken.mp4").read(1)


def test_a_video_plays_in_the_window_to_its_end(program: Application, recorded: RunFolder) -> None:
    start_with(program, FakeTrainer([view(1, run_dir=str(recorded.path)), view(2)]))
    program.workbench.select(run_id(1), "videos")
    listed = pump(lambda: program.window.findChild(QListWidget, "videos.list"), "the tab")
    pump(lambda: listed.count() == 3, "the videos")
    player = find(program.window, "videos.player", VideoPlayer)
    names = [listed.item(row).text().split("\n")[0] for row in range(3)]
    listed.setCurrentRow(names.index("episode-1"))

    def is_playing() -> bool:
        path = player._reader.path if player._reader is not None else None
        return path is not None and path.stem == "episode-1" and player._at_s > 0.3

    pump(is_playing, "it to play")
    pump(lambda: not player._is_playing, "its end")
    click(find(program.window, "videos.player.play"))
    pump(lambda: player._is_playing and 0 < player._at_s < 0.4, "it to play again")
    listed.setCurrentRow(names.index("broken"))
    pump(lambda: "cannot be played" in player.canvas.message, "the reason")
    program.workbench.tab_requested.emit("overview")
    pump(lambda: not player._frame_timer.isActive(), "the playing to stop")


def test_a_run_without_videos_shows_how_to_record_some(program: Application, fake: FakeTrainer) -> None:
    program.workbench.select(run_id(1), "videos")
    tab: Any = pump(lambda: program.window.findChild(QListWidget, "videos.list"), "the tab")
    while not hasattr(tab, "_empty"):
        tab = tab.parentWidget()
    pump(lambda: tab._empty.title.text() == "No videos", "the empty state")
