"""The FastLane tab: looks while it is seen, enlarges a cell, keeps pictures and films, tells of evaluations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QComboBox, QFileDialog, QLabel, QListWidget, QScrollArea, QToolButton
from tests.helpers.gui import click, find, press, pump, pump_ticks, settle
from tests.helpers.gui_frames import RUN, HandLanes, StillTrainer, changed, plain, still_workbench, view_of

from mosaic.base.fastlane.requests import FrameRequest, decode_request
from mosaic.contracts.events import decode_event
from mosaic.contracts.folder import Workspace
from mosaic.features.runs.window_page import OverviewTab
from mosaic.features.runs.window_videos import VideoPlayer, VideosTab
from mosaic.features.watch.window import FastLaneTab
from mosaic.window.frames import IDLE_POLL_MS, POLL_MS, FramesView
from mosaic.window.workbench import Workbench

COLORS = [(40 * index, 255 - 40 * index, 100) for index in range(4)]

HISTORY = [{"at": 1.0, "stage": "queued", "message": "It waits."}]


class Shown:
    trainer: StillTrainer

    def __init__(self, workbench: Workbench, hand: HandLanes) -> None:
        self.workbench = workbench
        self.hand = hand
        self.said: list[str] = []
        self.actions: list[Callable[[], None]] = []
        workbench.message_posted.connect(lambda text, kind: self.said.append(f"{kind}: {text}"))
        workbench.action_offered.connect(self._on_action)
        self.tab = FastLaneTab(workbench)
        self.tab.resize(1000, 500)
        self.tab.show_run(RUN)
        self.tab.show()

    def _on_action(self, text: str, title: str, action: Callable[[], None]) -> None:
        self.said.append(f"{title}: {text}")
        self.actions.append(action)

    def frame(self, *envs: int, step: int = 1) -> None:
        for env in envs or range(len(self.hand.lanes)):
            self.hand.publish(env, plain(COLORS[env], channels=4), step=step)

    def request(self, env: int) -> FrameRequest:
        return decode_request((Path(self.hand.folder) / f"env-{env:04d}.beat").read_bytes() or b"{}")[0]

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
    trainer = StillTrainer(view_of(run_dir))
    with still_workbench(workspace, settings_path, trainer) as workbench:
        made = Shown(workbench, hand)
        made.trainer = trainer
        yield made
        made.tab.close()
        made.tab.deleteLater()
        settle()
    made.hand.close()


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
    assert shown.tab.frames._timer.interval() == POLL_MS


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


def test_the_tab_asks_for_fluent_frames_and_more_can_be_had_and_given_back(shown: Shown) -> None:
    def asked() -> tuple[float | None, ...]:
        return shown.request(0)[:3]

    shown.connect()
    pump(lambda: asked() == (15.0, 0.05, 0.25), "the request of a grid of four")
    click(find(shown.tab, "fastlane.more"))
    pump(lambda: asked()[1] == 0.25, "more of the run's time")
    click(find(shown.tab, "fastlane.more"))
    pump(lambda: asked()[1] == 0.05, "less again")
    shown.tab.frames.show_env(0)
    pump(lambda: asked() == (30.0, 0.05, 1.0), "the request for one")


def test_the_cell_under_the_mouse_gets_more_frames_than_the_others(shown: Shown) -> None:
    shown.connect()
    grid = shown.tab.frames.grid
    QTest.mouseMove(grid, grid.rects()[2].center())
    pump(lambda: shown.request(2).rate_hz == 30.0, "its request")
    pump(lambda: shown.request(1).rate_hz == 10.0, "those of the others")


def test_a_minimized_window_requests_no_frames(shown: Shown) -> None:
    shown.connect()
    shown.tab.setWindowState(Qt.WindowState.WindowMinimized)
    pump(lambda: shown.tab.frames.lanes.is_suspended, "the end of reading")
    shown.tab.setWindowState(Qt.WindowState.WindowNoState)
    pump(lambda: not shown.tab.frames.lanes.is_suspended, "the frames again")


def test_the_last_frame_stays_between_the_batches_of_an_evaluation(shown: Shown) -> None:
    shown.trainer.views = [changed(shown.trainer.views[0], kind="policy_eval")]
    shown.workbench.runs.update(shown.trainer.views)
    shown.connect()
    grid = shown.tab.frames.grid
    shown.hand.close()
    pump(lambda: grid.text == "Between batches.", "the pause")
    assert [cell.image is not None for cell in grid.cells] == [True] * 4
    shown.hand = HandLanes(shown.trainer.views[0].run_dir, 4)
    shown.tab.frames.lanes.suspend()
    pump(lambda: not shown.tab.frames.lanes.is_suspended, "lanes without a frame")
    assert [cell.image is not None for cell in grid.cells] == [True] * 4
    shown.frame(step=7)
    pump(lambda: shown.has_step(7) and len(grid.cells) == 4, "the next batch")


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
    pump(lambda: shown.actions, "the film")
    assert shown.said.pop(0) == "info: The video is being written…"
    (film,) = (workspace.root / "exports" / RUN).glob("*.mp4")
    assert shown.said[0].startswith("Show: Saved a video of")
    with av.open(str(film)) as container:
        frames = list(container.decode(video=0))
    assert len(frames) >= 6
    assert find(shown.tab, "fastlane.record", QToolButton).text() == "Record"
    assert not find(shown.tab, "fastlane.time").isVisible()


def test_a_recording_is_in_the_videos_tab_while_it_is_written_and_shown_afterwards(shown: Shown) -> None:
    pytest.importorskip("av")
    shown.connect()
    videos = VideosTab(shown.workbench)
    videos.show_run(RUN)
    videos.show()
    listed = find(videos, "videos.list", QListWidget)
    click(find(shown.tab, "fastlane.record"))
    assert [listed.item(at).text().splitlines()[1] for at in range(listed.count())] == ["being recorded"]
    shown.tab.stop_recording()
    assert "being written" in listed.item(0).text()
    pump(lambda: shown.actions, "the film")
    shown.actions[0]()
    videos.show_run(RUN)
    pump(lambda: "recorded in the window" in listed.item(0).text(), "the complete film")
    assert listed.currentRow() == 0
    player = find(videos, "videos.player", VideoPlayer)
    pump(lambda: player.canvas.has_image, "its first frame")
    player.show_video(None)
    videos.close()
    videos.deleteLater()
    settle()


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


def test_the_history_is_scrolled_to_its_newest_line(shown: Shown) -> None:
    overview = OverviewTab(shown.workbench)
    overview.resize(1000, 500)
    overview.show_run(RUN)
    overview.show()
    (bar,) = [
        area.verticalScrollBar() for area in overview.findChildren(QScrollArea) if area.widget() is overview._history
    ]
    for count in (30, 31):
        history = [{"at": float(at), "stage": "running", "message": f"Line {at}."} for at in range(count)]
        before = bar.maximum()
        shown.trainer.views = [changed(shown.trainer.views[0], history=history)]
        shown.workbench.runs.update(shown.trainer.views)
        pump(lambda before=before: bar.maximum() > before, "the lines")  # type: ignore[misc]
        assert bar.value() == bar.maximum()
    overview.close()
    overview.deleteLater()
    settle()
