"""Welcome, settings, trainer and palette."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QKeySequence
from PySide6.QtWidgets import (
    QApplication,
    QComboBox,
    QDockWidget,
    QDoubleSpinBox,
    QKeySequenceEdit,
    QSpinBox,
    QTableWidget,
    QTreeWidget,
)
from tests.helpers.daemons import LiveDaemon, ended, scripted
from tests.helpers.gui import click, find, has, press, pump, settle, type_text

from mosaic.features.machines.window import QUEUE_COLUMNS
from mosaic.features.train.window_welcome import EXAMPLES
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window import theme
from mosaic.window.app import Application


def open_palette(program: Application) -> tuple[QTreeWidget, Callable[[str], None]]:
    program.window.show()
    program.window.action("app.palette").trigger()
    search = find(program.window, "palette.search")
    return find(program.window, "palette.list", QTreeWidget), lambda text: type_text(search, text)


def test_the_palette_runs_the_typed_action(program: Application) -> None:
    _, search = open_palette(program)
    search("setti")
    press(find(program.window, "palette.search"), Qt.Key.Key_Return)
    pump(lambda: program.window.current_page == "settings", "the settings")
    settle()
    assert not has(program.window, "palette")


def test_the_palette_shows_shortcuts_and_disabled_actions(program: Application) -> None:
    program.window.action("help.about").setEnabled(False)
    rows = {row.id: row for row in program.window.action_table}
    object.__setattr__(rows["help.about"], "is_enabled", lambda _: False)
    try:
        entries, search = open_palette(program)
        search("about")
        assert entries.model().index(0, 0).data() == "About MOSAIC"
        assert not entries.model().index(0, 0).flags() & Qt.ItemFlag.ItemIsEnabled
        search("quit")
        assert "Ctrl+Q" in entries.model().index(0, 1).data()
    finally:
        object.__setattr__(rows["help.about"], "is_enabled", lambda _: True)


def test_arrow_keys_skip_disabled_actions(program: Application) -> None:
    entries, _ = open_palette(program)
    before = entries.currentIndex().row()
    press(find(program.window, "palette.search"), Qt.Key.Key_Down)
    assert entries.currentIndex().row() > before
    press(find(program.window, "palette.search"), Qt.Key.Key_Up)
    assert entries.currentIndex().row() == before


@pytest.mark.usefixtures("daemon")
def test_the_palette_finds_runs(trainer: TrainerClient, program: Application) -> None:
    run_ids = [trainer.submit(scripted()).run_id for _ in range(3)]
    for run_id in run_ids:
        ended(trainer, run_id)
    program.start()
    pump(lambda: len(program.workbench.runs) == 3, "the runs")
    _, search = open_palette(program)
    search(run_ids[0][-6:])
    press(find(program.window, "palette.search"), Qt.Key.Key_Return)
    pump(lambda: program.workbench.selection == run_ids[0], "the run")
    assert program.window.current_page == "run"


def test_the_theme_changes_at_once_and_is_remembered(
    program: Application, make_program: Callable[[], Application]
) -> None:
    told: list[bool] = []
    program.workbench.theme_changed.connect(lambda: told.append(theme.is_dark()))
    program.window.show()
    program.window.show_page("settings")
    chosen = find(program.window, "settings.theme", QComboBox)
    chosen.setFocus()
    press(chosen, Qt.Key.Key_End)
    chosen.activated.emit(chosen.currentIndex())
    assert theme.is_dark()
    assert told[-1] is True
    make_program()
    assert theme.is_dark()
    program.window.action("view.theme").trigger()
    assert not theme.is_dark()
    assert chosen.currentText() == "Light"


def test_the_font_size_changes(qapp: QApplication, program: Application) -> None:
    program.window.show_page("settings")
    find(program.window, "settings.font", QDoubleSpinBox).setValue(12.5)
    assert qapp.font().pointSizeF() == 12.5
    assert theme.text_font(2).pointSizeF() == 14.5
    assert find(program.window, "settings.open_folder").font().pointSizeF() == 12.5
    dock = find(program.window, "dock.runs", QDockWidget)
    dock.ensurePolished()
    assert dock.font().pointSizeF() == 12.5
    assert dock.font() != QApplication.font(dock), "Qt draws the title in the font from when the dock was created"
    find(program.window, "settings.font", QDoubleSpinBox).setValue(10)


def test_shortcuts_can_be_changed_and_reset_and_are_unique(
    program: Application, make_program: Callable[[], Application]
) -> None:
    program.window.show()
    program.window.show_page("settings")
    table = find(program.window, "settings.keys", QTableWidget)
    edit = find(program.window, "settings.key", QKeySequenceEdit)
    row = next(number for number, row in enumerate(program.window.action_table) if row.id == "app.trainer")
    table.selectRow(row)

    def put(keys: str) -> None:
        edit.setKeySequence(QKeySequence(keys))
        edit.editingFinished.emit()

    put("Ctrl+Alt+T")
    assert program.window.action("app.trainer").shortcut().toString() == "Ctrl+Alt+T"
    assert make_program().window.action("app.trainer").shortcut().toString() == "Ctrl+Alt+T"
    put("Ctrl+Q")
    assert program.window.action("app.trainer").shortcut().toString() == "Ctrl+Alt+T"
    click(find(program.window, "settings.key_reset"))
    assert program.window.action("app.trainer").shortcut().toString() == "Ctrl+Shift+T"


@pytest.mark.usefixtures("daemon")
def test_the_trainer_page_lists_active_and_queued_runs(trainer: TrainerClient, program: Application) -> None:
    def submit(group: str, priority: int = 0) -> str:
        payload = {**scripted(steps=10_000, dt=0.05), "schedule": {"priority": priority}}
        payload["metadata"]["group"] = group
        return str(trainer.submit(payload).run_id)

    working = [submit("busy") for _ in range(4)]
    pump(lambda: trainer.get_status().slots.busy == 4, "four at work")
    later = submit("busy")
    other = submit("idle")
    sooner = submit("busy", priority=3)
    program.start()
    program.window.show_page("trainer")
    table = find(program.window, "trainer.queue", QTableWidget)
    pump(lambda: table.rowCount() == 7, "the queue")

    def texts(column: int) -> list[str]:
        return [item.text() for row in range(7) if (item := table.item(row, column)) is not None]

    assert [title[-6:] for title in texts(1)] == [run_id[-6:] for run_id in (*working, sooner, other, later)]
    assert texts(0)[4:] == ["1.", "2.", "3."]
    priority = QUEUE_COLUMNS.index("Priority")
    assert texts(priority)[4] == "3"
    table.setCurrentCell(6, 1)
    press(table, Qt.Key.Key_Return)
    assert program.workbench.selection == later

    program.window.show_page("trainer")
    item = table.item(6, priority)
    assert item is not None
    item.setText("9")
    pump(lambda: trainer.get_run(later).priority == 9, "the priority")
    pump(lambda: texts(1)[4].endswith(later[-6:]), "the other order")
    find(program.window, "trainer.cap", QSpinBox).setValue(5)
    pump(lambda: trainer.get_run(later).stage != "queued", "one more at work")
    assert trainer.get_run(sooner).stage == "queued"


def test_an_example_opens_in_the_form(program: Application) -> None:
    wanted: list[object] = []
    program.workbench.form_requested.connect(wanted.append)
    program.window.show()
    program.window.show_page("welcome")
    click(find(program.window, "welcome.form.cartpole"))
    assert wanted == [EXAMPLES[0].payloads()[0]]
    assert program.window.current_page == "train"


def test_the_examples_are_valid_payloads(trainer: TrainerClient) -> None:
    for example in EXAMPLES:
        for payload in example.payloads()[:1]:
            assert trainer.check(payload).summary.algo, example.id


def test_an_example_is_trained_by_a_click(daemon: LiveDaemon, trainer: TrainerClient, program: Application) -> None:
    program.start()
    pump(lambda: program.workbench.status, "the trainer")
    click(find(program.window, "welcome.train.acrobot"))
    pump(lambda: program.window.current_page == "run", "the run", 60)
    views = trainer.runs()
    assert {view.seed for view in views} == {1, 2, 3}
    assert {view.group for view in views} == {"example-acrobot"}
    for view in views:
        trainer.cancel_run(view.run_id)
        ended(trainer, view.run_id)


def test_the_guide_is_part_of_the_package() -> None:
    assert (Path(theme.__file__).with_name("guide.md")).is_file()
