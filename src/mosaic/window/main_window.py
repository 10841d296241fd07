"""The main window, built from the tables of `panels` and `actions` without knowing their content."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from PySide6.QtCore import QByteArray, QEvent, QObject, QRect, QSize, Qt
from PySide6.QtGui import QAction, QCloseEvent, QDragEnterEvent, QDropEvent, QKeySequence, QResizeEvent
from PySide6.QtWidgets import (
    QButtonGroup,
    QDialog,
    QDockWidget,
    QMainWindow,
    QMenu,
    QScrollArea,
    QSizePolicy,
    QStackedWidget,
    QTabWidget,
    QToolBar,
    QToolButton,
    QWidget,
)

from mosaic.base.formatting import count_noun, describe_read_only, join_words, run_title
from mosaic.contracts.names import UI_FORM_OPENED
from mosaic.contracts.views import DaemonStatus, RunView
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.actions import open_page
from mosaic.window.file_actions import dropped_runs, import_files, import_problem
from mosaic.window.settings import GuiSettings
from mosaic.window.shell import Banner, Messages, PagesBar, TrainerStatusButton
from mosaic.window.specs import SUBMENU_SEPARATOR, Action, Dock, Page
from mosaic.window.workbench import Workbench

# --- The layout of the main window: saved and restored, inside of the screen, with panels that give way to the page.


FIRST_SIZE = QSize(1600, 960)
"""Of the window without a saved geometry, where the screen is large enough."""
FRAME = QSize(4, 40)
"""The assumed size of the window's frame, until the window manager has drawn it."""
LOW_HEIGHT = 900
"""Below this height, in pixels, the bottom panels are collapsed to a bar, so that the page has their room."""
NARROW_WIDTH = 1200
"""Below this width, in pixels, the panels at the left have `NARROW_PANELS_WIDTH`, so that pages fit next to them."""
NARROW_PANELS_WIDTH = 320
FRAME_DELAY_MS = 250
"""Time after which a window manager has added its frame."""


class PanelsBar(QToolBar):
    """A bar at the bottom of the window with a button for each panel that is collapsed."""

    def __init__(self, docks: Sequence[QDockWidget]) -> None:
        super().__init__("Collapsed panels")
        self.setObjectName("panels")
        self.setMovable(False)
        self.setIconSize(QSize(12, 12))
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.PreventContextMenu)
        self.toggleViewAction().setVisible(False)
        self._entries = [(dock, self.addWidget(self._create_button(dock))) for dock in docks]

    def _create_button(self, dock: QDockWidget) -> QToolButton:
        tip = f"Show the panel {dock.windowTitle()}"
        button = ui.tool_button(f"open.{dock.objectName()}", "mdi6.chevron-up", tip, dock.show, dock.windowTitle())
        button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        return button

    def refresh(self, is_allowed: bool) -> None:
        for dock, action in self._entries:
            action.setVisible(dock.isHidden())
        self.setVisible(is_allowed and any(dock.isHidden() for dock, _ in self._entries))


