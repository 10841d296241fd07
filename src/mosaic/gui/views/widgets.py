"""Builders for widgets and layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from PySide6.QtCore import QEvent, QObject, QSignalBlocker, QSize, Qt, QTimer
from PySide6.QtGui import QColor, QIcon, QPainter, QPaintEvent, QPixmap
from PySide6.QtWidgets import (
    QAbstractItemView,
    QBoxLayout,
    QCheckBox,
    QComboBox,
    QFileDialog,
    QFormLayout,
    QHBoxLayout,
    QLabel,
    QLayout,
    QLineEdit,
    QMessageBox,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QSplitter,
    QStackedWidget,
    QTableView,
    QTabWidget,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from mosaic.gui import theme

ObjectT = TypeVar("ObjectT", bound=QObject)
TableT = TypeVar("TableT", bound=QTableView)
Call = Callable[[], object]
DOT_SIZE = 10
QUESTION_WIDTH = 440
"""Of the text of a question, so that the title of a run fits into a line."""


def with_object_name(target: ObjectT, name: str) -> ObjectT:
    """Its name: for layouts that are remembered, style sheets and tests."""
    target.setObjectName(name)
    return target


def set_properties(widget: QWidget, **properties: bool) -> None:
    """Set properties that the style sheet looks at, and apply it again."""
    for name, value in properties.items():
        widget.setProperty(name, value)
    widget.style().unpolish(widget)
    widget.style().polish(widget)


# --- layouts


@dataclass(frozen=True)
class Stretch:
    """Empty space of a layout that takes what is left."""

    factor: int = 1


Item = QWidget | QLayout | Stretch | int | tuple[QWidget | QLayout, int] | tuple[QWidget, Qt.AlignmentFlag]
"""A part of a layout: a widget or a layout, with its stretch factor or alignment; an int is a space in pixels."""
Margins = tuple[int, int, int, int]
"""Left, top, right, bottom."""
PAGE_MARGINS: Margins = (theme.MARGIN, theme.GAP, theme.MARGIN, theme.GAP)
TAB_MARGINS: Margins = (0, 0, 0, theme.GAP)


def row(
    *items: Item, parent: QWidget | None = None, margins: Margins = (0, 0, 0, 0), spacing: int = theme.GAP
) -> QHBoxLayout:
    """A horizontal layout; that of `parent` where it is given."""
    layout = QHBoxLayout(parent) if parent is not None else QHBoxLayout()
    _fill(layout, items, margins, spacing)
    return layout


def column(
    *items: Item, parent: QWidget | None = None, margins: Margins = (0, 0, 0, 0), spacing: int = theme.GAP
) -> QVBoxLayout:
    """A vertical layout; that of `parent` where it is given."""
    layout = QVBoxLayout(parent) if parent is not None else QVBoxLayout()
    _fill(layout, items, margins, spacing)
    return layout


def _fill(layout: QBoxLayout, items: Iterable[Item], margins: Margins, spacing: int) -> None:
    layout.setContentsMargins(*margins)
    layout.setSpacing(spacing)
    for item in items:
        part, how = item if isinstance(item, tuple) else (item, 0)
        if isinstance(part, Stretch):
            layout.addStretch(part.factor)
        elif isinstance(part, int):
            layout.addSpacing(part)
        elif isinstance(part, QLayout):
            layout.addLayout(part, int(how))
        elif isinstance(how, Qt.AlignmentFlag):
            layout.addWidget(part, 0, how)
        else:
            layout.addWidget(part, how)


def widget_column(*items: Item, margins: Margins = (0, 0, 0, 0), spacing: int = theme.GAP) -> QWidget:
    """A widget with a vertical layout."""
    widget = QWidget()
    column(*items, parent=widget, margins=margins, spacing=spacing)
    return widget


def form(*rows: tuple[str | QWidget, QWidget | QLayout]) -> QFormLayout:
    """A label and a field in each row."""
    layout = QFormLayout()
    layout.setLabelAlignment(Qt.AlignmentFlag.AlignLeft)
    layout.setHorizontalSpacing(24)
    for label, field in rows:
        layout.addRow(label, field)
    return layout


def stack(*pages: QWidget) -> QStackedWidget:
    pages_widget = QStackedWidget()
    for page in pages:
        pages_widget.addWidget(page)
    return pages_widget


def tabs(name: str, *pages: tuple[str, QWidget]) -> QTabWidget:
    widget = with_object_name(QTabWidget(), name)
    widget.setDocumentMode(True)
    for title, page in pages:
        widget.addTab(page, title)
    return widget


def splitter(
    orientation: Qt.Orientation, *widgets: QWidget, sizes: list[int], stretch: int, name: str = ""
) -> QSplitter:
    """Widgets that cannot be collapsed; the one with the number `stretch` takes what is left."""
    split = with_object_name(QSplitter(orientation), name)
    for widget in widgets:
        split.addWidget(widget)
    split.setStretchFactor(stretch, 1)
    split.setSizes(sizes)
    split.setChildrenCollapsible(False)
    return split


def scroll_area(widget: QWidget, name: str = "", is_vertical_only: bool = False) -> QScrollArea:
    area = with_object_name(QScrollArea(), name)
    area.setWidgetResizable(True)
    if is_vertical_only:
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    area.setWidget(widget)
    return area


def clear_layout(layout: QLayout) -> None:
    """Delete all widgets of a layout. Hidden first, as the deletion waits for the next turn of the event loop."""
    while (item := layout.takeAt(0)) is not None:
        if (widget := item.widget()) is not None:
            widget.hide()
            widget.deleteLater()


# --- labels


def muted_label(text: str, name: str = "") -> QLabel:
    label = with_object_name(QLabel(text), name)
    label.setProperty("muted", True)
    label.setWordWrap(True)
    return label


def heading_label(text: str) -> QLabel:
    label = QLabel(text)
    label.setProperty("heading", True)
    return label


def section_label(text: str) -> QLabel:
    """The heading of a group inside a page."""
    label = QLabel(text)
    label.setProperty("section", True)
    return label


def selectable_label(name: str, text: str = "") -> QLabel:
    """Wrapped text that can be copied."""
    label = with_object_name(QLabel(text), name)
    label.setTextFormat(Qt.TextFormat.PlainText)  # it may come from a script or from an imported run
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    label.setWordWrap(True)
    return label


def status_label(name: str) -> QLabel:
    """A status line: it can be copied, and shrinks where space is short."""
    label = selectable_label(name)
    label.setWordWrap(False)
    label.setMinimumWidth(40)
    return label


class ElidedLabel(QLabel):
    """A line of text that is elided where it does not fit."""

    def __init__(self, text: str = "", mode: Qt.TextElideMode = Qt.TextElideMode.ElideRight) -> None:
        super().__init__(text)
        self._mode = mode
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)

    def minimumSizeHint(self) -> QSize:
        return QSize(self.fontMetrics().horizontalAdvance("…") * 3, super().minimumSizeHint().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setPen(self.palette().color(self.foregroundRole()))
        area = self.contentsRect()
        text = self.fontMetrics().elidedText(self.text(), self._mode, area.width())
        painter.drawText(area, int(self.alignment() | Qt.AlignmentFlag.AlignVCenter), text)


class EmptyState(QWidget):
    """The placeholder where there is no content yet: what it would be, what to do, and the button that does it."""

    def __init__(self, title: str, text: str = "", button: QPushButton | None = None) -> None:
        super().__init__()
        self.title, self.text = heading_label(title), muted_label(text)
        self.title.setWordWrap(True)
        for label in (self.title, self.text):
            label.setAlignment(Qt.AlignmentFlag.AlignCenter)
        action: tuple[Item, ...] = () if button is None else (4, (button, Qt.AlignmentFlag.AlignHCenter))
        column(Stretch(), self.title, self.text, *action, Stretch(2), parent=self, margins=(theme.MARGIN,) * 4)

    def set_text(self, title: str, text: str = "") -> None:
        self.title.setText(title)
        self.text.setText(text)


def dot_icon(color: QColor) -> QIcon:
    """A disk in the color of a run."""
    pixmap = QPixmap(2 * DOT_SIZE, 2 * DOT_SIZE)
    pixmap.setDevicePixelRatio(2)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(color)
    painter.drawEllipse(0, 0, DOT_SIZE, DOT_SIZE)
    painter.end()
    return QIcon(pixmap)


class IconLabel(QWidget):
    """An icon in the colors of the current theme."""

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.setFixedSize(QSize(size, size))
        self._icon = QIcon()

    def set_icon(self, icon: QIcon) -> None:
        self._icon = icon
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        self._icon.paint(QPainter(self), self.rect())


# --- buttons and fields


def button(text: str, name: str, on_click: Call | None = None, tip: str = "", icon: str = "") -> QPushButton:
    widget = with_object_name(QPushButton(text), name)
    widget.setToolTip(tip)
    if icon:
        widget.setIcon(theme.icon(icon))
    if on_click is not None:
        widget.clicked.connect(lambda: on_click())
    return widget


def accent_button(text: str, name: str = "", on_click: Call | None = None) -> QPushButton:
    """The one thing to do in a view."""
    widget = button(text, name, on_click)
    widget.setProperty("accent", True)
    return widget


def flat_button(text: str, name: str, on_click: Call | None = None, tip: str = "", icon: str = "") -> QPushButton:
    widget = button(text, name, on_click, tip, icon)
    widget.setProperty("flat", True)
    return widget


def tool_button(
    name: str,
    icon: str,
    tip: str,
    on_click: Call | None = None,
    text: str = "",
    is_flat: bool = True,
    is_checkable: bool = False,
) -> QToolButton:
    """A button with an icon, and its text next to it where there is one."""
    widget = with_object_name(QToolButton(), name)
    widget.setToolTip(tip)
    widget.setProperty("flat", is_flat)
    widget.setCheckable(is_checkable)
    if icon:
        widget.setIcon(theme.icon(icon))
    if text:
        widget.setText(text)
        widget.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
    else:
        widget.setAccessibleName(tip)
    if on_click is not None:
        widget.clicked.connect(lambda: on_click())
    return widget


def search_field(name: str, placeholder: str, tip: str = "", max_width: int = 0) -> QLineEdit:
    field = with_object_name(QLineEdit(), name)
    field.setPlaceholderText(placeholder)
    field.setToolTip(tip)
    field.setClearButtonEnabled(True)
    if max_width:
        field.setMaximumWidth(max_width)
    return field


def combo_box(name: str, rows: Iterable[tuple[str, object]] = (), tip: str = "") -> QComboBox:
    """A list of choices: the title and the value of each."""
    box = with_object_name(QComboBox(), name)
    box.setToolTip(tip)
    for title, value in rows:
        box.addItem(title, value)
    return box


def set_choices(box: QComboBox, rows: Iterable[tuple[str, object]], selected: object) -> None:
    """Replaces the entries and selects one by its value, without signals."""
    new_rows = list(rows)
    with QSignalBlocker(box):
        if new_rows != [(box.itemText(number), box.itemData(number)) for number in range(box.count())]:
            box.clear()
            for title, value in new_rows:
                box.addItem(title, value)
        box.setCurrentIndex(box.findData(selected))


def check_box(text: str, name: str, on_toggle: Callable[[bool], object], tip: str = "") -> QCheckBox:
    box = with_object_name(QCheckBox(text), name)
    box.setToolTip(tip)
    box.toggled.connect(on_toggle)
    return box


def plain_table(table: TableT, name: str) -> TableT:
    """A read-only table of rows, without grid and row numbers."""
    table.setObjectName(name)
    table.setShowGrid(False)
    table.setTabKeyNavigation(False)
    table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
    table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
    table.verticalHeader().hide()
    header = table.horizontalHeader()
    header.setHighlightSections(False)
    header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
    return table


def confirm(
    parent: QWidget | None,
    name: str,
    title: str,
    question: str,
    details: str,
    yes: str,
    on_yes: Call,
    no: str = "Cancel",
) -> None:
    """Opens a question; without an answer nothing happens."""
    box = with_object_name(QMessageBox(parent), name)
    box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    box.setWindowTitle(title)
    box.setText(question)
    box.setInformativeText(details)
    yes_button = box.addButton(yes, QMessageBox.ButtonRole.DestructiveRole)
    with_object_name(yes_button, f"{name}.yes").clicked.connect(lambda: on_yes())
    no_button = box.addButton(no, QMessageBox.ButtonRole.RejectRole)
    box.setDefaultButton(no_button)
    box.setEscapeButton(no_button)
    for label in box.findChildren(QLabel):
        label.setTextFormat(Qt.TextFormat.PlainText)  # the details may come from an imported run
        if label.text():
            label.setMinimumWidth(QUESTION_WIDTH)
    box.open()


def open_save_dialog(
    parent: QWidget | None, name: str, title: str, path: Path, file_filter: str, on_selected: Callable[[Path], object]
) -> None:
    """Asks where to save a file; `path` is the suggestion."""
    dialog = with_object_name(QFileDialog(parent, title, str(path), file_filter), name)
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
    dialog.setDefaultSuffix(path.suffix.lstrip("."))
    dialog.fileSelected.connect(lambda selected: on_selected(Path(selected)))
    dialog.open()


# --- timers


def create_timer(owner: QObject, interval_ms: int, call: Call, is_single_shot: bool = False) -> QTimer:
    timer = QTimer(owner, interval=interval_ms, singleShot=is_single_shot)
    timer.timeout.connect(call)
    return timer


class VisibleTimer(QTimer):
    """Calls at an interval, and at once with `calls_on_show`, while its widget is visible."""

    def __init__(self, widget: QWidget, interval_ms: int, call: Call, calls_on_show: bool = False) -> None:
        super().__init__(widget, interval=interval_ms)
        self._call = call
        self._calls_on_show = calls_on_show
        self.timeout.connect(call)
        widget.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() is QEvent.Type.Show:
            self.start()
            if self._calls_on_show:
                self._call()
        elif event.type() is QEvent.Type.Hide:
            self.stop()
        return False
