"""The FastLane tab: looks while it is seen, enlarges a cell, keeps pictures and films, tells of evaluations."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QImage
from PySide6.QtWidgets import QApplication, QComboBox, QFileDialog, QLabel, QToolButton
from tests.helpers.gui import click, find, press, pump, pump_ticks, settle
from tests.helpers.gui_frames import RUN, HandLanes, StillTrainer, changed, plain, still_workbench, view_of

from mosaic.contracts.events import decode_event
from mosaic.contracts.folder import Workspace
from mosaic.gui.panels.fastlane_panel import FastLaneTab
from mosaic.gui.panels.overview import OverviewTab
from mosaic.gui.views.frames_view import IDLE_POLL_MS, FramesView
from mosaic.gui.workbench import Workbench

COLORS = [(40 * index, 255 - 40 * index, 100) for index in range(4)]

HISTORY = [{"at": 1.0, "stage": "queued", "message": "It waits."}]


class Shown:
    def __init__(self, workbench: Workbench, hand: HandLanes) -> None:
        self.workbench = workbench
        self.hand = hand
        self.said: list[str] = []
        workbench.message_posted.connect(lambda text, kind: self.said.append(f"{kind}: {text}"))
        self.tab = FastLaneTab(workbench)
        self.tab.resize(1000, 500)
        self.tab.show_run(RUN)
        self.tab.show()

    def frame(self, *envs: int, step: int = 1) -> None:
        for env in envs or range(len(self.hand.lanes)):
            self.hand.publish(env, plain(COLORS[env], channels=4), step=step)

    @property
    def state(self) -> str:
        return find(self.tab, "fastlane.state", QLabel).text()

    def has_step(self, step: int) -> bool:
        return all((cell.hud and cell.hud.step) == step for cell in self.tab.frames.lanes.cells)

    def connect(self) -> None:
        self.frame()
        pump(lambda: self.state.startswith("connected"), "the first frames")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    place = tmp_path / "it's a run"
    place.mkdir()
    return place


@pytest.fixture
def shown(qapp: QApplication, workspace: Workspace, settings_path: Path, run_dir: Path) -> Iterator[Shown]:
    hand = HandLanes(run_dir, 4)
    with still_workbench(workspace, settings_path, StillTrainer(view_of(run_dir))) as workbench:
        made = Shown(workbench, hand)
        yield made
        made.tab.close()
        made.tab.deleteLater()
        settle()
    hand.close()


def test_frames_appear_and_the_state_is_connected(shown: Shown) -> None:
    assert shown.state.startswith("waiting")
    shown.connect()
    grid = shown.tab.frames.grid
    assert [cell.env for cell in grid.cells] == [0, 1, 2, 3]
    assert shown.state == "connected by shared memory"
    pump(lambda: grid.text.startswith("4 environments   episode 1"), "the line below them")
    assert "frames/s" in grid.text


def test_a_hidden_tab_requests_no_frames(shown: Shown) -> None:
    shown.connect()
    shown.tab.hide()
    assert shown.tab.frames.lanes.is_suspended
    shown.frame(step=9)
    pump_ticks(IDLE_POLL_MS)
    assert shown.has_step(1)
    shown.tab.show()
    pump(lambda: shown.has_step(9), "the newest frame")


def test_a_click_enlarges_a_cell_arrows_step_and_escape_goes_back(shown: Shown) -> None:
    shown.connect()
    grid, env = shown.tab.frames.grid, find(shown.tab, "fastlane.env", QComboBox)
    assert env.currentText() == ""
    click(grid, grid.rects()[2].center())
    assert [cell.env for cell in grid.cells] == [2]
    assert env.currentText() == "Environment 2"
    assert find(shown.tab, "fastlane.single", QToolButton).isChecked()
    press(grid, Qt.Key.Key_Left)
    shown.frame(1, step=5)
    pump(lambda: [cell.env for cell in grid.cells] == [1], "the environment before it")
    assert env.currentText() == "Environment 1"
    press(grid, Qt.Key.Key_Escape)
    pump(lambda: len(grid.cells) == 4, "all of them")
    assert find(shown.tab, "fastlane.grid", QToolButton).isChecked()


def test_a_run_with_one_environment_needs_no_choice(
    qapp: QApplication, workspace: Workspace, settings_path: Path, run_dir: Path
) -> None:
    hand = HandLanes(run_dir, 1)
    with still_workbench(workspace, settings_path, StillTrainer(view_of(run_dir))) as workbench:
        one = Shown(workbench, hand)
        one.connect()
        assert not find(one.tab, "fastlane.grid").isVisible()
        assert not find(one.tab, "fastlane.env").isVisible()
        one.tab.close()
        one.tab.deleteLater()
        settle()
    hand.close()


def test_zoom_is_shown_and_can_be_reset_to_fit(shown: Shown) -> None:
    shown.connect()
    click(find(shown.tab, "fastlane.pixels"))
    assert find(shown.tab, "fastlane.zoom", QLabel).text() == "100 %"
    assert not find(shown.tab, "fastlane.fit", QToolButton).isChecked()
    click(find(shown.tab, "fastlane.fit"))
    assert find(shown.tab, "fastlane.fit", QToolButton).isChecked()
    assert find(shown.tab, "fastlane.zoom", QLabel).text() != "100 %"


def test_a_higher_frame_rate_can_be_requested(shown: Shown) -> None:
    shown.connect()
    budget = find(shown.tab, "fastlane.budget", QComboBox)
    budget.setCurrentIndex(2)
    budget.activated.emit(2)
    beat = Path(shown.hand.folder) / "env-0000.beat"
    pump(lambda: '"budget": 0.1' in beat.read_text(), "the wish")


def test_a_snapshot_holds_all_cells_in_their_own_size(shown: Shown, workspace: Workspace) -> None:
    shown.connect()
    click(find(shown.tab, "fastlane.snapshot"))
    dialog = find(shown.tab, "fastlane.place", QFileDialog)
    place = Path(dialog.selectedFiles()[0])
    assert place.parent == workspace.root / "exports" / RUN
    dialog.accept()
    pump(lambda: shown.said, "the message")
    assert shown.said == [f"good: Saved {place}"]
    saved = QImage(str(place))
    assert (saved.width() * saved.height()) == 4 * 60 * 40
    assert saved.pixelColor(5, 5) == QColor(*COLORS[0])


def test_a_video_is_recorded_and_saved_on_stop(shown: Shown, workspace: Workspace) -> None:
    av: Any = pytest.importorskip("av")
    shown.connect()
    click(find(shown.tab, "fastlane.record"))
    assert find(shown.tab, "fastlane.record", QToolButton).text() == "Stop"
    assert "0:00" in find(shown.tab, "fastlane.time", QLabel).text()
    shown.tab.hide()  # a film goes on behind another tab
    for step in range(2, 8):
        shown.frame(step=step)
        pump(functools.partial(shown.has_step, step), "the frame")
    shown.tab.show()
    click(find(shown.tab, "fastlane.record"))
    pump(lambda: shown.said, "the film")
    (film,) = (workspace.root / "exports" / RUN).glob("*.mp4")
    assert shown.said[0].startswith("good: Saved a video of")
    assert str(film) in shown.said[0]
    with av.open(str(film)) as container:
        frames = list(container.decode(video=0))
    assert len(frames) >= 6
    assert find(shown.tab, "fastlane.record", QToolButton).text() == "Record"
    assert not find(shown.tab, "fastlane.time").isVisible()


def test_closing_the_window_finishes_the_video(shown: Shown, workspace: Workspace) -> None:
    pytest.importorskip("av")
    shown.connect()
    click(find(shown.tab, "fastlane.record"))
    shown.workbench.closing.emit()
    shown.workbench.bridge.stop()
    assert list((workspace.root / "exports" / RUN).glob("*.mp4"))


def test_an_evaluation_shows_its_batches(shown: Shown) -> None:
    line = find(shown.tab, "fastlane.eval", QLabel)
    assert not line.isVisible()
    summary = {"batch": 3, "episodes": 50, "avg_return": 112.3, "min_return": 90.1, "max_return": 142.6}
    event = {"kind": "eval_summary_update", "at": 0.0, "seq": 1, "source": "journal", "summary": summary}
    shown.workbench.bridge.events_received.emit([decode_event({**event, "run_id": "another"})])
    assert not line.isVisible()
    shown.workbench.bridge.events_received.emit([decode_event({**event, "run_id": RUN})])
    assert line.isVisible()
    assert line.text() == "eval batch 3 | episodes=50 avg=112.3 min=90.1 max=142.6"


def test_torn_and_invalid_frames_are_counted_in_the_tooltip(shown: Shown) -> None:
    shown.connect()
    tip = find(shown.tab, "fastlane.state", QLabel).toolTip()
    assert "Torn frames that were not shown: 0" in tip
    assert "Invalid headers: 0" in tip


def test_a_run_without_frames_shows_why(shown: Shown) -> None:
    for lane in shown.hand.lanes:
        lane.mark_unavailable("this environment cannot be rendered")
    pump(lambda: shown.state.startswith("unavailable"), "the reason")
    assert shown.state == "unavailable: this environment cannot be rendered"
    assert shown.tab.frames.grid.message == "This environment cannot be rendered."
    assert not find(shown.tab, "fastlane.record").isEnabled()
    assert not find(shown.tab, "fastlane.snapshot").isEnabled()


def test_an_ended_run_offers_evaluation_and_a_resumed_one_is_watched(shown: Shown) -> None:
    over = view_of(shown.workbench.runs.all()[0].run_dir, stage="finished", outcome="succeeded", history=HISTORY)
    shown.workbench.runs.update([changed(over, checkpoint_step=4096)])
    assert find(shown.tab, "fastlane.over").isVisible()
    wanted: list[str] = []
    shown.workbench.page_requested.connect(wanted.append)
    click(find(shown.tab, "fastlane.next"))
    assert wanted == ["policy"]
    shown.workbench.runs.update([changed(over, stage="running", outcome=None)])
    assert not find(shown.tab, "fastlane.over").isVisible()
    shown.connect()


def test_the_overview_shows_the_frames_next_to_the_curve(shown: Shown) -> None:
    overview = OverviewTab(shown.workbench)
    overview.resize(1000, 500)
    overview.show_run(RUN)
    overview.show()
    frames = find(overview, "overview.frames", FramesView)
    assert frames.isVisible()
    shown.frame(step=5)
    pump(lambda: [cell.hud and cell.hud.step for cell in frames.lanes.cells] == [5, 5, 5, 5], "the frames")
    overview.hide()
    assert frames.lanes.is_suspended
    overview.deleteLater()
    settle()
