"""The worker's verdict on the form: one line next to it, and text for the notes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHBoxLayout, QLabel, QWidget

from mosaic.gui import theme
from mosaic.gui.views.widgets import with_object_name
from mosaic.submission.algorithm_schema import Algorithm
from mosaic.submission.verdict_table import verdict_rows

if TYPE_CHECKING:
    from mosaic.contracts.views import VerdictSummary

ICONS = {"good": "mdi6.check-circle", "bad": "mdi6.close-circle", "muted": "mdi6.progress-clock"}


class VerdictLine(QWidget):
    def __init__(self, name: str) -> None:
        super().__init__()
        self._shown: tuple[str, str] = ("", "")
        self._icon = QLabel()
        self._icon.setAlignment(Qt.AlignmentFlag.AlignTop)
        self.label = with_object_name(QLabel(), name)
        self.label.setWordWrap(True)
        self.label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 4, 0, 0)
        row.setSpacing(theme.GAP)
        row.addWidget(self._icon)
        row.addWidget(self.label, 1)
        self.hide()

    def show_text(self, text: str, kind: str) -> None:
        """`kind` is good, bad, or muted while it is asked for."""
        self._shown = (text, kind)
        self.label.setText(text)
        self.restyle()
        self.setVisible(bool(text))

    def clear(self) -> None:
        self.show_text("", "muted")

    def restyle(self) -> None:
        text, kind = self._shown
        if text:
            self._icon.setPixmap(theme.icon(ICONS[kind], kind).pixmap(16, 16))
            self.label.setStyleSheet(f"color: {getattr(theme.tokens(), kind)};")


def format_accepted(summary: VerdictSummary) -> str:
    """One line: `This would run: observations Box(4,), actions Discrete(2). Nothing was started.`"""
    env = summary.environment
    parts = [
        f"observations {env.observation_space}" if env.observation_space else "",
        f"actions {env.action_space}" if env.action_space else "",
        f"backend {summary.backend}" if summary.backend else "",
    ]
    details = ", ".join(part for part in parts if part)
    return f"This would run{': ' if details else ''}{details}. Nothing was started."


def format_dry_run_note(title: str, summary: VerdictSummary, algorithm: Algorithm | None = None) -> str:
    """For the notes: what would run, line by line."""
    lines = [f"  {name}: {'; '.join(value.splitlines())}" for name, value in verdict_rows(summary, algorithm)]
    return "\n".join([f"Dry run: {title}: accepted.", *lines])


def format_refusal_note(title: str, error: Exception) -> str:
    return f"Dry run: {title}: refused. {error}"
