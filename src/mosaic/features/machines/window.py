"""The trainer page: the daemon's state, what runs use of its machine, its queue, and how to drain it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PySide6.QtCore import QRectF, QSignalBlocker, QSize, Qt
from PySide6.QtGui import QColor, QIcon, QPainter, QPainterPath, QPaintEvent
from PySide6.QtWidgets import (
    QFormLayout,
    QGridLayout,
    QHBoxLayout,
    QHeaderView,
    QSizePolicy,
    QSpinBox,
    QStackedWidget,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from mosaic.base.formatting import (
    describe_executor,
    describe_gpu_holders,
    format_age,
    format_ago,
    format_gpu_memory,
    format_megabytes,
    format_timestamp,
    run_title,
    short_ids,
)
from mosaic.contracts.views import DaemonStatus, GpuSample, RunView, SlotHolder, SlotUsage
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.runs import sort_queue
from mosaic.window.specs import Page
from mosaic.window.workbench import Workbench

# --- Which run holds which slot, CPU and GPU of the trainer's machine, as rows of bars and texts.


@dataclass(frozen=True)
class BarPart:
    fraction: float
    """Of the whole bar."""
    run_id: str = ""
    """The run whose color it has; empty: the accent color."""


@dataclass(frozen=True)
class Meter:
    text: str = ""
    parts: tuple[BarPart, ...] | None = ()
    """None: there is no bar."""
    tooltip: str = ""


@dataclass(frozen=True)
class ResourceRow:
    name: str
    detail: str
    """The words below the name."""
    held: Meter
    """What is reserved, and by which runs."""
    in_use: Meter | None = None
    """How busy it is."""
    memory: Meter | None = None


def build_resource_rows(slots: SlotUsage, find_run: Callable[[str], RunView]) -> list[ResourceRow]:
    """Slots, CPUs, and a row for each GPU. `find_run` returns a placeholder for a run that is not listed yet."""
    ids = [holder.run_id for holder in slots.holders]
    short = short_ids(ids)
    titles = {run_id: run_title(find_run(run_id)) for run_id in ids}
    rows = [_slots_row(slots, titles), _cpus_row(slots, short, titles, [find_run(run_id) for run_id in ids])]
    return rows + [_gpu_row(slots, gpu, short, titles) for gpu in range(slots.gpus)]


def _slots_row(slots: SlotUsage, titles: dict[str, str]) -> ResourceRow:
    total = max(slots.runs, slots.busy, 1)
    waiting = f", {slots.queued} waiting" if slots.queued else ""
    parts = tuple(BarPart(1 / total, holder.run_id) for holder in slots.holders)
    held = Meter("1 run" if slots.busy == 1 else f"{slots.busy or 'no'} runs", parts, "\n".join(titles.values()))
    return ResourceRow("Slots", f"{slots.busy} of {slots.runs}{waiting}", held)


def _cpus_row(slots: SlotUsage, short: dict[str, str], titles: dict[str, str], views: Sequence[RunView]) -> ResourceRow:
    total = max(slots.cpus, slots.busy_cpus, 1)
    held = Meter(
        ", ".join(f"{short[holder.run_id]} {holder.cpus}" for holder in slots.holders) or "free",
        tuple(BarPart(holder.cpus / total, holder.run_id) for holder in slots.holders),
        "\n".join(f"{holder.cpus} CPUs: {titles[holder.run_id]}" for holder in slots.holders),
    )
    measured = [(view.run_id, view.hardware) for view in views if view.hardware is not None]
    used = sum(sample.cpu_percent for _, sample in measured) / 100
    parts = tuple(BarPart(sample.cpu_percent / 100 / total, run_id) for run_id, sample in measured)
    in_use = Meter(f"{used:.1f} CPUs", parts, "What the processes of the runs use now; 1 is a whole core")
    memory = Meter(f"{format_megabytes(sum(sample.rss_mb for _, sample in measured))} by runs", None)
    row = ResourceRow("CPUs", f"{slots.busy_cpus} of {slots.cpus} held", held)
    return ResourceRow(row.name, row.detail, held, in_use, memory) if measured else row


def _gpu_row(slots: SlotUsage, gpu: int, short: dict[str, str], titles: dict[str, str]) -> ResourceRow:
    holders = slots.gpu_holders(gpu)
    name = slots.gpu_names[gpu] if gpu < len(slots.gpu_names) else ""
    held = Meter(
        describe_gpu_holders(slots, gpu, short) or "free",
        tuple(BarPart(_gpu_part(holder, len(holders)), holder.run_id) for holder in holders),
        describe_gpu_holders(slots, gpu, titles),
    )
    sample = slots.gpu_sample(gpu)
    if sample is None:
        return ResourceRow(f"GPU {gpu}", name, held)
    return ResourceRow(f"GPU {gpu}", name, held, _busy_meter(sample), _memory_meter(sample))


def _gpu_part(holder: SlotHolder, holders: int) -> float:
    """Its share; runs of a group that hold the same GPU as a whole have equal parts of the bar."""
    return holder.gpu_share if holder.gpu_share < 1 else 1 / holders


def _busy_meter(sample: GpuSample) -> Meter:
    tip = "The part of the last moments in which it computed something, for any program of the machine"
    return Meter(f"{sample.util_percent:.0f} % busy", (BarPart(sample.util_percent / 100),), tip)


def _memory_meter(sample: GpuSample) -> Meter:
    used, total = sample.memory_used_mb, sample.memory_total_mb
    parts = (BarPart(used / total),) if total else None
    return Meter(format_gpu_memory(sample), parts, "By any program of the machine")


# --- The resources of the trainer's machine, one in each row: small bars with the words below them.


BAR_HEIGHT_PX = 8
PART_GAP_PX = 1.0
TITLES = ("", "Held by", "In use", "Memory")


class SegmentBar(QWidget):
    """Parts of a whole, in the colors of their runs."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: tuple[BarPart, ...] = ()
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        return QSize(80, BAR_HEIGHT_PX)

    def minimumSizeHint(self) -> QSize:
        return QSize(40, BAR_HEIGHT_PX)

    def show_parts(self, parts: tuple[BarPart, ...]) -> None:
        if parts != self.parts:
            self.parts = parts
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        area = QRectF(self.rect())
        outline = QPainterPath()
        outline.addRoundedRect(area, area.height() / 2, area.height() / 2)
        painter.setClipPath(outline)
        painter.fillRect(area, QColor(theme.tokens().line))
        left = 0.0
        for part in self.parts:
            width = min(part.fraction * area.width(), area.width() - left)
            color = theme.run_color(part.run_id) if part.run_id else QColor(theme.tokens().accent)
            # The gap, in the color of the bar, separates neighbors whose runs have the same color.
            painter.fillRect(QRectF(left, 0, max(width - PART_GAP_PX, min(width, 1.0)), area.height()), color)
            left += width


