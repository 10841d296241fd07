"""The main window, built from the tables of `panels` and `actions` without knowing their content."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QCloseEvent, QDragEnterEvent, QDropEvent, QKeySequence
from PySide6.QtWidgets import (
    QButtonGroup,
    QDialog,
    QDockWidget,
    QMainWindow,
    QMenu,
    QSizePolicy,
    QStackedWidget,
    QTabWidget,
    QWidget,
)

from mosaic.contracts.semconv import UI_FORM_OPENED
from mosaic.contracts.views import DaemonStatus, RunView
from mosaic.formatting import count_noun, describe_read_only, join_words, run_title
from mosaic.gui import theme
from mosaic.gui.actions import open_page
from mosaic.gui.file_action_handlers import dropped_runs, import_files, import_problem
from mosaic.gui.ui_specs import SUBMENU_SEPARATOR, Action, Dock, Page
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.shell_widgets import Banner, Messages, PagesBar, TrainerStatusButton
from mosaic.gui.views.window_layout import PageArea, WindowLayout
from mosaic.gui.workbench import Workbench

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
