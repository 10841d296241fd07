"""A field for the path of a file or folder on this machine: typed, or chosen in a dialog."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QLineEdit, QWidget

from mosaic.gui.views import widgets as ui


class PathField(QWidget):
    path_chosen = Signal()
    """Another path was typed, or any was chosen in the dialog."""

    def __init__(self, name: str, title: str, placeholder: str, filters: Sequence[str] = ()) -> None:
        """Without filters of files it takes a folder."""
        super().__init__()
        self._title, self._filters, self._shown = title, filters, ""
        self.edit = ui.with_object_name(QLineEdit(), name)
        self.edit.setPlaceholderText(placeholder)
        self.edit.setAccessibleName(title)
        self.edit.editingFinished.connect(self._on_typed)
        self.setFocusProxy(self.edit)
        choose = ui.button("Choose…", f"{name}.choose", self._open_dialog)
        choose.setAutoDefault(False)
        ui.row((self.edit, 1), choose, parent=self)

    @property
    def path(self) -> str:
        """Absolute; links are kept, as the Python of a virtual environment is one."""
        text = self.edit.text().strip()
        return os.path.abspath(os.path.expanduser(text)) if text else ""

    def show_path(self, path: str) -> None:
        """Show a path, without a signal."""
        self._shown = path
        self.edit.setText(path)
        self.edit.setCursorPosition(0)

    def _on_typed(self) -> None:
        if self.path != self._shown:
            self._shown = self.path
            self.path_chosen.emit()

    def _open_dialog(self) -> None:
        start, name = Path(self.path or Path.home()), f"{self.edit.objectName()}.files"
        ui.open_path_dialog(self, name, self._title, start, self._take, self._filters)

    def _take(self, path: Path) -> None:
        self.show_path(str(path))
        self.path_chosen.emit()
