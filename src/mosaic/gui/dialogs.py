"""The small dialogs of the shell: guide, shortcuts, about."""

from __future__ import annotations

import platform
from importlib import metadata, resources
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, qVersion
from PySide6.QtGui import QGuiApplication, QKeySequence
from PySide6.QtWidgets import (
    QApplication,
    QDialog,
    QDialogButtonBox,
    QHeaderView,
    QLabel,
    QTableWidget,
    QTableWidgetItem,
    QTextBrowser,
    QVBoxLayout,
    QWidget,
)

import mosaic
from mosaic.gui import theme
from mosaic.gui.command_palette import CommandPalette
from mosaic.gui.views.widgets import with_object_name
from mosaic.gui.workbench import Workbench

if TYPE_CHECKING:
    from mosaic.gui.main_window import DialogFactory, MainWindow

EXTRA_SHORTCUTS = (
    ("Space", "Pause or continue the selected run, in the list of runs"),
    ("Arrows, Home, End", "Move in lists and tables"),
    ("Esc", "Close the topmost dialog"),
    ("Tab, Shift+Tab", "Go to the next or the previous field"),
    ("Double click", "Reset the view of a chart"),
)


def _create_dialog(window: MainWindow, name: str, title: str, width: int, height: int) -> tuple[QDialog, QVBoxLayout]:
    dialog = with_object_name(QDialog(window), name)
    dialog.setWindowTitle(title)
    dialog.resize(min(width, window.width() - 64), min(height, window.height() - 64))
    column = QVBoxLayout(dialog)
    column.setContentsMargins(theme.MARGIN, theme.MARGIN, theme.MARGIN, theme.MARGIN)
    column.setSpacing(theme.GAP)
    return dialog, column


def _add_close_button(dialog: QDialog, column: QVBoxLayout) -> QDialogButtonBox:
    buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
    buttons.rejected.connect(dialog.reject)
    column.addWidget(buttons)
    return buttons


def help_dialog(window: MainWindow, _: Workbench) -> QDialog:
    """The help text of the focused widget; the guide where it has none."""
    help_text = _whats_this_text(QApplication.focusWidget())
    dialog, column = _create_dialog(window, "help", "Help", 720, 240 if help_text else 600)
    text = with_object_name(QTextBrowser(), "help.text")
    text.setOpenExternalLinks(True)
    text.setMarkdown(help_text or (resources.files("mosaic.gui") / "guide.md").read_text(encoding="utf-8"))
    column.addWidget(text, 1)
    _add_close_button(dialog, column)
    return dialog


def _whats_this_text(widget: QWidget | None) -> str:
    while widget is not None:
        if widget.whatsThis():
            return widget.whatsThis()
        widget = widget.parentWidget()
    return ""


def shortcuts_dialog(window: MainWindow, _: Workbench) -> QDialog:
    dialog, column = _create_dialog(window, "shortcuts", "Keyboard shortcuts", 560, 600)
    rows = [
        (window.action(row.id).shortcut().toString(QKeySequence.SequenceFormat.NativeText), row.title)
        for row in window.action_table
    ]
    rows = [row for row in rows if row[0]] + list(EXTRA_SHORTCUTS)
    table = with_object_name(QTableWidget(len(rows), 2), "shortcuts.table")
    table.setHorizontalHeaderLabels(["Keys", "What they do"])
    table.verticalHeader().hide()
    table.setShowGrid(False)
    table.setEditTriggers(QTableWidget.EditTrigger.NoEditTriggers)
    table.setSelectionBehavior(QTableWidget.SelectionBehavior.SelectRows)
    for number, row in enumerate(rows):
        for place, words in enumerate(row):
            table.setItem(number, place, QTableWidgetItem(words))
    table.horizontalHeader().setDefaultAlignment(Qt.AlignmentFlag.AlignLeft)
    table.horizontalHeader().setSectionResizeMode(0, QHeaderView.ResizeMode.ResizeToContents)
    table.horizontalHeader().setStretchLastSection(True)
    column.addWidget(table, 1)
    _add_close_button(dialog, column)
    return dialog


def about_dialog(window: MainWindow, workbench: Workbench) -> QDialog:
    dialog, column = _create_dialog(window, "about", "About MOSAIC", 480, 300)
    title = QLabel(f"MOSAIC {mosaic.__version__}")
    title.setFont(theme.heading_font())
    column.addWidget(title)
    facts = "\n".join(f"{name:<12}{value}" for name, value in versions(workbench))
    text = with_object_name(QLabel(facts), "about.facts")
    text.setFont(theme.monospace_font())
    text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    column.addWidget(text, 1)
    buttons = _add_close_button(dialog, column)
    copy = buttons.addButton("Copy", QDialogButtonBox.ButtonRole.ActionRole)
    copy.clicked.connect(lambda: QGuiApplication.clipboard().setText(f"MOSAIC {mosaic.__version__}\n{facts}"))
    return dialog


def versions(workbench: Workbench) -> list[tuple[str, str]]:
    status = workbench.status
    trainer = f"{status.version}, pid {status.pid}, {status.address}" if status else "not connected"
    return [
        ("trainer", trainer),
        ("workspace", status.workspace if status else str(workbench.workspace.root)),
        ("Python", platform.python_version()),
        ("Qt", qVersion() or "?"),
        *((name, metadata.version(name)) for name in ("PySide6", "pyqtgraph", "numpy", "grpcio")),
        ("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
        ("licence", "MIT"),
    ]


DIALOGS: dict[str, DialogFactory] = {
    "palette": CommandPalette,
    "help": help_dialog,
    "shortcuts": shortcuts_dialog,
    "about": about_dialog,
}
