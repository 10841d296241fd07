"""The trainer page: the daemon's state, its queue, and how to drain it."""

from __future__ import annotations

from PySide6.QtCore import QSignalBlocker, Qt
from PySide6.QtWidgets import (
    QFormLayout,
    QHBoxLayout,
    QHeaderView,
    QLabel,
    QSpinBox,
    QStackedWidget,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from mosaic.contracts.views import DaemonStatus, RunView, SlotUsage
from mosaic.formatting import format_ago, format_timestamp, run_title
from mosaic.gui import theme
from mosaic.gui.models.runs_model import sort_queue
from mosaic.gui.views import widgets as ui
from mosaic.gui.workbench import Workbench

DETAIL_NAMES = ("State", "Address", "Started", "Room", "Runs", "Workspace", "Log")
QUEUE_COLUMNS = ("", "Run", "State", "Priority", "Waiting since")
PRIORITY_COLUMN = QUEUE_COLUMNS.index("Priority")
REFRESH_INTERVAL_MS = 1000


class TrainerPage(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._queue_run_ids: list[str] = []
        ui.column(
            ui.heading_label("Trainer"),
            ui.muted_label("The program in the background that starts runs and follows them. It starts automatically."),
            4,
            self._build_details(),
            self._build_buttons(),
            16,
            ui.heading_label("Running and queued"),
            ui.muted_label(
                "Higher priority starts first; at the same priority, the group with the fewest running runs first. "
                "A waiting run's priority can be edited: click it twice, or press F2."
            ),
            (self._build_queue(), 1),
            parent=self,
            margins=ui.PAGE_MARGINS,
        )
        ui.VisibleTimer(self, REFRESH_INTERVAL_MS, self.refresh, calls_on_show=True)

    def _build_details(self) -> QFormLayout:
        self._detail_labels = {name: ui.selectable_label(f"trainer.{name.lower()}", "–") for name in DETAIL_NAMES}
        for name in ("Address", "Workspace", "Log"):
            self._detail_labels[name].setProperty("monospace", True)
            self._detail_labels[name].setMinimumWidth(200)  # a long path would widen the window
        return ui.form(*((ui.muted_label(name), label) for name, label in self._detail_labels.items()))

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
        label = QLabel("Runs at once")
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
        table.horizontalHeader().setSectionResizeMode(1, QHeaderView.ResizeMode.Stretch)
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
        self._fill_queue(sort_queue(self._workbench.runs.all()))

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
            f"{view.status} ({view.wait_reason})" if view.wait_reason else view.status,
            str(view.priority),
            format_ago(view.queued_at) if is_queued else "",
        )
        cells = [self._set_cell(number, place, text) for place, text in enumerate(texts)]
        cells[2].setIcon(theme.state_icon(view.status))
        cells[4].setToolTip(format_timestamp(view.queued_at) if is_queued else "")
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
            lambda trainer: trainer.annotate(run_id, priority=priority),
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
    slots = status.slots
    runs = ", ".join(f"{number} {stage}" for stage, number in status.runs.items() if number)
    room = f"{slots.busy} of {slots.runs} at once; {slots.queued} waiting; {slots.cpus} CPUs"
    state = "connected"
    if status.paused:
        state = "paused: the last runs failed right after their start"
    if status.is_draining:
        state = "draining: no more runs are started"
    return {
        "State": state,
        "Address": f"{status.address}, pid {status.pid}, version {status.version}",
        "Started": f"{format_ago(status.started_at)} ({format_timestamp(status.started_at)})",
        "Room": room + (f", {slots.gpus} GPUs" if slots.gpus else ""),
        "Runs": runs or "none yet",
        "Workspace": status.workspace,
        "Log": status.log or log,
    }
