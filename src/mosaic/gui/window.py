"""The main window: a loop over the tables of `panels` and `actions`, and nothing that knows what is in them."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QAction, QCloseEvent, QKeySequence
from PySide6.QtWidgets import (
    QButtonGroup,
    QDockWidget,
    QHBoxLayout,
    QMainWindow,
    QMenu,
    QStackedWidget,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from mosaic.gui import theme
from mosaic.gui.tables import Action, Dock, Page
from mosaic.gui.views.made import named
from mosaic.gui.views.messages import Banner, Messages
from mosaic.gui.views.trainer_state import TrainerState
from mosaic.gui.workbench import Workbench

AREAS = {"left": Qt.DockWidgetArea.LeftDockWidgetArea, "bottom": Qt.DockWidgetArea.BottomDockWidgetArea}


class Window(QMainWindow):
    def __init__(
        self, workbench: Workbench, pages: Sequence[Page], docks: Sequence[Dock], actions: Sequence[Action]
    ) -> None:
        super().__init__()
        self._workbench = workbench
        self._table = actions
        self._actions: dict[str, QAction] = {}
        self.setWindowTitle(f"MOSAIC – {workbench.workspace.root}")
        self.setObjectName("window")
        self.setDockOptions(QMainWindow.DockOption.AnimatedDocks | QMainWindow.DockOption.AllowTabbedDocks)
        self._pages = named(QStackedWidget(), "pages")
        self._page_ids = [page.id for page in pages]
        self.banner = Banner()
        self.messages = Messages(self)
        self._build_pages(pages)
        self._build_docks(docks)
        self._build_menus(actions)
        self.menuBar().setCornerWidget(TrainerState(workbench), Qt.Corner.TopRightCorner)
        workbench.page_wanted.connect(self.show_page)
        workbench.said.connect(self.messages.show_message)
        workbench.bridge.lost.connect(self._lost)
        workbench.bridge.connected.connect(lambda _: self.banner.hide())
        for signal in (workbench.selected, workbench.marked, workbench.runs.changed, workbench.runs.reset):
            signal.connect(self._refresh_later)
        self._refresh = QTimer(self, singleShot=True, interval=50)
        self._refresh.timeout.connect(self.refresh_actions)
        self.refresh_actions()
        self._restore()

    # --- building

    def _build_pages(self, pages: Sequence[Page]) -> None:
        middle = QWidget()
        column = QVBoxLayout(middle)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        strip = QWidget()
        row = QHBoxLayout(strip)
        row.setContentsMargins(theme.MARGIN, 4, theme.MARGIN, 4)
        row.setSpacing(4)
        self._buttons = QButtonGroup(self)
        for number, page in enumerate(pages):
            widget = page.make(self._workbench)
            widget.setObjectName(f"page.{page.id}")
            self._pages.addWidget(widget)
            if page.is_listed:
                button = named(QToolButton(), f"nav.{page.id}")
                button.setText(page.title)
                button.setCheckable(True)
                button.setProperty("flat", True)
                button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
                button.setIcon(theme.icon(page.icon))
                button.clicked.connect(lambda _=False, page_id=page.id: self.show_page(page_id))
                self._buttons.addButton(button, number)
                row.addWidget(button)
        row.addStretch(1)
        column.addWidget(strip)
        column.addWidget(self.banner)
        column.addWidget(self._pages, 1)
        self.setCentralWidget(middle)

    def _build_docks(self, docks: Sequence[Dock]) -> None:
        self._docks = []
        for row in docks:
            dock = named(QDockWidget(row.title, self), f"dock.{row.id}")
            dock.setWidget(row.make(self._workbench))
            self.addDockWidget(AREAS[row.area], dock)
            self._docks.append(dock)
        self.setCorner(Qt.Corner.BottomLeftCorner, AREAS["left"])

    def _build_menus(self, actions: Sequence[Action]) -> None:
        menus: dict[str, QMenu] = {}
        for row in actions:
            if row.menu not in menus:
                menus[row.menu] = self.menuBar().addMenu(row.menu)
            action = named(QAction(row.title, self), row.id)
            if row.icon:
                action.setIcon(theme.icon(row.icon))
            if row.keys:
                action.setShortcut(QKeySequence(row.keys))
            keys = f" ({action.shortcut().toString(QKeySequence.SequenceFormat.NativeText)})" if row.keys else ""
            action.setToolTip((row.tip or row.title) + keys)
            action.triggered.connect(lambda _=False, run=row.run: run(self._workbench))
            menus[row.menu].addAction(action)
            self._actions[row.id] = action
        if "View" in menus:
            menus["View"].addSeparator()
            for dock in self._docks:
                menus["View"].addAction(dock.toggleViewAction())

    # --- moving

    def show_page(self, page_id: str) -> None:
        number = self._page_ids.index(page_id)
        self._pages.setCurrentIndex(number)
        button = self._buttons.button(number)
        if button is not None:
            button.setChecked(True)
        self._workbench.settings.put_here("page", page_id)

    def action(self, action_id: str) -> QAction:
        return self._actions[action_id]

    def _refresh_later(self, *_: object) -> None:
        if not self._refresh.isActive():
            self._refresh.start()

    def refresh_actions(self) -> None:
        for row in self._table:
            self._actions[row.id].setEnabled(bool(row.when(self._workbench)))

    def _lost(self, why: str) -> None:
        self.banner.say("Trainer lost, reconnecting… Runs go on without it.", why)

    # --- remembering

    def _restore(self) -> None:
        settings = self._workbench.settings
        geometry, state = settings.layout("geometry"), settings.layout("window")
        if geometry is not None:
            self.restoreGeometry(geometry)
        else:
            self.resize(1366, 768)
        if state is not None:
            self.restoreState(state)

    def remember(self) -> None:
        settings = self._workbench.settings
        settings.put_layout("geometry", self.saveGeometry())
        settings.put_layout("window", self.saveState())
        settings.put_here("selection", self._workbench.selection)
        settings.flush()

    def closeEvent(self, event: QCloseEvent) -> None:
        """Closing the window never touches a run."""
        self.remember()
        super().closeEvent(event)
