"""The dialog that starts a script of the user's as a run, as `mosaic run` does."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PySide6.QtWidgets import QDialog, QWidget

from mosaic.base.caller_environment import caller_environment
from mosaic.base.run_payloads import build_payload, script_config
from mosaic.contracts.setting_field import SettingField
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.fields import PathField
from mosaic.window.form import SubmitView
from mosaic.window.form_model import Form
from mosaic.window.form_rows import FieldRow, align_labels
from mosaic.window.workbench import Workbench

WIDTH = 560
SETTING = "script"
"""What was started last in this workspace: script, arguments and interpreter."""


FIELDS = (
    SettingField("script", "str", None, "A Python script, or a program."),
    SettingField("arguments", "str", None, "As in a shell: --env-id CartPole-v1 --seed 1", is_optional=True),
    SettingField("python", "str", sys.executable, "The interpreter of a Python script."),
)
FILES = {
    "script": ("Choose a script", ["Python scripts (*.py)"]),
    "python": ("Choose a Python", ["Python (python*)"]),
}


@dataclass(frozen=True)
class ScriptDraft(Form):
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def fields(self) -> Mapping[str, SettingField]:
        return {one.name: one for one in FIELDS}

    @property
    def path(self) -> Path:
        return Path(self.text("script").strip()).expanduser().absolute()

    def problems(self) -> dict[str, str]:
        found = super().problems()
        if not self.text("script").strip():
            found["script"] = "Choose a Python script, or a program."
        elif not self.path.is_file():
            found["script"] = f"There is no file {self.text('script').strip()!r}. Choose one."
        elif self.path.suffix != ".py" and not os.access(self.path, os.X_OK):
            found["script"] = f"{self.path.name} is neither a Python script nor a program that can be executed."
        try:
            shlex.split(self.text("arguments"))
        except ValueError as error:
            found["arguments"] = f"{error}. Quote them as in a shell."
        return found

    def payload(self) -> dict[str, Any]:
        """Raises BadInput where the command is invalid."""
        self.require_valid()
        program = [self.value("python")] if self.path.suffix == ".py" else []
        argv = [*program, str(self.path), *shlex.split(self.text("arguments"))]
        return build_payload(
            {"id": "script", "config": script_config(argv, str(self.path.parent), caller_environment())}
        )


class PathRow(FieldRow):
    def _create_editor(self, prefix: str) -> QWidget:
        title, filters = FILES[self.field.name]
        editor = PathField(f"{prefix}.{self.field.name}", title, "", filters)
        editor.edit.textChanged.connect(self._emit_edited)
        self.input = editor.edit
        return editor


class ScriptForm(SubmitView):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__(workbench, "script", "Start", "Start it as a run", "Check the command; nothing is started")
        stored = workbench.settings.get_for_workspace(SETTING, [])
        self._draft = ScriptDraft({one.name: str(text) for one, text in zip(FIELDS, stored, strict=False)})
        rows = [self.add_row(field) for field in FIELDS]
        align_labels(rows)
        self.submit_button.setDefault(True)
        self.cancel_button = ui.button("Cancel", "script.cancel")
        ui.column(
            ui.muted_label(
                "Your script runs unedited in its folder, with the environment of this window. Its curves, frames and "
                "log are shown like those of any run."
            ),
            *rows,
            self.line,
            ui.row(ui.Stretch(), self.cancel_button, self.dry_run_button, self.submit_button),
            parent=self,
            margins=(theme.MARGIN,) * 4,
        )
        self.refresh()

    def create_row(self, field: SettingField, is_narrow: bool) -> FieldRow:
        return (PathRow if field.name in FILES else FieldRow)(field, "script", is_narrow)

    @property
    def form(self) -> ScriptDraft:
        return self._draft

    def keep(self, form: ScriptDraft) -> None:
        self._draft = form
        self.on_form_changed()

    @property
    def title(self) -> str:
        return self._draft.path.name

    def build_payloads(self) -> list[dict[str, Any]]:
        return [self._draft.payload()]

    def submit(self) -> None:
        self._workbench.settings.put_for_workspace(SETTING, [self._draft.text(field.name) for field in FIELDS])
        super().submit()


class ScriptDialog(QDialog):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__(workbench.window)
        self.setObjectName("script")
        self.setWindowTitle("Run a script")
        form = ScriptForm(workbench)
        form.cancel_button.clicked.connect(self.reject)
        form.submitted.connect(self.accept)
        ui.column(form, parent=self)
        self.resize(WIDTH, self.sizeHint().height())
