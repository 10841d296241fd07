"""The main window: a loop over the tables of `panels` and `actions`, and nothing that knows what is in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QSize, Qt, QTimer
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
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from mosaic.gui import theme
from mosaic.gui.ui_specs import SUBMENU_SEPARATOR, Action, Dock, Page
from mosaic.gui.views.shell_widgets import Banner, Messages, TrainerStatusButton, overrides_shortcut
from mosaic.gui.views.widgets import with_object_name
from mosaic.gui.workbench import Workbench

if TYPE_CHECKING:
    from mosaic.contracts.views import DaemonStatus

DOCK_AREAS = {"left": Qt.DockWidgetArea.LeftDockWidgetArea, "bottom": Qt.DockWidgetArea.BottomDockWidgetArea}
MENU_ORDER = ("File", "Run", "View", "Tools", "Help")
SAVE_LAYOUT_INTERVAL_MS = 3000
"""So that a window that was killed opens as it was a moment before."""

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
        self._action_table = [*actions, *_page_actions(pages)]
        self._page_table = pages
        self._dialogs = dialogs
        self._actions: dict[str, QAction] = {}
        self.setObjectName("window")
        self.setDockOptions(QMainWindow.DockOption.AnimatedDocks | QMainWindow.DockOption.AllowTabbedDocks)
        self._page_stack = with_object_name(QStackedWidget(), "pages")
        self._page_ids = [page.id for page in pages]
        self.banner = Banner()
        self.messages = Messages(self)
        self._build_pages(pages)
        self._build_docks(docks)
        self._build_menus()
        workbench.page_requested.connect(self.show_page)
        workbench.dialog_requested.connect(self.open_dialog)
        workbench.message_posted.connect(self.messages.show_message)
        workbench.action_offered.connect(self.messages.show_action)
        workbench.theme_changed.connect(self._paint_icons)
        workbench.bridge.connection_lost.connect(self._on_connection_lost)
        workbench.bridge.connected.connect(self._on_connected)
        for signal in (
            workbench.selection_changed,
            workbench.marks_changed,
            workbench.runs.changed,
            workbench.runs.reset,
        ):
            signal.connect(self._refresh_later)
        self._refresh_timer = QTimer(self, singleShot=True, interval=50)
        self._refresh_timer.timeout.connect(self.refresh_actions)
        self._paint_icons()
        self.refresh_actions()
        self._restore_layout()
        self._saved_layout: tuple[bytes, ...] = ()
        self._save_layout_timer = QTimer(self, interval=SAVE_LAYOUT_INTERVAL_MS)
        self._save_layout_timer.timeout.connect(self.save_layout)

    # --- building

    def _build_pages(self, pages: Sequence[Page]) -> None:
        bar = with_object_name(QToolBar("Pages"), "bar")
        bar.setMovable(False)
        bar.setIconSize(QSize(16, 16))
        bar.setContextMenuPolicy(Qt.ContextMenuPolicy.PreventContextMenu)  # it would offer to hide the bar for good
        self._buttons = QButtonGroup(self)
        for number, page in enumerate(pages):
            widget = page.create_widget(self._workbench)
            widget.setObjectName(f"page.{page.id}")
            self._page_stack.addWidget(widget)
            if page.has_nav_button:
                button = self._create_bar_button(page.title, f"nav.{page.id}")
                button.setToolTip(f"{page.title} (Ctrl+{len(self._buttons.buttons()) + 1})")
                button.setCheckable(True)
                button.clicked.connect(lambda _=False, page_id=page.id: self.show_page(page_id))
                self._buttons.addButton(button, number)
                bar.addWidget(button)
        gap = QWidget()
        gap.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        bar.addWidget(gap)
        self._search = self._create_bar_button("Find an action or a run", "nav.palette")
        self._search.setToolTip("Command palette (Ctrl+K)")
        self._search.clicked.connect(lambda: self.open_dialog("palette"))
        bar.addWidget(self._search)
        bar.addWidget(TrainerStatusButton(self._workbench))
        self.addToolBar(bar)
        middle = QWidget()
        column = QVBoxLayout(middle)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(self.banner)
        column.addWidget(self._page_stack, 1)
        self.setCentralWidget(middle)

    def _create_bar_button(self, text: str, name: str) -> QToolButton:
        button = with_object_name(QToolButton(), name)
        button.setText(text)
        button.setProperty("flat", True)
        button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        return button

    def _build_docks(self, docks: Sequence[Dock]) -> None:
        self._docks = []
        for row in docks:
            dock = with_object_name(QDockWidget(row.title, self), f"dock.{row.id}")
            dock.setWidget(row.create_widget(self._workbench))
            self.addDockWidget(DOCK_AREAS[row.area], dock)
            self._docks.append(dock)
        self.setCorner(Qt.Corner.BottomLeftCorner, DOCK_AREAS["left"])

    def _build_menus(self) -> None:
        wanted = {row.menu.partition(SUBMENU_SEPARATOR)[0] for row in self._action_table}
        menus: dict[str, QMenu] = {}
        for title in (*(name for name in MENU_ORDER if name in wanted), *sorted(wanted.difference(MENU_ORDER))):
            menus[title] = self._create_menu(title)
            self.menuBar().addMenu(menus[title])
        keys = self._workbench.settings.get("keys", {})
        sections: dict[str, int] = {}
        for row in self._action_table:
            action = with_object_name(QAction(row.title, self), row.id)
            action.triggered.connect(lambda _=False, run=row.run: run(self._workbench))
            top, _, inside = row.menu.partition(SUBMENU_SEPARATOR)
            if sections.setdefault(top, row.section) != row.section:
                menus[top].addSeparator()
                sections[top] = row.section
            if inside and row.menu not in menus:
                menus[row.menu] = self._create_menu(inside)
                menus[top].addMenu(menus[row.menu])
            menus[row.menu].addAction(action)
            self._actions[row.id] = action
            self.set_shortcut(row.id, keys.get(row.id, row.shortcut))
        if "View" in menus and self._docks:
            menus["View"].addSeparator()
            for dock in self._docks:
                menus["View"].addAction(dock.toggleViewAction())

    def _create_menu(self, title: str) -> QMenu:
        menu = with_object_name(QMenu(title, self), f"menu.{title.lower()}")
        menu.setToolTipsVisible(True)
        return menu

    def _paint_icons(self) -> None:
        for row in self._action_table:
            if row.icon:
                self._actions[row.id].setIcon(theme.icon(row.icon))
        for number, page in enumerate(self._page_table):
            if (button := self._buttons.button(number)) is not None:
                button.setIcon(theme.icon(page.icon))
        self._search.setIcon(theme.icon("mdi6.magnify", "muted"))

    # --- moving

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
        for other in range(self._page_stack.count()):
            ignored, wanted = QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred
            policy = wanted if other == page_index else ignored
            page = self._page_stack.widget(other)
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
        shown = action.shortcut().toString(QKeySequence.SequenceFormat.NativeText)
        action.setToolTip((row.tip or row.title) + (f" ({shown})" if shown else ""))

    def _refresh_later(self, *_: object) -> None:
        if not self._refresh_timer.isActive():
            self._refresh_timer.start()

    def refresh_actions(self) -> None:
        for row in self._action_table:
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

    def _on_connected(self, status: DaemonStatus) -> None:
        self.banner.hide()
        where = status.address + ": " if self._workbench.is_remote else ""
        self.setWindowTitle(f"MOSAIC – {where}{status.workspace}")
        self._refresh_later()

    # --- remembering

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

    def event(self, event: QEvent) -> bool:
        if overrides_shortcut(event):
            event.accept()
            return True
        return super().event(event)

    def closeEvent(self, event: QCloseEvent) -> None:
        """Closing the window never touches a run."""
        self._save_layout_timer.stop()
        self.save_layout()
        self._workbench.closing.emit()
        super().closeEvent(event)


def _page_actions(pages: Sequence[Page]) -> list[Action]:
    def go(page_id: str) -> Callable[[Workbench], None]:
        return lambda workbench: workbench.page_requested.emit(page_id)

    listed = [page for page in pages if page.has_nav_button]
    return [
        Action(f"go.{page.id}", page.title, "View", go(page.id), f"Ctrl+{number}", page.icon)
        for number, page in enumerate(listed, 1)
    ]
