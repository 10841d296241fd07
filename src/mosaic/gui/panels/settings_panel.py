"""What the user may set: how it looks, how W&B is reached, which keys do what; and where the workspace is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QDesktopServices, QKeySequence, QShowEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QComboBox,
    QDoubleSpinBox,
    QFormLayout,
    QHBoxLayout,
    QHeaderView,
    QKeySequenceEdit,
    QLabel,
    QPushButton,
    QScrollArea,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from mosaic.gui import theme
from mosaic.gui.panels.wandb_settings import WandbSettingsForm
from mosaic.gui.views.widgets import muted_label, with_object_name
from mosaic.gui.workbench import Workbench

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PySide6.QtGui import QAction

    from mosaic.gui.ui_specs import Action

THEMES = ("system", "light", "dark")
SMALLEST_PT, LARGEST_PT = 8.0, 16.0


class ShortcutWindow(Protocol):
    """The part of the main window that the shortcuts need; panels do not import the window that holds them."""

    @property
    def action_table(self) -> Sequence[Action]: ...
    def action(self, action_id: str) -> QAction: ...
    def set_shortcut(self, action_id: str, shortcut: str) -> None: ...


class SettingsPage(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._headings: list[QLabel] = []
        inside = QWidget()
        inside.setMaximumWidth(880)
        self._column = QVBoxLayout(inside)
        self._column.setContentsMargins(theme.MARGIN, theme.GAP, theme.MARGIN, theme.GAP)
        self._column.setSpacing(theme.GAP)
        self._build_workspace()
        self._build_appearance()
        self._head("Weights & Biases")
        self._column.addWidget(WandbSettingsForm(workbench))
        self._build_shortcuts()
        scroll = QScrollArea()
        scroll.setWidgetResizable(True)
        scroll.setWidget(inside)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(scroll)
        workbench.theme_changed.connect(self._show_current_settings)
        self._show_current_settings()

    def _head(self, text: str) -> None:
        heading = QLabel(text)
        heading.setFont(theme.heading_font())
        self._headings.append(heading)
        if len(self._headings) > 1:
            self._column.addSpacing(16)
        self._column.addWidget(heading)

    # --- workspace

    def _build_workspace(self) -> None:
        self._head("Workspace")
        row = QHBoxLayout()
        path = with_object_name(QLabel(str(self._workbench.workspace.root)), "settings.workspace")
        path.setFont(theme.monospace_font())
        path.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        path.setWordWrap(True)
        row.addWidget(path, 1)
        folder = with_object_name(QPushButton("Open folder"), "settings.open_folder")
        folder.clicked.connect(
            lambda: QDesktopServices.openUrl(QUrl.fromLocalFile(str(self._workbench.workspace.root)))
        )
        row.addWidget(folder)
        self._column.addLayout(row)
        self._column.addWidget(
            muted_label("All runs are kept there. For another one, start the workbench with: mosaic gui --var DIR")
        )

    # --- appearance

    def _build_appearance(self) -> None:
        self._head("Appearance")
        form = QFormLayout()
        form.setLabelAlignment(Qt.AlignmentFlag.AlignLeft)
        form.setHorizontalSpacing(24)
        self._theme = with_object_name(QComboBox(), "settings.theme")
        self._theme.addItems([name.capitalize() for name in THEMES])
        self._theme.activated.connect(self._set_theme)
        self._font_size = with_object_name(QDoubleSpinBox(), "settings.font")
        self._font_size.setRange(SMALLEST_PT, LARGEST_PT)
        self._font_size.setSingleStep(0.5)
        self._font_size.setDecimals(1)
        self._font_size.setSuffix(" pt")
        self._font_size.setKeyboardTracking(False)
        self._font_size.valueChanged.connect(self._set_font_size)
        for widget in (self._theme, self._font_size):
            widget.setFixedWidth(140)
        form.addRow("Theme", self._theme)
        form.addRow("Size of the text", self._font_size)
        self._column.addLayout(form)

    def _set_theme(self, index: int) -> None:
        self._workbench.settings.put("theme", THEMES[index])
        self._workbench.apply_theme()

    def _set_font_size(self, font_size_pt: float) -> None:
        self._workbench.settings.put("font_pt", font_size_pt)
        self._workbench.apply_theme()

    def _show_current_settings(self) -> None:
        """Update the widgets from the settings."""
        settings = self._workbench.settings
        self._theme.setCurrentIndex(THEMES.index(settings.get("theme", "system")))
        self._font_size.blockSignals(True)
        self._font_size.setValue(settings.get("font_pt", 10.0))
        self._font_size.blockSignals(False)
        for heading in self._headings:
            heading.setFont(theme.heading_font())

    # --- keys

    def _build_shortcuts(self) -> None:
        self._head("Keyboard")
        self._keys = with_object_name(QTableWidget(0, 3), "settings.keys")
        self._keys.setHorizontalHeaderLabels(["Action", "Menu", "Keys"])
        self._keys.verticalHeader().hide()
        self._keys.setShowGrid(False)
        self._keys.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self._keys.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self._keys.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self._keys.setMinimumHeight(260)
        self._keys.setTabKeyNavigation(False)
        header = self._keys.horizontalHeader()
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft)
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        self._keys.itemSelectionChanged.connect(self._on_action_selected)
        self._column.addWidget(self._keys, 1)
        row = QHBoxLayout()
        row.addWidget(QLabel("Keys of the chosen action"))
        self._edit = with_object_name(QKeySequenceEdit(), "settings.key")
        self._edit.setMaximumSequenceLength(1)
        self._edit.setClearButtonEnabled(True)
        self._edit.setFixedWidth(160)
        self._edit.editingFinished.connect(self._set_shortcut)
        row.addWidget(self._edit)
        self._usual = with_object_name(QPushButton("Reset"), "settings.key_reset")
        self._usual.clicked.connect(self._reset_shortcut)
        row.addWidget(self._usual)
        row.addStretch(1)
        self._column.addLayout(row)

    def showEvent(self, event: QShowEvent) -> None:
        self._fill_shortcuts()
        super().showEvent(event)

    @property
    def _main_window(self) -> ShortcutWindow:
        return cast("ShortcutWindow", self.window())

    def _fill_shortcuts(self) -> None:
        chosen = self._keys.currentRow()
        table = self._main_window.action_table
        self._keys.blockSignals(True)
        self._keys.setRowCount(len(table))
        for number, row in enumerate(table):
            shown = self._main_window.action(row.id).shortcut().toString(QKeySequence.SequenceFormat.NativeText)
            for place, words in enumerate((row.title, row.menu, shown)):
                self._keys.setItem(number, place, QTableWidgetItem(words))
        for column in (1, 2):  # once, not with every cell that is filled
            self._keys.resizeColumnToContents(column)
        self._keys.blockSignals(False)
        self._keys.selectRow(max(0, chosen))
        self._on_action_selected()

    def _on_action_selected(self) -> None:
        row = self._main_window.action_table[max(0, self._keys.currentRow())]
        self._edit.setKeySequence(self._main_window.action(row.id).shortcut())
        self._usual.setEnabled(row.id in self._workbench.settings.get("keys", {}))
        self._usual.setToolTip(f"Back to {row.shortcut or 'no keys'}")

    def _set_shortcut(self) -> None:
        row = self._main_window.action_table[max(0, self._keys.currentRow())]
        keys = self._edit.keySequence().toString()
        if keys == self._main_window.action(row.id).shortcut().toString():
            return
        taken = [
            other.title
            for other in self._main_window.action_table
            if other.id != row.id and keys and self._main_window.action(other.id).shortcut().toString() == keys
        ]
        if taken:
            self._workbench.show_message(
                f"{keys} is taken by '{taken[0]}'. Choose others, or change those first.", "warning"
            )
            self._on_action_selected()
            return
        self._workbench.settings.put("keys", {**self._workbench.settings.get("keys", {}), row.id: keys})
        self._main_window.set_shortcut(row.id, keys)
        self._fill_shortcuts()

    def _reset_shortcut(self) -> None:
        row = self._main_window.action_table[max(0, self._keys.currentRow())]
        own = {name: keys for name, keys in self._workbench.settings.get("keys", {}).items() if name != row.id}
        self._workbench.settings.put("keys", own)
        self._main_window.set_shortcut(row.id, row.shortcut)
        self._fill_shortcuts()
