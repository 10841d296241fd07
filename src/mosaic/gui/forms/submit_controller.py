"""The "Dry run" and "Submit" buttons of a form, and the line that shows the worker's verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QPushButton, QWidget

from mosaic.client import TrainerClient
from mosaic.contracts.semconv import UI_FORM_SUBMITTED
from mosaic.contracts.views import RunView, Verdict
from mosaic.formatting import run_title
from mosaic.gui import theme
from mosaic.gui.forms.trust_question import ask_with_trust
from mosaic.gui.models.training import RunsSubmission
from mosaic.gui.views.widgets import IconLabel, accent_button, button, row, selectable_label, set_properties
from mosaic.gui.workbench import Workbench
from mosaic.submission.algorithm_schema import Algorithm
from mosaic.submission.caller_environment import program_environment
from mosaic.submission.run_payloads import UNCHECKED_MESSAGE, verdict_rows

VERDICT_ICONS = {
    "good": "mdi6.check-circle",
    "warning": "mdi6.alert",
    "bad": "mdi6.close-circle",
    "muted": "mdi6.progress-clock",
}


class Expectation(NamedTuple):
    """What earlier runs say about a run that is accepted."""

    text: str = ""
    warning: str = ""


class VerdictLine(QWidget):
    def __init__(self, name: str) -> None:
        super().__init__()
        self._icon = IconLabel()
        self.label = selectable_label(name)
        row((self._icon, Qt.AlignmentFlag.AlignTop), (self.label, 1), parent=self, margins=(0, 4, 0, 0))
        self.hide()

    def show_text(self, text: str, kind: str) -> None:
        """`kind`: good, warning, bad, or muted while waiting."""
        self.label.setText(text)
        self._icon.set_icon(theme.icon(VERDICT_ICONS[kind], kind))
        properties = {"good": "good", "warning": "warning", "error": "bad", "muted": "muted"}
        set_properties(self.label, **{name: kind == shown for name, shown in properties.items()})
        self.setVisible(bool(text))

    def clear(self) -> None:
        self.show_text("", "muted")


class SubmitController(QObject):
    rejected = Signal(object)
    """The error, for the form to show at its field; the line shows it already."""
    submitted = Signal()

    def __init__(
        self, workbench: Workbench, form: QWidget, prefix: str, submit: str, tooltip: str, dry_run_tooltip: str
    ) -> None:
        super().__init__(form)
        self._workbench = workbench
        self.is_busy = False
        self._focused: QPushButton | None = None
        """The button that had the focus when it was clicked."""
        self.line = VerdictLine(f"{prefix}.verdict")
        self.dry_run_button = button("Dry run", f"{prefix}.dry_run", tip=dry_run_tooltip)
        self.submit_button = accent_button(submit, f"{prefix}.submit")
        self.submit_button.setToolTip(f"{tooltip} (Ctrl+Return)")
        keys = QShortcut(QKeySequence("Ctrl+Return"), form, context=Qt.ShortcutContext.WidgetWithChildrenShortcut)
        keys.activated.connect(self.submit_button.click)

    def dry_run(
        self,
        title: str,
        payload: dict[str, Any],
        algorithm: Algorithm | None = None,
        estimate: Callable[[TrainerClient], Expectation] | None = None,
    ) -> None:
        """Show the verdict and what `estimate` says about an accepted run, and add it to the notes under this title."""
        notes = self._workbench.notes

        def call(trainer: TrainerClient) -> tuple[Verdict, Expectation]:
            verdict = trainer.check(payload, program_environment(payload))
            return verdict, estimate(trainer) if estimate is not None else Expectation()

        def take(answer: tuple[Verdict, Expectation]) -> None:
            verdict, expected = answer
            self._set_busy(False)
            sentences = (expected.warning, format_accepted(verdict), expected.text, *verdict.summary.warnings)
            kind = "warning" if expected.warning else "good"
            self.line.show_text("\n".join(sentence for sentence in sentences if sentence), kind)
            rows = verdict_rows(verdict, algorithm)
            lines = [f"  {name}: {'; '.join(value.splitlines())}" for name, value in rows]
            expectation = [f"  {sentence}" for sentence in expected if sentence]
            notes.append_scratch("\n".join([f"Dry run: {title}: accepted.", *lines, *expectation]))

        def refuse(error: Exception) -> None:
            notes.append_scratch(f"Dry run: {title}: refused. {error}")
            self._on_error(error)

        self._set_busy(True, "Asking the worker…")
        self._workbench.bridge.ask(call, take, refuse, self)

    def submit_runs(self, payloads: list[dict[str, Any]]) -> None:
        def take(views: list[RunView]) -> None:
            self._set_busy(False)
            self.line.clear()
            show_submitted_runs(self._workbench, views)
            self.submitted.emit()

        self._set_busy(True, "Submitting…")
        ask_with_trust(
            self._workbench,
            RunsSubmission(payloads),
            take,
            self,
            self._on_error,
            lambda: self._set_busy(False),
            is_repeatable=True,
        )

    def _on_error(self, error: Exception) -> None:
        self._set_busy(False)
        self._workbench.events.add_error(error)
        self.line.show_text(str(error), "bad")
        self.rejected.emit(error)

    def _set_busy(self, is_busy: bool, text: str = "") -> None:
        self.is_busy = is_busy
        buttons = (self.dry_run_button, self.submit_button)
        if is_busy:
            self._focused = next((each for each in buttons if each.hasFocus()), None)
        for each in buttons:
            each.setEnabled(not is_busy)
        if not is_busy and self._focused is not None and self._focused.isVisible():
            self._focused.setFocus()  # a button that is disabled loses it to the next field
        if text:
            self.line.show_text(text, "muted")


def format_accepted(verdict: Verdict) -> str:
    """One line: `This would run: observations Box(4,), actions Discrete(2). Nothing was started.`"""
    if not verdict.is_checked:
        return UNCHECKED_MESSAGE
    summary, env = verdict.summary, verdict.summary.environment
    parts = {"observations": env.observation_space, "actions": env.action_space, "backend": summary.backend}
    details = ", ".join(f"{name} {value}" for name, value in parts.items() if value)
    return f"This would run{': ' if details else ''}{details}. Nothing was started."


def show_submitted_runs(workbench: Workbench, views: list[RunView]) -> None:
    """Select the first of the new runs."""
    workbench.runs.update(views)
    for view in views:
        workbench.events.add(UI_FORM_SUBMITTED, f"{view.kind}: {run_title(view)}", view.run_id)
    subject = f"{len(views)} runs in group {views[0].group} are" if len(views) > 1 else "The run is"
    warnings = " ".join(dict.fromkeys(warning for view in views for warning in view.warnings))
    workbench.show_message(f"{subject} submitted. {warnings}".rstrip(), "warning" if warnings else "good")
    workbench.runs_submitted.emit([view.run_id for view in views])
    workbench.select(views[0].run_id)
