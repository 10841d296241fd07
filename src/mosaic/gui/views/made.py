"""Small words for making widgets."""

from __future__ import annotations

from typing import TypeVar

from PySide6.QtCore import QObject, Qt
from PySide6.QtWidgets import QFrame, QLabel, QPushButton

Made = TypeVar("Made", bound=QObject)


def named(thing: Made, name: str) -> Made:
    """Its name: for layouts that are remembered, style sheets and tests."""
    thing.setObjectName(name)
    return thing


def muted(text: str, name: str = "") -> QLabel:
    label = named(QLabel(text), name)
    label.setProperty("muted", True)
    label.setWordWrap(True)
    return label


def state_label(name: str) -> QLabel:
    """A line that tells how things stand: it can be copied, and gives way where room is short."""
    label = named(QLabel(), name)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    label.setMinimumWidth(40)
    return label


def accent_button(text: str, name: str = "") -> QPushButton:
    """The one thing to do in a view."""
    button = named(QPushButton(text), name)
    button.setProperty("accent", True)
    return button


def line() -> QFrame:
    rule = QFrame()
    rule.setFrameShape(QFrame.Shape.HLine)
    rule.setFrameShadow(QFrame.Shadow.Plain)
    return rule
