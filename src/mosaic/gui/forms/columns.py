"""The train form itself: two columns of rows over one draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QComboBox, QLabel, QScrollArea, QSizePolicy, QVBoxLayout, QWidget

from mosaic.gui import theme
from mosaic.gui.forms.draft import problems, text_of
from mosaic.gui.forms.environments import environment_problem
from mosaic.gui.forms.layout import Section, label, offered
from mosaic.gui.forms.rows import FieldRow, calmed
from mosaic.gui.forms.special_rows import EnvironmentRow, PlainRow, SeedRow, row_for
from mosaic.gui.models.training import Environments, Training
from mosaic.gui.views.made import muted, named

PREFIX = "train"
STACKED_BELOW = 840
"""Where there is less width, the columns stand one above the other."""
WIDEST = 760
NARROWEST = 300


class Columns(QScrollArea):
    def __init__(self, training: Training, environments: Environments) -> None:
        super().__init__()
        self._training = training
        self._environments = environments
        self._rows: dict[str, FieldRow] = {}
        self._refused: dict[str, str] = {}
        self.setObjectName("train.scroll")
        self.setWidgetResizable(True)
        body = QWidget()
        self._both = QBoxLayout(QBoxLayout.Direction.LeftToRight, body)
        self._both.setContentsMargins(0, theme.GAP, theme.MARGIN, theme.MARGIN)
        self._both.setSpacing(2 * theme.MARGIN)
        self.setWidget(body)
        self._worker = named(calmed(QComboBox()), "train.worker")
        self._worker.addItems(list(offered()))
        self._algorithm = named(calmed(QComboBox()), "train.algorithm")
        self._head = (PlainRow("Worker", self._worker), PlainRow("Algorithm", self._algorithm))
        self._rest = muted("", "train.rest")
        self._left, self._right = self._column(3), self._column(2)
        self._left.addWidget(_heading("What to train"))
        for row in self._head:
            self._left.addWidget(row)
        self._bodies: dict[QVBoxLayout, _Body] = {}
        self._waiting: list[tuple[_Body, Section]] = []
        self._next = QTimer(self, interval=0)
        self._next.timeout.connect(self._build_next)
        self._build()
        self._worker.currentTextChanged.connect(self._worker_chosen)
        self._algorithm.currentTextChanged.connect(self._algorithm_chosen)
        training.replaced.connect(self._build)
        training.edited.connect(self.refresh)
        environments.listed.connect(lambda _: self._show_environments())

    # --- building

    def _column(self, stretch: int) -> QVBoxLayout:
        column = QWidget()
        column.setMaximumWidth(WIDEST)
        column.setMinimumWidth(NARROWEST)
        # What the rows would like would win over the stretch; what they need is NARROWEST.
        column.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        stack = QVBoxLayout(column)
        stack.setContentsMargins(0, 0, 0, 0)
        stack.setSpacing(theme.GAP)
        stack.setAlignment(Qt.AlignmentFlag.AlignTop)
        self._both.addWidget(column, stretch)
        return stack

    def _build(self) -> None:
        """Rows anew where another algorithm has other settings; section by section, so that nothing stands still."""
        self._refused = {}
        is_first = not self._bodies
        layout = self._training.layout
        self._head[1].say(layout.algorithm.title)
        core = Section("", layout.core)
        self._build_column(self._left, (core, *layout.left), self._head)
        self._build_column(self._right, layout.right)
        self._right.removeWidget(self._rest)
        self._right.addWidget(self._rest)
        self._show_choice()
        for row in self._rows.values():  # what stayed, even where somebody types
            row.show_text(text_of(self._training.draft, row.field))
        if self._waiting:
            # The form as it was stays in sight while another one is built; the first one has nothing to show so far.
            self.setUpdatesEnabled(is_first)
            for body in self._bodies.values():
                body.setVisible(not is_first)
            self._next.start()
        else:
            self.refresh()

    def _build_column(self, column: QVBoxLayout, sections: tuple[Section, ...], above: Sequence[PlainRow] = ()) -> None:
        old = self._bodies.get(column)
        if old is not None and old.sections == sections:
            return
        if old is not None:
            self._waiting = [(body, section) for body, section in self._waiting if body is not old]
            for name in old.names:
                self._rows.pop(name, None)
            old.setParent(None)
            old.deleteLater()
        body = _Body(sections)
        for row in above:
            row.label.setFixedWidth(body.label_width)
        column.addWidget(body)
        self._bodies[column] = body
        self._waiting += [(body, section) for section in sections]

    def _build_next(self) -> None:
        body, section = self._waiting.pop(0)
        made = []
        for field in section.fields:
            row = row_for(field, PREFIX)
            row.label.setFixedWidth(body.label_width)
            row.edited.connect(self._edited)
            if isinstance(row, SeedRow):
                row.seeds_edited.connect(self._seeds_edited)
            self._rows[field.name] = row
            made.append(row)
        body.add(section.title, made)
        if self._waiting:
            return
        self._next.stop()
        self._order_tabs()
        self._show_environments()
        for body in self._bodies.values():
            body.show()
        self.setUpdatesEnabled(True)

    def _order_tabs(self) -> None:
        """Down the left column, then down the right one, whichever was built later."""
        before: QWidget = self._algorithm
        for column in (self._left, self._right):
            for widget in self._bodies[column].findChildren(QWidget):
                is_here = widget.window() is self.window()  # the list of a combo box is a window of its own
                if is_here and widget.focusPolicy() & Qt.FocusPolicy.TabFocus and widget.focusProxy() is None:
                    self.setTabOrder(before, widget)
                    before = widget

    def finish(self) -> None:
        """Builds what is still waiting."""
        while self._waiting:
            self._build_next()

    # --- choosing

    def _show_choice(self) -> None:
        draft = self._training.draft
        for combo in (self._worker, self._algorithm):
            combo.blockSignals(True)
        self._worker.setCurrentText(draft.worker)
        names = offered()[draft.worker]
        if [self._algorithm.itemText(index) for index in range(self._algorithm.count())] != list(names):
            self._algorithm.clear()
            self._algorithm.addItems(list(names))
        self._algorithm.setCurrentText(draft.algorithm)
        for combo in (self._worker, self._algorithm):
            combo.blockSignals(False)

    def _worker_chosen(self, worker: str) -> None:
        self._training.choose(worker, offered()[worker][0])

    def _algorithm_chosen(self, algorithm: str) -> None:
        self._training.choose(self._worker.currentText(), algorithm)

    def _show_environments(self) -> None:
        found = self._environments.of(self._training.draft.worker)
        row = self._rows.get("env_id")
        if isinstance(row, EnvironmentRow):
            row.show_choices(found)
        self.refresh()

    # --- editing

    def _edited(self, name: str, text: str) -> None:
        self._refused.pop(name, None)
        self._training.edit(self._training.draft.with_text(self._training.layout.fields[name], text))
        self._rows[name].show_text(text)

    def _seeds_edited(self, seeds: str | None) -> None:
        self._refused.pop("seed", None)
        self._training.edit(replace(self._training.draft, seeds=seeds))

    def show_refusal(self, name: str, sentence: str) -> None:
        """What the worker said of a field; it stays until the field is changed."""
        self._refused[name] = sentence
        self.refresh()
        self.go_to(name)

    def go_to(self, name: str) -> None:
        self.finish()
        row = self._rows[name]
        self.ensureWidgetVisible(row)
        row.take_focus()

    def problems(self) -> dict[str, str]:
        draft = self._training.draft
        layout = self._training.layout
        found = problems(layout, draft)
        env_id = text_of(draft, layout.fields["env_id"]).strip()
        said = environment_problem(env_id, self._environments.of(draft.worker))
        return {"env_id": said, **found} if said and "env_id" not in found else found

    def refresh(self) -> None:
        draft = self._training.draft
        found = {**self._refused, **self.problems()}
        for name, row in self._rows.items():
            is_changed = name in draft.texts
            if isinstance(row, SeedRow):
                is_changed = is_changed or draft.seeds is not None
                row.show_seeds(text_of(draft, row.field), draft.seeds)
            elif not row.input.hasFocus():  # whoever types there is not interrupted
                row.show_text(text_of(draft, row.field))
            row.show_state(is_changed, found.get(name, ""))
            if isinstance(row, SeedRow):
                row.show_count(draft.seeds)
        kept = ", ".join(sorted(_leaves(draft.rest)))
        self._rest.setText(f"Kept from the run that was opened: {kept}. Reset all drops it." if kept else "")
        self._rest.setVisible(bool(kept))

    def focused_field(self) -> str:
        """The name of the setting that has the focus; empty where none has."""
        return next((name for name, row in self._rows.items() if row.isAncestorOf(self.focusWidget() or self)), "")

    def restyle(self) -> None:
        for row in self._rows.values():
            row.restyle()
        self.refresh()

    def resizeEvent(self, event: QResizeEvent) -> None:
        is_narrow = event.size().width() < STACKED_BELOW
        wanted = QBoxLayout.Direction.TopToBottom if is_narrow else QBoxLayout.Direction.LeftToRight
        if self._both.direction() != wanted:
            self._both.setDirection(wanted)
        super().resizeEvent(event)


def _heading(title: str) -> QLabel:
    heading = QLabel(title)
    heading.setFont(theme.section())
    return heading


class _Body(QWidget):
    """The rows of a column."""

    def __init__(self, sections: tuple[Section, ...]) -> None:
        super().__init__()
        self.sections = sections
        fields = [field for section in sections for field in section.fields]
        self.names = [field.name for field in fields]
        metrics = self.fontMetrics()
        self.label_width = max(metrics.horizontalAdvance(label(field)) for field in fields) + theme.GAP
        self._stack = QVBoxLayout(self)
        self._stack.setContentsMargins(0, 0, 0, 0)
        self._stack.setSpacing(theme.GAP)

    def add(self, title: str, rows: Sequence[QWidget]) -> None:
        if title and self._stack.count():
            self._stack.addSpacing(theme.GAP)
        if title:
            self._stack.addWidget(_heading(title))
        for row in rows:
            self._stack.addWidget(row)


def _leaves(data: object, path: str = "") -> list[str]:
    if not isinstance(data, dict):
        return [path.rsplit(".", 1)[-1]]
    return [leaf for key, value in data.items() for leaf in _leaves(value, f"{path}.{key}")]
