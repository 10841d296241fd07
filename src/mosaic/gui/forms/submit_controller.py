"""Asks the trainer about what a form holds, waits, and shows the answer: "Dry run" and "Submit" of every form."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QPushButton, QWidget

from mosaic.gui.forms.verdict_line import VerdictLine, format_accepted, format_dry_run_note, format_refusal_note
from mosaic.gui.views.widgets import accent_button, with_object_name
from mosaic.gui.workbench import Workbench
from mosaic.submission.algorithm_schema import Algorithm

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView, Verdict

Callback = Callable[[Any], None]
AsyncCall = Callable[[Callback, Callback, QObject], None]
"""Puts a question: what gets the answer, what gets the error, and whose question it is."""


class SubmitController(QObject):
    rejected = Signal(object)
    """The error, for the form to show where it belongs; the line shows it already."""

    def __init__(
        self, workbench: Workbench, form: QWidget, prefix: str, submit: str, tooltip: str, dry_run_tooltip: str
    ) -> None:
        super().__init__(form)
        self._workbench = workbench
        self.is_busy = False
        self.line = VerdictLine(f"{prefix}.verdict")
        self.dry_run_button = with_object_name(QPushButton("Dry run"), f"{prefix}.dry_run")
        self.dry_run_button.setToolTip(dry_run_tooltip)
        self.submit_button = accent_button(submit, f"{prefix}.submit")
        self.submit_button.setToolTip(f"{tooltip} (Ctrl+Return)")
        keys = QShortcut(QKeySequence("Ctrl+Return"), form, context=Qt.ShortcutContext.WidgetWithChildrenShortcut)
        keys.activated.connect(self.submit_button.click)

    def dry_run(self, title: str, ask: AsyncCall, algorithm: Algorithm | None = None) -> None:
        """A dry run of `what`. Its verdict goes to the notes, too."""
        notes = self._workbench.notes

        def take(verdict: Verdict) -> None:
            self._stop_waiting()
            self.line.show_text(format_accepted(verdict.summary), "good")
            notes.append_scratch(format_dry_run_note(title, verdict.summary, algorithm))

        def refuse(error: Exception) -> None:
            notes.append_scratch(format_refusal_note(title, error))
            self._on_error(error)

        ask(take, refuse, self)
        self._start_waiting("Asking the worker…")

    def submit_runs(self, ask: AsyncCall) -> None:
        """The answer is the views of the runs that were made."""

        def take(views: list[RunView]) -> None:
            self._stop_waiting()
            self.line.clear()
            show_submitted_runs(self._workbench, views)

        ask(take, self._on_error, self)
        self._start_waiting("Submitting…")

    def _on_error(self, error: Exception) -> None:
        self._stop_waiting()
        self.line.show_text(str(error), "bad")
        self.rejected.emit(error)

    def _start_waiting(self, text: str) -> None:
        self._set_busy(True)
        self.line.show_text(text, "muted")

    def _stop_waiting(self) -> None:
        self._set_busy(False)

    def _set_busy(self, is_busy: bool) -> None:
        self.is_busy = is_busy
        self.dry_run_button.setEnabled(not is_busy)
        self.submit_button.setEnabled(not is_busy)


def show_submitted_runs(workbench: Workbench, views: list[RunView]) -> None:
    """Select the first of the new runs."""
    workbench.runs.update(views)
    many = f"{len(views)} runs in group {views[0].group}" if len(views) > 1 else "The run"
    workbench.show_message(f"{many} {'are' if len(views) > 1 else 'is'} submitted.", "good")
    workbench.select(views[0].run_id)
