"""Small words for making widgets."""

from __future__ import annotations

from typing import TypeVar

from PySide6.QtCore import QObject, Qt
from PySide6.QtWidgets import QLabel, QPushButton

ObjectT = TypeVar("ObjectT", bound=QObject)


def with_object_name(target: ObjectT, name: str) -> ObjectT:
    """Its name: for layouts that are remembered, style sheets and tests."""
    target.setObjectName(name)
    return target


def muted_label(text: str, name: str = "") -> QLabel:
    label = with_object_name(QLabel(text), name)
    label.setProperty("muted", True)
    label.setWordWrap(True)
    return label


def status_label(name: str) -> QLabel:
    """A status line: it can be copied, and shrinks where space is short."""
    label = with_object_name(QLabel(), name)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    label.setMinimumWidth(40)
    return label


def accent_button(text: str, name: str = "") -> QPushButton:
    """The one thing to do in a view."""
    button = with_object_name(QPushButton(text), name)
    button.setProperty("accent", True)
    return button
