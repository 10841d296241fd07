"""The main window, built from the tables of `panels` and `actions` without knowing their content."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QAction, QCloseEvent, QKeySequence
from PySide6.QtWidgets import (
    QButtonGroup,
    QDialog,
    QDockWidget,
    QMainWindow,
    QMenu,
    QSizePolicy,
    QStackedWidget,
    QToolBar,
    QWidget,
)

from mosaic.contracts.views import DaemonStatus
from mosaic.gui import theme
from mosaic.gui.actions import open_page
from mosaic.gui.ui_specs import SUBMENU_SEPARATOR, Action, Dock, Page
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.shell_widgets import Banner, Messages, TrainerStatusButton
from mosaic.gui.workbench import Workbench

DOCK_AREAS = {"left": Qt.DockWidgetArea.LeftDockWidgetArea, "bottom": Qt.DockWidgetArea.BottomDockWidgetArea}
RUN_LIST = "runs.table"
MENU_ORDER = ("File", "Run", "View", "Tools", "Help")
SAVE_LAYOUT_INTERVAL_MS = 3000
"""So that a window that was killed opens as it was a moment before."""

_WINDOW_SHORTCUT = Qt.ShortcutContext.WindowShortcut
DialogFactory = Callable[["MainWindow", Workbench], QDialog]


class MainWindow(QMainWindow):
    def __init__(
        self,
        workbench: Workbench,
        pages: Sequence[Page],
        docks: Sequence[Dock],
        actions: Sequence[Action],
        dialogs: Mapping[str, DialogFactory],
    ) -> None:
        super().__init__()
        self._workbench = workbench
        workbench.window = self
        self._action_table = [*actions, *_page_actions(pages)]
        self._dialogs = dialogs
        self._actions: dict[str, QAction] = {}
        self.setObjectName("window")
        self.setDockOptions(QMainWindow.DockOption.AnimatedDocks | QMainWindow.DockOption.AllowTabbedDocks)
        self._page_stack = ui.with_object_name(QStackedWidget(), "pages")
        self._page_ids = [page.id for page in pages]
        self.banner = Banner()
        self._trainer_pid = 0
        """Of the daemon whose start was shown."""
        self._build_pages(pages)
        self._build_docks(docks)
        self._build_menus()
        workbench.page_requested.connect(self.show_page)
        workbench.dialog_requested.connect(self.open_dialog)
        workbench.message_posted.connect(self.messages.show_message)
        workbench.action_offered.connect(self.messages.show_action)
        workbench.bridge.connection_lost.connect(self._on_connection_lost)
        workbench.bridge.connected.connect(self._on_connected)
        workbench.bridge.status_polled.connect(lambda _, status: self._show_full_disk(status))
        for signal in (workbench.selection_changed, workbench.marks_changed):
            signal.connect(lambda _: self.refresh_actions())  # at once: the next key may be a shortcut
        for signal in (workbench.runs.changed, workbench.runs.reset):
            signal.connect(self._refresh_later)
        self._refresh_timer = ui.create_timer(self, 50, self.refresh_actions, is_single_shot=True)
        self.refresh_actions()
        self._restore_layout()
        self._saved_layout: tuple[bytes, ...] = ()
        self._save_layout_timer = ui.create_timer(self, SAVE_LAYOUT_INTERVAL_MS, self.save_layout)

    # --- building

    def _build_pages(self, pages: Sequence[Page]) -> None:
        bar = ui.with_object_name(QToolBar("Pages"), "bar")
        bar.setMovable(False)
        bar.setIconSize(QSize(16, 16))
        bar.setContextMenuPolicy(Qt.ContextMenuPolicy.PreventContextMenu)  # it would offer to hide the bar for good
        self._buttons = QButtonGroup(self)
        for number, page in enumerate(pages):
            widget = page.create_widget(self._workbench)
            widget.setObjectName(f"page.{page.id}")
            self._page_stack.addWidget(widget)
            if page.has_nav_button:
                tip = f"{page.title} (Ctrl+{len(self._buttons.buttons()) + 1})"
                button = ui.tool_button(
                    f"nav.{page.id}", page.icon, tip, partial(self.show_page, page.id), page.title, is_checkable=True
                )
                button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
                self._buttons.addButton(button, number)
        gap = QWidget()
        gap.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        search = ui.tool_button(
            "nav.palette",
            "mdi6.magnify",
            "Command palette (Ctrl+K)",
            lambda: self.open_dialog("palette"),
            "Find an action or a run",
        )
        search.setIcon(theme.icon("mdi6.magnify", "muted"))
        for widget in (*self._buttons.buttons(), gap, search, TrainerStatusButton(self._workbench)):
            bar.addWidget(widget)
        search.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.addToolBar(bar)
        self.messages = Messages(self, bar)
        self.setCentralWidget(ui.widget_column(self.banner, (self._page_stack, 1), spacing=0))

    def _build_docks(self, docks: Sequence[Dock]) -> None:
        self._docks = []
        for row in docks:
            dock = ui.with_object_name(QDockWidget(row.title, self), f"dock.{row.id}")
            dock.setWidget(row.create_widget(self._workbench))
            self.addDockWidget(DOCK_AREAS[row.area], dock)
            self._docks.append(dock)
        self.setCorner(Qt.Corner.BottomLeftCorner, DOCK_AREAS["left"])

    def _build_menus(self) -> None:
        titles = {row.menu.partition(SUBMENU_SEPARATOR)[0] for row in self._action_table}
        menus: dict[str, QMenu] = {}
        for title in (*(name for name in MENU_ORDER if name in titles), *sorted(titles.difference(MENU_ORDER))):
            menus[title] = self._create_menu(title)
            self.menuBar().addMenu(menus[title])
        keys = self._workbench.settings.get("keys", {})
        run_list = self.findChild(QWidget, RUN_LIST)
        sections: dict[str, int] = {}
        for row in self._action_table:
            action = ui.with_object_name(QAction(row.title, self), row.id)
            if row.icon:
                action.setIcon(theme.icon(row.icon))
            action.triggered.connect(lambda _=False, trigger=row.trigger: trigger(self._workbench))
            top, _, inside = row.menu.partition(SUBMENU_SEPARATOR)
            if sections.setdefault(top, row.section) != row.section:
                menus[top].addSeparator()
                sections[top] = row.section
            if inside and row.menu not in menus:
                menus[row.menu] = self._create_menu(inside)
                menus[top].addMenu(menus[row.menu])
            menus[row.menu].addAction(action)
            if run_list is not None:
                run_list.addAction(action)
            self._actions[row.id] = action
            self.set_shortcut(row.id, keys.get(row.id, row.shortcut))
        if "View" in menus and self._docks:
            menus["View"].addSeparator()
            for dock in self._docks:
                menus["View"].addAction(dock.toggleViewAction())

    def _create_menu(self, title: str) -> QMenu:
        menu = ui.with_object_name(QMenu(title, self), f"menu.{title.lower()}")
        menu.setToolTipsVisible(True)
        return menu

    # --- navigation

    def show_page(self, page_id: str) -> None:
        number = self._page_ids.index(page_id)
        self._limit_minimum_size_to(number)
        self._page_stack.setCurrentIndex(number)
        button = self._buttons.button(number)
        if button is not None:
            button.setChecked(True)
        elif (checked := self._buttons.checkedButton()) is not None:
            self._buttons.setExclusive(False)  # else the last one stays checked
            checked.setChecked(False)
            self._buttons.setExclusive(True)
        self._workbench.settings.put_for_workspace("page", page_id)

    def _limit_minimum_size_to(self, page_index: int) -> None:
        """Only the page that is shown limits how small the window can be."""
        for number in range(self._page_stack.count()):
            policy = QSizePolicy.Policy.Preferred if number == page_index else QSizePolicy.Policy.Ignored
            page = self._page_stack.widget(number)
            assert page is not None
            page.setSizePolicy(policy, policy)

    @property
    def current_page(self) -> str:
        """The page that is shown."""
        return self._page_ids[self._page_stack.currentIndex()]

    def open_dialog(self, name: str) -> None:
        dialog = self._dialogs[name](self, self._workbench)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.open()

    # --- actions

    @property
    def action_table(self) -> Sequence[Action]:
        return self._action_table

    def action(self, action_id: str) -> QAction:
        return self._actions[action_id]

    def set_shortcut(self, action_id: str, shortcut: str) -> None:
        action = self._actions[action_id]
        row = next(row for row in self._action_table if row.id == action_id)
        action.setShortcut(QKeySequence(shortcut))
        # A key that types text, such as Space, is a shortcut only while the list of runs has the focus.
        context = Qt.ShortcutContext.WidgetShortcut if _types_text(action.shortcut()) else _WINDOW_SHORTCUT
        action.setShortcutContext(context)
        shown = action.shortcut().toString(QKeySequence.SequenceFormat.NativeText)
        action.setToolTip(row.tooltip(shown))

    def _refresh_later(self, *_: object) -> None:
        if not self._refresh_timer.isActive():
            self._refresh_timer.start()

    def refresh_actions(self) -> None:
        for row in self._action_table:
            self._actions[row.id].setText(row.title_now(self._workbench))
            self._actions[row.id].setEnabled(bool(row.is_enabled(self._workbench)))

    # --- the trainer

    def _on_connection_lost(self, reason: str) -> None:
        if self._workbench.bridge.is_suspended:
            self.banner.show_text(
                "The trainer was drained. Nothing is started until you start it again: Tools, Trainer."
            )
        else:
            self.banner.show_text("Trainer lost, reconnecting… Runs continue without it.", reason)
        self._refresh_later()

    def _show_full_disk(self, status: DaemonStatus) -> None:
        """Show the bytes that are free while the disk is full; the polled status also ends another state's banner."""
        if status.full_disk:
            self.banner.show_text(status.full_disk)
        elif not self._workbench.bridge.is_suspended:
            self.banner.hide()

    def _on_connected(self, status: DaemonStatus) -> None:
        self.banner.hide()
        if status.rebuilt_index and status.pid != self._trainer_pid:
            self._workbench.show_message(status.rebuilt_index, "warning")
        self._trainer_pid = status.pid
        self._show_full_disk(status)
        where = f"{self._workbench.trainer_name}: " if self._workbench.is_remote else ""
        self.setWindowTitle(f"MOSAIC – {where}{status.workspace}")
        self._refresh_later()

    # --- the layout

    def _restore_layout(self) -> None:
        self.setWindowTitle(f"MOSAIC – {self._workbench.workspace.root}")
        settings = self._workbench.settings
        geometry, state = settings.layout("geometry"), settings.layout("window")
        if geometry is not None:
            self.restoreGeometry(geometry)
        else:
            self.resize(1366, 768)
        if state is not None:
            self.restoreState(state)
        else:
            bottom = [dock for dock in self._docks if self.dockWidgetArea(dock) is DOCK_AREAS["bottom"]]
            self.resizeDocks(bottom, [1] * len(bottom), Qt.Orientation.Vertical)  # as low as they may be

    def start_saving_layout(self) -> None:
        self._save_layout_timer.start()

    def save_layout(self) -> None:
        """Save the layout if it has changed."""
        settings = self._workbench.settings
        geometry, state = self.saveGeometry(), self.saveState()
        now = (bytes(geometry.data()), bytes(state.data()), str(self._workbench.selection).encode())
        if now == self._saved_layout:
            return
        self._saved_layout = now
        settings.put_layout("geometry", geometry)
        settings.put_layout("window", state)
        settings.put_for_workspace("selection", self._workbench.selection)
        settings.flush()

    def closeEvent(self, event: QCloseEvent) -> None:
        """Closing the window never touches a run."""
        self._save_layout_timer.stop()
        self.save_layout()
        self._workbench.closing.emit()
        super().closeEvent(event)


def _types_text(keys: QKeySequence) -> bool:
    """Whether its first key types a character."""
    first = keys.toString().partition(", ")[0].removeprefix("Shift+")
    return len(first) == 1 or first == "Space"


def _page_actions(pages: Sequence[Page]) -> list[Action]:
    listed = [page for page in pages if page.has_nav_button]
    return [
        Action(f"go.{page.id}", page.title, "View", open_page(page.id), f"Ctrl+{number}", page.icon)
        for number, page in enumerate(listed, 1)
    ]