class WindowLayout(QObject):
    def __init__(
        self, window: QMainWindow, docks: Sequence[QDockWidget], bottom: Sequence[QDockWidget], settings: GuiSettings
    ) -> None:
        """`bottom` are the docks that are collapsed where the window is low."""
        super().__init__(window)
        self._window = window
        self._docks, self._bottom = docks, bottom
        self._settings = settings
        self._is_low: bool | None = None
        self._is_narrow = False
        self._wide_panels_width = 0
        """Width of the panels at the left before the window became narrow."""
        self._collapsed: set[str] = set()
        """Names of docks that are hidden only because the window is low."""
        self._state_before: QByteArray | None = None
        """The state to go back to while a page has all the room."""
        self._saved: tuple[bytes, ...] = ()
        self.panels_bar = PanelsBar(bottom)
        window.addToolBar(Qt.ToolBarArea.BottomToolBarArea, self.panels_bar)
        self._fit_timer = ui.create_timer(self, 0, self._fit_to_screen, is_single_shot=True)
        self._fit_again_timer = ui.create_timer(self, FRAME_DELAY_MS, self._fit_to_screen, is_single_shot=True)
        self._width_timer = ui.create_timer(self, 0, self._adapt_to_width, is_single_shot=True)
        for dock in bottom:
            dock.toggleViewAction().toggled.connect(lambda is_shown, dock=dock: self._on_dock_toggled(dock, is_shown))
        window.installEventFilter(self)

    # --- saving

    def restore(self) -> None:
        geometry, state = self._settings.layout("geometry"), self._settings.layout("window")
        available = self._window.screen().availableGeometry()
        if geometry is None or not self._window.restoreGeometry(geometry):
            self._window.resize(FIRST_SIZE.boundedTo(available.size() - FRAME))
        if state is None or not self._window.restoreState(state):
            # As low as they may be.
            self._window.resizeDocks(list(self._bottom), [1] * len(self._bottom), Qt.Orientation.Vertical)
        else:
            self._is_narrow = self._window.width() < NARROW_WIDTH  # the width of the panels was saved, too
        saved = self._settings.get_for_workspace("panels", {})
        if isinstance(saved, dict) and isinstance(saved.get("collapsed"), list):
            self._is_low = bool(saved.get("is_low"))
            self._collapsed = {name for name in saved["collapsed"] if isinstance(name, str)}
        self._adapt_to_height()

    def save(self, selection: str | None) -> None:
        """Save the layout and the selected run if one of them has changed."""
        geometry = self._window.saveGeometry()
        state = self._state_before or self._window.saveState()
        panels: dict[str, Any] = {"is_low": bool(self._is_low), "collapsed": sorted(self._collapsed)}
        now = (bytes(geometry.data()), bytes(state.data()), str(selection).encode(), str(panels).encode())
        if now == self._saved:
            return
        self._saved = now
        self._settings.put_layout("geometry", geometry)
        self._settings.put_layout("window", state)
        self._settings.put_for_workspace("panels", panels)
        self._settings.put_for_workspace("selection", selection)
        self._settings.flush()

    # --- inside of the screen

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() is QEvent.Type.Resize:
            self._adapt_to_height()
            self._width_timer.start()
        elif event.type() is QEvent.Type.Show:
            self._fit_timer.start()
            self._fit_again_timer.start()
            if (handle := self._window.windowHandle()) is not None:
                # The screen that the window was on may be gone, or another one may be smaller.
                handle.screenChanged.connect(self._fit_timer.start, Qt.ConnectionType.UniqueConnection)
        return False

    def _fit_to_screen(self) -> None:
        window = self._window
        if window.isMaximized() or window.isFullScreen() or window.isHidden():
            return
        frame = window.frameGeometry()
        wanted = fit_rect(frame, window.screen().availableGeometry())
        if wanted.size() != frame.size():
            window.resize(window.size() - (frame.size() - wanted.size()))
        if wanted.topLeft() != frame.topLeft():
            window.move(wanted.topLeft())

    # --- room for the page

    def _adapt_to_height(self) -> None:
        """Collapse the bottom panels when the window becomes low, and bring them back when it becomes high."""
        is_low = self._window.height() < LOW_HEIGHT
        if is_low != self._is_low and self._state_before is None:
            self._is_low = is_low
            for dock in self._bottom:
                name = dock.objectName()
                if is_low and not dock.isHidden():
                    dock.hide()
                    self._collapsed.add(name)
                elif not is_low and name in self._collapsed:
                    dock.show()
        self.panels_bar.refresh(self._state_before is None)

    def _adapt_to_width(self) -> None:
        """Make the panels at the left narrower when the window becomes narrow, and wider again when it becomes wide."""
        is_narrow = self._window.width() < NARROW_WIDTH
        left = [dock for dock in self._docks if dock not in self._bottom and dock.isVisible()]
        if is_narrow == self._is_narrow or not left:
            return
        self._is_narrow = is_narrow
        if is_narrow:
            self._wide_panels_width = left[0].width()
        width = min(NARROW_PANELS_WIDTH, self._wide_panels_width) if is_narrow else self._wide_panels_width
        if width:
            self._window.resizeDocks(left, [width] * len(left), Qt.Orientation.Horizontal)

    def _on_dock_toggled(self, dock: QDockWidget, is_shown: bool) -> None:
        if is_shown:
            self._collapsed.discard(dock.objectName())
        self.panels_bar.refresh(self._state_before is None)

    @property
    def has_full_page(self) -> bool:
        return self._state_before is not None

    def set_full_page(self, is_full: bool) -> None:
        """Hide all panels, so that the page has their room; or show those again that were shown."""
        if is_full == self.has_full_page:
            return
        collapsed = set(self._collapsed)
        if is_full:
            self._state_before = self._window.saveState()
            for dock in self._docks:
                dock.hide()
        elif self._state_before is not None:
            state, self._state_before = self._state_before, None
            self._window.restoreState(state)
        self._collapsed = collapsed
        self._adapt_to_height()


