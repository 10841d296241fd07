"""The room of the window: inside of the screen, panels that give way to the page, and the size of the text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtGui import QFontMetrics
from PySide6.QtTest import QTest
from PySide6.QtWidgets import (
    QAbstractButton,
    QApplication,
    QComboBox,
    QLabel,
    QLineEdit,
    QMenu,
    QMenuBar,
    QScrollArea,
    QTabWidget,
    QWidget,
)
from tests.helpers.gui import click, find, press, pump, settle
from tests.helpers.gui_runs import FakeTrainer, run_id, start_with, view

from mosaic.window import theme
from mosaic.window.app import Application
from mosaic.window.labels import ElidedLabel, elide_text
from mosaic.window.main_window import NARROW_PANELS_WIDTH, fit_rect

SCREEN = QRect(0, 0, 1366, 768)


@pytest.mark.parametrize(
    ("frame", "fitted"),
    [
        (QRect(100, 50, 800, 600), QRect(100, 50, 800, 600)),
        (QRect(0, 0, 1370, 808), QRect(0, 0, 1366, 768)),
        (QRect(900, 400, 800, 600), QRect(566, 168, 800, 600)),
        (QRect(2500, -40, 1900, 600), QRect(0, 0, 1366, 600)),
    ],
)
def test_a_window_is_moved_and_shrunk_only_as_far_as_the_screen_requires(frame: QRect, fitted: QRect) -> None:
    assert fit_rect(frame, SCREEN) == fitted


def test_a_window_larger_than_the_screen_is_fitted_when_it_is_shown(program: Application) -> None:
    window = program.window
    available = window.screen().availableGeometry()
    window.setGeometry(500, 300, available.width() + 700, available.height() + 200)
    window.show()
    pump(lambda: available.contains(window.frameGeometry()), "the window to be inside of the screen")


def test_a_low_window_collapses_the_bottom_panels_to_a_bar(program: Application) -> None:
    window = program.window
    window.resize(1366, 1000)
    window.show()
    notes, log = find(window, "dock.notes"), find(window, "dock.log")
    bar = find(window, "panels")
    pump(lambda: notes.isVisible() and log.isVisible() and not bar.isVisible(), "both panels")
    window.resize(1366, 768)
    pump(lambda: not notes.isVisible() and not log.isVisible() and bar.isVisible(), "the bar instead of them")
    click(find(window, "open.dock.notes"))
    pump(lambda: notes.isVisible() and not log.isVisible(), "the notes that were asked for")
    window.resize(1300, 760)
    settle()
    assert notes.isVisible()
    window.resize(1366, 1000)
    pump(lambda: notes.isVisible() and log.isVisible() and not bar.isVisible(), "both panels again")


def test_panels_that_were_closed_by_hand_stay_closed_in_a_higher_window(
    make_program: Callable[[], Application],
) -> None:
    first = make_program().window
    first.resize(1366, 1000)
    first.show()
    find(first, "dock.log").hide()
    first.resize(1366, 768)
    pump(lambda: not find(first, "dock.notes").isVisible(), "the notes to be collapsed")
    first.close()
    window = make_program().window
    window.show()
    settle()
    assert not find(window, "dock.notes").isVisible()
    window.resize(1366, 1000)
    pump(lambda: find(window, "dock.notes").isVisible(), "the notes")
    assert not find(window, "dock.log").isVisible()


def test_f11_and_a_double_click_on_a_tab_give_the_page_all_the_room(program: Application) -> None:
    start_with(program, FakeTrainer([view(1)]))
    window = program.window
    window.resize(1366, 1000)
    program.workbench.select(run_id(1))
    settle()
    docks = [find(window, f"dock.{name}") for name in ("control", "runs", "notes", "log")]
    page = find(window, "page.run")
    width = page.width()
    press(window, Qt.Key.Key_F11)
    pump(lambda: not any(dock.isVisible() for dock in docks), "the panels to be hidden")
    pump(lambda: page.width() > width + 300, "the page to be wider")
    program.window.save_layout()  # what is saved is the layout with panels
    press(window, Qt.Key.Key_F11)
    pump(lambda: all(dock.isVisible() for dock in docks) and page.width() == width, "everything as before")
    bar = find(window, "run.tabs", QTabWidget).tabBar()
    QTest.mouseDClick(bar, Qt.MouseButton.LeftButton, pos=bar.tabRect(0).center())
    pump(lambda: not any(dock.isVisible() for dock in docks), "the panels to be hidden again")


def test_ctrl_plus_and_minus_change_the_size_of_the_text_everywhere_at_once(program: Application) -> None:
    start_with(program, FakeTrainer([view(1)]))
    window = program.window
    program.workbench.form_requested.emit(None)
    settle()
    shown = [widget for widget in window.findChildren(QWidget) if _has_text(widget)]
    before = {widget: widget.font().pointSizeF() for widget in shown}
    for _ in range(2):
        press(window, Qt.Key.Key_Plus, Qt.KeyboardModifier.ControlModifier)
    assert program.settings.get("font_pt") == 12.0

    def changes() -> set[float]:
        return {round(widget.font().pointSizeF() - size, 1) for widget, size in before.items()}

    pump(lambda: changes() == {2.0}, "every text to be larger")
    for _ in range(9):
        press(window, Qt.Key.Key_Minus, Qt.KeyboardModifier.ControlModifier)
    assert program.settings.get("font_pt") == 8.0
    press(window, Qt.Key.Key_0, Qt.KeyboardModifier.ControlModifier)
    assert program.settings.get("font_pt") == 10.0


@pytest.mark.parametrize("size_pt", [10.0, 14.0])
def test_text_is_never_elided_inside_a_number(qapp: QApplication, size_pt: float) -> None:
    font = QApplication.font()
    font.setPointSizeF(size_pt)
    metrics = QFontMetrics(font)
    text = "steps · default 500000"
    whole = metrics.horizontalAdvance(text)
    mode = Qt.TextElideMode.ElideRight
    assert elide_text(text, metrics, mode, whole) == text
    for width in range(metrics.horizontalAdvance("steps …"), whole):
        assert not any(character.isdigit() for character in elide_text(text, metrics, mode, width))
    label = ElidedLabel(text)
    label.setFont(font)
    label.resize(metrics.horizontalAdvance("steps · …") + 2, 20)
    assert label.shown_text.endswith("…")


def _has_text(widget: QWidget) -> bool:
    is_text = isinstance(widget, (QLabel, QLineEdit, QComboBox, QMenuBar))
    return widget.isVisible() and (is_text or (isinstance(widget, QAbstractButton) and bool(widget.text())))


def test_the_panels_at_the_left_give_way_in_a_narrow_window(program: Application) -> None:
    window = program.window
    window.resize(1366, 768)
    window.show()
    runs = find(window, "dock.runs")
    settle()
    wide = runs.width()
    window.resize(1024, 700)
    pump(lambda: runs.width() == NARROW_PANELS_WIDTH < wide, "narrow panels")
    bar = find(window, "page.area", QScrollArea).horizontalScrollBar()
    for page in ("play", "leaderboard", "settings"):
        window.show_page(page)
        settle()
        assert bar.maximum() == 0, f"{page} does not fit"
    window.resize(1366, 768)
    pump(lambda: runs.width() == wide, "the width that they had")


@pytest.mark.parametrize("name", ["light", "dark"])
def test_the_chosen_entry_of_a_menu_is_readable(program: Application, qapp: QApplication, name: str) -> None:
    program.settings.put("theme", name)
    program.workbench.apply_theme()
    menu = QMenu(program.window)
    entry = menu.addAction("MMMM")
    menu.popup(QPoint(0, 0))
    menu.setActiveAction(entry)
    settle()
    image, row = menu.grab().toImage(), menu.actionGeometry(entry)
    menu.close()
    shades = [
        image.pixelColor(x, y).lightnessF()
        for x in range(row.left() + 4, row.right() - 4)
        for y in range(row.top() + 2, row.bottom() - 2)
    ]
    assert max(shades) - min(shades) > 0.5


def test_a_message_follows_the_theme(program: Application) -> None:
    program.window.show()
    program.settings.put("theme", "light")
    program.workbench.apply_theme()
    program.workbench.show_message("Saved.", "warning")
    settle()
    program.settings.put("theme", "dark")
    program.workbench.apply_theme()
    settle()
    message = find(program.window, "message")
    assert message.isVisible()
    assert message.grab().toImage().pixelColor(4, 4).name() == theme.DARK.raised
