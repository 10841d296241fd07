"""What the user may set: how it looks, how W&B is reached, which keys do what; and where the workspace is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from PySide6.QtCore import QSignalBlocker
from PySide6.QtGui import QKeySequence, QShowEvent
from PySide6.QtWidgets import (
    QDoubleSpinBox,
    QFormLayout,
    QHBoxLayout,
    QHeaderView,
    QKeySequenceEdit,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from mosaic.contracts.play import LLM_KEY_NAME
from mosaic.features.play.window_actors import LLM_KEY_COMMAND
from mosaic.features.tracking.window import WandbSettingsForm
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.fields import SecretField
from mosaic.window.file_actions import ask_workspace
from mosaic.window.notifications import NOTIFY_SETTING, NOTIFY_TITLES, notify_mode
from mosaic.window.workbench import Workbench

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PySide6.QtGui import QAction

    from mosaic.window.specs import Action

THEMES = ("system", "light", "dark")
FIELD_WIDTH = 160


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
        root = workbench.workspace.root
        path = ui.path_label("settings.workspace", str(root))
        path.setProperty("monospace", True)
        open_folder = ui.button("Open folder", "settings.open_folder", lambda: workbench.open_path(root))
        other = ui.button("Open another…", "settings.open_workspace", lambda: ask_workspace(workbench))
        inside = ui.widget_column(
            ui.heading_label("Workspace"),
            ui.row((path, 1), open_folder, other),
            ui.muted_label("All runs are kept there. A window starts on another one with: mosaic gui --var DIR"),
            16,
            ui.heading_label("Appearance"),
            self._build_appearance(),
            16,
            ui.heading_label("Notifications"),
            self._build_notifications(),
            16,
            ui.heading_label("Weights & Biases"),
            WandbSettingsForm(workbench),
            16,
            ui.heading_label("Language models"),
            ui.muted_label("The API key of the server that has the models. Most servers on this machine need none."),
            SecretField(workbench, LLM_KEY_NAME, "settings.llm", LLM_KEY_COMMAND),
            16,
            ui.heading_label("Keyboard"),
            (self._build_shortcuts(), 1),
            self._build_shortcut_editor(),
            margins=ui.PAGE_MARGINS,
        )
        inside.setMaximumWidth(880)
        ui.column(ui.scroll_area(inside, "settings.scroll"), parent=self)
        workbench.theme_changed.connect(self._show_current_settings)
        self._show_current_settings()

    # --- appearance

    def _build_appearance(self) -> QFormLayout:
        self._theme = ui.combo_box("settings.theme", [(name.capitalize(), name) for name in THEMES])
        self._theme.activated.connect(self._set_theme)
        self._font_size = ui.with_object_name(QDoubleSpinBox(), "settings.font")
        self._font_size.setRange(theme.SMALLEST_PT, theme.LARGEST_PT)
        self._font_size.setSingleStep(0.5)
        self._font_size.setDecimals(1)
        self._font_size.setSuffix(" pt")
        self._font_size.setKeyboardTracking(False)
        self._font_size.valueChanged.connect(self._set_font_size)
        return ui.form(("Theme", self._theme), ("Size of the text", self._font_size))

    def _build_notifications(self) -> QFormLayout:
        self._notify = ui.combo_box(
            "settings.notify",
            [(title, mode.value) for mode, title in NOTIFY_TITLES.items()],
            "A notification of the desktop, while this window is not active",
        )
        self._notify.activated.connect(
            lambda _: self._workbench.settings.put(NOTIFY_SETTING, self._notify.currentData())
        )
        return ui.form(("Notify me when a run ends", self._notify))

    def _set_theme(self, index: int) -> None:
        self._workbench.settings.put("theme", THEMES[index])
        self._workbench.apply_theme()

    def _set_font_size(self, font_size_pt: float) -> None:
        self._workbench.settings.put("font_pt", font_size_pt)
        self._workbench.apply_theme()

    def _show_current_settings(self) -> None:
        """Update the widgets from the settings, and their widths for the size of the text."""
        for widget in (self._theme, self._font_size, self._notify):
            widget.setFixedWidth(theme.scale(FIELD_WIDTH))
        self._notify.setCurrentIndex(list(NOTIFY_TITLES).index(notify_mode(self._workbench.settings)))
        settings = self._workbench.settings
        self._theme.setCurrentIndex(THEMES.index(settings.get("theme", "system")))
        with QSignalBlocker(self._font_size):
            self._font_size.setValue(settings.get("font_pt", theme.DEFAULT_PT))

    # --- keys

    def _build_shortcuts(self) -> QTableWidget:
        self._keys = ui.plain_table(QTableWidget(0, 3), "settings.keys")
        self._keys.setHorizontalHeaderLabels(["Action", "Menu", "Keys"])
        self._keys.setSelectionMode(QTableWidget.SelectionMode.SingleSelection)
        self._keys.setMinimumHeight(260)
        self._keys.horizontalHeader().setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        self._keys.itemSelectionChanged.connect(self._on_action_selected)
        return self._keys

    def _build_shortcut_editor(self) -> QHBoxLayout:
        self._edit = ui.with_object_name(QKeySequenceEdit(), "settings.key")
        self._edit.setMaximumSequenceLength(1)
        self._edit.setClearButtonEnabled(True)
        self._edit.setFixedWidth(160)
        self._edit.editingFinished.connect(self._set_shortcut)
        self._reset_button = ui.button("Reset", "settings.key_reset", self._reset_shortcut)
        return ui.row(ui.PlainLabel("Keys of the chosen action"), self._edit, self._reset_button, ui.Stretch())

    def showEvent(self, event: QShowEvent) -> None:
        self._fill_shortcuts()
        super().showEvent(event)

    @property
    def _main_window(self) -> ShortcutWindow:
        return cast("ShortcutWindow", self.window())

    def _fill_shortcuts(self) -> None:
        selected = self._keys.currentRow()
        table = self._main_window.action_table
        with QSignalBlocker(self._keys):
            self._keys.setRowCount(len(table))
            for number, action in enumerate(table):
                keys = self._main_window.action(action.id).shortcut().toString(QKeySequence.SequenceFormat.NativeText)
                for place, text in enumerate((action.title, action.menu, keys)):
                    self._keys.setItem(number, place, QTableWidgetItem(text))
            for place in (1, 2):  # once, not with every cell that is filled
                self._keys.resizeColumnToContents(place)
        self._keys.selectRow(max(0, selected))
        self._on_action_selected()

    def _selected_action(self) -> Action:
        return self._main_window.action_table[max(0, self._keys.currentRow())]

    def _on_action_selected(self) -> None:
        action = self._selected_action()
        self._edit.setKeySequence(self._main_window.action(action.id).shortcut())
        self._reset_button.setEnabled(action.id in self._workbench.settings.get("keys", {}))
        self._reset_button.setToolTip(f"Back to {action.shortcut or 'no keys'}")

    def _set_shortcut(self) -> None:
        action = self._selected_action()
        keys = self._edit.keySequence().toString()
        if keys == self._main_window.action(action.id).shortcut().toString():
            return
        taken = [
            other.title
            for other in self._main_window.action_table
            if keys and self._main_window.action(other.id).shortcut().toString() == keys
        ]
        if taken:
            self._workbench.show_message(
                f"{keys} is taken by '{taken[0]}'. Choose others, or change those first.", "warning"
            )
            self._on_action_selected()
            return
        self._apply_shortcut(action, {**self._workbench.settings.get("keys", {}), action.id: keys}, keys)

    def _reset_shortcut(self) -> None:
        action = self._selected_action()
        before = self._workbench.settings.get("keys", {})
        changed = {name: keys for name, keys in before.items() if name != action.id}
        self._apply_shortcut(action, changed, action.shortcut)
        self._workbench.offer_undo(
            f"'{action.title}' has its keys of the start again: {action.shortcut or 'none'}.",
            f"reset the keys of '{action.title}'",
            lambda: self._apply_shortcut(action, before, before[action.id]),
        )

    def _apply_shortcut(self, action: Action, changed: dict[str, str], keys: str) -> None:
        """Saves the changed keys of all actions, and uses `keys` for this one."""
        self._workbench.settings.put("keys", changed)
        self._main_window.set_shortcut(action.id, keys)
        self._fill_shortcuts()
