"""A form over a draft: its rows, what is wrong at each of them, and the worker's verdict with its buttons."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QPushButton, QScrollArea, QWidget

from mosaic.client import TrainerClient
from mosaic.contracts.errors import NotTrusted
from mosaic.contracts.semconv import UI_FORM_SUBMITTED
from mosaic.contracts.setting_field import SettingField
from mosaic.contracts.views import RunView, Verdict
from mosaic.formatting import join_words, run_title
from mosaic.gui import theme
from mosaic.gui.forms.form_rows import ROW_TYPES, FieldRow, FormRow
from mosaic.gui.models.form import Form, Refusals
from mosaic.gui.models.training import PartlySubmitted, RunsSubmission
from mosaic.gui.views import widgets as ui
from mosaic.gui.workbench import Workbench
from mosaic.submission.algorithm_schema import Algorithm
from mosaic.submission.caller_environment import program_environment
from mosaic.submission.run_payloads import UNCHECKED_MESSAGE, verdict_rows

MAX_FORM_WIDTH = 760
VERDICT_ICONS = {
    "good": "mdi6.check-circle",
    "warning": "mdi6.alert",
    "bad": "mdi6.close-circle",
    "muted": "mdi6.progress-clock",
}
TrustedCall = Callable[[TrainerClient, bool], Any]
"""A call of the trainer, and whether what an imported config would execute is trusted."""


class Expectation(NamedTuple):
    """What earlier runs say about a run that is accepted."""

    text: str = ""
    warning: str = ""


class VerdictLine(QWidget):
    def __init__(self, name: str) -> None:
        super().__init__()
        self._icon = ui.IconLabel()
        self.label = ui.selectable_label(name)
        ui.row((self._icon, Qt.AlignmentFlag.AlignTop), (self.label, 1), parent=self, margins=(0, 4, 0, 0))
        self.hide()

    def show_text(self, text: str, kind: str) -> None:
        """`kind`: good, warning, bad, or muted while waiting."""
        self.label.setText(text)
        self._icon.set_icon(theme.icon(VERDICT_ICONS[kind], kind))
        properties = {"good": "good", "warning": "warning", "error": "bad", "muted": "muted"}
        ui.set_properties(self.label, **{name: kind == shown for name, shown in properties.items()})
        self.setVisible(bool(text))

    def clear(self) -> None:
        self.show_text("", "muted")


class FormView(QWidget):
    """A form inherits it and states its draft, its rows and where it keeps what is edited."""

    def __init__(self, workbench: Workbench, prefix: str) -> None:
        super().__init__()
        self._workbench = workbench
        self._prefix = prefix
        self.rows: dict[str, FormRow] = {}
        """By field, or by another name that a problem of the form has."""
        self._refusals = Refusals()
        self._is_submitted = False
        """Whether it was tried to submit the draft as it is."""
        self.line = VerdictLine(f"{prefix}.verdict")

    @property
    def form(self) -> Form:
        """What is shown."""
        raise NotImplementedError

    def keep(self, form: Any) -> None:
        """Keep an edited draft, and call `on_form_changed`."""
        raise NotImplementedError

    def problems(self) -> dict[str, str]:
        """What is wrong, by field, in the form's order."""
        return self.form.problems()

    # --- rows

    def add_row(self, field: SettingField, is_narrow: bool = False) -> FieldRow:
        row = self.create_row(field, is_narrow)
        row.edited.connect(self.edit)
        self.rows[field.name] = row
        return row

    def create_row(self, field: SettingField, is_narrow: bool) -> FieldRow:
        return ROW_TYPES.get(field.name, FieldRow)(field, self._prefix, is_narrow)

    def edit(self, name: str, text: str) -> None:
        """Take the text of a field, as typed."""
        self._refusals.drop(name)
        self.keep(self.form.with_text(name, text))
        if isinstance(row := self.rows.get(name), FieldRow):
            row.show_text(text)  # a reset, too, while the field has the focus

    def on_form_changed(self) -> None:
        self._is_submitted = False
        self.line.clear()
        self.refresh()

    def messages(self) -> dict[str, str]:
        """What stands at the fields: what is still to be filled in is wrong only when it is submitted."""
        form, found = self.form, self.problems()
        if not self._is_submitted:
            found = {name: text for name, text in found.items() if name not in form.fields or form.text(name)}
        return {**self._refusals.messages(form), **found}

    def refresh(self) -> None:
        form, messages = self.form, self.messages()
        for name, row in self.rows.items():
            row.show_form(form, messages.get(name, ""))

    def focus_field(self, name: str) -> None:
        row = self.rows[name]
        parent = row.parentWidget()
        while parent is not None:
            if isinstance(parent, QScrollArea):
                parent.ensureWidgetVisible(row)
            parent = parent.parentWidget()
        row.take_focus()

    def focused_field(self) -> str:
        """The name of the field that has the focus; empty where none has."""
        return next((name for name, row in self.rows.items() if row.isAncestorOf(self.focusWidget() or self)), "")

    def validate(self) -> bool:
        """Whether nothing is wrong; else each problem stands at its field, and the first one has the focus."""
        problems = self.problems()
        if problems:
            self._is_submitted = True
            self.refresh()
            self.line.show_text(self.form.describe(problems), "bad")
            self.focus_field(next(iter(problems)))
        return not problems


