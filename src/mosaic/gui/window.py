"""The main window: a loop over the tables of `panels` and `actions`, and nothing that knows what is in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

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
from mosaic.gui.tables import INSIDE, Action, Dock, Page
from mosaic.gui.views.keys import is_kept
from mosaic.gui.views.made import named
from mosaic.gui.views.messages import Banner, Messages
from mosaic.gui.views.trainer_state import TrainerState
from mosaic.gui.workbench import Json, Workbench

AREAS = {"left": Qt.DockWidgetArea.LeftDockWidgetArea, "bottom": Qt.DockWidgetArea.BottomDockWidgetArea}
MENUS = ("File", "Run", "View", "Tools", "Help")
REMEMBER_MS = 3000
"""So that a window that was killed opens as it was a moment before."""

MakeDialog = Callable[["Window", Workbench], QDialog]


class Window(QMainWindow):
    def __init__(
        self,
        workbench: Workbench,
        pages: Sequence[Page],
        docks: Sequence[Dock],
        actions: Sequence[Action],
        dialogs: Mapping[str, MakeDialog],
    ) -> None:
        super().__init__()
        self._workbench = workbench
        self._table = [*actions, *_page_actions(pages)]
        self._page_table = pages
        self._dialogs = dialogs
        self._actions: dict[str, QAction] = {}
        self.setObjectName("window")
        self.setDockOptions(QMainWindow.DockOption.AnimatedDocks | QMainWindow.DockOption.AllowTabbedDocks)
        self._pages = named(QStackedWidget(), "pages")
        self._page_ids = [page.id for page in pages]
        self.banner = Banner()
        self.messages = Messages(self)
        self._build_pages(pages)
        self._build_docks(docks)
        self._build_menus()
        workbench.page_wanted.connect(self.show_page)
        workbench.dialog_wanted.connect(self.open_dialog)
        workbench.said.connect(self.messages.show_message)
        workbench.offered.connect(self.messages.show_offer)
        workbench.theme_changed.connect(self._paint_icons)
        workbench.bridge.lost.connect(self._lost)
        workbench.bridge.connected.connect(self._found)
        for signal in (workbench.selected, workbench.marked, workbench.runs.changed, workbench.runs.reset):
            signal.connect(self._refresh_later)
        self._refresh = QTimer(self, singleShot=True, interval=50)
        self._refresh.timeout.connect(self.refresh_actions)
        self._paint_icons()
        self.refresh_actions()
        self._restore()
        self._remembered: tuple[bytes, ...] = ()
        self._clock = QTimer(self, interval=REMEMBER_MS)
        self._clock.timeout.connect(self.remember)

    # --- building

    def _build_pages(self, pages: Sequence[Page]) -> None:
        bar = named(QToolBar("Pages"), "bar")
        bar.setMovable(False)
        bar.setIconSize(QSize(16, 16))
        bar.setContextMenuPolicy(Qt.ContextMenuPolicy.PreventContextMenu)  # it would offer to hide the bar for good
        self._buttons = QButtonGroup(self)
        for number, page in enumerate(pages):
            widget = page.make(self._workbench)
            widget.setObjectName(f"page.{page.id}")
            self._pages.addWidget(widget)
            if page.is_listed:
                button = self._bar_button(page.title, f"nav.{page.id}")
                button.setToolTip(f"{page.title} (Ctrl+{len(self._buttons.buttons()) + 1})")
                button.setCheckable(True)
                button.clicked.connect(lambda _=False, page_id=page.id: self.show_page(page_id))
                self._buttons.addButton(button, number)
                bar.addWidget(button)
        gap = QWidget()
        gap.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        bar.addWidget(gap)
        self._search = self._bar_button("Find an action or a run", "nav.palette")
        self._search.setToolTip("Command palette (Ctrl+K)")
        self._search.clicked.connect(lambda: self.open_dialog("palette"))
        bar.addWidget(self._search)
        bar.addWidget(TrainerState(self._workbench))
        self.addToolBar(bar)
        middle = QWidget()
        column = QVBoxLayout(middle)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(self.banner)
        column.addWidget(self._pages, 1)
        self.setCentralWidget(middle)

    def _bar_button(self, text: str, name: str) -> QToolButton:
        button = named(QToolButton(), name)
        button.setText(text)
        button.setProperty("flat", True)
        button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        return button

    def _build_docks(self, docks: Sequence[Dock]) -> None:
        self._docks = []
        for row in docks:
            dock = named(QDockWidget(row.title, self), f"dock.{row.id}")
            dock.setWidget(row.make(self._workbench))
            self.addDockWidget(AREAS[row.area], dock)
            self._docks.append(dock)
        self.setCorner(Qt.Corner.BottomLeftCorner, AREAS["left"])

    def _build_menus(self) -> None:
        wanted = {row.menu.partition(INSIDE)[0] for row in self._table}
        menus: dict[str, QMenu] = {}
        for title in (*(name for name in MENUS if name in wanted), *sorted(wanted.difference(MENUS))):
            menus[title] = self._menu(title)
            self.menuBar().addMenu(menus[title])
        keys = self._workbench.settings.get("keys", {})
        sections: dict[str, int] = {}
        for row in self._table:
            action = named(QAction(row.title, self), row.id)
            action.triggered.connect(lambda _=False, run=row.run: run(self._workbench))
            top, _, inside = row.menu.partition(INSIDE)
            if sections.setdefault(top, row.section) != row.section:
                menus[top].addSeparator()
                sections[top] = row.section
            if inside and row.menu not in menus:
                menus[row.menu] = self._menu(inside)
                menus[top].addMenu(menus[row.menu])
            menus[row.menu].addAction(action)
            self._actions[row.id] = action
            self.set_keys(row.id, keys.get(row.id, row.keys))
        if "View" in menus and self._docks:
            menus["View"].addSeparator()
            for dock in self._docks:
                menus["View"].addAction(dock.toggleViewAction())

    def _menu(self, title: str) -> QMenu:
        menu = named(QMenu(title, self), f"menu.{title.lower()}")
        menu.setToolTipsVisible(True)
        return menu

    def _paint_icons(self) -> None:
        for row in self._table:
            if row.icon:
                self._actions[row.id].setIcon(theme.icon(row.icon))
        for number, page in enumerate(self._page_table):
            if (button := self._buttons.button(number)) is not None:
                button.setIcon(theme.icon(page.icon))
        self._search.setIcon(theme.icon("mdi6.magnify", "muted"))

    # --- moving

    def show_page(self, page_id: str) -> None:
        number = self._page_ids.index(page_id)
        self._fit_to(number)
        self._pages.setCurrentIndex(number)
        button = self._buttons.button(number)
        if button is not None:
            button.setChecked(True)
        elif (checked := self._buttons.checkedButton()) is not None:
            self._buttons.setExclusive(False)  # else the last one stays checked
            checked.setChecked(False)
            self._buttons.setExclusive(True)
        self._workbench.settings.put_here("page", page_id)

    def _fit_to(self, number: int) -> None:
        """Only the page that is shown may say how small the window can be."""
        for other in range(self._pages.count()):
            ignored, wanted = QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred
            policy = wanted if other == number else ignored
            page = self._pages.widget(other)
            assert page is not None
            page.setSizePolicy(policy, policy)

    @property
    def page(self) -> str:
        """The page that is shown."""
        return self._page_ids[self._pages.currentIndex()]

    def open_dialog(self, name: str) -> None:
        dialog = self._dialogs[name](self, self._workbench)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.open()

    # --- actions

    @property
    def table(self) -> Sequence[Action]:
        return self._table

    def action(self, action_id: str) -> QAction:
        return self._actions[action_id]

    def set_keys(self, action_id: str, keys: str) -> None:
        action = self._actions[action_id]
        row = next(row for row in self._table if row.id == action_id)
        action.setShortcut(QKeySequence(keys))
        shown = action.shortcut().toString(QKeySequence.SequenceFormat.NativeText)
        action.setToolTip((row.tip or row.title) + (f" ({shown})" if shown else ""))

    def _refresh_later(self, *_: object) -> None:
        if not self._refresh.isActive():
            self._refresh.start()

    def refresh_actions(self) -> None:
        for row in self._table:
            self._actions[row.id].setEnabled(bool(row.when(self._workbench)))

    # --- the trainer

    def _lost(self, why: str) -> None:
        if self._workbench.bridge.is_resting:
            self.banner.say("The trainer was drained. Nothing is started until you start it again: Tools, Trainer.")
        else:
            self.banner.say("Trainer lost, reconnecting… Runs go on without it.", why)
        self._refresh_later()

    def _found(self, status: Json) -> None:
        self.banner.hide()
        where = status["address"] + ": " if self._workbench.is_remote else ""
        self.setWindowTitle(f"MOSAIC – {where}{status['workspace']}")
        self._refresh_later()

    # --- remembering

    def _restore(self) -> None:
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
            bottom = [dock for dock in self._docks if self.dockWidgetArea(dock) is AREAS["bottom"]]
            self.resizeDocks(bottom, [1] * len(bottom), Qt.Orientation.Vertical)  # as low as they may be

    def start_remembering(self) -> None:
        self._clock.start()

    def remember(self) -> None:
        """Writes where everything stands, if that has changed."""
        settings = self._workbench.settings
        geometry, state = self.saveGeometry(), self.saveState()
        now = (bytes(geometry.data()), bytes(state.data()), str(self._workbench.selection).encode())
        if now == self._remembered:
            return
        self._remembered = now
        settings.put_layout("geometry", geometry)
        settings.put_layout("window", state)
        settings.put_here("selection", self._workbench.selection)
        settings.flush()

    def event(self, event: QEvent) -> bool:
        if is_kept(event):
            event.accept()
            return True
        return super().event(event)

    def closeEvent(self, event: QCloseEvent) -> None:
        """Closing the window never touches a run."""
        self._clock.stop()
        self.remember()
        self._workbench.closing.emit()
        super().closeEvent(event)


def _page_actions(pages: Sequence[Page]) -> list[Action]:
    def go(page_id: str) -> Callable[[Workbench], None]:
        return lambda workbench: workbench.page_wanted.emit(page_id)

    listed = [page for page in pages if page.is_listed]
    return [
        Action(f"go.{page.id}", page.title, "View", go(page.id), f"Ctrl+{number}", page.icon)
        for number, page in enumerate(listed, 1)
    ]
