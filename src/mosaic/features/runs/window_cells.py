"""How the list of runs is painted: tick, state, name with its marks, progress, and the rows of groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from PySide6.QtCore import QObject, QPointF, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFont, QFontMetrics, QPainter, QPen, QPixmap
from PySide6.QtWidgets import (
    QDialog,
    QDialogButtonBox,
    QLineEdit,
    QStyleOptionViewItem,
    QTableView,
    QToolButton,
    QTreeWidget,
    QTreeWidgetItem,
    QWidget,
)

from mosaic.base import formatting
from mosaic.contracts.setting_field import MAX_LABEL_LENGTH
from mosaic.contracts.views import RunView
from mosaic.features.runs.window_order import METRIC_PREFIX, SETTING_PREFIX
from mosaic.features.runs.window_table import GroupSummary, RunsTableModel
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.runs import Ticks
from mosaic.window.tables import PADDING, CellDelegate, Index, draw_text, fill_background

TICK_SIZE = 14
ICON_SIZE = 16
MARK_SIZE = 14
BAR_HEIGHT = 2
INDENT = 14
"""Of the runs below the row of their group."""
TICK_GAP = 6
CHECK_MARK = ((0.2, 0.5), (0.42, 0.72), (0.82, 0.26))
"""Its corners, as parts of the box."""
MIN_GROUP_NAME_SHARE = 0.45
"""Of the room of a group's row, if the numbers of its runs would take more than the rest."""
ARCHIVED_ICON, IMPORTED_ICON = "mdi6.archive-outline", "mdi6.tray-arrow-down"
GROUP_VALUE_COLUMNS = ("return", "progress")
"""What a group has a value of; the columns before them show its name."""

PaintCell = Callable[[QPainter, QRect, RunView, str], None]


