"""The menu of named configurations: save, load, delete."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QInputDialog, QMenu, QToolButton

from mosaic.contracts.errors import BadInput
from mosaic.gui.views.widgets import confirm, with_object_name
from mosaic.gui.workbench import Workbench


class PresetsMenu(QObject):
    """Fills a button's menu each time it opens."""

    def __init__(self, button: QToolButton, workbench: Workbench) -> None:
        super().__init__(button)
        self._training = workbench.training
        self._workbench = workbench
        self._button = button
        self.menu = with_object_name(QMenu(button), "train.presets.menu")
        self.menu.aboutToShow.connect(self.fill)
        button.setMenu(self.menu)
        button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)

    def fill(self) -> None:
        self.menu.clear()
        self.menu.addAction("Save as preset…", self.ask_name)
        names = self._training.preset_names()
        self.menu.addSeparator()
        if not names:
            self.menu.addAction("No presets yet").setEnabled(False)
            return
        for name in names:
            self.menu.addAction(name, partial(self.load, name))
        self.menu.addSeparator()
        delete = self.menu.addMenu("Delete")
        for name in names:
            delete.addAction(name, partial(self.ask_delete, name))

    def ask_name(self) -> None:
        dialog = with_object_name(QInputDialog(self._button.window()), "train.presets.name")
        dialog.setWindowTitle("Save as preset")
        dialog.setLabelText("Name of the preset; one with the same name is replaced:")
        dialog.setTextValue(self._training.draft.algorithm)
        dialog.textValueSelected.connect(self.save)
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def save(self, name: str) -> None:
        if name.strip():
            self._training.save_preset(name.strip())
            self._workbench.show_message(f"Saved as preset {name.strip()!r}.", "good")

    def load(self, name: str) -> None:
        try:
            self._training.load_preset(name)
        except BadInput as error:
            self._workbench.show_error(error)

    def ask_delete(self, name: str) -> None:
        confirm(
            self._button.window(),
            "train.presets.delete",
            "Delete preset",
            f"Delete the preset {name!r}?",
            "Runs that were made with it stay.",
            "Delete preset",
            lambda: self._training.delete_preset(name),
        )
