"""Builders for widgets and layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from PySide6.QtCore import QEvent, QObject, QPoint, QSignalBlocker, QSize, Qt, QTimer
from PySide6.QtGui import QHelpEvent, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QBoxLayout,
    QCheckBox,
    QComboBox,
    QFormLayout,
    QHBoxLayout,
    QLayout,
    QLayoutItem,
    QLineEdit,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QSplitter,
    QStackedWidget,
    QStyle,
    QStyleOptionComboBox,
    QStylePainter,
    QTableView,
    QTabWidget,
    QToolButton,
    QToolTip,
    QVBoxLayout,
    QWidget,
)

from mosaic.window import theme
from mosaic.window.labels import DOT_SIZE as DOT_SIZE
from mosaic.window.labels import ElidedLabel as ElidedLabel
from mosaic.window.labels import IconLabel as IconLabel
from mosaic.window.labels import NoteLabel as NoteLabel
from mosaic.window.labels import PlainLabel as PlainLabel
from mosaic.window.labels import dot_icon as dot_icon
from mosaic.window.labels import elide_text
from mosaic.window.labels import heading_label as heading_label
from mosaic.window.labels import muted_label as muted_label
from mosaic.window.labels import path_label as path_label
from mosaic.window.labels import section_label as section_label
from mosaic.window.labels import selectable_label as selectable_label
from mosaic.window.labels import status_label as status_label
from mosaic.window.labels import with_object_name as with_object_name
from mosaic.window.questions import confirm as confirm
from mosaic.window.questions import inform as inform
from mosaic.window.questions import open_path_dialog as open_path_dialog
from mosaic.window.questions import open_save_dialog as open_save_dialog
from mosaic.window.settings import GuiSettings

# --- Buttons next to each other, in as many rows as they need.


SPACING = theme.GAP // 2


class ButtonRow(QWidget):
    def __init__(self, buttons: Sequence[QWidget]) -> None:
        super().__init__()
        self._buttons = buttons
        for button in buttons:
            button.setParent(self)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.setFixedHeight(max(button.sizeHint().height() for button in buttons))

    def minimumSizeHint(self) -> QSize:
        return QSize(max((button.sizeHint().width() for button in self._buttons), default=0), 0)

    def sizeHint(self) -> QSize:
        return QSize(0, self.height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    def event(self, event: QEvent) -> bool:
        if event.type() is QEvent.Type.LayoutRequest:  # a button's text, icon or visibility has changed
            self._arrange()
        return super().event(event)

    def _arrange(self) -> None:
        place, height = QPoint(0, 0), 0
        for button in self._buttons:
            if button.isHidden():
                continue
            size = button.sizeHint()
            if place.x() and place.x() + size.width() > self.width():
                place, height = QPoint(0, place.y() + height + SPACING), 0
            button.setGeometry(place.x(), place.y(), min(size.width(), self.width()), size.height())
            place.setX(place.x() + size.width() + SPACING)
            height = max(height, size.height())  # a button without text is lower than the others
        if self.height() != place.y() + height:
            self.setFixedHeight(place.y() + height)


# --- A combo box whose text is elided where it does not fit.


class ElidedComboBox(QComboBox):
    """With a style sheet, Qt would cut the text, even inside a number. A tool tip shows all of it."""

    def paintEvent(self, event: QPaintEvent) -> None:
        if self.isEditable():
            super().paintEvent(event)
            return
        painter = QStylePainter(self)
        option = self._style_option()
        painter.drawComplexControl(QStyle.ComplexControl.CC_ComboBox, option)
        option.currentText = self.shown_text()
        painter.drawControl(QStyle.ControlElement.CE_ComboBoxLabel, option)

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() is QEvent.Type.ToolTip and not self.isEditable():
            text = self._full_text()
            lines = (text if self.shown_text() != text else "", self.toolTip())
            QToolTip.showText(event.globalPos(), "\n".join(filter(None, lines)), self)
            return True
        return super().event(event)

    def shown_text(self) -> str:
        option, style = self._style_option(), self.style()
        field = QStyle.SubControl.SC_ComboBoxEditField
        room = style.subControlRect(QStyle.ComplexControl.CC_ComboBox, option, field, self).width()
        if not self.itemIcon(self.currentIndex()).isNull():
            room -= self.iconSize().width() + 4  # the distance that styles keep
        return elide_text(self._full_text(), self.fontMetrics(), Qt.TextElideMode.ElideRight, room)

    def _full_text(self) -> str:
        return self.placeholderText() if self.currentIndex() < 0 else self.currentText()

    def _style_option(self) -> QStyleOptionComboBox:
        option = QStyleOptionComboBox()
        self.initStyleOption(option)
        return option


# --- Builders for widgets and layouts.


TableT = TypeVar("TableT", bound=QTableView)
Call = Callable[[], object]


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


class Tabs(QTabWidget):
    """Only the tab that is shown limits how small it can be."""

    def __init__(self) -> None:
        super().__init__()
        self.tabBar().setFocusPolicy(Qt.FocusPolicy.StrongFocus)  # after a click, Ctrl+F searches in the tab
        self.currentChanged.connect(lambda _: self.updateGeometry())

    def minimumSizeHint(self) -> QSize:
        page, bar = self.currentWidget(), self.tabBar().minimumSizeHint()
        if page is None:
            return super().minimumSizeHint()
        size = page.minimumSizeHint().expandedTo(page.minimumSize())
        return QSize(max(size.width(), bar.width()), size.height() + bar.height())


def tabs(name: str, *pages: tuple[str, QWidget]) -> QTabWidget:
    widget = with_object_name(Tabs(), name)
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


def remember_splitter(split: QSplitter, settings: GuiSettings) -> QSplitter:
    """Restore where its user moved it to, in this workspace, and save each move."""
    name = split.objectName()
    if (saved := settings.layout(name)) is not None:
        split.restoreState(saved)
        split.setChildrenCollapsible(False)
    split.splitterMoved.connect(lambda *_: settings.put_layout(name, split.saveState()))
    return split


class YieldingScrollArea(QScrollArea):
    """Asks for no more height than it needs, so that the page stays as high as the window.

    A page with wrapped text would else be as high as the hints of its parts, with its buttons out of sight.
    """

    def sizeHint(self) -> QSize:
        return QSize(super().sizeHint().width(), self.minimumSizeHint().height())


def scroll_area(widget: QWidget, name: str = "", is_vertical_only: bool = False) -> QScrollArea:
    return _fill_scroll_area(with_object_name(QScrollArea(), name), widget, is_vertical_only)


def form_area(widget: QWidget, name: str) -> QScrollArea:
    """Of a form with a verdict and buttons below it."""
    return _fill_scroll_area(with_object_name(YieldingScrollArea(), name), widget, is_vertical_only=True)


def _fill_scroll_area(area: QScrollArea, widget: QWidget, is_vertical_only: bool) -> QScrollArea:
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


# --- placeholders


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


def combo_box(name: str, rows: Iterable[tuple[str, object]] = (), tip: str = "") -> ElidedComboBox:
    """A list of choices: the title and the value of each."""
    box = with_object_name(ElidedComboBox(), name)
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


# --- Things next to each other where there is room, otherwise one below the other.


class WrappingRow(QWidget):
    def __init__(self, items: Sequence[Item], spacing: int = theme.GAP) -> None:
        super().__init__()
        self._layout = row(*items, parent=self, spacing=spacing)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Minimum)

    def _items(self) -> list[QLayoutItem]:
        items = [self._layout.itemAt(number) for number in range(self._layout.count())]
        return [item for item in items if item is not None and item.spacerItem() is None]

    def full_width(self) -> int:
        """Without wrapping; a part may be such a row itself."""
        widths = [
            part.full_width() if isinstance(part := item.widget(), WrappingRow) else item.minimumSize().width()
            for item in self._items()
        ]
        return sum(widths) + self._layout.spacing() * (len(widths) - 1)

    def minimumSizeHint(self) -> QSize:
        """As narrow as its widest part."""
        width = max((item.minimumSize().width() for item in self._items()), default=0)
        return QSize(width, self._layout.minimumSize().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._choose_direction()

    def event(self, event: QEvent) -> bool:
        if event.type() is QEvent.Type.LayoutRequest:
            self._choose_direction()
        return super().event(event)

    def _choose_direction(self) -> None:
        is_narrow = self.width() < self.full_width()
        wanted = QBoxLayout.Direction.TopToBottom if is_narrow else QBoxLayout.Direction.LeftToRight
        if self._layout.direction() != wanted:
            self._layout.setDirection(wanted)
            self.updateGeometry()
