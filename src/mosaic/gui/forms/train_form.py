"""The train form itself: two columns of rows over one draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from PySide6.QtCore import QEvent, QSignalBlocker, Qt, QTimer
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QSizePolicy, QVBoxLayout, QWidget

from mosaic.contracts.errors import BadInput
from mosaic.contracts.setting_field import SettingField
from mosaic.contracts.views import EnvironmentDetails
from mosaic.formatting import count_noun
from mosaic.gui import theme
from mosaic.gui.forms.algorithm_box import AlgorithmBox
from mosaic.gui.forms.environment_settings_row import EnvironmentSettingsRow
from mosaic.gui.forms.form_rows import (
    EnvironmentRow,
    FieldRow,
    FormRow,
    LabelledRow,
    SeedRow,
    align_labels,
    create_row,
    form_combo,
)
from mosaic.gui.forms.path_field import PathField
from mosaic.gui.models.draft import changed_fields, field_text, problems
from mosaic.gui.models.env_settings_text import FIELD_NAME as ENV_KWARGS
from mosaic.gui.models.env_settings_text import object_problem, read_object, settings_problems, without_settings
from mosaic.gui.models.environment_check import (
    EnvironmentFinding,
    algorithm_groups,
    check_environment,
)
from mosaic.gui.models.environment_choices import WorkerEnvironments, environment_problem
from mosaic.gui.models.form_layout import FormSection, algorithms_by_worker, script_names, worker_algorithms
from mosaic.gui.models.training import Training
from mosaic.gui.views.widgets import YieldingScrollArea, column, create_timer, muted_label, section_label
from mosaic.workers import get_worker

PREFIX = "train"
MAX_COLUMN_WIDTH = 760
"""With text of the default size."""


class TrainForm(YieldingScrollArea):
    def __init__(self, training: Training, environments: WorkerEnvironments, has_scripts: bool = True) -> None:
        """`has_scripts`: programs of the user's can be started, as the trainer is on this machine."""
        super().__init__()
        self._training = training
        self._has_scripts = has_scripts
        self._environments = environments
        self._rows: dict[str, FieldRow] = {}
        self._field_errors: dict[str, str] = {}
        self._settings_before: tuple[SettingField, ...] = ()
        """Of the environment from which the user has changed to another one that is not described yet."""
        self.setObjectName("train.scroll")
        self.setWidgetResizable(True)
        body = QWidget()
        self._columns_layout = QBoxLayout(QBoxLayout.Direction.LeftToRight, body)
        self._columns_layout.setContentsMargins(0, theme.GAP, theme.MARGIN, theme.MARGIN)
        self._columns_layout.setSpacing(2 * theme.MARGIN)
        self.setWidget(body)
        self._worker = form_combo("train.worker")
        self._worker.addItems(list(algorithms_by_worker()))
        self._algorithm = AlgorithmBox("train.algorithm")
        self._cleanrl = PathField("train.cleanrl", "Your CleanRL", "A checkout, or an environment with it")
        hint = "The one next to it, else MOSAIC's"
        self._python = PathField("train.cleanrl_python", "Its Python", hint, ["Python (python*)"])
        self._choice_rows = (
            LabelledRow("Worker", self._worker),
            LabelledRow("Algorithm", self._algorithm),
            LabelledRow("Your CleanRL", self._cleanrl, is_wide=True),
            LabelledRow("Its Python", self._python, is_wide=True),
        )
        self._rest_label = muted_label("", "train.rest")
        self._columns: dict[QVBoxLayout, QWidget] = {}
        self._left, self._right = self._add_column(3), self._add_column(2)
        self._left.addWidget(section_label("What to train"))
        for row in self._choice_rows:
            self._left.addWidget(row)
        self._bodies: dict[QVBoxLayout, _ColumnBody] = {}
        self._pending_sections: list[tuple[_ColumnBody, FormSection]] = []
        self._build_timer = QTimer(self, interval=0)
        self._build_timer.timeout.connect(self._build_next)
        self._fit_timer = create_timer(self, 0, self._fit_to_text, is_single_shot=True)
        self._build()
        self._worker.currentTextChanged.connect(self._on_worker_chosen)
        self._algorithm.name_chosen.connect(self._choose_algorithm)
        for field in (self._cleanrl, self._python):
            field.path_chosen.connect(self._choose_cleanrl)
        training.draft_replaced.connect(self._build)
        training.draft_edited.connect(self.refresh)
        environments.environments_loaded.connect(lambda _: self._show_environments())
        environments.details_loaded.connect(lambda _: self.refresh())

    # --- building

    def _add_column(self, stretch: int) -> QVBoxLayout:
        widget = QWidget()
        # Otherwise the size hints of the rows would override the stretch factors.
        widget.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        stack = column(parent=widget)
        stack.setAlignment(Qt.AlignmentFlag.AlignTop)
        self._columns[stack] = widget
        self._columns_layout.addWidget(widget, stretch)
        return stack

    def _build(self) -> None:
        """Rebuild the rows for another algorithm, section by section, so that the window stays responsive."""
        self._settings_before = ()
        self._field_errors = {}
        is_first = not self._bodies
        layout = self._training.layout
        self._choice_rows[1].set_note(layout.algorithm.title)
        core = FormSection("", layout.core)
        self._build_column(self._left, (core, *layout.left), self._choice_rows)
        self._build_column(self._right, layout.right)
        self._right.removeWidget(self._rest_label)
        self._right.addWidget(self._rest_label)
        self._show_choice()
        for row in self._rows.values():  # those that were not rebuilt, even the one with the focus
            row.show_text(field_text(self._training.draft, row.field))
        if self._pending_sections:
            # The old form stays visible while another one is built; the first one has nothing to show yet.
            self.setUpdatesEnabled(is_first)
            for body in self._bodies.values():
                body.setVisible(not is_first)
            self._build_timer.start()
        else:
            self.refresh()

    def _build_column(
        self, stack: QVBoxLayout, sections: tuple[FormSection, ...], above: Sequence[LabelledRow] = ()
    ) -> None:
        old = self._bodies.get(stack)
        if old is not None and old.sections == sections:
            return
        if old is not None:
            self._pending_sections = [(body, section) for body, section in self._pending_sections if body is not old]
            for name in old.names:
                self._rows.pop(name, None)
            old.setParent(None)
            old.deleteLater()
        body = _ColumnBody(sections)
        body.rows += above
        stack.addWidget(body)
        self._bodies[stack] = body
        self._pending_sections += [(body, section) for section in sections]

    def _build_next(self) -> None:
        """Do one part of the work: build a section, show a column, or, at last, set the widths."""
        if self._pending_sections:
            self._build_section(*self._pending_sections.pop(0))
            if not self._pending_sections:
                self._order_tabs()
                self._show_environments()
        elif hidden := [body for body in self._bodies.values() if body.isHidden()]:
            self.setUpdatesEnabled(False)  # until the widths are set
            hidden[0].show()
        else:
            self._build_timer.stop()
            self._fit_to_text()
            self.setUpdatesEnabled(True)

    def _build_section(self, body: _ColumnBody, section: FormSection) -> None:
        rows: list[FormRow] = []
        for field in section.fields:
            row = (EnvironmentSettingsRow if field.name == ENV_KWARGS else create_row)(field, PREFIX)
            row.edited.connect(self._on_edited)
            if isinstance(row, SeedRow):
                row.seeds_edited.connect(self._on_seeds_edited)
            if isinstance(row, EnvironmentRow):
                row.algorithm_chosen.connect(self._choose_algorithm)
            self._rows[field.name] = row
            rows.append(row)
        body.add(section.title, rows)

    def _order_tabs(self) -> None:
        """Down the left column, then down the right one, whichever was built later."""
        before: QWidget = self._algorithm
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
        if self._pending_sections:
            return  # it is called again when they are built
        self.refresh()
        for stack, body in self._bodies.items():
            align_labels(body.rows)
            needed = max(row.minimum_width() for row in body.rows)
            self._columns[stack].setMinimumWidth(needed)
            self._columns[stack].setMaximumWidth(max(theme.scale(MAX_COLUMN_WIDTH), needed))
        self._choose_direction(self.viewport().width())

    def _choose_direction(self, width: int) -> None:
        """One column below the other where both do not fit next to each other."""
        margins = self._columns_layout.contentsMargins()
        needed = sum(one.minimumWidth() for one in self._columns.values()) + margins.left() + margins.right()
        is_narrow = width < needed + self._columns_layout.spacing()
        wanted = QBoxLayout.Direction.TopToBottom if is_narrow else QBoxLayout.Direction.LeftToRight
        if self._columns_layout.direction() != wanted:
            self._columns_layout.setDirection(wanted)

    def finish_building(self) -> None:
        """Do what is left of the work."""
        while self._build_timer.isActive():
            self._build_next()

    # --- choosing

    def _show_choice(self) -> None:
        draft = self._training.draft
        with QSignalBlocker(self._worker), QSignalBlocker(self._algorithm):
            self._worker.setCurrentText(draft.worker)
            scripts = self._show_cleanrl(draft.cleanrl)
            title = "Your CleanRL" if draft.cleanrl else "Scripts"
            groups = algorithm_groups(worker_algorithms(draft.worker))
            self._algorithm.show_names([*groups, (title, scripts)], draft.algorithm)
            self._cleanrl.show_path(draft.cleanrl)
            self._python.show_path(draft.cleanrl_python)

    def _show_cleanrl(self, folder: str) -> list[str]:
        """Say what is in a folder for CleanRL, and return the names of its scripts."""
        worker, (row, python_row) = self._training.draft.worker, self._choice_rows[2:]
        row.setVisible(self._has_scripts and get_worker(worker).script_names is not None)
        python_row.setVisible(row.isVisibleTo(self) and bool(self._training.draft.cleanrl))
        try:
            scripts = list(script_names(worker, folder)) if self._has_scripts else []
        except BadInput as error:
            row.set_note(str(error).removeprefix("cleanrl: "), is_problem=True)
            return []
        row.set_note(f"{count_noun(len(scripts), 'script')}, at the end of the list above." if folder else "")
        return scripts

    def _choose_cleanrl(self) -> None:
        """A folder without scripts is not taken; what is wrong with it is said below it."""
        folder, python = self._cleanrl.path, self._python.path
        if self._show_cleanrl(folder) or not folder:
            self._training.choose_cleanrl(folder, python if folder else "")

    def _on_worker_chosen(self, worker: str) -> None:
        self._training.choose_worker(worker, algorithms_by_worker()[worker][0])

    def _choose_algorithm(self, algorithm: str) -> None:
        self._training.choose_algorithm(self._worker.currentText(), algorithm)

    def _show_environments(self) -> None:
        row = self._rows.get("env_id")
        if isinstance(row, EnvironmentRow):
            row.show_choices(self._environments.for_worker(self._training.draft.worker))
        self.refresh()

    # --- editing

    def _on_edited(self, name: str, text: str) -> None:
        if name == "env_id":
            self._settings_before = self._environment_settings() or self._settings_before
        self._field_errors.pop(name, None)
        self._training.edit(self._training.draft.with_text(self._training.layout.fields[name], text))
        self._rows[name].show_text(text)

    def _on_seeds_edited(self, seeds: str | None) -> None:
        self._field_errors.pop("seed", None)
        self._training.edit(replace(self._training.draft, seeds=seeds))

    def show_field_errors(self, messages: Mapping[str, str]) -> None:
        """Show the worker's message at each of these fields until it is changed, and go to the first.

        What the form has found about the environment itself stays instead: it offers buttons.
        """
        has_finding = bool(self._check_environment().text)
        self._field_errors |= {name: text for name, text in messages.items() if name != "env_id" or not has_finding}
        self.refresh()
        self.focus_field(next(iter(messages)))

    def begin(self) -> None:
        """Show the first rows, with the focus in the box of algorithms."""
        self.verticalScrollBar().setValue(0)
        self._algorithm.begin_typing()

    def focus_field(self, name: str) -> None:
        self.finish_building()
        row = self._rows[name]
        self.ensureWidgetVisible(row)
        row.take_focus()

    def problems(self) -> dict[str, str]:
        draft = self._training.draft
        layout = self._training.layout
        by_field = problems(layout, draft)
        env_id = field_text(draft, layout.fields["env_id"]).strip()
        listings = [] if layout.algorithm.is_user_script else self._environments.for_worker(draft.worker)
        problem = environment_problem(env_id, listings)  # a script has packages of its own
        if ENV_KWARGS in layout.fields and ENV_KWARGS not in by_field:
            text = field_text(draft, layout.fields[ENV_KWARGS])
            wrong = settings_problems(self._environment_settings() or (), text)
            of_settings = next((f"{name}: {problem}" for name, problem in wrong.items()), "")
            if one := object_problem(text) or of_settings:
                by_field[ENV_KWARGS] = one
        return {"env_id": problem, **by_field} if problem and "env_id" not in by_field else by_field

    def _check_environment(self) -> EnvironmentFinding:
        draft, layout = self._training.draft, self._training.layout
        env_id = field_text(draft, layout.fields["env_id"]).strip()
        listings = self._environments.for_worker(draft.worker)
        return check_environment(
            env_id, layout.algorithm, listings, self._environment_details(), worker_algorithms(draft.worker)
        )

    def _environment_settings(self) -> tuple[SettingField, ...] | None:
        """What the catalog knows of the chosen environment's settings; None until the trainer has answered."""
        details = self._environment_details()
        return None if details is None else details.settings

    def _environment_details(self) -> EnvironmentDetails | None:
        draft = self._training.draft
        env_id = field_text(draft, self._training.layout.fields["env_id"]).strip()
        listed = {listing.id for listing in self._environments.for_worker(draft.worker) if listing.is_installed}
        return self._environments.details(env_id) if env_id in listed else None

    def refresh(self) -> None:
        draft = self._training.draft
        messages = {**self._field_errors, **self.problems()}
        settings_row = self._rows.get(ENV_KWARGS)
        if isinstance(settings_row, EnvironmentSettingsRow):
            settings = self._environment_settings()
            settings_row.show_settings(settings or ())
            self._drop_settings_of_other_environment(settings)
            draft = self._training.draft
        changed = changed_fields(self._training.layout, draft)
        for name, row in self._rows.items():
            is_changed = name in changed
            if isinstance(row, EnvironmentRow):
                row.show_finding(EnvironmentFinding() if messages.get(name) else self._check_environment())
            if isinstance(row, SeedRow):
                row.show_seeds(field_text(draft, row.field), draft.seeds)
            elif not row.input.hasFocus():  # typing is not interrupted
                row.show_text(field_text(draft, row.field))
            row.show_state(is_changed, messages.get(name, ""))
            if isinstance(row, SeedRow):
                row.show_count(draft.seeds)
        names = ", ".join(sorted(_leaf_names(draft.rest)))
        self._rest_label.setText(f"Kept from the run that was opened: {names}. Reset all drops it." if names else "")
        self._rest_label.setVisible(bool(names))

    def _drop_settings_of_other_environment(self, settings: tuple[SettingField, ...] | None) -> None:
        """Drop what was set in rows of the environment that was chosen before: the new one would be refused with it."""
        gone = {field.name for field in self._settings_before} - {field.name for field in settings or ()}
        if settings is None or not gone:
            return
        self._settings_before = ()
        field = self._training.layout.fields[ENV_KWARGS]
        text = field_text(self._training.draft, field)
        if gone.intersection(read_object(text)):
            self._training.edit(self._training.draft.with_text(field, without_settings(text, gone)))

    def focused_field(self) -> str:
        """The name of the setting that has the focus; empty where none has."""
        return next((name for name, row in self._rows.items() if row.isAncestorOf(self.focusWidget() or self)), "")

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._choose_direction(event.size().width())
        super().resizeEvent(event)


class _ColumnBody(QWidget):
    """The rows of a column."""

    def __init__(self, sections: tuple[FormSection, ...]) -> None:
        super().__init__()
        self.sections = sections
        fields = [field for section in sections for field in section.fields]
        self.names = [field.name for field in fields]
        self.rows: list[FormRow] = []
        """Those whose labels are aligned with each other, also above this body."""
        self._stack = column(parent=self)

    def add(self, title: str, rows: Sequence[FormRow]) -> None:
        self.rows += rows
        if title and self._stack.count():
            self._stack.addSpacing(theme.GAP)
        if title:
            self._stack.addWidget(section_label(title))
        for row in rows:
            self._stack.addWidget(row)


def _leaf_names(data: object, path: str = "") -> list[str]:
    if not isinstance(data, dict):
        return [path.rsplit(".", 1)[-1]]
    return [leaf for key, value in data.items() for leaf in _leaf_names(value, f"{path}.{key}")]
