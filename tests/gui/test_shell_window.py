"""The window: drawn first, filled later, remembered always."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtWidgets import QToolButton
from tests.helpers.daemons import LiveDaemon
from tests.helpers.gui import find, pump

from mosaic.gui.app import Application


def test_the_window_is_drawn_without_a_trainer(program: Application) -> None:
    program.window.show()
    pump(program.window.isVisible, "the window")
    assert find(program.window, "trainer", QToolButton).text().startswith("trainer")


def test_the_corner_tells_of_the_trainer(daemon: LiveDaemon, program: Application) -> None:
    program.start()
    label = find(program.window, "trainer", QToolButton)
    pump(lambda: "0/4 busy" in label.text(), "the corner to tell of the trainer")


def test_a_second_window_opens_where_the_first_was_left(
    daemon: LiveDaemon, make_program: Callable[[], Application]
) -> None:
    first = make_program()
    first.start()
    first.window.resize(1200, 700)
    first.window.show_page("run")
    first.window.remember()
    second = make_program()
    assert second.settings.get_here("page") == "run"
    assert second.window.width() == 1200
