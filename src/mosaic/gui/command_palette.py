"""The command palette: every action and every run, by typing some letters of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QModelIndex, QObject, QPersistentModelIndex, QRect, QSize, Qt, QTimer
from PySide6.QtGui import QIcon, QKeyEvent, QKeySequence, QPainter, QPalette
from PySide6.QtWidgets import (
    QDialog,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QVBoxLayout,
)

from mosaic.formatting import run_title
from mosaic.gui import theme
from mosaic.gui.models.search import rank
from mosaic.gui.views.widgets import muted_label, with_object_name
from mosaic.gui.workbench import Workbench

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView
    from mosaic.gui.main_window import MainWindow

WIDTH, MAX_VISIBLE_ROWS, ROW_HEIGHT = 640, 12, 30
NOTE_ROLE = Qt.ItemDataRole.UserRole
ENTRY_ROLE = NOTE_ROLE + 1


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
        self._actions = [(f"{entry.title} {entry.note}", entry) for entry in _action_entries(window)]
        self._runs: list[tuple[str, RunView]] | None = None
        self._search = with_object_name(QLineEdit(), "palette.search")
        self._search.setPlaceholderText("Type an action, or a run's id or environment")
        self._search.setClearButtonEnabled(True)
        self._list = with_object_name(QListWidget(), "palette.list")
        self._list.setItemDelegate(_EntryDelegate(self._list))
        self._list.setUniformItemSizes(True)
        self._list.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._empty_label = muted_label("No match. Runs are found by id, environment, algorithm, tag or state.")
        column = QVBoxLayout(self)
        column.setContentsMargins(theme.GAP, theme.GAP, theme.GAP, theme.GAP)
        column.setSpacing(theme.GAP)
        column.addWidget(self._search)
        column.addWidget(self._list)
        column.addWidget(self._empty_label)
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
        found: list[PaletteEntry | RunView] = rank(query, [*self._actions, *(self._all_runs() if query else ())])
        for one in found:
            entry = one if isinstance(one, PaletteEntry) else self._run_entry(one)
            item = QListWidgetItem(entry.icon, entry.title)
            item.setData(NOTE_ROLE, entry.note)
            item.setData(ENTRY_ROLE, entry)
            if not entry.is_enabled:
                item.setFlags(Qt.ItemFlag.NoItemFlags)
            self._list.addItem(item)
        self._list.setCurrentRow(self._next_row(-1, 1))
        self._list.setVisible(self._list.count() > 0)
        self._empty_label.setVisible(self._list.count() == 0)
        self._list.setFixedHeight(ROW_HEIGHT * min(MAX_VISIBLE_ROWS, max(1, self._list.count())) + 4)
        self.adjustSize()

    def _all_runs(self) -> list[tuple[str, RunView]]:
        """Each with the words it is found by; made when the first letter is typed: there may be thousands."""
        if self._runs is None:
            runs = self._workbench.runs
            views = [view for view in map(runs.get, runs.ids()) if view is not None]
            self._runs = [(_search_text(view), view) for view in views]
        return self._runs

    def _run_entry(self, view: RunView) -> PaletteEntry:
        state = view.status
        note = "   ".join([*view.tags[:3], state])
        return PaletteEntry(run_title(view), note, theme.state_icon(state), lambda: self._workbench.select(view.run_id))

    def _next_row(self, row: int, by: int) -> int:
        """The next one that can be chosen; stays where there is none."""
        at = row + by
        while 0 <= at < self._list.count():
            if self._list.item(at).flags() & Qt.ItemFlag.ItemIsEnabled:
                return at
            at += by
        return row

    def _run_current(self) -> None:
        item = self._list.currentItem()
        if item is None or not item.flags() & Qt.ItemFlag.ItemIsEnabled:
            return
        entry: PaletteEntry = item.data(ENTRY_ROLE)
        self.close()
        # Behind the closing, so that what opens now gets the focus and keeps it.
        QTimer.singleShot(0, entry.run)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self._search and isinstance(event, QKeyEvent) and event.type() is QEvent.Type.KeyPress:
            steps = {
                Qt.Key.Key_Down: 1,
                Qt.Key.Key_Up: -1,
                Qt.Key.Key_PageDown: MAX_VISIBLE_ROWS,
                Qt.Key.Key_PageUp: -MAX_VISIBLE_ROWS,
            }
            key = Qt.Key(event.key())
            if key in steps:
                row = self._list.currentRow()
                for _ in range(abs(steps[key])):
                    row = self._next_row(row, 1 if steps[key] > 0 else -1)
                self._list.setCurrentRow(row)
                return True
            if key in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
                self._run_current()
                return True
        return False


class _EntryDelegate(QStyledItemDelegate):
    """Icon and title at the left, the note muted at the right."""

    def sizeHint(self, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex) -> QSize:
        return QSize(WIDTH - 40, ROW_HEIGHT)

    def paint(
        self, painter: QPainter, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex
    ) -> None:
        self.initStyleOption(option, index)
        state, rect, palette = option.state, option.rect, option.palette
        note = str(index.data(NOTE_ROLE))
        painter.save()
        if state & QStyle.StateFlag.State_Selected:
            painter.fillRect(rect, theme.tokens().raised)
        icon: QIcon = index.data(Qt.ItemDataRole.DecorationRole)
        is_enabled = bool(state & QStyle.StateFlag.State_Enabled)
        mode = QIcon.Mode.Normal if is_enabled else QIcon.Mode.Disabled
        icon.paint(painter, QRect(rect.left() + 10, rect.top(), 16, rect.height()), mode=mode)
        metrics = painter.fontMetrics()
        note_width = metrics.horizontalAdvance(note) + 12
        inside = rect.adjusted(36, 0, -8, 0)
        group = QPalette.ColorGroup.Normal if is_enabled else QPalette.ColorGroup.Disabled
        painter.setPen(palette.color(group, QPalette.ColorRole.Text))
        words = metrics.elidedText(str(index.data()), Qt.TextElideMode.ElideRight, inside.width() - note_width)
        painter.drawText(inside, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft, words)
        painter.setPen(theme.tokens().muted)
        painter.drawText(inside, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight, note)
        painter.restore()


def _action_entries(window: MainWindow) -> list[PaletteEntry]:
    window.refresh_actions()
    entries = []
    for row in window.action_table:
        action = window.action(row.id)
        if row.id == "app.palette":
            continue
        keys = action.shortcut().toString(QKeySequence.SequenceFormat.NativeText)
        icon = action.icon() if row.icon else theme.icon("mdi6.chevron-right", "muted")
        note = "   ".join(part for part in (row.menu, keys) if part)
        entries.append(PaletteEntry(row.title, note, icon, action.trigger, action.isEnabled()))
    return entries


def _search_text(view: RunView) -> str:
    return " ".join((run_title(view), *view.tags, view.status))
