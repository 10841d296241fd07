"""How the list of runs is painted: tick, state, name with its marks, progress, and the rows of groups."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject, QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetrics, QPainter, QPen, QPixmap
from PySide6.QtWidgets import QLineEdit, QStyleOptionViewItem, QTableView, QWidget

from mosaic import formatting
from mosaic.contracts.setting_field import MAX_LABEL_LENGTH
from mosaic.contracts.views import RunView
from mosaic.gui import theme
from mosaic.gui.models.group_rows import GroupSummary
from mosaic.gui.models.runs_table import RunsTableModel
from mosaic.gui.models.ticks import Ticks
from mosaic.gui.views.delegates import PADDING, CellDelegate, Index, draw_text, fill_background

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
