"""The TensorBoard tab: what it shows while, before and after there is one."""

from __future__ import annotations

import fnmatch
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QApplication, QLabel
from tests.helpers.gui import click, find, pump, settle
from tests.helpers.gui_frames import RUN, StillTrainer, changed, still_workbench, view_of

from mosaic.contracts.folder import Workspace
from mosaic.features.tracking.window_tensorboard import READY, STOPPED, TensorBoardTab, find_logdir
from mosaic.trainer.client.trainer_client import RunFile
from mosaic.window.workbench import Workbench

SERVES = """
import sys, time
print("TensorBoard 2 at http://127.0.0.1:4711/ (Press CTRL+C to quit)", file=sys.stderr, flush=True)
time.sleep(300)
"""
Make = Callable[..., TensorBoardTab]


@pytest.fixture
def trainer(tmp_path: Path) -> StillTrainer:
    (tmp_path / "run" / "tensorboard").mkdir(parents=True)
    return StillTrainer(view_of(tmp_path / "run"))


@pytest.fixture
def workbench(
    qapp: QApplication, workspace: Workspace, settings_path: Path, trainer: StillTrainer
) -> Iterator[Workbench]:
    with still_workbench(workspace, settings_path, trainer) as made:
        yield made


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What would have been opened in the user's browser."""
    urls: list[str] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: urls.append(QUrl(url).toString()))
    return urls


@pytest.fixture
def make(workbench: Workbench) -> Iterator[Make]:
    """Makes the tab with a TensorBoard that only says that it serves, and no page: WebEngine has a test of its own."""
    made: list[TensorBoardTab] = []

    def command(logdir: Path, name: str) -> list[str]:
        assert logdir.name == "tensorboard"
        assert "CartPole-v1" in name
        return [sys.executable, "-c", SERVES]

    def tab(**changes: Any) -> TensorBoardTab:
        facts: dict[str, Any] = {"is_installed": lambda: True, "has_web": lambda: False, **changes}
        new = TensorBoardTab(workbench, command, **facts)
        new.resize(800, 500)
        new.show_run(RUN)
        new.show()
        made.append(new)
        return new

    yield tab
    for new in made:
        new.close()
        new.board.close()
        new._stop_timer.stop()
        new.deleteLater()
    settle()


def hint(tab: TensorBoardTab) -> str:
    return find(tab, "tensorboard.hint", QLabel).text()


def test_each_kind_of_run_has_its_folder(tmp_path: Path) -> None:
    """R7.6: tabs of a run."""
    view = view_of(tmp_path)
    assert find_logdir(view, {}) == tmp_path / "tensorboard"
    assert find_logdir(changed(view, kind="policy_eval"), {}) == tmp_path / "tensorboard_eval"
    told = {"artifacts": {"tensorboard": {"directory": "curves"}}}
    assert find_logdir(view, told) == tmp_path / "curves"


def test_without_tensorboard_a_hint_links_to_the_analytics_tab(make: Make, workbench: Workbench) -> None:
    """F23: it is not installed."""
    tab = make(is_installed=lambda: False)
    assert "pip install 'mosaic-rl[tensorboard]'" in hint(tab)
    wanted: list[str] = []
    workbench.tab_requested.connect(wanted.append)
    click(find(tab, "tensorboard.analytics"))
    assert wanted == ["analytics"]
    assert tab.board.state == STOPPED


def test_without_webengine_it_opens_in_the_browser(make: Make, opened: list[str]) -> None:
    tab = make()
    pump(lambda: "pip install 'mosaic-rl[gui]'" in hint(tab), "the hint")
    assert tab.board.state == STOPPED
    click(find(tab, "tensorboard.browser"))
    pump(lambda: opened, "the browser")
    assert opened == ["http://127.0.0.1:4711/"]
    assert find(tab, "tensorboard.state", QLabel).text() == "ready at http://127.0.0.1:4711/"


class FarFiles:
    """The files of a trainer on another machine; what was read of them is recorded."""

    def __init__(self, content: dict[str, bytes]) -> None:
        self.content = content
        self.read: list[tuple[str, int]] = []

    def files(self, run: str, pattern: str = "*") -> list[RunFile]:
        named = {name: data for name, data in self.content.items() if fnmatch.fnmatch(name, pattern)}
        return [RunFile(name, len(data), float(len(data))) for name, data in named.items()]

    def read_file(self, run: str, name: str, offset: int = 0) -> Iterator[bytes]:
        self.read.append((name, offset))
        yield self.content[name][offset:]


