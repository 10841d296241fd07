"""Finds what does not fit in a window: cut texts, widgets outside of their parent, and widgets that overlap."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from PySide6.QtCore import QRect, Qt
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractScrollArea,
    QAbstractSpinBox,
    QComboBox,
    QLabel,
    QLineEdit,
    QScrollBar,
    QStackedWidget,
    QTabBar,
    QWidget,
)
from tests.helpers.gui import settle

from mosaic.window.widgets import ElidedComboBox, ElidedLabel

SIZES = ((1024, 700), (1366, 768), (1920, 1080))
FONT_SIZES_PT = (10.0, 14.0)
MAX_TURNS = 10
TOLERANCE = 2
"""Pixels: rounding of text widths."""
COMBO_FRAME = 28
"""The padding and the arrow of a combo box."""


def find_misfits(root: QWidget) -> list[str]:
    """One sentence for each widget that is cut, outside of its parent or overlapped by a sibling."""
    visible = [widget for widget in root.findChildren(QWidget) if _is_checked(widget, root)]
    found = [problem for widget in visible for problem in _problems(widget)]
    by_parent: dict[QWidget, list[QWidget]] = {}
    for widget in visible:
        if isinstance(parent := widget.parent(), QWidget) and parent.layout() is not None:
            by_parent.setdefault(parent, []).append(widget)
    for parent, children in by_parent.items():
        layout = parent.layout()
        assert layout is not None
        inside = [child for child in children if layout.indexOf(child) >= 0 or _is_in_nested_layout(parent, child)]
        found += [
            f"{describe_widget(one)} overlaps {describe_widget(other)}"
            for one, other in combinations(inside, 2)
            if _overlap(one.geometry(), other.geometry()) and not any(map(_is_empty_label, (one, other)))
        ]
    return found


def settled_misfits(window: QWidget) -> list[str]:
    """Those that remain when the layouts have settled, which takes some turns of the event loop."""
    for _ in range(MAX_TURNS):
        settle()
        misfits = find_misfits(window)
        if not misfits:
            break
    return misfits


def _is_checked(widget: QWidget, root: QWidget) -> bool:
    if not widget.isVisibleTo(root) or widget.isWindow() or widget.window() is not root:
        return False
    return not isinstance(widget, QScrollBar) and not widget.objectName().startswith(("qt_", "message"))


def _is_in_nested_layout(parent: QWidget, child: QWidget) -> bool:
    return not isinstance(parent, (QStackedWidget, QAbstractScrollArea, QTabBar))


def _is_empty_label(widget: QWidget) -> bool:
    return isinstance(widget, QLabel) and not widget.text()


def _overlap(one: QRect, other: QRect) -> bool:
    both = one.intersected(other)
    return both.width() > TOLERANCE and both.height() > TOLERANCE


def _problems(widget: QWidget) -> Iterator[str]:
    parent = widget.parentWidget()
    is_scrolled = isinstance(parent.parentWidget() if parent is not None else None, QAbstractScrollArea)
    if parent is not None and not is_scrolled and not isinstance(parent, QAbstractScrollArea):
        room = parent.rect().adjusted(-TOLERANCE, -TOLERANCE, TOLERANCE, TOLERANCE)
        if not widget.geometry().isEmpty() and not room.contains(widget.geometry()):
            place = _rect(widget.geometry())
            yield f"{describe_widget(widget)} at {place} is outside of {describe_widget(parent)}, {_rect(room)}"
    if isinstance(widget, QLabel) and not isinstance(widget, ElidedLabel):  # whose tool tip shows the whole text
        yield from _label_problems(widget)
    elif isinstance(widget, QComboBox):
        needed = widget.fontMetrics().horizontalAdvance(widget.currentText()) + COMBO_FRAME
        # A text that can be edited is scrolled by the cursor, and needs a tool tip.
        is_whole = bool(widget.toolTip()) if widget.isEditable() else isinstance(widget, ElidedComboBox)
        if needed > widget.width() + TOLERANCE and not is_whole:
            yield f"{describe_widget(widget)} is {widget.width()} px wide, its text needs {needed}"
    elif isinstance(widget, QAbstractButton):
        needed = widget.minimumSizeHint().width()
        if widget.text() and needed > widget.width() + TOLERANCE:
            yield f"{describe_widget(widget)} is {widget.width()} px wide and needs {needed}"
    elif isinstance(widget, QLineEdit) and not isinstance(widget.parent(), (QComboBox, QAbstractSpinBox)):
        needed = widget.fontMetrics().horizontalAdvance(widget.text()) + 12
        if _is_number(widget.text()) and needed > widget.width() + TOLERANCE:
            yield f"{describe_widget(widget)} is {widget.width()} px wide, its number needs {needed}"
    has_line = isinstance(widget, (QLineEdit, QComboBox)) or (isinstance(widget, QAbstractButton) and widget.text())
    if has_line and widget.height() < widget.fontMetrics().height():
        yield f"{describe_widget(widget)} is {widget.height()} px high, a line needs {widget.fontMetrics().height()}"


def _label_problems(label: QLabel) -> Iterator[str]:
    if not label.text():
        return
    if label.wordWrap():
        needed = label.heightForWidth(label.width())
        if needed > label.height() + TOLERANCE:
            yield f"{describe_widget(label)} is {label.height()} px high and needs {needed}"
        word = max(label.text().split(), key=label.fontMetrics().horizontalAdvance, default="")
        is_plain = label.textFormat() is Qt.TextFormat.PlainText or "<" not in label.text()
        if is_plain and label.fontMetrics().horizontalAdvance(word) > label.width() + TOLERANCE:
            yield f"{describe_widget(label)} is {label.width()} px wide and cuts the word {word!r}"
    elif label.sizeHint().width() > label.width() + TOLERANCE:
        yield f"{describe_widget(label)} is {label.width()} px wide and needs {label.sizeHint().width()}"
    elif label.sizeHint().height() > label.height() + TOLERANCE:
        yield f"{describe_widget(label)} is {label.height()} px high and needs {label.sizeHint().height()}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _rect(area: QRect) -> str:
    return f"{area.width()}x{area.height()}+{area.x()}+{area.y()}"


def describe_widget(widget: QWidget) -> str:
    name, up = widget.objectName(), widget.parentWidget()
    while not name and up is not None:
        name, up = (f"in {up.objectName()}" if up.objectName() else ""), up.parentWidget()
    text = ""
    if isinstance(widget, (QLabel, QAbstractButton)):
        text = widget.text()
    elif isinstance(widget, QComboBox):
        text = widget.currentText()
    elif isinstance(widget, QLineEdit):
        text = widget.text() or widget.placeholderText()
    return f"{type(widget).__name__} {name!r}" + (f" {text[:60]!r}" if text else "")
