"""The filters beside the search of the list of runs."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QToolButton, QWidget

from mosaic.gui.views import widgets as ui

CHIPS = {
    "running": ("Running", "Only runs that are starting, running, paused or stopping"),
    "failed": ("Failed", "Only runs that failed, were lost or were rejected; with Running, these too"),
    "today": ("Today", "Only runs that were submitted today"),
    "mine": ("Mine", "Only runs that you submitted"),
}


class FilterChips(QWidget):
    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._chips = {name: self._create_chip(name) for name in CHIPS}
        self._chips["mine"].hide()
        ui.row(*self._chips.values(), ui.Stretch(), parent=self, spacing=4)

    def _create_chip(self, name: str) -> QToolButton:
        title, tip = CHIPS[name]
        chip = ui.tool_button(f"runs.chip.{name}", "", tip, text=title, is_flat=False, is_checkable=True)
        chip.setProperty("filter", True)
        chip.toggled.connect(lambda _: self.changed.emit())
        return chip

    def checked(self) -> list[str]:
        return [name for name, chip in self._chips.items() if chip.isChecked()]

    def clear(self) -> None:
        for chip in self._chips.values():
            chip.setChecked(False)

    def offer_mine(self, are_several_users: bool) -> bool:
        """Show the filter of the own runs where there are others, and while it is used. Return whether that changed."""
        mine = self._chips["mine"]
        is_wanted = are_several_users or mine.isChecked()
        if mine.isHidden() is not is_wanted:
            return False
        mine.setVisible(is_wanted)
        return True