def fit_rect(frame: QRect, available: QRect) -> QRect:
    """The nearest rectangle that is inside of `available`, smaller only where it has to be."""
    size = frame.size().boundedTo(available.size())
    left = max(available.left(), min(frame.left(), available.right() + 1 - size.width()))
    top = max(available.top(), min(frame.top(), available.bottom() + 1 - size.height()))
    return QRect(left, top, size.width(), size.height())


class _CurrentPage(QWidget):
    """Needs as much room as the page that is shown: a stack with wrapped text needs as much as the highest of all."""

    def __init__(self, pages: QStackedWidget) -> None:
        super().__init__()
        self._pages = pages
        pages.setParent(self)
        pages.currentChanged.connect(lambda _: self.updateGeometry())

    def minimumSizeHint(self) -> QSize:
        smallest, page = self._pages.minimumSizeHint(), self._pages.currentWidget()
        if page is None or not page.hasHeightForWidth():
            return smallest
        return smallest.expandedTo(QSize(0, page.heightForWidth(max(self.width(), smallest.width()))))

    def event(self, event: QEvent) -> bool:
        if event.type() is QEvent.Type.LayoutRequest:
            self.updateGeometry()
        return super().event(event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._pages.resize(event.size())
        if event.size().width() != event.oldSize().width():
            self.updateGeometry()
        super().resizeEvent(event)


class PageArea(QScrollArea):
    """Scrolls a page that needs more room than there is; otherwise the page is as large as the area."""

    def __init__(self, pages: QStackedWidget) -> None:
        super().__init__()
        self.setObjectName("page.area")
        self.setWidgetResizable(True)
        self.setWidget(_CurrentPage(pages))
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)


# --- The main window, built from the tables of `panels` and `actions` without knowing their content.


DOCK_AREAS = {"left": Qt.DockWidgetArea.LeftDockWidgetArea, "bottom": Qt.DockWidgetArea.BottomDockWidgetArea}
RUN_LIST = "runs.table"
FULL_PAGE = "view.full_page"
MENU_ORDER = ("File", "Edit", "Run", "View", "Tools", "Help")
SAVE_LAYOUT_INTERVAL_MS = 3000
"""So that a window that was killed opens as it was a moment before."""

_WINDOW_SHORTCUT = Qt.ShortcutContext.WindowShortcut
DialogFactory = Callable[["MainWindow", Workbench], QDialog]

