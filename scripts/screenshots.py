"""Save images of every page, tab and dialog of the workbench with real runs: `make screenshots`.

It trains a few small agents in a temporary workspace, opens the window and captures it in both themes and at
three sizes.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
    # The default screen of this platform is 800 × 800. The path is relative because a colon would end it.
    os.environ["QT_QPA_PLATFORM"] = "offscreen:configfile=" + os.path.relpath(
        Path(__file__).parents[1] / "tests" / "helpers" / "screen.json"
    )
os.environ.setdefault("QTWEBENGINE_DISABLE_SANDBOX", "1")
os.environ["WANDB_BASE_URL"] = "http://127.0.0.1:9"  # nothing listens there: the run stays offline

from PySide6.QtCore import QPoint
from PySide6.QtGui import QAction, QPainter
from PySide6.QtWidgets import (
    QApplication,
    QDialog,
    QMenu,
    QScrollArea,
    QTableView,
    QTabWidget,
    QToolButton,
    QWidget,
)
from screenshot_games import Games
from screenshot_runs import make_experiment, make_room, make_runs, make_sweep, queue_run
from tests.helpers.gui import close, find, pump, pump_for, settle

from mosaic.contracts.folder import Workspace
from mosaic.features.play.window_config import GameConfiguration
from mosaic.features.play.window_draft import ActorDraft, ControlMode, GameDraft
from mosaic.features.replay.window import ReplayView
from mosaic.features.replay.window_pair import ReplayPair
from mosaic.features.sweeps.window import SweepsPage
from mosaic.trainer.client.connect import connect, read_daemon_address
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window.app import Application
from mosaic.window.panels import PAGES, RUN_TABS
from mosaic.window.runs import runs_with_policy

ROOT = Path(__file__).parents[1]
THEMES = ("light", "dark")
SIZES = ("1024x700", "1366x768", "1920x1080")
SLOW_TABS = {"tensorboard": 4.0, "videos": 2.0, "fastlane": 2.0, "analytics": 1.5}
"""Seconds until the content is visible; other tabs are complete immediately."""
SLOW_PAGES = {"train": 3.0, "sweeps": 2.0}
NATIVE_DIALOG_ACTIONS = ("run.export", "run.folder", "run.open", "file.")
"""Actions that open native dialogs or other programs."""


class Scene(NamedTuple):
    name: str
    set_up: Callable[[], None]
    wait_s: float = 0.8


class ScreenshotTaker:
    def __init__(
        self, program: Application, trainer: TrainerClient, runs: dict[str, str], out: Path, only: str
    ) -> None:
        self.program, self.trainer, self.runs, self.out, self.only = program, trainer, runs, out, only
        self.count = 0
        assert program.workbench.status is not None
        self.status = program.workbench.status

    def capture_all(self, theme: str, size: str) -> None:
        width, height = map(int, size.split("x"))
        self.program.settings.put("theme", theme)
        self.program.workbench.apply_theme()
        self.program.window.resize(width, height)
        for scene in self.scenes():
            if self.only in scene.name:
                scene.set_up()
                if "tensorboard" in scene.name:
                    with suppress(AssertionError):  # a machine that is too slow gets a picture of the waiting
                        pump(self.is_tensorboard_visible, "TensorBoard's page", 60)
                pump_for(scene.wait_s)
                self.save_screenshot(f"{size}-{theme}-{scene.name}")
                self.close_dialogs()

    def is_tensorboard_visible(self) -> bool:
        page = self.program.window.findChild(QWidget, "tensorboard.page")
        return page is not None and page.isVisible()

    def scenes(self) -> Iterator[Scene]:
        window, workbench = self.program.window, self.program.workbench
        seeds = [self.runs[f"seed{seed}"] for seed in (1, 2, 3)]
        workbench.comparison_requested.emit(seeds)
        for page in PAGES:
            if page.id != "run":
                yield Scene(f"page-{page.id}", partial(window.show_page, page.id), SLOW_PAGES.get(page.id, 0.8))
        for row in RUN_TABS:
            for name in (
                ("cartpole", "running", "evaluation") if row.id != "tensorboard" else ("cartpole", "evaluation")
            ):
                view = workbench.runs.get(self.runs[name])
                if view is not None and row.is_available(view):
                    wait_s = SLOW_TABS.get(row.id, 0.8)
                    yield Scene(f"tab-{row.id}-{name}", partial(workbench.select, self.runs[name], row.id), wait_s)
        for name in ("played", "lake", "moon"):
            yield Scene(f"replay-{name}", partial(self.show_replay, name), 0.5)
        yield Scene("replay-compare", self.compare_replays, 0.5)
        for name in ("short", "stopped", "queued"):
            first = RUN_TABS[0].id
            yield Scene(f"tab-{first}-{name}", partial(workbench.select, self.runs[name], first))
        dialogs = [action.id for action in window.action_table if action.title.endswith("…")]
        for action_id in ("app.palette", "help.help", "help.shortcuts", "help.about", *dialogs):
            if not action_id.startswith(NATIVE_DIALOG_ACTIONS):
                yield Scene(f"dialog-{action_id}", partial(self.trigger_action, action_id))

        yield Scene("group", partial(workbench.group_requested.emit, "study"), 3.0)
        yield Scene("sweep", self.show_sweep, 1.0)
        yield Scene("sweep-trials", partial(self.show_sweep, is_end=True), 1.0)
        yield from self.many_scenes()
        yield from self.menu_scenes()
        yield from self.play_scenes()
        yield from self.game_scenes()
        yield from self.state_scenes()

    def many_scenes(self) -> Iterator[Scene]:
        """What several runs show: in the trash, evaluated together, and compared."""
        workbench = self.program.workbench
        trained = [view.run_id for view in runs_with_policy(workbench.runs.all()) if view.stage == "finished"]
        yield Scene("trash-chosen", self.choose_trash)
        yield Scene("trash-delete", self.delete_for_good)
        yield Scene("evaluate-several", partial(workbench.evaluation_requested.emit, trained[:6]))
        yield Scene("compare-unfinished", partial(self.compare, "stopped", "running", "cartpole"), 2.0)
        yield Scene("compare-many", partial(workbench.comparison_requested.emit, trained[:24]), 3.0)
        yield Scene("fastlane-more", self.ask_for_more_frames, 2.0)
        yield Scene("settings-end", self.show_last_settings)

    def menu_scenes(self) -> Iterator[Scene]:
        for action in self.program.window.menuBar().actions():
            yield Scene(f"menu-{action.text().lower()}", partial(self.open_menu, action))
        yield Scene("menu-presets", self.open_presets)
        yield Scene("menu-tuned", partial(self.open_presets, "Tuned settings"))

    def state_scenes(self) -> Iterator[Scene]:
        """States that a workspace without trouble does not show."""
        workbench, bridge = self.program.workbench, self.program.bridge
        folder = self.status.workspace
        full = self.status.model_copy(
            update={
                "full_disk": f"The disk of {folder} is full: 1,204,224 bytes are free, and 16,777,216 are needed to "
                "start a run. Runs that are active keep their results in memory until there is space. Free some, then "
                "try again."
            }
        )
        rebuilt = self.status.model_copy(
            update={
                "pid": 1,
                "rebuilt_index": "The index was damaged (database disk image is malformed) and moved aside: "
                f"{folder}/trainer/index.sqlite.damaged-1763280000. It was rebuilt from 10 run folders.",
            }
        )
        problem = (
            "journal.jsonl cannot be read (ValueError: line 1204: global_step is not an integer of at most 64 bits)"
        )
        warnings = (
            "num_envs * num_steps (512) does not divide total_timesteps: 20,480 steps are taken.",
            "wandb is not installed, so nothing is tracked: pip install 'mosaic-rl[wandb]'.",
        )
        everything = sorted(self.runs.values(), reverse=True)
        ended_runs = [view.run_id for view in workbench.runs.all() if view.stage == "finished"]
        undo = "6 runs: in the trash."
        yield Scene("state-queued", partial(self.change_view, "queued"))
        yield Scene("state-imported", partial(self.change_view, "imported"))
        yield Scene("state-trust", partial(self.trigger_action, "run.resubmit", "imported"), 2.0)
        yield Scene("state-problem", partial(self.change_view, "short", problem=problem))
        yield Scene("state-warnings", partial(self.change_view, "stopped", warnings=warnings))
        yield Scene("state-cancel", partial(self.trigger_action, "run.cancel", "running", everything))
        yield Scene("state-delete", partial(self.trigger_action, "run.delete", "cartpole", ended_runs))
        yield Scene("state-delete-one", partial(self.trigger_action, "run.delete", "cartpole"))
        yield Scene("state-undo", partial(workbench.offer_action, undo, "Undo", lambda: None))
        yield Scene("state-copied", partial(self.trigger_action, "run.copy_id", "cartpole"))
        yield Scene("state-index", partial(bridge.connected.emit, rebuilt))
        yield Scene("state-full-disk", partial(bridge.connected.emit, full), 0.0)
        yield Scene("state-lost", partial(bridge.connection_lost.emit, "The trainer does not answer."), 0.0)
        bridge.connected.emit(self.status)

    def play_scenes(self) -> Iterator[Scene]:
        """Configurations of play sessions: few settings, many, several agents, and an actor that cannot act."""
        policy = ActorDraft("policy", {"policy": self.runs["cartpole"]})
        model = ActorDraft("llm", {"llm": "llama3"})
        for name, draft in {
            "few": GameDraft("FrozenLake-v1", {"is_slippery": "false"}, keys={"left": "A"}),
            "reserve": GameDraft("CartPole-v1", mode=ControlMode.RESERVE, actor=policy),
            "atari": GameDraft("ALE/Pong-v5", {"full_action_space": "true", "frameskip": "0"}),
            "agents": GameDraft("pettingzoo/connect_four_v3"),
            "misfit": GameDraft("Pendulum-v1", mode=ControlMode.ACTOR, actor=model),
        }.items():
            for part, is_end in (("", False), ("-end", True)):
                yield Scene(f"configuration-{name}{part}", partial(self.configure_game, draft, is_end), 0.3)

    def game_scenes(self) -> Iterator[Scene]:
        make_room(self.trainer, self.runs["queued"])
        games = Games(self.program)
        for name, set_up in games.scenes():
            yield Scene(f"game-{name}", set_up)
        games.end()
        self.runs["queued"] = queue_run(self.trainer)

    def choose_trash(self) -> None:
        self.program.window.show_page("trash")
        table = find(self.program.window, "trash.runs", QTableView)
        pump(lambda: table.model().rowCount() > 1, "the trash")
        table.selectAll()

    def delete_for_good(self) -> None:
        self.choose_trash()
        find(self.program.window, "trash.delete", QToolButton).click()

    def compare(self, *names: str) -> None:
        self.program.workbench.comparison_requested.emit([self.runs[name] for name in names])

    def ask_for_more_frames(self) -> None:
        self.program.workbench.select(self.runs["running"], "fastlane")
        pump_for(1.0)
        more = find(self.program.window, "fastlane.more", QToolButton)
        if not more.isChecked():
            more.click()

    def show_last_settings(self) -> None:
        self.program.window.show_page("settings")
        area = find(self.program.window, "settings.scroll", QScrollArea)
        area.verticalScrollBar().setValue(area.verticalScrollBar().maximum())

    def open_menu(self, action: QAction) -> None:
        self.program.workbench.select(self.runs["cartpole"], "overview")
        bar = self.program.window.menuBar()
        menu = action.menu()
        assert isinstance(menu, QMenu)
        menu.popup(bar.mapToGlobal(bar.actionGeometry(action).bottomLeft()))

    def open_presets(self, submenu: str = "") -> None:
        self.program.window.show_page("train")
        button = find(self.program.window, "train.presets", QToolButton)
        menu = button.menu()
        assert menu is not None
        menu.aboutToShow.emit()  # its size depends on its content
        corner = button.mapToGlobal(button.rect().bottomRight())
        menu.popup(corner - QPoint(menu.sizeHint().width(), 0))
        for action in menu.actions():
            inside = action.menu()
            if isinstance(inside, QMenu) and action.text() == submenu:
                menu.setActiveAction(action)
                left = menu.mapToGlobal(menu.actionGeometry(action).topLeft())
                inside.popup(left - QPoint(inside.sizeHint().width(), 0))

    def show_sweep(self, is_end: bool = False) -> None:
        self.program.workbench.sweep_requested.emit("search")
        page: SweepsPage = pump(lambda: self.program.window.findChild(SweepsPage), "the page")
        pump(lambda: page.page.isVisible() and page.page.sweep == "search", "the sweep")
        area: QScrollArea = pump(lambda: page.findChild(QScrollArea, "sweep.scroll"), "its content")
        bar = area.verticalScrollBar()
        bar.setValue(bar.maximum() if is_end else 0)

    def configure_game(self, draft: GameDraft, is_end: bool) -> None:
        self.program.window.show_page("play")
        form: GameConfiguration = pump(lambda: self.program.window.findChild(GameConfiguration), "the configuration")
        form.configure(draft)
        pump(lambda: form.is_checked, "the worker's answer")
        pump_for(0.1)
        bar = find(form, "play.configuration", QScrollArea).verticalScrollBar()
        bar.setValue(bar.maximum() if is_end else 0)

    def show_replay(self, name: str) -> None:
        self.program.workbench.select(self.runs[name], "replay")
        view: ReplayView = pump(lambda: self.program.window.findChild(ReplayView, "replay.view"), "it")
        pump(lambda: view.player.run_id == self.runs[name] and view.player.step is not None, "its first step")
        view.transport.step_by(7)
        pump(lambda: not view.player.is_busy, "a step")

    def compare_replays(self) -> None:
        self.program.workbench.comparison_requested.emit([self.runs["played"], self.runs["moon"]])
        tables: QTabWidget = pump(lambda: self.program.window.findChild(QTabWidget, "compare.tables"), "the page")
        pair: ReplayPair = pump(lambda: self.program.window.findChild(ReplayPair), "the replays")
        tables.setCurrentWidget(pair)
        pump(lambda: all(side.screen.step is not None for side in pair.sides), "both replays")
        pair.transport.step_by(12)
        pump(lambda: not any(side.screen.is_busy for side in pair.sides), "a step")

    def change_view(self, name: str, **fields: Any) -> None:
        view = self.program.workbench.runs.get(self.runs[name])
        assert view is not None
        self.program.workbench.select(view.run_id, "overview")
        pump_for(0.5)
        self.program.workbench.runs.update([view.model_copy(update=fields)])

    def trigger_action(self, action_id: str, name: str = "cartpole", marks: Sequence[str] = ()) -> None:
        self.program.workbench.mark([])
        self.program.workbench.select(self.runs[name])
        self.program.workbench.mark(list(marks))
        pump_for(0.2)
        self.program.window.action(action_id).trigger()

    def open_dialogs(self) -> list[QWidget]:
        """The dialogs and menus in front of the window; a submenu comes after its menu."""
        found = [widget for widget in QApplication.topLevelWidgets() if isinstance(widget, QDialog | QMenu)]
        return sorted((widget for widget in found if widget.isVisible()), key=lambda widget: widget.x())

    def close_dialogs(self) -> None:
        while dialogs := self.open_dialogs():
            dialogs[-1].close()
            settle()

    def save_screenshot(self, name: str) -> None:
        window = self.program.window
        picture = window.grab()
        painter = QPainter(picture)
        for dialog in self.open_dialogs():
            painter.drawPixmap(window.mapFromGlobal(dialog.mapToGlobal(dialog.rect().topLeft())), dialog.grab())
        painter.end()
        picture.save(str(self.out / f"{name}.png"))
        self.count += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "screenshots")
    parser.add_argument("--themes", default=",".join(THEMES))
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--only", default="", help="only images whose name contains this, such as tab-fastlane")
    told = parser.parse_args()
    told.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through `finally`: the runs would go on for ever
    app = QApplication(sys.argv[:1])
    with tempfile.TemporaryDirectory(prefix="mosaic-pictures-") as place:
        workspace = Workspace(Path(place) / "var")
        with connect(workspace) as trainer:
            try:
                make_experiment(trainer)
                make_sweep(trainer, workspace)
                runs = make_runs(trainer)
                program = Application(app, workspace, Path(place) / "settings.ini")
                program.start()
                pump(lambda: program.workbench.status and len(program.workbench.runs) >= len(runs), "the runs")
                photographer = ScreenshotTaker(program, trainer, runs, told.out, told.only)
                for theme in told.themes.split(","):
                    for size in told.sizes.split(","):
                        photographer.capture_all(theme, size)
                close(program)
            finally:
                trainer.stop_daemon(cancel_runs=True)
                pump(lambda: read_daemon_address(workspace) is None, "the trainer to end", 60)
    print(f"{photographer.count} pictures in {told.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
