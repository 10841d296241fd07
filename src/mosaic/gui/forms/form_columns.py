"""The sections of a long form in two columns, built section by section, so that the window stays responsive."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QEvent, Qt, QTimer, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QSizePolicy, QVBoxLayout, QWidget

from mosaic.contracts.setting_field import SettingField
from mosaic.gui import theme
from mosaic.gui.forms.form_rows import FormRow, align_labels
from mosaic.gui.models.form import FormSection
from mosaic.gui.views import widgets as ui

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
