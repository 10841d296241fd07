"""A form over a draft: its rows, what is wrong at each of them, and the worker's verdict with its buttons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from PySide6.QtCore import QEvent, QObject, Qt, QTimer, Signal
from PySide6.QtGui import QKeySequence, QResizeEvent, QShortcut
from PySide6.QtWidgets import QBoxLayout, QPushButton, QScrollArea, QSizePolicy, QVBoxLayout, QWidget

from mosaic.base.algorithm_schema import Algorithm
from mosaic.base.caller_environment import program_environment
from mosaic.base.formatting import join_words, run_title
from mosaic.base.run_payloads import UNCHECKED_MESSAGE, verdict_rows
from mosaic.contracts.errors import MosaicError, NotTrusted
from mosaic.contracts.names import UI_FORM_SUBMITTED
from mosaic.contracts.setting_field import SettingField
from mosaic.contracts.views import RunView, Verdict
from mosaic.trainer.client.trainer_client import TrainerClient, new_submission_key
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.form_model import Form, FormSection, Refusals
from mosaic.window.form_rows import ROW_TYPES, FieldRow, FormRow, align_labels
from mosaic.window.workbench import Workbench

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


# --- The sections of a long form in two columns, built section by section, so that the window stays responsive.


MAX_COLUMN_WIDTH = 760
"""With text of the default size."""


class FormColumns(ui.YieldingScrollArea):
    built = Signal()
    """All rows are there, and their widths are to be set: what they show should be what they will show."""
    dropped = Signal(str)
    """The row of this field is deleted."""

    def __init__(
        self, prefix: str, create_row: Callable[[SettingField], FormRow], above: Sequence[FormRow], title: str
    ) -> None:
        """`above` are rows at the top of the left column, below a title, that stay."""
        super().__init__()
        self._create_row = create_row
        self._above = above
        self.setObjectName(f"{prefix}.scroll")
        self.setWidgetResizable(True)
        body = QWidget()
        self._layout = QBoxLayout(QBoxLayout.Direction.LeftToRight, body)
        self._layout.setContentsMargins(0, theme.GAP, theme.MARGIN, theme.MARGIN)
        self._layout.setSpacing(2 * theme.MARGIN)
        self.setWidget(body)
        self._columns: dict[QVBoxLayout, QWidget] = {}
        self._left, self._right = self._add_column(3), self._add_column(2)
        for part in (ui.section_label(title), *above):
            self._left.addWidget(part)
        self.below = ui.muted_label("", f"{prefix}.rest")
        """At the end of the right column."""
        self._bodies: dict[QVBoxLayout, _ColumnBody] = {}
        self._pending: list[tuple[_ColumnBody, FormSection]] = []
        self._build_timer = QTimer(self, interval=0)
        self._build_timer.timeout.connect(self._build_next)
        self._fit_timer = ui.create_timer(self, 0, self._fit_to_text, is_single_shot=True)

    def _add_column(self, stretch: int) -> QVBoxLayout:
        widget = QWidget()
        # Otherwise the size hints of the rows would override the stretch factors.
        widget.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        stack = ui.column(parent=widget)
        stack.setAlignment(Qt.AlignmentFlag.AlignTop)
        self._columns[stack] = widget
        self._layout.addWidget(widget, stretch)
        return stack

    def show_sections(self, left: Sequence[FormSection], right: Sequence[FormSection]) -> bool:
        """Build the rows of columns that have other sections; return whether there are any."""
        is_first = not self._bodies
        for stack, sections in ((self._left, left), (self._right, right)):
            self._show_column(stack, tuple(sections))
        self._right.removeWidget(self.below)
        self._right.addWidget(self.below)
        if self._pending:
            # The old form stays visible while another one is built; the first one has nothing to show yet.
            self.setUpdatesEnabled(is_first)
            for body in self._bodies.values():
                body.setVisible(not is_first)
            self._build_timer.start()
        return bool(self._pending)

    def _show_column(self, stack: QVBoxLayout, sections: tuple[FormSection, ...]) -> None:
        old = self._bodies.get(stack)
        if old is not None and old.sections == sections:
            return
        if old is not None:
            self._pending = [(body, section) for body, section in self._pending if body is not old]
            for section in old.sections:
                for field in section.fields:
                    self.dropped.emit(field.name)
            old.setParent(None)
            old.deleteLater()
        self._bodies[stack] = body = _ColumnBody(sections, self._above if stack is self._left else ())
        stack.addWidget(body)
        self._pending += [(body, section) for section in sections]

    def _build_next(self) -> None:
        """Do one part of the work: build a section, show a column, or, at last, set the widths."""
        if self._pending:
            body, section = self._pending.pop(0)
            body.add(section.title, [self._create_row(field) for field in section.fields])
            if not self._pending:
                self._order_tabs()
                self.built.emit()
        elif hidden := [body for body in self._bodies.values() if body.isHidden()]:
            self.setUpdatesEnabled(False)  # until the widths are set
            hidden[0].show()
        else:
            self._build_timer.stop()
            self._fit_to_text()
            self.setUpdatesEnabled(True)

    def finish_building(self) -> None:
        """Do what is left of the work."""
        while self._build_timer.isActive():
            self._build_next()

    def _order_tabs(self) -> None:
        """Down the left column, then down the right one, whichever was built later."""
        before: QWidget = self._above[-1].input
        for stack in (self._left, self._right):
            for widget in self._bodies[stack].findChildren(QWidget):
                is_here = widget.window() is self.window()  # the list of a combo box is a window of its own
                if is_here and widget.focusPolicy() & Qt.FocusPolicy.TabFocus and widget.focusProxy() is None:
                    self.setTabOrder(before, widget)
                    before = widget

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange:
            self._fit_timer.start()  # when the rows have the font, too

    def _fit_to_text(self) -> None:
        """Set the widths of labels and columns, which depend on the size of the text."""
        if self._pending:
            return  # it is called again when they are built
        self.built.emit()
        for stack, body in self._bodies.items():
            align_labels(body.rows)
            needed = max(row.minimum_width() for row in body.rows)
            self._columns[stack].setMinimumWidth(needed)
            self._columns[stack].setMaximumWidth(max(theme.scale(MAX_COLUMN_WIDTH), needed))
        self._choose_direction(self.viewport().width())

    def _choose_direction(self, width: int) -> None:
        """One column below the other where both do not fit next to each other."""
        margins = self._layout.contentsMargins()
        needed = sum(one.minimumWidth() for one in self._columns.values()) + margins.left() + margins.right()
        is_narrow = width < needed + self._layout.spacing()
        wanted = QBoxLayout.Direction.TopToBottom if is_narrow else QBoxLayout.Direction.LeftToRight
        if self._layout.direction() != wanted:
            self._layout.setDirection(wanted)

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._choose_direction(event.size().width())
        super().resizeEvent(event)


class _ColumnBody(QWidget):
    """The rows of a column."""

    def __init__(self, sections: tuple[FormSection, ...], above: Sequence[FormRow]) -> None:
        super().__init__()
        self.sections = sections
        self.rows = list(above)
        """Those whose labels are aligned with each other, also above this body."""
        self._stack = ui.column(parent=self)

    def add(self, title: str, rows: Sequence[FormRow]) -> None:
        self.rows += rows
        if title and self._stack.count():
            self._stack.addSpacing(theme.GAP)
        if title:
            self._stack.addWidget(ui.section_label(title))
        for row in rows:
            self._stack.addWidget(row)


class PartlySubmitted(MosaicError):
    """Some runs of a group were created before one was refused."""

    def __init__(self, views: list[RunView], total: int, error: MosaicError) -> None:
        super().__init__(f"{len(views)} of {total} runs were submitted, then: {error}", error.problems)
        self.views = views


class RunsSubmission:
    """Submits the runs of a group. It can be called again where the connection broke: no run is created twice."""

    def __init__(self, payloads: list[dict[str, Any]]) -> None:
        self._payloads = [(payload, new_submission_key()) for payload in payloads]

    def __call__(self, trainer: TrainerClient, is_trusted: bool = False) -> list[RunView]:
        """Raise PartlySubmitted if not the first one was refused."""
        views: list[RunView] = []
        for payload, key in self._payloads:
            try:
                views.append(trainer.submit(payload, program_environment(payload), is_trusted, key))
            except MosaicError as error:
                if not views:
                    raise
                raise PartlySubmitted(views, len(self._payloads), error) from error
        return views
