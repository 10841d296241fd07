"""The recorded episodes of a run as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QObject, QPersistentModelIndex, Qt

from mosaic.contracts.replays import EpisodeSummary
from mosaic.formatting import format_si_number

Index = QModelIndex | QPersistentModelIndex
COLUMNS = ("No.", "Return", "Steps", "Actor", "Ending")
_RIGHT_ALIGNED = (0, 1, 2)
ENDINGS = {"running": "left", "terminated": "terminated", "truncated": "truncated"}
"""How an episode ended, in a word: one that is `running` was left, or the session was killed."""


class ReplayEpisodes(QAbstractTableModel):
    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.rows: Sequence[EpisodeSummary] = ()

    def show(self, rows: Sequence[EpisodeSummary]) -> None:
        self.beginResetModel()
        self.rows = rows
        self.endResetModel()

    def row_of(self, number: int) -> int:
        """Return the row of an episode; -1 if there is none."""
        return next((row for row, episode in enumerate(self.rows) if episode.number == number), -1)

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's signature
        return 0 if parent.isValid() else len(self.rows)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's signature
        return len(COLUMNS)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.DisplayRole:
            return COLUMNS[section]
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.TextAlignmentRole:
            return self._alignment(section)
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.ToolTipRole and not section:
            return "Number of the episode, from 0"
        return None

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return self._alignment(index.column())
        if role not in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.ToolTipRole):
            return None
        episode = self.rows[index.row()]
        if role == Qt.ItemDataRole.ToolTipRole:
            return describe_episode(episode)
        return (
            str(episode.number),
            format_si_number(episode.total_reward),
            f"{episode.steps:,}",
            episode.actors,
            ENDINGS.get(episode.ending, episode.ending),
        )[index.column()]

    def _alignment(self, column: int) -> Qt.AlignmentFlag:
        side = Qt.AlignmentFlag.AlignRight if column in _RIGHT_ALIGNED else Qt.AlignmentFlag.AlignLeft
        return side | Qt.AlignmentFlag.AlignVCenter


def describe_episode(episode: EpisodeSummary) -> str:
    parts = [
        f"Episode {episode.number}",
        f"return {format_si_number(episode.total_reward)}",
        f"{episode.steps:,} steps",
        ENDINGS.get(episode.ending, episode.ending),
    ]
    return " · ".join([*parts, *([episode.actors] if episode.actors else [])])
