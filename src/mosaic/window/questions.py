"""Questions, and dialogs for files and folders. None of them blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFileDialog, QLabel, QMessageBox, QWidget

from mosaic.window.labels import with_object_name

QUESTION_WIDTH = 440
"""Of the text of a question, so that the title of a run fits into a line."""


def confirm(
    parent: QWidget | None,
    name: str,
    title: str,
    question: str,
    details: str,
    yes: str,
    on_yes: Callable[[], object],
    no: str = "Cancel",
) -> None:
    """Opens a question; without an answer nothing happens."""
    box = _message_box(parent, name, title, question, details)
    yes_button = box.addButton(yes, QMessageBox.ButtonRole.DestructiveRole)
    with_object_name(yes_button, f"{name}.yes").clicked.connect(lambda: on_yes())
    no_button = box.addButton(no, QMessageBox.ButtonRole.RejectRole)
    box.setDefaultButton(no_button)
    box.setEscapeButton(no_button)
    box.open()


def inform(parent: QWidget | None, name: str, title: str, text: str, details: str) -> None:
    """Shows what is too long for a message."""
    box = _message_box(parent, name, title, text, details)
    box.addButton(QMessageBox.StandardButton.Close)
    box.open()


def _message_box(parent: QWidget | None, name: str, title: str, text: str, details: str) -> QMessageBox:
    box = with_object_name(QMessageBox(parent), name)
    box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    box.setWindowTitle(title)
    box.setText(text)
    box.setInformativeText(details)
    for label in box.findChildren(QLabel):
        if label.text():
            label.setMinimumWidth(QUESTION_WIDTH)
    return box


def open_path_dialog(
    parent: QWidget | None,
    name: str,
    title: str,
    start: Path,
    on_selected: Callable[[Path], object],
    filters: Sequence[str] = (),
) -> None:
    """Asks for a file of one of these kinds, or, without them, for a folder; `start` is shown first."""
    dialog = with_object_name(QFileDialog(parent, title, str(start)), name)
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    dialog.setFileMode(QFileDialog.FileMode.ExistingFile if filters else QFileDialog.FileMode.Directory)
    dialog.setOption(QFileDialog.Option.ShowDirsOnly, not filters)
    if filters:
        dialog.setNameFilters([*filters, "All files (*)"])
    dialog.fileSelected.connect(lambda selected: on_selected(Path(selected)))
    dialog.open()


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
