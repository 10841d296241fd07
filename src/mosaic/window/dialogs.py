"""The dialogs of the window: guide, shortcuts, about."""

from __future__ import annotations

import platform
from importlib import metadata, resources
from typing import TYPE_CHECKING

from PySide6.QtCore import qVersion
from PySide6.QtGui import QGuiApplication, QKeySequence
from PySide6.QtWidgets import (
    QApplication,
    QDialog,
    QDialogButtonBox,
    QHeaderView,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

import mosaic
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.labels import PageBrowser
from mosaic.window.palette import CommandPalette
from mosaic.window.workbench import Workbench

if TYPE_CHECKING:
    from mosaic.window.main_window import DialogFactory, MainWindow

EXTRA_SHORTCUTS = (
    ("Space", "Pause or continue the selected run, in the list of runs"),
    ("Arrows, Home, End", "Move in lists and tables"),
    ("Esc", "Close the topmost dialog"),
    ("Tab, Shift+Tab", "Go to the next or the previous field"),
    ("Double click", "Reset the view of a chart"),
)


def _create_dialog(
    window: MainWindow, name: str, title: str, size: tuple[int, int], *content: ui.Item
) -> tuple[QDialog, QDialogButtonBox]:
    """A dialog with a Close button, no larger than the window."""
    dialog = ui.with_object_name(QDialog(window), name)
    dialog.setWindowTitle(title)
    dialog.resize(min(size[0], window.width() - 64), min(size[1], window.height() - 64))
    buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
    buttons.rejected.connect(dialog.reject)
    margin = theme.MARGIN
    ui.column(*content, buttons, parent=dialog, margins=(margin, margin, margin, margin))
    return dialog, buttons


def help_dialog(window: MainWindow, _: Workbench) -> QDialog:
    """The help text of the focused widget; the guide where it has none."""
    help_text = _whats_this_text(QApplication.focusWidget())
    text = PageBrowser("help.text")
    text.setMarkdown(help_text or (resources.files("mosaic.window") / "guide.md").read_text(encoding="utf-8"))
    return _create_dialog(window, "help", "Help", (720, 240 if help_text else 600), (text, 1))[0]


def _whats_this_text(widget: QWidget | None) -> str:
    while widget is not None:
        if widget.whatsThis():
            return widget.whatsThis()
        widget = widget.parentWidget()
    return ""


def shortcuts_dialog(window: MainWindow, _: Workbench) -> QDialog:
    rows = [
        (window.action(action.id).shortcut().toString(QKeySequence.SequenceFormat.NativeText), action.title)
        for action in window.action_table
    ]
    rows = [row for row in rows if row[0]] + list(EXTRA_SHORTCUTS)
    table = ui.plain_table(QTableWidget(len(rows), 2), "shortcuts.table")
    table.setHorizontalHeaderLabels(["Keys", "What they do"])
    for number, row in enumerate(rows):
        for place, text in enumerate(row):
            table.setItem(number, place, QTableWidgetItem(text))
    table.horizontalHeader().setSectionResizeMode(0, QHeaderView.ResizeMode.ResizeToContents)
    table.horizontalHeader().setStretchLastSection(True)
    return _create_dialog(window, "shortcuts", "Keyboard shortcuts", (560, 600), (table, 1))[0]


def about_dialog(window: MainWindow, workbench: Workbench) -> QDialog:
    title = f"MOSAIC {mosaic.__version__}"
    details = "\n".join(f"{name:<12}{value}" for name, value in versions(workbench))
    label = ui.selectable_label("about.facts", details)
    label.setWordWrap(False)
    label.setProperty("monospace", True)
    dialog, buttons = _create_dialog(window, "about", "About MOSAIC", (480, 300), ui.heading_label(title), (label, 1))
    copy = buttons.addButton("Copy", QDialogButtonBox.ButtonRole.ActionRole)
    copy.clicked.connect(lambda: QGuiApplication.clipboard().setText(f"{title}\n{details}"))
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
