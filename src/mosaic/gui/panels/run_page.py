"""One run: its name and state, what can be done with it, and its tabs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QHBoxLayout, QLabel, QStackedWidget, QTabWidget, QToolButton, QVBoxLayout, QWidget

from mosaic.formatting import run_title
from mosaic.gui import theme
from mosaic.gui.run_action_handlers import STOPPABLE_STAGES
from mosaic.gui.run_actions import RUN_ACTION_GROUPS, context_menu, is_resumable
from mosaic.gui.run_actions import find_action as action_row
from mosaic.gui.ui_specs import RunTab
from mosaic.gui.views.elided_label import ElidedLabel
from mosaic.gui.views.widgets import with_object_name
from mosaic.gui.workbench import Workbench

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView

HEADER = ("run.cancel", "run.pause", "run.resume", "run.resubmit")
"""The actions with a button next to the run's name."""


class RunPage(QWidget):
    def __init__(self, workbench: Workbench, tabs: Sequence[RunTab]) -> None:
        super().__init__()
        self._workbench = workbench
        self._tab_specs = tabs
        self._holders: dict[str, QWidget] = {}
        self._panes: dict[str, Any] = {}
        """By tab, its widget: created when it is first shown."""
        self._create_pane_timer = QTimer(self, singleShot=True, interval=0)
        self._create_pane_timer.timeout.connect(self._create_pane)
        self._fill_pane_timer = QTimer(self, singleShot=True, interval=0)
        self._fill_pane_timer.timeout.connect(self._on_tab_changed)
        self._stack = QStackedWidget()
        self._nothing = QLabel("No run is chosen. Pick one in the list, or start one with Ctrl+N.")
        self._nothing.setProperty("muted", True)
        self._nothing.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._stack.addWidget(self._nothing)
        self._stack.addWidget(self._build_run_view())
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(self._stack)
        workbench.selection_changed.connect(self._show)
        workbench.tab_requested.connect(self.show_tab)
        workbench.runs.changed.connect(self._on_runs_changed)
        workbench.runs.reset.connect(self._on_runs_reset)
        workbench.theme_changed.connect(self._paint_icons)

    def _build_run_view(self) -> QWidget:
        view = QWidget()
        column = QVBoxLayout(view)
        column.setContentsMargins(theme.MARGIN, theme.GAP, theme.MARGIN, 0)
        column.setSpacing(theme.GAP)
        self._header = QHBoxLayout()
        self._icon = QLabel()
        self._title = with_object_name(ElidedLabel(), "run.title")
        self._title.setFont(theme.heading_font())
        self._title.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._state = with_object_name(ElidedLabel(), "run.state")
        self._state.setProperty("muted", True)
        self._header.addWidget(self._icon)
        self._header.addWidget(self._title)
        self._header.addWidget(self._state, 1)
        self._buttons = {name: self._create_button(name) for name in HEADER}
        self._more = with_object_name(QToolButton(), "run.more")
        self._more.setToolTip("More actions for this run")
        self._more.setProperty("flat", True)
        self._more.clicked.connect(self._open_menu)
        self._header.addWidget(self._more)
        self._paint_icons()
        column.addLayout(self._header)
        self._tabs = with_object_name(QTabWidget(), "run.tabs")
        self._tabs.setDocumentMode(True)
        self._tabs.currentChanged.connect(self._on_tab_changed)
        column.addWidget(self._tabs, 1)
        return view

    def _create_button(self, name: str) -> QToolButton:
        row = action_row(name)
        button = with_object_name(QToolButton(), f"header.{name}")
        button.setToolTip((row.tip or row.title) + (f" ({row.shortcut})" if row.shortcut else ""))
        button.setProperty("flat", True)
        button.clicked.connect(lambda: row.run(self._mark_only_selection()))
        self._header.addWidget(button)
        return button

    def _mark_only_selection(self) -> Workbench:
        """The buttons next to a run's name apply to that run, whatever is marked in the list."""
        if self._workbench.marks != [self._workbench.selection]:
            self._workbench.mark([self._workbench.selection] if self._workbench.selection else [])
        return self._workbench

    def _open_menu(self) -> None:
        menu = context_menu(self._mark_only_selection(), RUN_ACTION_GROUPS, self)
        menu.setObjectName("run.menu")
        menu.popup(self._more.mapToGlobal(self._more.rect().bottomLeft()))

    def _paint_icons(self) -> None:
        for name, button in self._buttons.items():
            button.setIcon(theme.icon(action_row(name).icon))
        self._more.setIcon(theme.icon("mdi6.dots-horizontal"))
        view = self._workbench.runs.get(self._workbench.selection or "")
        if view is not None:
            self._show_header(view)

    def _show(self, run_id: str | None) -> None:
        view = self._workbench.runs.get(run_id) if run_id else None
        self._stack.setCurrentIndex(0 if view is None else 1)
        if view is None:
            return
        self._show_header(view)
        self._update_tabs(view)
        self._on_tab_changed()

    def _show_header(self, view: RunView) -> None:
        self._icon.setPixmap(theme.state_icon(view.status).pixmap(20, 20))
        self._title.setText(run_title(view))
        self._title.setToolTip(view.run_id)
        self._state.setText(view.status + (f": {view.reason}" if view.reason else ""))
        self._state.setToolTip(view.reason or "")
        stage = view.stage
        is_paused = stage == "paused"
        pause = self._buttons["run.pause"]
        pause.setIcon(theme.icon("mdi6.play" if is_paused else "mdi6.pause"))
        pause.setToolTip(("Continue" if is_paused else "Pause it") + " (Space)")
        pause.setVisible(stage in ("running", "paused"))
        self._buttons["run.cancel"].setVisible(stage in STOPPABLE_STAGES)
        self._buttons["run.resume"].setVisible(is_resumable(view))

    def _update_tabs(self, view: RunView) -> None:
        """Show the tabs of this run, each created when it is first shown."""
        wanted = [row for row in self._tab_specs if row.is_available(view)]
        if [row.id for row in wanted] == self._tab_ids():
            return
        current = self._workbench.settings.get_for_workspace("tab", "overview")
        self._tabs.blockSignals(True)
        while self._tabs.count():
            self._tabs.removeTab(0)
        for row in wanted:
            if row.id not in self._holders:
                holder = with_object_name(QWidget(), row.id)
                QVBoxLayout(holder).setContentsMargins(0, theme.GAP, 0, 0)
                self._holders[row.id] = holder
            self._tabs.addTab(self._holders[row.id], row.title.replace("&", "&&"))
        self._tabs.blockSignals(False)
        self.show_tab(current)

    def show_tab(self, tab_id: str) -> None:
        if tab_id in self._tab_ids():
            self._tabs.setCurrentIndex(self._tab_ids().index(tab_id))

    def _tab_ids(self) -> list[str]:
        found = map(self._tabs.widget, range(self._tabs.count()))
        return [tab.objectName() for tab in found if tab is not None]

    def _on_tab_changed(self, *_: object) -> None:
        holder = self._tabs.currentWidget()
        run_id = self._workbench.selection
        if holder is None or run_id is None:
            return
        self._workbench.settings.put_for_workspace("tab", holder.objectName())
        pane = self._panes.get(holder.objectName())
        if pane is None:
            self._create_pane_timer.start()
            return
        layout = holder.layout()
        assert layout is not None
        if layout.count() == 0:
            layout.addWidget(pane)
        pane.show_run(run_id)

    def _create_pane(self) -> None:
        """Answering the click, making the pane and filling it are turns of the event loop of their own."""
        holder = self._tabs.currentWidget()
        if holder is not None and holder.objectName() not in self._panes:
            row = next(row for row in self._tab_specs if row.id == holder.objectName())
            pane = row.create_widget(self._workbench)
            pane.setParent(holder)  # not seen before it is filled
            self._panes[row.id] = pane
        self._fill_pane_timer.start()

    def _on_runs_changed(self, run_ids: set[str]) -> None:
        run_id = self._workbench.selection
        if run_id in run_ids and (view := self._workbench.runs.get(run_id)) is not None:
            if self._stack.currentIndex() == 0:
                self._show(run_id)
            self._show_header(view)
            self._update_tabs(view)

    def _on_runs_reset(self) -> None:
        self._show(self._workbench.selection)