class RunDelegate(CellDelegate):
    """A cell of the list: one question to the model for all that is painted."""

    def __init__(self, table: RunsTableModel, ticks: Ticks, parent: QObject) -> None:
        super().__init__(parent)
        self._table = table
        self._ticks = ticks
        self._icons: dict[tuple[str, str, int, bool, float], QPixmap] = {}
        self.is_compact = False
        """Whether the state is an icon without its word, as the list is narrow."""
        self._paint_by_column: dict[str, PaintCell] = {
            "state": self._paint_state,
            "name": self._paint_name,
            "progress": self._paint_progress,
        }

    # --- room

    def extra_width(self, column_id: str) -> int:
        """What a cell needs in addition to its text."""
        if column_id == "state":
            return self._state_left(self._table.has_groups) + ICON_SIZE + (0 if self.is_compact else 4) + PADDING
        return self.EXTRA_WIDTH

    def tick_rect(self, cell: QRect, row: int) -> QRect:
        """Where the tick of a row is, in its first cell; somewhat larger than it looks."""
        return QRect(cell.left() + self._indent(row), cell.top(), PADDING + TICK_SIZE + TICK_GAP // 2, cell.height())

    def chevron_rect(self, cell: QRect) -> QRect:
        """Where a group is unfolded and folded."""
        left = cell.left() + PADDING + TICK_SIZE + TICK_GAP // 2
        return QRect(left, cell.top(), ICON_SIZE + TICK_GAP, cell.height())

    def _indent(self, row: int) -> int:
        return INDENT if self._table.group_of(self._table.run_id(row)) is not None else 0

    def _state_left(self, is_indented: bool) -> int:
        return PADDING + (INDENT if is_indented else 0) + TICK_SIZE + TICK_GAP

    # --- painting

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        # Not by a role: Qt would copy the whole view into its own types and back.
        row = index.row()
        rect: QRect = option.rect
        summary = self._table.summary(row)
        if summary is not None:
            fill_background(painter, option, rect)
            self._paint_group(painter, option, index, summary)
            return
        view = self._table.view(row)
        if view is None:
            return
        fill_background(painter, option, rect)
        column = self._table.columns[index.column()]
        paint = self._paint_by_column.get(column.id)
        if paint is not None:
            paint(painter, rect, view, column.text(view))
        else:
            draw_text(painter, rect, PADDING, column.text(view), column.is_right_aligned, view.is_archived)

    def _paint_state(self, painter: QPainter, rect: QRect, view: RunView, text: str) -> None:
        is_indented = self._table.group_of(view.run_id) is not None
        left = self._state_left(is_indented)
        color = theme.run_color(view.run_id)
        self._paint_tick(painter, rect.left() + left - TICK_GAP - TICK_SIZE, rect, color, view.run_id in self._ticks)
        state = "unreadable" if view.problem else text
        name, token = theme.STATE_ICONS.get(state, ("mdi6.help-circle", "muted"))
        self._draw_icon(painter, name, token, ICON_SIZE, rect.left() + left, rect)
        if not self.is_compact:
            draw_text(painter, rect, left + ICON_SIZE + 4, text, is_muted=view.is_archived)

    def _paint_tick(self, painter: QPainter, left: float, rect: QRect, color: QColor, is_ticked: bool) -> None:
        """A box in the color of the run: filled while its curves are shown with those of others."""
        box = QRectF(left + 1.5, rect.center().y() - TICK_SIZE / 2 + 2.0, TICK_SIZE - 3, TICK_SIZE - 3)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(color, 2))
        painter.setBrush(color if is_ticked else Qt.BrushStyle.NoBrush)
        painter.drawRoundedRect(box, 2, 2)
        if is_ticked:
            painter.setPen(QPen(QColor(theme.tokens().surface), 1.8))
            x, y, size = box.left(), box.top(), box.width()
            painter.drawPolyline([QPointF(x + across * size, y + down * size) for across, down in CHECK_MARK])
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)

    def _paint_name(self, painter: QPainter, rect: QRect, view: RunView, text: str) -> None:
        room = QRect(rect)
        for is_marked, icon in ((view.is_archived, ARCHIVED_ICON), (view.is_imported, IMPORTED_ICON)):
            if is_marked:
                self._draw_icon(painter, icon, "muted", MARK_SIZE, room.right() - PADDING - MARK_SIZE + 4, rect)
                room.setRight(room.right() - MARK_SIZE - 2)
        draw_text(painter, room, PADDING, text, is_muted=view.is_archived)

    def _paint_progress(self, painter: QPainter, rect: QRect, view: RunView, text: str) -> None:
        """The percentage, and a thin bar under it while there is a way to go."""
        draw_text(painter, rect, PADDING, text, is_right_aligned=True, is_muted=view.is_archived)
        part = formatting.progress_fraction(view)
        if part is not None and part < 1:
            t = theme.tokens()
            self._paint_bar(painter, rect, part, t.muted if view.stage == "finished" else t.accent)

    def _paint_bar(self, painter: QPainter, rect: QRect, part: float, color: str) -> None:
        left, top, width = rect.left() + PADDING, rect.bottom() - BAR_HEIGHT, rect.width() - 2 * PADDING
        painter.fillRect(left, top, width, BAR_HEIGHT, QColor(theme.tokens().line))
        painter.fillRect(left, top, round(width * part), BAR_HEIGHT, QColor(color))

    def _draw_icon(self, painter: QPainter, name: str, token: str, size: int, left: float, rect: QRect) -> None:
        """Drawing a glyph again for each row would take most of the time."""
        scale = painter.device().devicePixelRatioF()
        key = (name, token, size, theme.is_dark(), scale)
        if key not in self._icons:
            self._icons[key] = theme.icon(name, token).pixmap(QSize(size, size), scale)
        painter.drawPixmap(QPointF(left, rect.center().y() - size // 2 + 1), self._icons[key])

    # --- groups

    def _paint_group(
        self, painter: QPainter, option: QStyleOptionViewItem, index: Index, summary: GroupSummary
    ) -> None:
        """The name over all columns before those that a group has a value of."""
        column_id = self._table.columns[index.column()].id
        if column_id in GROUP_VALUE_COLUMNS:
            draw_text(painter, option.rect, PADDING, summary.text(column_id), is_right_aligned=True)
            if column_id == "progress" and summary.fraction is not None and summary.fraction < 1:
                self._paint_bar(painter, option.rect, summary.fraction, theme.tokens().accent)
            return
        heading = self._heading_rect(option, index)
        if heading.intersects(option.rect):
            painter.save()
            painter.setClipRect(option.rect)
            self._paint_heading(painter, heading, summary)
            painter.restore()

    def _heading_rect(self, option: QStyleOptionViewItem, index: Index) -> QRect:
        view = option.widget
        assert isinstance(view, QTableView)
        ids = self._table.column_ids
        shown = [number for number in range(len(ids)) if not view.isColumnHidden(number)]
        ends = [view.columnViewportPosition(number) for number in shown if ids[number] in GROUP_VALUE_COLUMNS]
        right = min(ends) if ends else view.viewport().width()
        left = view.columnViewportPosition(shown[0])
        return QRect(left, option.rect.top(), right - left, option.rect.height())

    def _paint_heading(self, painter: QPainter, rect: QRect, summary: GroupSummary) -> None:
        members = self._table.members(summary.name)
        ticked = sum(run_id in self._ticks for run_id in members)
        color = QColor(theme.tokens().muted)
        self._paint_tick(painter, rect.left() + PADDING, rect, color, ticked == len(members))
        if 0 < ticked < len(members):
            middle = QRectF(rect.left() + PADDING + 4, rect.center().y() - 1.0, TICK_SIZE - 8, 3)
            painter.fillRect(middle, color)
        left = PADDING + TICK_SIZE + TICK_GAP
        chevron = "mdi6.chevron-down" if self._table.is_expanded(summary.name) else "mdi6.chevron-right"
        self._draw_icon(painter, chevron, "text", ICON_SIZE, rect.left() + left, rect)
        left += ICON_SIZE + 2
        name, token = theme.STATE_ICONS.get(summary.state, ("mdi6.help-circle", "muted"))
        self._draw_icon(painter, name, token, ICON_SIZE, rect.left() + left, rect)
        left += ICON_SIZE + 4
        font = QFont(painter.font())
        font.setWeight(QFont.Weight.DemiBold)
        room = rect.width() - left - PADDING
        name_width = QFontMetrics(font).horizontalAdvance(summary.name) + 2
        line_width = painter.fontMetrics().horizontalAdvance(summary.line) + 2
        own = min(name_width, max(room - line_width - PADDING, round(MIN_GROUP_NAME_SHARE * room)))
        line = QRect(rect.left() + left + own, rect.top(), rect.right() - rect.left() - left - own, rect.height())
        draw_text(painter, line, PADDING, summary.line, is_muted=True)
        painter.setFont(font)
        name_rect = QRect(rect.left(), rect.top(), left + own + PADDING, rect.height())
        draw_text(
            painter,
            name_rect,
            left,
            summary.name,
            is_muted=summary.is_archived,
            elide=Qt.TextElideMode.ElideMiddle,
        )

    # --- renaming

    def createEditor(self, parent: QWidget, option: QStyleOptionViewItem, index: Index) -> QWidget:
        editor = QLineEdit(parent)
        editor.setObjectName("runs.name")
        editor.setMaxLength(MAX_LABEL_LENGTH)
        editor.setPlaceholderText("Name; empty: none")
        editor.setStyleSheet("QLineEdit { padding: 0 4px; border-radius: 0; }")
        return editor


# --- The dialog that chooses which hyper-parameters and metrics are columns of the list of runs.


SECTIONS = {SETTING_PREFIX: "Hyper-parameters", METRIC_PREFIX: "Metrics (last value)"}
MAX_VALUE_COLUMNS = 12
_ID = Qt.ItemDataRole.UserRole
_CHECKED, _UNCHECKED = Qt.CheckState.Checked, Qt.CheckState.Unchecked


class ColumnsDialog(QDialog):
    columns_chosen = Signal(list)
    """The ids of the columns to show, in order."""

    def __init__(self, chosen: Sequence[str], parent: QWidget | None) -> None:
        super().__init__(parent)
        self.setObjectName("columns")
        self.setWindowTitle("Columns of the list of runs")
        self._chosen = list(chosen)
        self._items: dict[str, QTreeWidgetItem] = {}
        self._search = ui.search_field("columns.search", "Search hyper-parameters and metrics")
        self._search.textChanged.connect(self._filter)
        self._tree = ui.with_object_name(QTreeWidget(), "columns.tree")
        self._tree.setHeaderHidden(True)
        self._tree.itemChanged.connect(self._on_item_changed)
        self._hint = ui.muted_label("Loading the names…", "columns.hint")
        self._hint.setWordWrap(True)
        done = ui.accent_button("Show columns", "columns.done")
        done.setDefault(True)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Cancel)
        buttons.addButton(done, QDialogButtonBox.ButtonRole.AcceptRole)
        buttons.accepted.connect(self.accept)
        buttons.rejected.connect(self.reject)
        ui.column(self._search, (self._tree, 1), self._hint, buttons, parent=self, margins=(theme.MARGIN,) * 4)
        self.resize(420, 480)
        self.show_names(())
        self.accepted.connect(lambda: self.columns_chosen.emit(self._chosen))

    def show_names(self, column_ids: Iterable[str]) -> None:
        """List these columns and the chosen ones, which stay checked."""
        names = sorted(set(column_ids) | set(self._chosen))
        self._tree.clear()
        self._items.clear()
        for prefix, title in SECTIONS.items():
            section = QTreeWidgetItem([title])
            section.setFlags(Qt.ItemFlag.ItemIsEnabled)
            self._tree.addTopLevelItem(section)
            for column_id in (name for name in names if name.startswith(prefix)):
                item = QTreeWidgetItem([column_id.removeprefix(prefix)])
                item.setData(0, _ID, column_id)
                item.setCheckState(0, _CHECKED if column_id in self._chosen else _UNCHECKED)
                section.addChild(item)
                self._items[column_id] = item
            section.setExpanded(True)
        if column_ids:
            self._update_hint()
        self._filter(self._search.text())

    def show_error(self, error: Exception) -> None:
        self._hint.setText(f"The names cannot be read: {error}")

    def _update_hint(self) -> None:
        text = f"{len(self._chosen)} of at most {MAX_VALUE_COLUMNS} chosen. They come after the seed."
        self._hint.setText(text if self._items else "No run has hyper-parameters or metrics yet.")

    def _on_item_changed(self, item: QTreeWidgetItem) -> None:
        column_id = item.data(0, _ID)
        if column_id is None:
            return
        is_checked = item.checkState(0) is _CHECKED
        if is_checked and column_id not in self._chosen:
            if len(self._chosen) == MAX_VALUE_COLUMNS:
                item.setCheckState(0, _UNCHECKED)
                self._hint.setText(f"At most {MAX_VALUE_COLUMNS} can be shown: uncheck one first.")
                return
            self._chosen.append(column_id)
        elif not is_checked and column_id in self._chosen:
            self._chosen.remove(column_id)
        self._update_hint()

    def _filter(self, text: str) -> None:
        words = text.lower().split()
        for column_id, item in self._items.items():
            item.setHidden(not all(word in column_id.lower() for word in words))


# --- The filters beside the search of the list of runs.


CHIPS = {
    "running": ("Running", "Only runs that are starting, running, paused or stopping"),
    "failed": ("Failed", "Only runs that failed, were lost or were rejected; with Running, these too"),
    "today": ("Today", "Only runs that were submitted today"),
    "mine": ("Mine", "Only runs that you submitted"),
}


class FilterChips(QWidget):
    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._chips = {name: self._create_chip(name) for name in CHIPS}
        self._chips["mine"].hide()
        ui.row(*self._chips.values(), ui.Stretch(), parent=self, spacing=4)

    def _create_chip(self, name: str) -> QToolButton:
        title, tip = CHIPS[name]
        chip = ui.tool_button(f"runs.chip.{name}", "", tip, text=title, is_flat=False, is_checkable=True)
        chip.setProperty("filter", True)
        chip.toggled.connect(lambda _: self.changed.emit())
        return chip

    def checked(self) -> list[str]:
        return [name for name, chip in self._chips.items() if chip.isChecked()]

    def clear(self) -> None:
        for chip in self._chips.values():
            chip.setChecked(False)

    def offer_mine(self, are_several_users: bool) -> bool:
        """Show the filter of the own runs where there are others, and while it is used. Return whether that changed."""
        mine = self._chips["mine"]
        is_wanted = are_several_users or mine.isChecked()
        if mine.isHidden() is not is_wanted:
            return False
        mine.setVisible(is_wanted)
        return True