FORM_PAGES = ("train", "policy", "play")


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
        self.setAcceptDrops(True)
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
        workbench.request_posted.connect(self.messages.show_request)
        workbench.runs.changed.connect(lambda _: self.messages.update_request())
        workbench.action_offered.connect(self.messages.show_action)
        workbench.bridge.connection_lost.connect(self._on_connection_lost)
        workbench.bridge.connected.connect(self._on_connected)
        workbench.bridge.status_polled.connect(lambda _, status: self._show_state_of_trainer(status))
        for signal in (workbench.selection_changed, workbench.marks_changed):
            signal.connect(lambda _: self.refresh_actions())  # at once: the next key may be a shortcut
        for signal in (workbench.runs.changed, workbench.runs.reset):
            signal.connect(self._refresh_later)
        workbench.ticks.changed.connect(self._refresh_later)
        workbench.undo.changed.connect(self.refresh_actions)
        workbench.trash.changed.connect(self._refresh_later)
        self._refresh_timer = ui.create_timer(self, 50, self.refresh_actions, is_single_shot=True)
        self.refresh_actions()
        self.setWindowTitle(f"MOSAIC – {workbench.workspace.root}")
        self.layout_keeper.restore()
        workbench.full_page_requested.connect(self.toggle_full_page)
        for tabs in self._page_stack.findChildren(QTabWidget):
            tabs.tabBarDoubleClicked.connect(lambda _: self.toggle_full_page())
        self._save_layout_timer = ui.create_timer(self, SAVE_LAYOUT_INTERVAL_MS, self.save_layout)

    # --- building

    def _build_pages(self, pages: Sequence[Page]) -> None:
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
        search = ui.tool_button(
            "nav.palette",
            "mdi6.magnify",
            "Command palette (Ctrl+K)",
            lambda: self.open_dialog("palette"),
            "Find an action or a run",
        )
        search.setIcon(theme.icon("mdi6.magnify", "muted"))
        search.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        bar = PagesBar(self._buttons.buttons(), search, TrainerStatusButton(self._workbench))
        self._workbench.bridge.status_polled.connect(lambda *_: bar.fit())
        self._workbench.theme_changed.connect(bar.fit)
        self.addToolBar(bar)
        self.messages = Messages(self, bar)
        self.setCentralWidget(ui.widget_column(self.banner, (PageArea(self._page_stack), 1), spacing=0))

    def _build_docks(self, docks: Sequence[Dock]) -> None:
        self._docks = []
        for row in docks:
            dock = ui.with_object_name(QDockWidget(row.title, self), f"dock.{row.id}")
            dock.setWidget(row.create_widget(self._workbench))
            self.addDockWidget(DOCK_AREAS[row.area], dock)
            self._docks.append(dock)
        self.setCorner(Qt.Corner.BottomLeftCorner, DOCK_AREAS["left"])
        bottom = [dock for dock, row in zip(self._docks, docks, strict=True) if row.area == "bottom"]
        self.layout_keeper = WindowLayout(self, self._docks, bottom, self._workbench.settings)

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
            action = ui.with_object_name(self._create_action(row), row.id)
            if row.icon:
                action.setIcon(theme.icon(row.icon))
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

    def _create_action(self, row: Action) -> QAction:
        """An entry of a menu; where it has choices, a submenu."""
        if row.choices is not None:
            menu = self._create_menu(row.title)
            menu.aboutToShow.connect(partial(self._fill_choices, menu, row))
            return menu.menuAction()
        action = QAction(row.title, self)
        action.triggered.connect(lambda: row.trigger(self._workbench))
        return action

    def _fill_choices(self, menu: QMenu, row: Action) -> None:
        menu.clear()
        for title, run in row.choices(self._workbench) if row.choices is not None else ():
            menu.addAction(title.replace("&", "&&"), partial(run, self._workbench))

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
        if page_id in FORM_PAGES:
            self._workbench.events.add(UI_FORM_OPENED, page_id)

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
        keys = (shortcut, row.second_shortcut) if shortcut == row.shortcut else (shortcut,)
        action.setShortcuts([QKeySequence(key) for key in keys if key])
        # A key that types text, such as Space, is a shortcut only while the list of runs has the focus.
        context = Qt.ShortcutContext.WidgetShortcut if _types_text(action.shortcut()) else _WINDOW_SHORTCUT
        action.setShortcutContext(context)
        self._show_state(row)

    def _refresh_later(self, *_: object) -> None:
        if not self._refresh_timer.isActive():
            self._refresh_timer.start()

    def refresh_actions(self) -> None:
        for row in self._action_table:
            self._show_state(row)

    def _show_state(self, row: Action) -> None:
        """The title of an action, whether it is possible now, and its tooltip, which may say why not."""
        action = self._actions[row.id]
        is_enabled = bool(row.is_enabled(self._workbench))
        keys = action.shortcut().toString(QKeySequence.SequenceFormat.NativeText)
        action.setText(row.title_now(self._workbench))
        action.setEnabled(is_enabled)
        action.setToolTip(row.tooltip(keys, "" if is_enabled else row.reason(self._workbench)))

    # --- the trainer

    def _on_connection_lost(self, reason: str) -> None:
        if self._workbench.bridge.is_suspended:
            self.banner.show_text(
                "The trainer was drained. Nothing is started until you start it again: Tools, Trainer."
            )
        else:
            self.banner.show_text("Trainer lost, reconnecting… Runs continue without it.", reason)
        self._refresh_later()

    def _show_state_of_trainer(self, status: DaemonStatus) -> None:
        """Show a full disk or a read-only workspace as long as it is; the status also ends another state's banner."""
        if status.full_disk:
            self.banner.show_text(status.full_disk)
        elif status.is_read_only and self._workbench.is_remote:
            self.banner.show_text(f"{describe_read_only(status)} On its machine: mosaic workspace trust")
        elif status.is_read_only:
            self.banner.show_text(describe_read_only(status), status.workspace, "Trust…", self._ask_for_trust)
        elif not self._workbench.bridge.is_suspended:
            self.banner.hide()

    def _ask_for_trust(self) -> None:
        queued = [run_title(view) for view in self._workbench.runs.all() if view.stage == "queued"]
        names = join_words([*queued[:5], "others"] if queued[5:] else queued or [""])
        starts = f"{count_noun(len(queued), 'queued run')} will start: {names}. " if queued else ""
        ui.confirm(
            self,
            "workspace.trust",
            "Workspace of others",
            "Trust everything in this workspace?",
            f"{starts}Programs and modules that its runs name can then be executed with your rights. Trust it if it is "
            "your own, for instance copied from another machine, or if you trust those who made it.",
            "Trust it",
            lambda: self._workbench.ask(
                lambda trainer: (trainer.trust_workspace(True), trainer.runs(include_archived=True)),
                self._on_trusted,
                self,
            ),
        )

    def _on_trusted(self, answer: tuple[DaemonStatus, list[RunView]]) -> None:
        status, views = answer
        self._workbench.runs.update(views)
        self._workbench.bridge.connected.emit(status)  # what the trainer has refused is asked again
        problem = status.trust_problem
        self._workbench.show_message(problem or "The workspace is yours.", "warning" if problem else "good")

    def _on_connected(self, status: DaemonStatus) -> None:
        self.banner.hide()
        if status.rebuilt_index and status.pid != self._trainer_pid:
            self._workbench.show_message(status.rebuilt_index, "warning")
        self._trainer_pid = status.pid
        self._show_state_of_trainer(status)
        where = f"{self._workbench.trainer_name}: " if self._workbench.is_remote else ""
        self.setWindowTitle(f"MOSAIC – {where}{status.workspace}")
        self._refresh_later()

    # --- the layout

    def toggle_full_page(self) -> None:
        """Give the page the room of all panels, or bring these back."""
        self.layout_keeper.set_full_page(not self.layout_keeper.has_full_page)
        keys = self._actions[FULL_PAGE].shortcut().toString(QKeySequence.SequenceFormat.NativeText)
        if self.layout_keeper.has_full_page and keys:
            self._workbench.show_message(f"{keys} brings the panels back.")

    def start_saving_layout(self) -> None:
        self._save_layout_timer.start()

    def save_layout(self) -> None:
        """Save the layout if it has changed."""
        self.layout_keeper.save(self._workbench.selection)

    # --- files that are dropped

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if dropped_runs(event.mimeData()) and not import_problem(self._workbench):
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        event.acceptProposedAction()
        import_files(self._workbench, dropped_runs(event.mimeData()))

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