class SubmitView(FormView):
    """One that is checked and submitted."""

    submitted = Signal()

    def __init__(self, workbench: Workbench, prefix: str, submit: str, tip: str, dry_run_tip: str = "") -> None:
        super().__init__(workbench, prefix)
        self.is_busy = False
        self._focused: QPushButton | None = None
        """The button that had the focus when it was clicked."""
        self.dry_run_button = ui.button("Dry run", f"{prefix}.dry_run", self.dry_run, dry_run_tip)
        self.submit_button = ui.accent_button(submit, f"{prefix}.submit", self.submit)
        self.submit_button.setToolTip(f"{tip} (Ctrl+Return)")
        keys = QShortcut(QKeySequence("Ctrl+Return"), self, context=Qt.ShortcutContext.WidgetWithChildrenShortcut)
        keys.activated.connect(self.submit_button.click)

    # --- what a form states

    def build_payloads(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    @property
    def title(self) -> str:
        """What its dry run is called in the notes."""
        raise NotImplementedError

    @property
    def algorithm(self) -> Algorithm | None:
        return None

    def expectation(self, payloads: list[dict[str, Any]]) -> Callable[[TrainerClient], Expectation]:
        """What is said about payloads that are accepted."""
        return lambda _: Expectation()

    # --- asking

    def validate(self) -> bool:
        return super().validate() and not self.is_busy

    def dry_run(self) -> None:
        """Show the verdict and what is expected of an accepted run, and add both to the notes."""
        if not self.validate():
            return
        payloads, title, notes = self.build_payloads(), self.title, self._workbench.notes
        estimate = self.expectation(payloads)

        def call(trainer: TrainerClient, is_trusted: bool) -> tuple[Verdict, Expectation]:
            verdict = trainer.check(payloads[0], program_environment(payloads[0]), is_trusted)
            return verdict, estimate(trainer)

        def take(answer: tuple[Verdict, Expectation]) -> None:
            verdict, expected = answer
            sentences = (expected.warning, format_accepted(verdict), expected.text, *verdict.summary.warnings)
            kind = "warning" if expected.warning else "good"
            self.line.show_text("\n".join(sentence for sentence in sentences if sentence), kind)
            rows = verdict_rows(verdict, self.algorithm)
            lines = [f"  {name}: {'; '.join(value.splitlines())}" for name, value in rows]
            expectation = [f"  {sentence}" for sentence in expected if sentence]
            notes.append_scratch("\n".join([f"Dry run: {title}: accepted.", *lines, *expectation]))

        def refuse(error: Exception) -> None:
            notes.append_scratch(f"Dry run: {title}: refused. {error}")
            self.on_refused(error)

        self.ask(call, take, "Asking the worker…", refuse)

    def submit(self) -> None:
        def take(views: list[RunView]) -> None:
            self.line.clear()
            show_submitted_runs(self._workbench, views)
            self.submitted.emit()

        if self.validate():
            self.ask(RunsSubmission(self.build_payloads()), take, "Submitting…")

    def ask(
        self,
        call: TrustedCall,
        then: Callable[[Any], None],
        text: str,
        refused: Callable[[Exception], None] | None = None,
        on_question: Callable[[], None] | None = None,
    ) -> None:
        """Ask the trainer, with the buttons disabled until it has answered; the line shows `text` meanwhile."""

        def finish(then: Callable[..., None], *answer: Any) -> None:
            self._set_busy(False)
            then(*answer)

        self._set_busy(True)
        self.line.show_text(text, "muted")
        ask_with_trust(
            self._workbench,
            call,
            partial(finish, then),
            self,
            partial(finish, refused or self.on_refused),
            partial(finish, on_question or self.line.clear),
            is_repeatable=True,
        )

    def _set_busy(self, is_busy: bool) -> None:
        self.is_busy = is_busy
        buttons = (self.dry_run_button, self.submit_button)
        if is_busy:
            self._focused = next((each for each in buttons if each.hasFocus()), None)
        for each in buttons:
            each.setEnabled(not is_busy)
        if not is_busy and self._focused is not None and self._focused.isVisible():
            self._focused.setFocus()  # a button that is disabled loses it to the next field

    def on_refused(self, error: Exception) -> None:
        """Show why, at the fields that are named."""
        self._workbench.events.add_error(error)
        if isinstance(error, PartlySubmitted):
            self._workbench.runs.update(error.views)
        has_all = self._refusals.take(error, self.rows) and not isinstance(error, PartlySubmitted)
        marked = self._refusals.messages(self.form)
        self.refresh()
        if marked:
            self.focus_field(next(iter(marked)))
        # Where all reasons are at fields, none is repeated.
        labels = [self.form.label(name) for name in marked]
        self.line.show_text(f"Refused. See {join_words(labels)}." if has_all else str(error), "bad")


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


def ask_with_trust(
    workbench: Workbench,
    call: TrustedCall,
    then: Callable[[Any], None],
    owner: QObject,
    failed: Callable[[Exception], None] | None = None,
    on_question: Callable[[], None] = lambda: None,
    is_repeatable: bool = False,
) -> None:
    """Make a call; where it is refused because it would execute code of an imported run, ask, naming that code."""
    failed = failed or workbench.show_error
    ask = partial(workbench.bridge.ask, owner=owner, is_repeatable=is_repeatable)

    def refuse(error: Exception) -> None:
        if not isinstance(error, NotTrusted):
            failed(error)
            return
        on_question()
        ui.confirm(
            workbench.window,
            "trust.question",
            "Imported run",
            "Execute code of an imported run?",
            error.risk,
            "Trust it and run",
            lambda: ask(lambda trainer: call(trainer, True), then, failed),
            "Do not run",
        )

    ask(lambda trainer: call(trainer, False), then, refuse)
