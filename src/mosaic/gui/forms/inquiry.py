"""Asks the trainer about what a form holds, waits, and shows the answer: "Dry run" and "Submit" of every form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QPushButton, QWidget

from mosaic.gui.forms.verdict import VerdictLine, accepted, noted, noted_refusal
from mosaic.gui.views.made import accent_button, named
from mosaic.gui.workbench import Json, Workbench
from mosaic.plugins.schema import Algorithm

Then = Callable[[Any], None]
Ask = Callable[[Then, Then, QObject], None]
"""Puts a question: what gets the answer, what gets the error, and whose question it is."""


class Inquiry(QObject):
    refused = Signal(object)
    """The error, for the form to show where it belongs; the line shows it already."""

    def __init__(self, workbench: Workbench, form: QWidget, prefix: str, submit: str, tip: str, dry_tip: str) -> None:
        super().__init__(form)
        self._workbench = workbench
        self.is_busy = False
        self.line = VerdictLine(f"{prefix}.verdict")
        self.dry = named(QPushButton("Dry run"), f"{prefix}.dry_run")
        self.dry.setToolTip(dry_tip)
        self.submit = accent_button(submit, f"{prefix}.submit")
        self.submit.setToolTip(f"{tip} (Ctrl+Return)")
        keys = QShortcut(QKeySequence("Ctrl+Return"), form, context=Qt.ShortcutContext.WidgetWithChildrenShortcut)
        keys.activated.connect(self.submit.click)

    def check(self, what: str, ask: Ask, algorithm: Algorithm | None = None) -> None:
        """A dry run of `what`. Its verdict goes to the notes, too."""
        notes = self._workbench.notes

        def take(verdict: Json) -> None:
            self._rest()
            summary = verdict.get("summary") or {}
            self.line.say(accepted(summary), "good")
            notes.append_scratch(noted(what, summary, algorithm))

        def refuse(error: Exception) -> None:
            notes.append_scratch(noted_refusal(what, error))
            self._refuse(error)

        ask(take, refuse, self)
        self._wait("Asking the worker…")

    def send(self, ask: Ask) -> None:
        """The answer is the views of the runs that were made."""

        def take(views: list[Json]) -> None:
            self._rest()
            self.line.clear()
            tell_submitted(self._workbench, views)

        ask(take, self._refuse, self)
        self._wait("Submitting…")

    def _refuse(self, error: Exception) -> None:
        self._rest()
        self.line.say(str(error), "bad")
        self.refused.emit(error)

    def _wait(self, text: str) -> None:
        self._set_busy(True)
        self.line.say(text, "muted")

    def _rest(self) -> None:
        self._set_busy(False)

    def _set_busy(self, is_busy: bool) -> None:
        self.is_busy = is_busy
        self.dry.setEnabled(not is_busy)
        self.submit.setEnabled(not is_busy)


def tell_submitted(workbench: Workbench, views: list[Json]) -> None:
    """Goes to the first of the new runs."""
    workbench.runs.update(views)
    many = f"{len(views)} runs in group {views[0].get('group')}" if len(views) > 1 else "The run"
    workbench.say(f"{many} {'are' if len(views) > 1 else 'is'} submitted.", "good")
    workbench.select(views[0]["run_id"])
