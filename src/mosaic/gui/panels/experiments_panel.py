"""The page of experiments: all groups of runs with their progress, and the page of one group."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeyEvent, QShowEvent
from PySide6.QtWidgets import QWidget

from mosaic.api.experiment_state import environment_label, setting_label
from mosaic.formatting import format_ago, format_timestamp
from mosaic.gui.models.groups import GroupState, list_groups
from mosaic.gui.panels.group_page import GroupPage
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.tables import Cell, RowsTable
from mosaic.gui.workbench import Workbench

REFRESH_MS = 500
AGE_REFRESH_MS = 20_000
COLUMN_TITLES = ("Group", "Progress", "Settings", "Environments", "Newest run")
EMPTY_TEXT = (
    "Runs with a group are shown together here: their progress, curves and results by setting. Write an experiment "
    "(algorithms, environments, seeds) into a YAML file and run it: mosaic experiment run FILE.yaml\n"
    "Several seeds in the train form make a group, too."
)


class ExperimentsPage(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._groups: list[GroupState] = []
        self._is_listing = False
        self._archived = ui.tool_button(
            "experiments.archived",
            "mdi6.archive-outline",
            "Also show groups whose runs are all archived",
            self._refresh,
            is_flat=False,
            is_checkable=True,
        )
        self.table = RowsTable("experiments.groups", text_columns=(0, 1), elided_column=1)
        self.table.opened.connect(lambda row: self.show_group(self._groups[row].name))
        self.table.itemSelectionChanged.connect(self._update_buttons)
        self._open = ui.button(
            "Open", "experiments.open", self._open_selected, "Show the selected group (Return, or a double click)"
        )
        train = ui.accent_button("Train with several seeds", "experiments.train", self._open_train_form)
        head = ui.row(ui.heading_label("Experiments"), ui.Stretch(), self._archived, self._open)
        self._lists = ui.stack(ui.EmptyState("No groups of runs yet", EMPTY_TEXT, train), self.table)
        self.page = GroupPage(workbench)
        self.page.left.connect(self.show_list)
        self._stack = ui.stack(ui.widget_column(head, (self._lists, 1)), self.page)
        ui.column(self._stack, parent=self, margins=ui.PAGE_MARGINS)
        self._timer = ui.create_timer(self, REFRESH_MS, self._refresh, is_single_shot=True)
        ui.VisibleTimer(self, AGE_REFRESH_MS, self._refresh)
        for signal in (workbench.runs.changed, workbench.runs.removed, workbench.runs.reset):
            signal.connect(self._schedule_refresh)
        workbench.runs.reset.connect(self._restore_group)
        workbench.group_requested.connect(self._on_group_requested)
        self._update_buttons()

    # --- which group

    def _on_group_requested(self, name: str) -> None:
        self.show_group(name)
        self._workbench.page_requested.emit("experiments")

    def show_group(self, name: str) -> None:
        self._workbench.settings.put_for_workspace("group", name)
        self.page.show_group(name)
        self._stack.setCurrentWidget(self.page)

    def show_list(self) -> None:
        self._workbench.settings.put_for_workspace("group", "")
        self._stack.setCurrentIndex(0)
        self._refresh()
        self.table.setFocus()

    def _restore_group(self) -> None:
        """Show the group that was open in the last session, once the runs are known."""
        name = self._workbench.settings.get_for_workspace("group", "")
        if name and any(view.group == name for view in self._workbench.runs.all()):
            self.show_group(name)

    def _open_selected(self) -> None:
        row = self.table.selected_row()
        if row is not None:
            self.show_group(self._groups[row].name)

    def _open_train_form(self) -> None:
        self._workbench.form_requested.emit(None)

    # --- the list

    def _schedule_refresh(self, *_: object) -> None:
        if self.isVisible() and self._stack.currentIndex() == 0 and not self._timer.isActive():
            self._timer.start()

    def _refresh(self) -> None:
        """List the groups in the background, as there may be thousands of runs."""
        if self._is_listing:
            self._schedule_refresh()
            return
        self._is_listing = True
        views, with_archived = self._workbench.runs.all(), self._archived.isChecked()
        self._workbench.bridge.run_in_background(
            lambda: [(group, _cells(group)) for group in list_groups(views, with_archived)],
            self._show_groups,
            self._on_listing_failed,
            self,
        )

    def _on_listing_failed(self, error: Exception) -> None:
        self._is_listing = False
        self._workbench.show_error(error)

    def _show_groups(self, listed: list[tuple[GroupState, list[str | Cell]]]) -> None:
        self._is_listing = False
        selected = self.table.selected_row()
        name = self._groups[selected].name if selected is not None and selected < len(self._groups) else ""
        self._groups = [group for group, _ in listed]
        self._lists.setCurrentIndex(1 if self._groups else 0)
        self.table.show_rows(COLUMN_TITLES, [cells for _, cells in listed])
        names = [group.name for group in self._groups]
        if name in names:
            self.table.selectRow(names.index(name))
        self._update_buttons()

    def _update_buttons(self) -> None:
        self._open.setEnabled(self.table.selected_row() is not None)
        self._open.setVisible(bool(self._groups))

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._refresh()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and self._stack.currentWidget() is self.page:
            self.show_list()
        else:
            super().keyPressEvent(event)


def _cells(group: GroupState) -> list[str | Cell]:
    settings = {setting_label(view) for view in group.views}
    environments = {environment_label(view) for view in group.views}
    newest = group.views[0].submitted_at
    return [
        group.name,
        group.line,
        Cell(str(len(settings)), "\n".join(sorted(settings)[:20])),
        Cell(str(len(environments)), "\n".join(sorted(environments)[:20])),
        Cell(format_ago(newest), format_timestamp(newest)),
    ]