def test_event_files_of_a_remote_trainer_are_copied_and_brought_up_to_date(
    make: Make, workbench: Workbench, trainer: StillTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R7.6: also for a trainer on another machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    far = FarFiles({"tensorboard/events.1": b"abc", "logs/other": b"x"})
    monkeypatch.setattr(trainer, "files", far.files, raising=False)
    monkeypatch.setattr(trainer, "read_file", far.read_file, raising=False)
    workbench.is_remote = True
    tab = make()
    copy = tmp_path / "cache" / "mosaic" / "files" / RUN / "tensorboard" / "events.1"
    pump(lambda: find(tab, "tensorboard.browser").isEnabled(), "the folder")
    assert copy.read_bytes() == b"abc"
    far.content["tensorboard/events.1"] += b"defg"
    far.content["tensorboard/events.2"] = b"new"
    trainer.views[0] = changed(trainer.views[0], stage="finished", outcome="succeeded")
    workbench.runs.update(trainer.views)
    tab._copy_timer.timeout.emit()
    pump(lambda: tab._is_complete, "the rest")
    assert copy.read_bytes() == b"abcdefg"
    assert far.read == [("tensorboard/events.1", 0), ("tensorboard/events.1", 3), ("tensorboard/events.2", 0)]


def test_event_files_of_a_remote_trainer_that_are_too_large_are_not_copied(
    make: Make, workbench: Workbench, trainer: StillTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "files", lambda *_: [RunFile("tensorboard/events.1", 300_000_000, 0.0)], raising=False)
    workbench.is_remote = True
    tab = make()
    pump(lambda: "300 MB" in hint(tab), "the hint")
    assert "tensorboard --logdir trainer/runs/" in hint(tab)
    assert tab.board.state == STOPPED


def test_a_run_without_output_shows_a_message(make: Make, workbench: Workbench, trainer: StillTrainer) -> None:
    trainer.views[0] = changed(trainer.views[0], stage="finished", outcome="succeeded", started_at=1.0)
    workbench.runs.update(trainer.views)
    tab = make()
    pump(lambda: "wrote no TensorBoard files" in hint(tab), "the hint")


def test_tensorboard_starts_when_a_queued_run_does(make: Make, workbench: Workbench, trainer: StillTrainer) -> None:
    queued = changed(trainer.views[0], stage="queued", started_at=None)
    workbench.runs.update([queued])
    tab = make()
    assert hint(tab).startswith("The run is queued.")
    workbench.runs.update([changed(queued, stage="running", started_at=1.0)])
    pump(lambda: "cannot be shown inside the window" in hint(tab), "TensorBoard's folder")


def test_a_tensorboard_that_was_killed_can_be_restarted(make: Make, opened: list[str]) -> None:
    """F23: the tab says what happened."""
    tab = make()
    pump(lambda: find(tab, "tensorboard.browser").isEnabled(), "the folder")
    click(find(tab, "tensorboard.browser"))
    pump(lambda: tab.board.state == READY, "TensorBoard")
    os.killpg(tab.board.pid, signal.SIGKILL)
    pump(lambda: "ended unexpectedly" in hint(tab), "the hint")
    click(find(tab, "tensorboard.restart"))
    pump(lambda: tab.board.state == READY, "the second one")


def test_it_stops_when_the_run_is_left_or_the_window_closes(
    make: Make, workbench: Workbench, opened: list[str]
) -> None:
    tab = make()
    pump(lambda: find(tab, "tensorboard.browser").isEnabled(), "the folder")
    click(find(tab, "tensorboard.browser"))
    pump(lambda: tab.board.state == READY, "TensorBoard")
    tab.show_run("another")
    assert tab.board.state == STOPPED
    tab.show_run(RUN)
    pump(lambda: find(tab, "tensorboard.browser").isEnabled(), "the folder")
    click(find(tab, "tensorboard.browser"))
    pump(lambda: tab.board.state == READY, "TensorBoard again")
    workbench.closing.emit()
    assert tab.board.state == STOPPED


def test_it_keeps_running_for_a_while_in_a_hidden_tab(
    make: Make, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tab = make()
    pump(lambda: find(tab, "tensorboard.browser").isEnabled(), "the folder")
    click(find(tab, "tensorboard.browser"))
    pump(lambda: tab.board.state == READY, "TensorBoard")
    tab.hide()
    assert tab.board.state == READY
    tab.show()
    assert tab.board.state == READY
    tab._stop_timer.setInterval(1)
    tab.hide()
    pump(lambda: tab.board.state == STOPPED, "its end")
