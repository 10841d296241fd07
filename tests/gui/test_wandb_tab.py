"""The W&B tab: when it appears, what it shows, its Sync button, and its proxy."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtNetwork import QNetworkProxy
from PySide6.QtWidgets import QApplication, QLabel, QProgressBar, QPushButton, QTabWidget, QWidget
from tests.helpers.gui import click, find, pump, settle
from tests.helpers.gui_frames import RUN, StillTrainer, changed, still_workbench, view_of

from mosaic.contracts.events import Event
from mosaic.contracts.folder import Workspace
from mosaic.contracts.views import RunView, WandbStatus
from mosaic.features.runs.window_page import RunPage
from mosaic.features.tracking import window as wandb_panel
from mosaic.features.tracking.window import WandbTab
from mosaic.window.panels import RUN_TABS
from mosaic.window.specs import RunTab
from mosaic.window.web import AppProxy, parse_proxy
from mosaic.window.workbench import Workbench

Json = dict[str, Any]
Make = Callable[..., WandbTab]
PRINT_LINES = """
import json, sys
asked = json.load(sys.stdin)
for line in json.loads(sys.argv[1]):
    print(json.dumps({**line, "asked": asked}), flush=True)
"""
HANGS = "import json, sys, time; json.load(sys.stdin); time.sleep(300)"


def create_state(value: str, **fields: Any) -> Json:
    folder = {"state": value, "size_bytes": 3_400_000, "sent_bytes": 0, "records": 120, "error": None, "url": None}
    plain = {"run_id": RUN, "state": value, "url": None, "error": None, "project": "p", "entity": None}
    return {**plain, "runs": {"offline-run-1": folder}, **fields}


def decode(state: Json) -> WandbStatus:
    return WandbStatus.model_validate({"stage": "finished", **state})


class Trainer(StillTrainer):
    def __init__(self, *views: RunView) -> None:
        super().__init__(*views)
        self.states = [create_state("offline")]

    def read_wandb(self, run: str = "") -> Iterator[WandbStatus]:
        yield from map(decode, self.states)

    def get_run(self, run: str) -> RunView:
        return self.views[0]


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(view_of(tmp_path / "run", stage="finished", outcome="succeeded", has_wandb=True))


@pytest.fixture
def workbench(qapp: QApplication, workspace: Workspace, settings_path: Path, trainer: Trainer) -> Iterator[Workbench]:
    with still_workbench(workspace, settings_path, trainer) as made:
        yield made


@pytest.fixture
def make(workbench: Workbench) -> Iterator[Make]:
    made: list[WandbTab] = []

    def tab(*lines: Json, script: str = PRINT_LINES, has_web: bool = False) -> WandbTab:
        command = [sys.executable, "-c", script, json.dumps(lines)]
        new = WandbTab(workbench, lambda: command, lambda: has_web)
        new.resize(800, 400)
        new.show_run(RUN)
        new.show()
        made.append(new)
        return new

    yield tab
    for new in made:
        new.close()
        new._on_closing()
        new.deleteLater()
    settle()


def text(tab: WandbTab, name: str) -> str:
    return find(tab, f"wandb.{name}", QLabel).text()


def wait_for_state(tab: WandbTab, words: str) -> None:
    pump(lambda: words in text(tab, "state"), f"the state {words!r}")


def test_the_tab_appears_by_itself_when_wandb_has_written_something(workbench: Workbench, tmp_path: Path) -> None:
    """R4.7: the W&B view appears by itself."""

    class Plain(QWidget):
        def show_run(self, run_id: str) -> None:
            """Nothing to show."""

    wandb_row = next(row for row in RUN_TABS if row.id == "wandb")
    page = RunPage(workbench, (RunTab("plain", "Plain", lambda _: Plain()), wandb_row))
    bar = find(page, "run.tabs", QTabWidget)

    def titles() -> list[str]:
        return [bar.tabText(index).replace("&&", "&") for index in range(bar.count())]

    workbench.runs.update([view_of(tmp_path / "run", run_id="01OTHER", has_wandb=False)])
    workbench.select("01OTHER")
    assert titles() == ["Plain"]
    workbench.runs.update([view_of(tmp_path / "run", run_id="01OTHER", has_wandb=True)])
    assert (titles(), bar.currentIndex()) == (["Plain", "W&B"], 0)
    page.deleteLater()


def test_an_offline_run_shows_how_much_is_not_uploaded(make: Make) -> None:
    tab = make()
    wait_for_state(tab, "offline · 120 records · 3.4 MB")
    assert "Sync uploads it" in text(tab, "sentence")
    assert find(tab, "wandb.error", QLabel).isHidden()
    assert find(tab, "wandb.browser", QPushButton).isHidden()
    assert find(tab, "wandb.sync", QPushButton).isEnabled()


def test_the_error_of_a_failure_is_shown(make: Make, trainer: Trainer) -> None:
    trainer.states = [create_state("failed", error="W&B cannot be reached (connection refused).")]
    tab = make()
    wait_for_state(tab, "failed")
    assert text(tab, "error") == "W&B cannot be reached (connection refused)."


def test_an_active_run_uploads_by_itself(make: Make, workbench: Workbench, tmp_path: Path) -> None:
    workbench.runs.update([view_of(tmp_path / "run", run_id="01GOES0N", has_wandb=True)])
    tab = make()
    tab.show_run("01GOES0N")
    wait_for_state(tab, "offline")
    assert not find(tab, "wandb.sync", QPushButton).isEnabled()
    assert "when W&B can be reached" in text(tab, "sentence")


def test_sync_uploads_in_a_process_and_shows_the_result(make: Make, workbench: Workbench, trainer: Trainer) -> None:
    messages: list[tuple[str, str]] = []
    workbench.message_posted.connect(lambda text, kind: messages.append((text, kind)))
    synced = create_state("synced", url="http://127.0.0.1:1/run")
    heard: list[Json] = []
    tab = make(create_state("syncing"), {**synced, "is_last": True, "problems": ["An odd line in .env."]})
    tab.upload_process.message_received.connect(lambda line: heard.append(dict(line)))
    wait_for_state(tab, "offline")
    trainer.states = [synced]
    click(find(tab, "wandb.sync"))
    assert not find(tab, "wandb.progress", QProgressBar).isHidden()
    assert not find(tab, "wandb.sync", QPushButton).isEnabled()
    wait_for_state(tab, "synced")
    pump(lambda: not tab.upload_process.is_running, "its end")
    assert [line["asked"] for line in heard] == [[trainer.views[0].run_dir]] * 2
    assert messages == [("An odd line in .env.", "warning"), ("The run is synced with W&B.", "good")]
    assert find(tab, "wandb.sync", QPushButton).isHidden()
    assert find(tab, "wandb.progress", QProgressBar).isHidden()
    assert not find(tab, "wandb.browser", QPushButton).isHidden()


def test_an_upload_that_ends_unexpectedly_is_reported(make: Make) -> None:
    tab = make(script="import sys; sys.exit(3)")
    wait_for_state(tab, "offline")
    click(find(tab, "wandb.sync"))
    pump(lambda: "ended unexpectedly" in text(tab, "error"), "the failure")
    assert "exit code 3" in text(tab, "error")
    assert find(tab, "wandb.sync", QPushButton).isEnabled()


def test_an_upload_ends_with_the_window(make: Make, workbench: Workbench) -> None:
    tab = make(script=HANGS)  # the leak check of all tests looks for its process
    wait_for_state(tab, "offline")
    click(find(tab, "wandb.sync"))
    assert tab.upload_process.is_running
    workbench.closing.emit()
    assert not tab.upload_process.is_running


def test_the_address_opens_in_the_browser(make: Make, trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: opened.append(QUrl(url).toString()))
    trainer.states = [create_state("online", url="http://127.0.0.1:1/run")]
    tab = make()
    wait_for_state(tab, "online")
    click(find(tab, "wandb.browser"))
    assert opened == ["http://127.0.0.1:1/run"]


def test_a_remote_run_is_synced_on_its_own_machine(make: Make, workbench: Workbench) -> None:
    workbench.is_remote = True
    tab = make()
    wait_for_state(tab, "offline")
    assert not find(tab, "wandb.sync", QPushButton).isEnabled()
    assert f"mosaic wandb sync {RUN}" in text(tab, "sentence")


def test_an_unusable_proxy_is_reported(make: Make, trainer: Trainer) -> None:
    trainer.payload = {"artifacts": {"wandb": {"use_vpn_proxy": True, "http_proxy": "ftp://me:hunter2@x"}}}
    tab = make()
    pump(lambda: "is not a valid address" in text(tab, "error"), "the problem")
    assert "hunter2" not in text(tab, "error")


def test_details_of_a_run_without_records() -> None:
    assert wandb_panel.format_headline(None) == "nothing yet"
    state = create_state("online", project=None)
    state["runs"]["offline-run-1"] |= {"records": None, "size_bytes": 12}
    assert wandb_panel.format_headline(decode(state)) == "online · 12 bytes"
    assert [row[0] for row in wandb_panel.detail_rows(decode(state))] == ["Folder"]


def test_the_application_proxy_is_set_and_restored(qapp: QApplication) -> None:
    before = QNetworkProxy.applicationProxy()
    way = AppProxy()
    way.use(None)
    way.use("http://me:s%40fe@proxy.invalid:3128")
    now = QNetworkProxy.applicationProxy()
    assert (now.hostName(), now.port(), now.user(), now.password()) == ("proxy.invalid", 3128, "me", "s@fe")
    way.use("socks5://other.invalid")
    assert QNetworkProxy.applicationProxy().port() == 1080
    way.use(None)
    assert QNetworkProxy.applicationProxy() == before
    assert parse_proxy("http://a").port() == 80


def test_a_finished_run_is_refreshed_when_its_sidecar_writes_an_event(workbench: Workbench, trainer: Trainer) -> None:
    workbench.runs.update([changed(trainer.views[0], has_wandb=False)])
    workbench.bridge.events_received.emit([Event(seq=1, at=1.0, kind="tracking_started", run_id=RUN, source="sidecar")])
    pump(lambda: workbench.runs.get_or_placeholder(RUN).has_wandb, "the run to be asked for again")
