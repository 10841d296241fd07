"""The dialog that starts a script of the user's as a run, as `mosaic run` does."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

from PySide6.QtWidgets import QDialog, QLineEdit

from mosaic.contracts.errors import BadInput
from mosaic.gui import theme
from mosaic.gui.forms.path_field import PathField
from mosaic.gui.forms.submit_controller import SubmitController
from mosaic.gui.views import widgets as ui
from mosaic.gui.workbench import Workbench
from mosaic.submission.caller_environment import caller_environment
from mosaic.submission.run_payloads import build_payload
from mosaic.submission.script_payloads import script_config

WIDTH = 560
SETTING = "script"
"""What was started last in this workspace: script, arguments and interpreter."""


class ScriptDialog(QDialog):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__(workbench.window)
        self.setObjectName("script")
        self.setWindowTitle("Run a script")
        self._workbench = workbench
        script, arguments, python = workbench.settings.get_for_workspace(SETTING, ["", "", sys.executable])
        self._script = PathField("script.path", "Choose a script", "my_script.py", ["Python scripts (*.py)"])
        self._python = PathField("script.python", "Choose a Python", sys.executable, ["Python (python*)"])
        self._arguments = ui.with_object_name(QLineEdit(arguments), "script.arguments")
        self._arguments.setPlaceholderText("--env-id CartPole-v1 --seed 1")
        for field, path in ((self._script, script), (self._python, python)):
            field.show_path(path)
        self._inquiry = SubmitController(
            workbench, self, "script", "Start", "Start it as a run", "Check the command; nothing is started"
        )
        self._inquiry.submit_button.setDefault(True)
        for edit in (self._script.edit, self._arguments, self._python.edit):
            edit.textChanged.connect(lambda _: self._inquiry.line.clear())
        margin = theme.MARGIN
        ui.column(
            ui.muted_label(
                "Your script runs unedited in its folder, with the environment of this window. Its curves, frames and "
                "log are shown like those of any run."
            ),
            ui.form(("Script", self._script), ("Arguments", self._arguments), ("Python", self._python)),
            self._inquiry.line,
            ui.row(
                ui.Stretch(),
                ui.button("Cancel", "script.cancel", self.reject),
                self._inquiry.dry_run_button,
                self._inquiry.submit_button,
            ),
            parent=self,
            margins=(margin, margin, margin, margin),
        )
        self._inquiry.dry_run_button.clicked.connect(self._dry_run)
        self._inquiry.submit_button.clicked.connect(self._submit)
        self._inquiry.submitted.connect(self.accept)
        self.resize(WIDTH, self.sizeHint().height())

    def _dry_run(self) -> None:
        payload = self._build_payload()
        if payload is not None:
            self._inquiry.dry_run(Path(self._script.path).name, payload)

    def _submit(self) -> None:
        payload = self._build_payload()
        if payload is not None:
            fields = [self._script.path, self._arguments.text(), self._python.edit.text()]
            self._workbench.settings.put_for_workspace(SETTING, fields)
            self._inquiry.submit_runs([payload])

    def _build_payload(self) -> dict[str, Any] | None:
        """None, and the problem is shown, where something is wrong."""
        try:
            return script_payload(self._script.edit.text(), self._arguments.text(), self._python.edit.text())
        except BadInput as error:
            self._inquiry.line.show_text(str(error), "bad")
            return None


def script_payload(script: str, arguments: str, python: str) -> dict[str, Any]:
    """The payload of a Python script, or of a program; raises BadInput where the command is invalid."""
    path = Path(script.strip()).expanduser()
    if not script.strip() or not path.is_file():
        raise BadInput(f"Script: there is no file {script.strip()!r}. Choose one.")
    path = path.absolute()
    try:
        words = shlex.split(arguments)
    except ValueError as error:
        raise BadInput(f"Arguments: {error}. Quote them as in a shell.") from None
    if path.suffix != ".py" and not os.access(path, os.X_OK):
        raise BadInput(f"Script: {path.name} is neither a Python script nor a program that can be executed.")
    program = [python.strip() or sys.executable] if path.suffix == ".py" else []
    config = script_config([*program, str(path), *words], str(path.parent), caller_environment())
    return build_payload({"id": "script", "config": config})
