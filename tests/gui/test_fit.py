"""Every page fits: nothing is cut or overlaps at three sizes of the window and two sizes of the text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractScrollArea,
    QApplication,
    QComboBox,
    QDockWidget,
    QHeaderView,
    QLabel,
    QLineEdit,
    QPushButton,
    QScrollArea,
    QTabBar,
    QWidget,
)
from tests.helpers.gui import find, finish_calls, settle
from tests.helpers.gui_fit import FONT_SIZES_PT, SIZES, describe_widget, find_misfits, settled_misfits
from tests.helpers.gui_runs import FakeTrainer, run_id, running, start_with, view

from mosaic.features.runs.window_list import RunsPanel
from mosaic.features.train.window import TrainView
from mosaic.window.app import Application
from mosaic.window.dialogs import DIALOGS
from mosaic.window.form import VerdictLine
from mosaic.window.panels import PAGES, RUN_TABS
from mosaic.window.widgets import combo_box


@pytest.mark.timeout(300)  # ten seconds of processor time, on a machine that may be busy
def test_every_page_fits_at_every_size_of_window_and_text(program: Application) -> None:
    long = {"env_id": "BreakoutNoFrameskip-v4", "algo": "ppo_continuous_action", "total_timesteps": 10_000_000}
    runs = [
        running(3, seed=12345, has_wandb=True, has_recording=True, **long),
        view(2, outcome="failed", reason="It ended with exit code 3.", tags=["baseline", "long"], group="ablation"),
        view(1, run_name="a run with a long name", algo="qdagger_dqn_atari_impalacnn"),
    ]
    start_with(program, FakeTrainer(runs))
    window, workbench = program.window, program.workbench
    workbench.comparison_requested.emit([run.run_id for run in runs])
    for _ in _places(program):  # creates the pages
        settle()
    form = window.findChild(TrainView)
    assert form is not None
    form.columns.finish_building()
    form.edit("total_timesteps", "3,000,000")
    form.edit("env_id", "CartPol-v1")
    list_width = 0
    found: list[str] = []
    for font_size_pt in FONT_SIZES_PT:
        program.settings.put("font_pt", font_size_pt)
        workbench.apply_theme()
        for width, height in SIZES:
            window.resize(width, height)
            settle()
            list_width = find(window, "dock.runs").width()
            for place in _places(program):
                where = f"{width}x{height}, {font_size_pt:g} pt, {place}"
                found += [f"{where}: {misfit}" for misfit in settled_misfits(window)]
                if (window.width(), window.height()) != (width, height):
                    found.append(f"{where}: the window grew to {window.width()}x{window.height()}")
                    window.resize(width, height)
                if find(window, "dock.runs").width() != list_width:
                    found.append(f"{where}: the list of runs is {find(window, 'dock.runs').width()}, not {list_width}")
                    list_width = find(window, "dock.runs").width()
                hidden = find(window, "page.area", QScrollArea).horizontalScrollBar().maximum()
                if hidden and width > SIZES[0][0] and font_size_pt == FONT_SIZES_PT[0]:
                    found.append(f"{where}: {hidden} px are reached by scrolling only")
    assert not found, "\n".join([f"{len(found)} misfits:", *found])


def _places(program: Application) -> Iterator[str]:
    """Show every page and every tab of a run, one after the other."""
    workbench = program.workbench
    for page in PAGES:
        if page.id != "run":
            program.window.show_page(page.id)
            yield page.id
    workbench.group_requested.emit("ablation")
    yield "group"
    workbench.evaluation_requested.emit([run_id(1), run_id(2)])
    yield "evaluation of several runs"
    find(program.window, "batch.back", QPushButton).click()
    for tab in RUN_TABS:
        for number in (3, 2) if tab is RUN_TABS[0] else (3,):
            run = workbench.runs.get(run_id(number))
            if run is not None and tab.is_available(run):
                workbench.select(run.run_id, tab.id)
                yield f"tab {tab.id} of run {number}"


DIALOG_ACTIONS = ("agent.script", "run.resume", "run.tags", "run.delete")


@pytest.mark.parametrize("font_size_pt", FONT_SIZES_PT)
def test_every_dialog_fits(program: Application, font_size_pt: float) -> None:
    start_with(program, FakeTrainer([view(1, algo="qdagger_dqn_atari_impalacnn", env_id="BreakoutNoFrameskip-v4")]))
    window, workbench = program.window, program.workbench
    program.settings.put("font_pt", font_size_pt)
    workbench.apply_theme()
    workbench.select(run_id(1))
    window.refresh_actions()
    openings: dict[str, Callable[[], object]] = {}
    openings |= {name: partial(workbench.dialog_requested.emit, name) for name in DIALOGS}
    openings |= {name: window.action(name).trigger for name in DIALOG_ACTIONS}
    openings["columns"] = find(window, "dock.runs").findChildren(RunsPanel)[0]._choose_columns
    found: list[str] = []
    for name, open_it in openings.items():
        open_it()
        dialog = QApplication.activeModalWidget()
        assert dialog is not None, name
        found += [f"{name}: {misfit}" for misfit in settled_misfits(dialog)]
        dialog.close()
        settle()
    assert not found, "\n".join(found)


def test_another_size_of_the_text_reaches_every_widget_at_once(program: Application) -> None:
    start_with(program, FakeTrainer([view(1)]))
    window, workbench = program.window, program.workbench
    window.resize(1366, 768)
    for panel in window.findChildren(QDockWidget):
        panel.show()
    settle()
    finish_calls(program.bridge)
    status = FakeTrainer().get_status()
    for size_pt in (12.0, 14.0, 16.0, 10.0):
        workbench.show_message("Size of the text: 14 pt")
        program.settings.put("font_pt", size_pt)
        workbench.apply_theme()
        program.bridge.status_polled.emit([], status)
        misfits = settled_misfits(window)
        assert not misfits, "\n".join(misfits)
        sizes = {size_pt, *(size_pt + offset for offset in (-1, -0.5, 2)), 1.5 * (size_pt + 2)}
        other = {
            f"{describe_widget(each)}: {each.font().pointSizeF()} pt"
            for each in window.findChildren(QWidget)
            if each.isVisible() and _shows_text(each) and each.font().pointSizeF() not in sizes
        }
        assert not other


@pytest.mark.parametrize("page", ["train", "policy"])
def test_the_buttons_of_a_form_stay_in_sight_below_a_long_verdict(program: Application, page: str) -> None:
    start_with(program, FakeTrainer([view(1)]))
    window = program.window
    window.resize(1024, 700)
    for panel in window.findChildren(QDockWidget):
        panel.show()
    window.show_page(page)
    settle()
    line = find(window, f"{page}.verdict", QLabel).parent()
    assert isinstance(line, VerdictLine)
    line.show_text("This would run. " * 40, "good")
    settle()
    assert find(window, "page.area", QScrollArea).verticalScrollBar().maximum() == 0
    assert not find_misfits(window)


def test_a_text_that_is_wider_than_its_box_ends_before_a_number(qapp: QApplication) -> None:
    box = combo_box("box", [("Episode 0 · return 1234567", 0)])
    box.show()
    box.resize(box.sizeHint())
    assert box.shown_text() == box.currentText()
    box.resize(box.sizeHint().width() - 24, box.height())
    assert box.shown_text() == "Episode 0 · return …"
    box.setPlaceholderText("All")
    box.setCurrentIndex(-1)
    assert box.shown_text() == "All"


def _shows_text(widget: QWidget) -> bool:
    if isinstance(widget, (QLabel, QAbstractButton)):
        return bool(widget.text())  # not those with an icon only
    return isinstance(widget, (QAbstractScrollArea, QComboBox, QHeaderView, QLineEdit, QTabBar))
