"""The command palette: finds every action and every run by typing some letters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QObject, QSize, Qt, QTimer
from PySide6.QtGui import QColor, QIcon, QKeyEvent, QKeySequence
from PySide6.QtWidgets import QApplication, QDialog, QHeaderView, QTreeWidget, QTreeWidgetItem

from mosaic.formatting import run_title
from mosaic.gui import theme
from mosaic.gui.models.search import rank
from mosaic.gui.views import widgets as ui
from mosaic.gui.workbench import Workbench

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView
    from mosaic.gui.main_window import MainWindow

WIDTH, MAX_VISIBLE_ROWS, ROW_HEIGHT = 640, 12, 30
ENTRY_ROLE = Qt.ItemDataRole.UserRole
LIST_KEYS = (Qt.Key.Key_Down, Qt.Key.Key_Up, Qt.Key.Key_PageDown, Qt.Key.Key_PageUp)


@dataclass(frozen=True)
class PaletteEntry:
    title: str
    note: str
    """At the right: where it is in the menus, and its keys."""
    icon: QIcon
    run: Callable[[], None]
    is_enabled: bool = True


class CommandPalette(QDialog):
    def __init__(self, window: MainWindow, workbench: Workbench) -> None:
        super().__init__(window, Qt.WindowType.Popup | Qt.WindowType.FramelessWindowHint)
        self.setObjectName("palette")
        self.setAccessibleName("Command palette")
        self._workbench = workbench
        self._actions = [(f"{entry.title} {entry.note}", entry) for entry in _action_entries(window, workbench)]
        self._runs: list[tuple[str, RunView]] | None = None
        self._search = ui.search_field("palette.search", "Type an action, or a run's id or environment")
        self._list = ui.with_object_name(QTreeWidget(), "palette.list")
        self._list.setColumnCount(2)
        self._list.setHeaderHidden(True)
        self._list.setIndentation(0)
        self._list.setUniformRowHeights(True)
        self._list.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._list.header().setStretchLastSection(False)
        self._list.header().setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        self._list.header().setSectionResizeMode(1, QHeaderView.ResizeMode.ResizeToContents)
        self._empty_label = ui.muted_label("No match. Runs are found by id, environment, algorithm, tag or state.")
        gap = theme.GAP
        ui.column(self._search, self._list, self._empty_label, parent=self, margins=(gap, gap, gap, gap))
        self.setFixedWidth(WIDTH)
        self._search.textChanged.connect(self._fill)
        self._search.installEventFilter(self)
        self._list.itemClicked.connect(lambda _: self._run_current())
        self._fill("")
        corner = window.mapToGlobal(window.rect().topLeft())
        self.move(corner.x() + (window.width() - WIDTH) // 2, corner.y() + 72)
        self._search.setFocus()

    def _fill(self, query: str) -> None:
        self._list.clear()
        matches: list[PaletteEntry | RunView] = rank(query, [*self._actions, *(self._all_runs() if query else ())])
        items = [self._create_item(match) for match in matches]
        self._list.addTopLevelItems(items)
        if first := next((item for item in items if not item.isDisabled()), None):
            self._list.setCurrentItem(first)
        self._list.setVisible(bool(items))
        self._empty_label.setVisible(not items)
        self._list.setFixedHeight(ROW_HEIGHT * min(MAX_VISIBLE_ROWS, max(1, len(items))) + 4)
        self.adjustSize()

    def _create_item(self, match: PaletteEntry | RunView) -> QTreeWidgetItem:
        entry = match if isinstance(match, PaletteEntry) else self._run_entry(match)
        item = QTreeWidgetItem([entry.title, entry.note])
        item.setIcon(0, entry.icon)
        item.setForeground(1, QColor(theme.tokens().muted))
        item.setTextAlignment(1, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        item.setSizeHint(0, QSize(0, ROW_HEIGHT))
        item.setData(0, ENTRY_ROLE, entry)
        item.setDisabled(not entry.is_enabled)
        return item

    def _all_runs(self) -> list[tuple[str, RunView]]:
        """All runs with their search text, built when the first letter is typed: there may be thousands."""
        if self._runs is None:
            runs = self._workbench.runs
            views = [view for view in map(runs.get, runs.ids()) if view is not None]
            self._runs = [(_search_text(view), view) for view in views]
        return self._runs

    def _run_entry(self, view: RunView) -> PaletteEntry:
        note = "   ".join([*view.tags[:3], view.status])
        icon = theme.state_icon(view.status)
        return PaletteEntry(run_title(view), note, icon, lambda: self._workbench.select(view.run_id))

    def _run_current(self) -> None:
        item = self._list.currentItem()
        if item is None or item.isDisabled():
            return
        entry: PaletteEntry = item.data(0, ENTRY_ROLE)
        self.close()
        # After the palette has closed, so that the focus stays with what opens now.
        QTimer.singleShot(0, entry.run)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self._search and isinstance(event, QKeyEvent) and event.type() is QEvent.Type.KeyPress:
            if event.key() in LIST_KEYS:
                QApplication.sendEvent(self._list, event)  # it skips disabled rows
                return True
            if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
                self._run_current()
                return True
        return False


def _action_entries(window: MainWindow, workbench: Workbench) -> list[PaletteEntry]:
    window.refresh_actions()
    entries = []
    for row in window.action_table:
        action = window.action(row.id)
        if row.id == "app.palette":
            continue
        if row.choices is not None:
            icon = theme.icon(row.icon)
            entries += [
                PaletteEntry(f"{row.title}: {title}", row.menu, icon, partial(run, workbench))
                for title, run in row.choices(workbench)
            ]
            continue
        keys = action.shortcut().toString(QKeySequence.SequenceFormat.NativeText)
        icon = action.icon() if row.icon else theme.icon("mdi6.chevron-right", "muted")
        note = "   ".join(part for part in (row.menu, keys) if part)
        entries.append(PaletteEntry(action.text(), note, icon, action.trigger, action.isEnabled()))
    return entries


def _search_text(view: RunView) -> str:
    return " ".join((run_title(view), *view.tags, view.status))
