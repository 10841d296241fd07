"""The table of actions: menu, palette and keys are made from it."""

from __future__ import annotations

from PySide6.QtWidgets import QApplication

from mosaic.gui.tables import Action

ACTIONS: tuple[Action, ...] = (
    Action("app.quit", "Quit", "File", lambda _: QApplication.closeAllWindows(), "Ctrl+Q", "mdi6.exit-to-app"),
)