class _MeterView(QWidget):
    def __init__(self) -> None:
        super().__init__()
        self.bar, self.label = SegmentBar(), ui.ElidedLabel()
        self.label.setProperty("muted", True)
        self.label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        ui.column(4, self.bar, self.label, parent=self, spacing=4)

    def show_meter(self, meter: Meter | None) -> None:
        meter = meter or Meter(parts=None)
        policy = self.bar.sizePolicy()
        policy.setRetainSizeWhenHidden(True)  # so that all texts of a row are on one line
        self.bar.setSizePolicy(policy)
        self.bar.setVisible(meter.parts is not None)
        self.bar.show_parts(meter.parts or ())
        self.label.setText(meter.text)
        self.setToolTip(meter.tooltip or meter.text)
        self.setAccessibleName(meter.text)


class _RowView:
    def __init__(self, grid: QGridLayout, number: int) -> None:
        self.name, self.detail = ui.ElidedLabel(), ui.ElidedLabel()
        self.detail.setProperty("muted", True)
        self.meters = [_MeterView() for _ in TITLES[1:]]
        names = ui.widget_column(self.name, self.detail, spacing=0)
        for column, widget in enumerate((names, *self.meters)):
            grid.addWidget(widget, number, column)

    def show_row(self, row: ResourceRow) -> None:
        self.name.setText(row.name)
        self.detail.setText(row.detail)
        self.detail.setToolTip(row.detail)
        for view, meter in zip(self.meters, (row.held, row.in_use, row.memory), strict=True):
            view.show_meter(meter)


class ResourceTable(QWidget):
    """Rebuilt only when the number of rows changes."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName(name)
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(2 * theme.GAP)
        self._grid.setVerticalSpacing(theme.GAP)
        for column, stretch in enumerate((3, 5, 3, 3)):
            self._grid.setColumnStretch(column, stretch)
        self._rows: list[_RowView] = []

    def show_rows(self, rows: Sequence[ResourceRow]) -> None:
        if len(rows) != len(self._rows):
            self._build(len(rows))
        for view, row in zip(self._rows, rows, strict=True):
            view.show_row(row)

    def _build(self, count: int) -> None:
        ui.clear_layout(self._grid)
        for column, title in enumerate(TITLES):
            self._grid.addWidget(ui.muted_label(title), 0, column)
        self._rows = [_RowView(self._grid, number + 1) for number in range(count)]


# --- The trainer page: the daemon's state, what runs use of its machine, its queue, and how to drain it.


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


PAGES = (Page("trainer", "Trainer", "mdi6.server", TrainerPage, has_nav_button=False, position=10),)
