"""The page of one run: its name and state, its actions, and its tabs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QSignalBlocker, Qt
from PySide6.QtWidgets import QHBoxLayout, QToolButton, QWidget

from mosaic.contracts.views import RunView
from mosaic.formatting import explain_state, run_title, short_state
from mosaic.gui import theme
from mosaic.gui.actions import find_action, is_resumable, run_menu
from mosaic.gui.models.groups import STOPPABLE_STAGES
from mosaic.gui.ui_specs import RunTab
from mosaic.gui.views import widgets as ui
from mosaic.gui.workbench import Workbench

HEADER = ("run.cancel", "run.pause", "run.resume", "run.resubmit")
"""The actions with a button next to the run's name."""
MAX_GROUP_WIDTH = 180


class RunPage(QWidget):
    def __init__(self, workbench: Workbench, tabs: Sequence[RunTab]) -> None:
        super().__init__()
        self._workbench = workbench
        self._tab_specs = tabs
        self._holders: dict[str, QWidget] = {}
        self._panes: dict[str, Any] = {}
        """By tab, its widget: created when it is first shown."""
        self._create_pane_timer = ui.create_timer(self, 0, self._create_pane, is_single_shot=True)
        self._fill_pane_timer = ui.create_timer(self, 0, self._on_tab_changed, is_single_shot=True)
        nothing = ui.muted_label("No run is chosen. Pick one in the list, or start one with Ctrl+N.")
        nothing.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._tabs = ui.tabs("run.tabs")
        self._tabs.currentChanged.connect(self._on_tab_changed)
        run_view = ui.widget_column(
            self._build_header(), (self._tabs, 1), margins=(theme.MARGIN, theme.GAP, theme.MARGIN, 0)
        )
        self._stack = ui.stack(nothing, run_view)
        ui.column(self._stack, parent=self)
        workbench.selection_changed.connect(self._show)
        workbench.tab_requested.connect(self.show_tab)
        workbench.runs.changed.connect(self._on_runs_changed)
        workbench.runs.reset.connect(lambda: self._show(workbench.selection))

    def _build_header(self) -> QHBoxLayout:
        self._icon = ui.IconLabel(20)
        self._title = ui.with_object_name(ui.ElidedLabel(), "run.title")
        self._title.setProperty("heading", True)
        self._title.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._state = ui.with_object_name(ui.ElidedLabel(), "run.state")
        self._state.setProperty("muted", True)
        self._group = ui.tool_button(
            "run.group", "mdi6.folder-multiple-outline", "Show all runs of this group", self._open_group, "–"
        )
        self._group.setMaximumWidth(MAX_GROUP_WIDTH)
        self._buttons = {name: self._create_button(name) for name in HEADER}
        self._more = ui.tool_button("run.more", "mdi6.dots-horizontal", "More actions for this run", self._open_menu)
        return ui.row(self._icon, self._title, (self._state, 1), self._group, *self._buttons.values(), self._more)

    def _create_button(self, name: str) -> QToolButton:
        action = find_action(name)
        return ui.tool_button(
            f"header.{name}",
            action.icon,
            action.tooltip(action.shortcut),
            lambda: action.trigger(self._mark_only_selection()),
        )

    def _mark_only_selection(self) -> Workbench:
        """The buttons next to a run's name apply to that run, whatever is marked in the list."""
        if self._workbench.marks != [self._workbench.selection]:
            self._workbench.mark([self._workbench.selection] if self._workbench.selection else [])
        return self._workbench

    def _open_group(self) -> None:
        view = self._workbench.runs.get(self._workbench.selection or "")
        if view is not None and view.group:
            self._workbench.group_requested.emit(view.group)

    def _open_menu(self) -> None:
        menu = run_menu(self._mark_only_selection(), "run.menu", self)
        menu.popup(self._more.mapToGlobal(self._more.rect().bottomLeft()))

    def _show(self, run_id: str | None) -> None:
        view = self._workbench.runs.get(run_id) if run_id else None
        self._stack.setCurrentIndex(0 if view is None else 1)
        if view is None:
            return
        self._show_header(view)
        self._update_tabs(view)
        self._on_tab_changed()

    def _show_header(self, view: RunView) -> None:
        self._icon.set_icon(theme.state_icon(view.status))
        self._title.setText(run_title(view))
        self._title.setToolTip(f"{run_title(view)}\n{view.run_id}")
        explanation = explain_state(view)
        self._state.setText(short_state(view))
        self._state.setToolTip("\n".join(filter(None, (view.status, explanation))))
        self._state.setMinimumWidth(self._state.fontMetrics().horizontalAdvance(f"{view.status}…"))
        group = view.group or ""
        metrics = self._group.fontMetrics()
        elided = metrics.elidedText(group, Qt.TextElideMode.ElideMiddle, MAX_GROUP_WIDTH - 40)
        self._group.setText(elided.replace("&", "&&"))
        self._group.setToolTip(f"Show all runs of the group {group}")
        self._group.setVisible(bool(group))
        stage = view.stage
        is_paused = stage == "paused"
        pause = self._buttons["run.pause"]
        pause.setIcon(theme.icon("mdi6.play" if is_paused else "mdi6.pause"))
        pause.setToolTip(("Continue" if is_paused else "Pause it") + " (Space in the list of runs)")
        pause.setVisible(stage in ("running", "paused"))
        self._buttons["run.cancel"].setVisible(stage in STOPPABLE_STAGES)
        self._buttons["run.resume"].setVisible(is_resumable(view))

    def _update_tabs(self, view: RunView) -> None:
        """Show the tabs of this run, each created when it is first shown."""
        specs = [spec for spec in self._tab_specs if spec.is_available(view)]
        if [spec.id for spec in specs] == self._tab_ids():
            return
        current = self._workbench.settings.get_for_workspace("tab", "overview")
        with QSignalBlocker(self._tabs):
            while self._tabs.count():
                self._tabs.removeTab(0)
            for spec in specs:
                if spec.id not in self._holders:
                    holder = ui.widget_column(margins=(0, theme.GAP, 0, 0))
                    self._holders[spec.id] = ui.with_object_name(holder, spec.id)
                self._tabs.addTab(self._holders[spec.id], spec.title.replace("&", "&&"))
        self.show_tab(current)

    def show_tab(self, tab_id: str) -> None:
        if tab_id in self._tab_ids():
            self._tabs.setCurrentIndex(self._tab_ids().index(tab_id))

    def _tab_ids(self) -> list[str]:
        tabs = map(self._tabs.widget, range(self._tabs.count()))
        return [tab.objectName() for tab in tabs if tab is not None]

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
            pane.show()  # the layout would not, while another page is on top
        pane.show_run(run_id)

    def _create_pane(self) -> None:
        """Creates the pane of the current tab; the next turn of the event loop fills it."""
        holder = self._tabs.currentWidget()
        if holder is not None and holder.objectName() not in self._panes:
            spec = next(spec for spec in self._tab_specs if spec.id == holder.objectName())
            pane = spec.create_widget(self._workbench)
            pane.setParent(holder)  # invisible until it is filled
            self._panes[spec.id] = pane
        self._fill_pane_timer.start()

    def _on_runs_changed(self, run_ids: set[str]) -> None:
        run_id = self._workbench.selection
        if run_id in run_ids and (view := self._workbench.runs.get(run_id)) is not None:
            if self._stack.currentIndex() == 0:
                self._show(run_id)
            self._show_header(view)
            self._update_tabs(view)
