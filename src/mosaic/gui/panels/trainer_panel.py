"""The trainer page: the daemon's state, what runs use of its machine, its queue, and how to drain it."""

from __future__ import annotations

from PySide6.QtCore import QSignalBlocker, QSize, Qt
from PySide6.QtGui import QIcon
from PySide6.QtWidgets import (
    QFormLayout,
    QHBoxLayout,
    QHeaderView,
    QSpinBox,
    QStackedWidget,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from mosaic.contracts.views import DaemonStatus, RunView, SlotUsage
from mosaic.formatting import describe_executor, format_age, format_ago, format_timestamp, run_title
from mosaic.gui import theme
from mosaic.gui.models.resource_rows import build_resource_rows
from mosaic.gui.models.runs_model import sort_queue
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.resource_table import ResourceTable
from mosaic.gui.workbench import Workbench

STATE_NAMES = ("State", "Runs")
"""The details that are read first; the others are at the end of the page."""
DETAIL_NAMES = (*STATE_NAMES, "Address", "Started", "Clusters", "Workspace", "Log")
QUEUE_COLUMNS = ("", "Run", "State", "CPUs", "GPUs", "Priority", "Waiting")
NUMBER_COLUMNS = [QUEUE_COLUMNS.index(name) for name in ("CPUs", "GPUs", "Priority")]
PRIORITY_COLUMN = QUEUE_COLUMNS.index("Priority")
REFRESH_INTERVAL_MS = 1000
ICON_SIZE_PX = 14
MIN_QUEUE_HEIGHT_PX = 160
"""Lower, the page scrolls instead."""

NO_GPUS_TEXT = "There is no NVIDIA GPU that runs could use, so they train on the CPU."


class TrainerPage(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._queue_run_ids: list[str] = []
        self._detail_labels: dict[str, ui.PlainLabel] = {}
        self._machine_heading = ui.with_object_name(ui.heading_label("This machine"), "trainer.machine")
        self._resources = ResourceTable("trainer.resources")
        self._no_gpus = ui.muted_label(NO_GPUS_TEXT, "trainer.no_gpus")
        content = ui.widget_column(
            ui.heading_label("Trainer"),
            ui.muted_label("The program in the background that starts runs and follows them. It starts automatically."),
            4,
            self._build_details(*STATE_NAMES),
            4,
            self._build_buttons(),
            2 * theme.GAP,
            self._machine_heading,
            self._resources,
            self._no_gpus,
            2 * theme.GAP,
            ui.heading_label("Running and queued"),
            ui.muted_label(
                "Higher priority starts first; at the same priority, the group with the fewest running runs first. "
                "A waiting run's priority can be edited: click it twice, or press F2."
            ),
            (self._build_queue(), 1),
            2 * theme.GAP,
            ui.heading_label("Details"),
            self._build_details(*DETAIL_NAMES[len(STATE_NAMES) :]),
            margins=ui.PAGE_MARGINS,
        )
        ui.column((ui.scroll_area(content, "trainer.scroll", is_vertical_only=True), 1), parent=self)
        ui.VisibleTimer(self, REFRESH_INTERVAL_MS, self.refresh, calls_on_show=True)

    def _build_details(self, *names: str) -> QFormLayout:
        labels: dict[str, ui.PlainLabel] = {}
        for name in names:
            is_path = name in ("Address", "Workspace", "Log")
            labels[name] = (ui.path_label if is_path else ui.selectable_label)(f"trainer.{name.lower()}", "–")
            labels[name].setProperty("monospace", is_path)
        self._detail_labels |= labels
        return ui.form(*((ui.muted_label(name), label) for name, label in labels.items()))

    def _build_buttons(self) -> QHBoxLayout:
        self._drain = ui.button(
            "Drain…", "trainer.drain", self._confirm_drain, "Start no more runs and stop the trainer after the last run"
        )
        self._resume_button = ui.button("Start it again", "trainer.wake", self._workbench.bridge.resume)
        self._continue_button = ui.button("Continue the queue", "trainer.continue", self._continue_queue)
        for button in (self._resume_button, self._continue_button):
            button.hide()  # until its state is known: together they would widen the window
        log = self._workbench.workspace.daemon_log
        self._log = ui.button("Open its log", "trainer.open_log", lambda: self._workbench.open_path(log))
        self._max_running = ui.with_object_name(QSpinBox(), "trainer.cap")
        self._max_running.setRange(1, 1000)
        self._max_running.setKeyboardTracking(False)
        self._max_running.setToolTip(
            "Runs that have started continue, even above it. It applies until this trainer stops."
        )
        self._max_running.valueChanged.connect(self._set_max_running)
        label = ui.PlainLabel("Runs at once")
        label.setBuddy(self._max_running)
        buttons = (self._drain, self._resume_button, self._continue_button, self._log)
        return ui.row(*buttons, 16, label, self._max_running, ui.Stretch())

    def _build_queue(self) -> QStackedWidget:
        table = self._queue_table = ui.plain_table(QTableWidget(0, len(QUEUE_COLUMNS)), "trainer.queue")
        table.setHorizontalHeaderLabels(QUEUE_COLUMNS)
        table.setEditTriggers(QTableWidget.EditTrigger.EditKeyPressed | QTableWidget.EditTrigger.SelectedClicked)
        table.itemChanged.connect(self._on_priority_edited)
        table.activated.connect(lambda index: self._workbench.select(self._queue_run_ids[index.row()]))
        table.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        table.horizontalHeader().setStretchLastSection(True)
        table.setIconSize(QSize(ICON_SIZE_PX, ICON_SIZE_PX))
        table.setMinimumHeight(MIN_QUEUE_HEIGHT_PX)
        self._stack = ui.stack(table, ui.EmptyState("No runs are running or queued", "Start a run with Ctrl+N."))
        return self._stack

    # --- showing

    def refresh(self) -> None:
        status = self._workbench.status
        for name, text in _trainer_details(status, self._workbench).items():
            self._detail_labels[name].setText(text)
            self._detail_labels[name].setToolTip(text)
        is_draining = status is not None and status.is_draining
        self._drain.setVisible(bool(status) and not is_draining)
        self._continue_button.setVisible(status is not None and status.paused is not None)
        self._max_running.setEnabled(bool(status))
        if status and not self._max_running.hasFocus():
            with QSignalBlocker(self._max_running):
                self._max_running.setValue(status.slots.runs)
        self._resume_button.setVisible(not status and self._workbench.bridge.is_suspended)
        self._log.setEnabled(not self._workbench.is_remote)
        self._show_resources(status)
        self._fill_queue(sort_queue(self._workbench.runs.all()))

    def _show_resources(self, status: DaemonStatus | None) -> None:
        """Of the trainer's machine, which may be another one than the window's."""
        name = self._workbench.trainer_name
        self._machine_heading.setText(
            f"The machine of {name or 'the trainer'}" if self._workbench.is_remote else "This machine"
        )
        for part in (self._machine_heading, self._resources):
            part.setVisible(status is not None)
        self._no_gpus.setVisible(status is not None and not status.slots.gpus)
        if status is not None:
            self._resources.show_rows(build_resource_rows(status.slots, self._workbench.runs.get_or_placeholder))

    def _fill_queue(self, views: list[RunView]) -> None:
        if self._queue_table.state() is QTableWidget.State.EditingState:
            return  # the rows would move during the edit
        self._stack.setCurrentIndex(0 if views else 1)
        self._queue_run_ids = [view.run_id for view in views]
        with QSignalBlocker(self._queue_table):
            self._queue_table.setRowCount(len(views))
            for number, view in enumerate(views):
                self._fill_queue_row(number, view)

    def _fill_queue_row(self, number: int, view: RunView) -> None:
        is_queued = view.stage == "queued"
        texts = (
            f"{view.queue_position}." if view.queue_position else "",
            run_title(view),
            view.status,
            str(view.cpus),
            f"{view.gpus:g}" if view.gpus else "–",
            str(view.priority),
            _describe_waiting(view) if is_queued else "",
        )
        cells = [self._set_cell(number, place, text) for place, text in enumerate(texts)]
        cells[1].setIcon(QIcon() if is_queued else ui.dot_icon(theme.run_color(view.run_id)))
        cells[2].setIcon(theme.state_icon(view.status))
        for cell in cells:
            cell.setToolTip(cell.text())
        if is_queued:
            waiting = f"Waiting {cells[-1].text()}\nqueued {format_timestamp(view.queued_at)}"
            cells[2].setToolTip(waiting)
            cells[-1].setToolTip(waiting)
        for place in NUMBER_COLUMNS:
            cells[place].setTextAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        for place, cell in enumerate(cells):
            flags = Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable
            cell.setFlags(flags | Qt.ItemFlag.ItemIsEditable if place == PRIORITY_COLUMN and is_queued else flags)

    def _set_cell(self, row: int, column: int, text: str) -> QTableWidgetItem:
        item = self._queue_table.item(row, column)
        if item is None:
            item = QTableWidgetItem()
            self._queue_table.setItem(row, column, item)
        if item.text() != text:
            item.setText(text)
        return item

    # --- changing

    def _set_max_running(self, max_running: int) -> None:
        self._workbench.ask(
            lambda trainer: trainer.set_cap(max_running),
            lambda _: self._workbench.show_message(f"Up to {max_running} runs may now run at the same time."),
            self,
        )

    def _continue_queue(self) -> None:
        self._workbench.ask(
            lambda trainer: trainer.continue_queue(),
            lambda _: self._workbench.show_message("The queue continues."),
            self,
        )

    def _on_priority_edited(self, item: QTableWidgetItem) -> None:
        if item.column() != PRIORITY_COLUMN:
            return
        run_id = self._queue_run_ids[item.row()]
        try:
            priority = int(item.text())
        except ValueError:
            self._workbench.show_message(
                f"{item.text()!r} is not a valid priority; expected a whole number from -100 to 100.", "warning"
            )
            self.refresh()
            return
        self._workbench.ask(
            lambda trainer: trainer.annotate_run(run_id, priority=priority),
            lambda view: self._workbench.runs.update([view]),
            self,
        )

    # --- draining

    def _confirm_drain(self) -> None:
        status = self._workbench.status
        slots = status.slots if status else SlotUsage()
        ui.confirm(
            self,
            "trainer.drain.question",
            "Drain the trainer",
            "Start no more runs, and stop the trainer after its last run?",
            f"{slots.busy} at work will be done first. {slots.queued} in the queue stay there "
            "until a trainer is started again.",
            "Drain",
            self.drain,
        )

    def drain(self) -> None:
        self._workbench.bridge.suspend()
        self._workbench.ask(
            lambda trainer: trainer.stop_daemon(drain=True),
            lambda _: self._workbench.show_message("The trainer starts no more runs and stops after its last run."),
            self,
        )


def _describe_waiting(view: RunView) -> str:
    return ", ".join(filter(None, (f"for {format_age(view.queued_at)}", view.wait_reason)))


def _trainer_details(status: DaemonStatus | None, workbench: Workbench) -> dict[str, str]:
    log = str(workbench.workspace.daemon_log)
    if status is None:
        is_drained = workbench.bridge.is_suspended
        return {
            **dict.fromkeys(DETAIL_NAMES, "–"),
            "State": "drained; it does not start automatically" if is_drained else "not connected; trying again",
            "Workspace": str(workbench.workspace.root),
            "Log": log,
        }
    runs = ", ".join(f"{number} {stage}" for stage, number in status.runs.items() if number)
    state = "connected"
    if status.paused:
        state = "paused: the last runs failed right after their start"
    if status.is_draining:
        state = "draining: no more runs are started"
    return {
        "State": state,
        "Address": f"{status.address}, pid {status.pid}, version {status.version}",
        "Started": f"{format_ago(status.started_at)} ({format_timestamp(status.started_at)})",
        "Clusters": "\n".join(f"{one.name}: {describe_executor(one)}" for one in status.executors) or "none in use",
        "Runs": runs or "none yet",
        "Workspace": status.workspace,
        "Log": status.log or log,
    }
