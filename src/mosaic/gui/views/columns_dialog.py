"""The dialog that chooses which hyper-parameters and metrics are columns of the list of runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QTreeWidget, QTreeWidgetItem, QWidget

from mosaic.gui import theme
from mosaic.gui.models.run_columns import METRIC_PREFIX, SETTING_PREFIX
from mosaic.gui.views import widgets as ui

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
