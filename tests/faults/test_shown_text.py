"""F54: whatever text a run contains, the window shows it as text, and opens no file that it names."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QEvent, QPoint, Qt
from PySide6.QtGui import QHelpEvent, QImage
from PySide6.QtWidgets import (
    QAbstractItemView,
    QApplication,
    QHeaderView,
    QLabel,
    QListView,
    QMenu,
    QMessageBox,
    QWidget,
)
from tests.helpers.gui import find, finish_calls, pump, settle
from tests.helpers.gui_fixtures import make_program, qapp, settings_path, the_window_is_quiet
from tests.helpers.hostile_runs import finished_runs, poison_workspace
from tests.helpers.worker_runs import small

from mosaic.base.run_payloads import build_eval_payload
from mosaic.contracts.folder import Workspace
from mosaic.features.runs.window_list import RunsPanel
from mosaic.window.app import Application
from mosaic.window.labels import PageBrowser
from mosaic.window.panels import PAGES, RUN_TABS

__all__ = ["make_program", "qapp", "settings_path", "the_window_is_quiet"]

IN_OPEN = 0x20
MAX_ROWS = 8


class OpenedFiles:
    """Counts how often a file is opened, by whomever."""

    def __init__(self, path: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self._descriptor >= 0
        assert self._libc.inotify_add_watch(self._descriptor, os.fsencode(path), IN_OPEN) >= 0

    def count(self) -> int:
        try:
            data = os.read(self._descriptor, 1 << 16)
        except BlockingIOError:
            return 0
        return len(data) // struct.calcsize("iIII")  # of a watched file, an event has no name

    def close(self) -> None:
        os.close(self._descriptor)


@pytest.fixture
def canary(tmp_path: Path, qapp: QApplication) -> Path:
    """An image that no run has the right to show."""
    path = tmp_path / "canary.png"
    assert QImage(8, 8, QImage.Format.Format_RGB32).save(str(path))
    return path


@pytest.fixture
def opened(canary: Path) -> Iterator[OpenedFiles]:
    counter = OpenedFiles(canary)
    with open(canary, "rb"):
        assert counter.count() == 1
    yield counter
    counter.close()


def show_tool_tips(window: QWidget) -> None:
    """Point at every visible widget, and at every cell and title of a table."""
    for widget in window.findChildren(QWidget):
        if not widget.isVisible():
            continue
        view = widget.parentWidget()
        is_view = isinstance(view, QAbstractItemView) and view.viewport() is widget
        for place in (widget.rect().center(), *(cell_centers(view) if is_view else ())):  # type: ignore[arg-type]
            QApplication.sendEvent(widget, QHelpEvent(QEvent.Type.ToolTip, place, widget.mapToGlobal(place)))


def cell_centers(view: QAbstractItemView) -> list[QPoint]:
    model = view.model()
    if model is None:
        return []
    if isinstance(view, QHeaderView):
        y = view.height() // 2
        return [QPoint(view.sectionViewportPosition(at) + view.sectionSize(at) // 2, y) for at in range(view.count())]
    columns = 1 if isinstance(view, QListView) else model.columnCount()
    rows = range(min(model.rowCount(), MAX_ROWS))
    cells = [view.visualRect(model.index(row, column)) for row in rows for column in range(columns)]
    return [cell.center() for cell in cells if view.viewport().rect().intersects(cell)]


def labels(root: QWidget) -> list[QLabel]:
    return [label for label in root.findChildren(QLabel) if label.isVisible()]


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="inotify is Linux's")
@pytest.mark.timeout(600)
@pytest.mark.may_log("index_rebuilt")
def test_the_window_opens_no_file_that_a_text_of_a_run_names(
    workspace: Workspace,
    make_program: Callable[[], Application],
    canary: Path,
    opened: OpenedFiles,
    record_property: Callable[[str, object], None],
) -> None:
    """F54: on no page and in no tab, tool tip, menu or dialog."""
    training = {"metadata": {"worker": {"id": "cleanrl", "config": small(total_timesteps=256)}}, "artifacts": {}}
    run_ids = finished_runs(workspace, training, training)
    policy = str(workspace.runs / run_ids[0] / "checkpoints" / "last")
    run_ids += finished_runs(
        workspace, build_eval_payload({"id": "cleanrl", "config": {}}, policy, {"eval_batch_size": 2})
    )
    text = f'<img src="{canary}">&amp;<b>bold</b>'
    poison_workspace(workspace, text)
    assert opened.count() == 0

    program = make_program()
    program.start(run_ids[0])
    workbench, window = program.workbench, program.window
    pump(lambda: len(workbench.runs) == len(run_ids), "the runs")
    places = 0

    def look() -> None:
        nonlocal places
        finish_calls(program.bridge)
        settle()
        for root in QApplication.topLevelWidgets():
            show_tool_tips(root)
        settle()
        places += 1
        assert opened.count() == 0
        shown = [label for root in QApplication.topLevelWidgets() for label in labels(root)]
        assert all(label.textFormat() is Qt.TextFormat.PlainText for label in shown)

    look()
    workbench.comparison_requested.emit(run_ids)
    for page in PAGES:
        window.show_page(page.id)
        look()
    workbench.group_requested.emit(text)
    look()
    workbench.evaluation_requested.emit(run_ids[:1])
    look()
    for run_id in run_ids:
        view = workbench.runs.get(run_id)
        assert view is not None
        assert view.run_name == text
        for tab in RUN_TABS:
            if tab.is_available(view) and tab.id != "tensorboard":  # a page of Chromium's
                workbench.select(run_id, tab.id)
                look()
    assert any(text in label.text() for label in labels(window))

    workbench.select(run_ids[0], "overview")
    for action in ("run.resume", "run.tags", "run.delete"):
        window.refresh_actions()
        window.action(action).trigger()
        look()
        dialog = QApplication.activeModalWidget()
        assert dialog is not None, action
        dialog.close()
    panel = find(window, "dock.runs").findChildren(RunsPanel)[0]
    panel._choose_columns()
    look()
    for menu in window.findChildren(QMenu):
        menu.popup(QPoint(0, 0))
        look()
        menu.close()
    workbench.show_message(text, "bad")
    workbench.show_error(RuntimeError(text))
    look()
    box = QMessageBox(QMessageBox.Icon.Warning, text, text, parent=window)  # as Qt and its styles make them
    box.setInformativeText(text)
    box.show()
    look()
    record_property("tries", places)


def test_a_help_page_reads_no_file(qapp: QApplication, canary: Path, opened: OpenedFiles) -> None:
    """F54: an algorithm's page may be the docstring of a script from elsewhere."""
    page = PageBrowser("page")
    page.setMarkdown(f'# Title\n\n![image]({canary}) and <img src="{canary}">')
    page.show()
    settle()
    assert not page.grab().isNull()
    assert opened.count() == 0
    page.close()
    page.deleteLater()
