"""The menu of presets: save, load, delete."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QInputDialog, QMenu, QToolButton

from mosaic.contracts.errors import unknown_name_error
from mosaic.formatting import format_number, short_id
from mosaic.gui.models.draft import field_text
from mosaic.gui.models.presets import best_runs
from mosaic.gui.views.widgets import with_object_name
from mosaic.gui.workbench import Workbench
from mosaic.submission.algorithm_schema import load_algorithms
from mosaic.submission.tuned_presets import TUNED_PRESETS, TunedPreset
from mosaic.submission.user_presets import Preset, read_presets


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
        names, reason = self._find_names()
        self._add_best_runs()
        self._add_tuned()
        self.menu.addSeparator()
        if not names:
            self.menu.addAction(reason).setEnabled(False)
            return
        for name in names:
            self.menu.addAction(name.replace("&", "&&"), partial(self.load, name))
        self.menu.addSeparator()
        delete = self.menu.addMenu("Delete")
        for name in names:
            delete.addAction(name.replace("&", "&&"), partial(self._workbench.delete_preset, name))

    def _find_names(self) -> tuple[list[str], str]:
        """The user's presets, and why there are none."""
        with self._workbench.errors_shown():
            return sorted(read_presets()), "No presets yet"
        return [], "The presets cannot be read"

    def _add_best_runs(self) -> None:
        """Offer the settings of the runs that did best in the environment of the form."""
        draft, layout = self._training.draft, self._training.layout
        env_id = field_text(draft, layout.fields["env_id"]).strip()
        best = best_runs(self._workbench.runs.all(), env_id)
        if not best:
            return
        submenu = self.menu.addMenu(f"Settings of the best runs in {env_id.replace('&', '&&')}")
        for view in best:
            title = f"{view.algo}: return {format_number(view.episodic_return)} ({short_id(view.run_id)})"
            submenu.addAction(title.replace("&", "&&"), partial(self.load_run, view.run_id))

    def _add_tuned(self) -> None:
        """Offer settings that were measured to learn faster than the defaults."""
        submenu = self.menu.addMenu("Tuned settings")
        submenu.setToolTipsVisible(True)
        known = load_algorithms()
        for preset in TUNED_PRESETS:
            if preset.algorithm in known:
                title = f"{preset.algorithm}, {preset.env_id}: {preset.tuned.mean:g} instead of {preset.default.mean:g}"
                action = submenu.addAction(title, partial(self.load_tuned, preset))
                action.setToolTip(preset.describe())

    def load_tuned(self, preset: TunedPreset) -> None:
        worker = load_algorithms()[preset.algorithm].worker.id
        self._training.load_preset(Preset(worker, preset.algorithm, preset.settings))
        self._workbench.show_message(preset.describe())

    def load_run(self, run_id: str) -> None:
        open_form = partial(self._workbench.edit_requested.emit, run_id)
        self._workbench.ask(lambda trainer: trainer.config(run_id), open_form, self._button.window())

    def ask_name(self) -> None:
        dialog = with_object_name(QInputDialog(self._button.window()), "train.presets.name")
        dialog.setWindowTitle("Save as preset")
        dialog.setLabelText("Name of the preset; one with the same name is replaced:")
        dialog.setTextValue(self._training.draft.algorithm)
        dialog.textValueSelected.connect(self.save)
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def save(self, name: str) -> None:
        name = name.strip()
        if name:
            with self._workbench.errors_shown():
                self._workbench.save_preset(name, self._training.build_preset(), f"Saved as preset {name!r}.")

    def load(self, name: str) -> None:
        with self._workbench.errors_shown():
            presets = read_presets()
            if name not in presets:  # it was deleted while the menu was open
                raise unknown_name_error("preset", name, presets)
            self._workbench.replace_form(
                f"The form shows the preset {name!r}.",
                f"load preset {name!r}",
                partial(self._training.load_preset, presets[name]),
            )
