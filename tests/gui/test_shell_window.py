"""The window: drawn first, filled later, remembered always."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QLabel, QMenu, QMessageBox, QTextBrowser, QToolButton
from tests.helpers.daemons import LiveDaemon, ended, scripted
from tests.helpers.gui import click, find, has, press, pump, settle
from tests.helpers.gui_runs import FakeTrainer, start_with

from mosaic.contracts.folder import Workspace
from mosaic.trainer.client.connect import read_daemon_address
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window.app import Application


def test_the_window_is_drawn_without_a_trainer(program: Application) -> None:
    program.window.show()
    pump(program.window.isVisible, "the window")
    assert find(program.window, "trainer", QToolButton).text() == "trainer: connecting…"


def test_the_status_bar_shows_the_trainer_and_links_to_its_page(daemon: LiveDaemon, program: Application) -> None:
    program.start()
    corner = find(program.window, "trainer", QToolButton)
    pump(lambda: "0/4 busy" in corner.text(), "the corner to tell of the trainer")
    click(corner)
    assert program.window.current_page == "trainer"
    pump(lambda: find(program.window, "trainer.state", QLabel).text() == "connected", "the trainer's page")


def test_an_empty_workspace_opens_the_welcome_page(daemon: LiveDaemon, program: Application) -> None:
    program.settings.put_for_workspace("page", "run")
    program.start()
    pump(lambda: program.workbench.status, "the trainer")
    pump(lambda: program.window.current_page == "welcome", "the welcome")


def test_a_workspace_with_runs_opens_with_the_newest(
    daemon: LiveDaemon, trainer: TrainerClient, program: Application
) -> None:
    run_id = trainer.submit(scripted()).run_id
    ended(trainer, run_id)
    program.start()
    pump(lambda: program.window.current_page == "run", "the run's page")
    assert program.workbench.selection == run_id


def test_the_run_that_was_named_is_shown(daemon: LiveDaemon, trainer: TrainerClient, program: Application) -> None:
    first, second = (trainer.submit(scripted()).run_id for _ in range(2))
    for run_id in (first, second):
        ended(trainer, run_id)
    program.start(first)
    pump(
        lambda: program.workbench.selection == first and program.window.current_page == "run", "the run that was named"
    )
    program.workbench.select(second)
    pump(lambda: program.workbench.selection == second, "another choice to stay")


@pytest.mark.usefixtures("daemon")
def test_a_new_window_restores_the_state_of_the_last_one(
    trainer: TrainerClient, make_program: Callable[[], Application]
) -> None:
    """R7.8: settings, keys, layout."""
    run_id = trainer.submit(scripted()).run_id
    ended(trainer, run_id)
    first = make_program()
    first.start()
    pump(lambda: first.workbench.selection == run_id, "the run")
    first.window.resize(1200, 700)
    first.window.show_page("settings")
    first.window.save_layout()
    second = make_program()
    second.start()
    assert (second.window.width(), second.window.height()) == (1200, 700)
    pump(lambda: len(second.workbench.runs) == 1, "the runs")
    assert second.window.current_page == "settings"
    assert second.workbench.selection == run_id


def test_changed_settings_are_saved_periodically(program: Application, settings_path: Path) -> None:
    """So that a window that is killed loses nothing: nobody calls anything here."""
    program.window._save_layout_timer.setInterval(20)
    program.window.start_saving_layout()
    program.window.resize(1111, 666)
    program.workbench.select("some-run")
    pump(
        lambda: settings_path.exists() and "some-run" in settings_path.read_text(encoding="utf-8"),
        "the settings to be written",
    )


def test_a_lost_trainer_shows_a_banner_until_it_is_back(program: Application) -> None:
    program.start()
    pump(lambda: program.workbench.status, "the trainer")
    assert not program.window.banner.isVisible()
    assert program.workbench.status is not None
    os.kill(program.workbench.status.pid, signal.SIGKILL)
    pump(program.window.banner.isVisible, "the banner")
    assert "reconnecting" in program.window.banner.label.text()
    pump(lambda: program.workbench.status and not program.window.banner.isVisible(), "another trainer", 30)


def test_a_drained_trainer_is_started_again_only_on_demand(workspace: Workspace, program: Application) -> None:
    program.start()
    pump(lambda: program.workbench.status, "the trainer")
    program.window.show_page("trainer")
    click(find(program.window, "trainer.drain"))
    box = find(program.window, "trainer.drain.question", QMessageBox)
    click(next(button for button in box.buttons() if button.text() == "Drain"))
    pump(lambda: not program.workbench.status, "the trainer to end")
    pump(lambda: "drained" in program.window.banner.label.text(), "the banner to say so")
    pump(lambda: read_daemon_address(workspace) is None, "its process to end")
    wake = find(program.window, "trainer.wake")
    pump(wake.isVisible, "the way back")
    click(wake)
    pump(lambda: program.workbench.status and not program.window.banner.isVisible(), "another trainer", 30)


def test_every_page_has_a_shortcut(program: Application) -> None:
    program.window.show()
    listed = [row.id for row in program.window.action_table if row.id.startswith("go.")]
    assert listed
    for action_id in reversed(listed):
        program.window.action(action_id).trigger()
        assert program.window.current_page == action_id.removeprefix("go.")


def test_shortcuts_and_action_names_are_unique(program: Application) -> None:
    rows = program.window.action_table
    assert len({row.id for row in rows}) == len(rows)
    keys = [program.window.action(row.id).shortcut().toString() for row in rows]
    keys = [key for key in keys if key]
    assert len(set(keys)) == len(keys)


def test_every_action_is_in_a_menu_with_its_shortcut(program: Application) -> None:
    for row in program.window.action_table:
        action = program.window.action(row.id)
        assert action.associatedObjects(), row.id
        if row.shortcut:
            assert action.shortcut().toString() in action.toolTip()


def test_the_dialogs_of_the_help_menu_open_and_close(program: Application) -> None:
    program.window.show()
    for name in ("help", "shortcuts", "about"):
        program.window.action(f"help.{name}").trigger()
        dialog = find(program.window, name)
        assert dialog.isVisible()
        press(dialog, Qt.Key.Key_Escape)
        settle()
        assert not has(program.window, name)


def test_help_is_about_what_is_in_focus(program: Application) -> None:
    program.window.show()
    program.window.show_page("settings")
    theme = find(program.window, "settings.theme")
    theme.setWhatsThis("Light, dark, or as the system has it.")
    theme.setFocus()
    pump(theme.hasFocus, "the focus")
    program.window.action("help.help").trigger()
    text = find(program.window, "help.text", QTextBrowser)
    assert "as the system has it" in text.toPlainText()


def test_the_run_menu_is_grouped(program: Application) -> None:
    menu = find(program.window, "menu.run", QMenu)
    groups: list[list[str]] = [[]]
    for action in menu.actions():
        if action.isSeparator():
            groups.append([])
        else:
            groups[-1].append(action.objectName() or action.text())
    assert [group[0] for group in groups] == [
        "agent.configure",
        "run.cancel",
        "run.resubmit",
        "run.rename",
        "run.folder",
    ]
    assert groups[-1][-1] == "Export"
    exports = [action.objectName() for action in find(program.window, "menu.export", QMenu).actions()]
    assert exports == ["run.export_csv", "run.export_episodes"]
    files = [action.objectName() for action in find(program.window, "menu.file", QMenu).actions()]
    assert [name for name in files if name][::3] == ["file.import", "file.workspace", "app.quit"]


def test_the_window_reacts_while_a_call_waits(program: Application) -> None:
    """R7.9: calls wait in other threads, while the event loop continues."""
    replied, ticked = threading.Event(), threading.Event()
    answers: list[bool] = []
    program.bridge.start()
    program.bridge.run_in_background(lambda: replied.wait(30), answers.append)
    QTimer.singleShot(0, program.window, ticked.set)
    pump(ticked.is_set, "the event loop")
    assert answers == []
    replied.set()
    pump(lambda: answers, "the answer")
    assert answers == [True]


def test_the_bar_is_short_in_a_narrow_window(program: Application) -> None:
    start_with(program, FakeTrainer([]))
    search, trainer = find(program.window, "nav.palette", QToolButton), find(program.window, "trainer", QToolButton)
    program.window.resize(1920, 1080)
    pump(lambda: "queue" in trainer.text(), "the state of the trainer in full")
    assert search.toolButtonStyle() is Qt.ToolButtonStyle.ToolButtonTextBesideIcon
    program.window.resize(1024, 700)
    pump(lambda: trainer.text() == "0/2 busy", "the short state")
    assert search.toolButtonStyle() is Qt.ToolButtonStyle.ToolButtonIconOnly
    bar = find(program.window, "bar")
    assert trainer.isVisible()
    assert trainer.mapTo(bar, trainer.rect().topRight()).x() <= bar.width()
