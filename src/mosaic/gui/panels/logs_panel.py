"""The Logs tab: what a run wrote to its console, and what the daemon logged about it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QButtonGroup, QHBoxLayout, QWidget

from mosaic.client import TrainerClient
from mosaic.contracts.errors import NotAllowed
from mosaic.gui import theme
from mosaic.gui.models.log_text import LogDecoder, format_daemon_line, visible_text
from mosaic.gui.views import widgets as ui
from mosaic.gui.views.text_views import LogView
from mosaic.gui.workbench import Workbench

PAGE_BYTES = 256 * 1024
"""Read from the end of a log at first, and more with each click."""
MAX_READ_BYTES = 1024 * 1024
"""The most that is read at once, so that a run with much output does not delay the others."""
POLL_INTERVAL_MS = 500
STREAMS = (("stdout", "stdout"), ("stderr", "stderr"), ("daemon", "Daemon"))


@dataclass(frozen=True)
class LogSlice:
    """Some bytes of a log."""

    data: bytes
    start: int
    end: int


class LogsTab(QWidget):
    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._run_id = ""
        self._stream = str(workbench.settings.get("logs.stream", "stdout"))
        self._request_id = 0
        """Counts what is shown: answers to earlier requests are skipped."""
        self._is_loading = False
        self._text = LogDecoder()
        self._partial_first_line = ""
        self._start = self._end = 0
        self._is_complete = False
        """Whether there is nothing more to read."""
        self._view = ui.with_object_name(LogView(), "logs.text")
        self._search = ui.search_field(
            "logs.search",
            "Search the log",
            "Search (Ctrl+F); Enter: next match, Shift+Enter: previous match",
            max_width=240,
        )
        self._search.textChanged.connect(lambda text: self._view.search(text, from_selection_start=True))
        self._earlier = ui.button("Load earlier lines", "logs.earlier", self._read_earlier)
        self._earlier.hide()
        self._missing = ui.muted_label("", "logs.missing")
        self._missing.setWordWrap(False)
        self._empty = ui.EmptyState("")
        self._stack = ui.stack(self._view, self._empty)
        self._follow = ui.tool_button("logs.follow", "mdi6.arrow-collapse-down", "Stay at the end", is_checkable=True)
        self._follow.setChecked(True)
        self._follow.toggled.connect(self._view.follow)
        ui.column(self._build_toolbar(), (self._stack, 1), parent=self, margins=ui.TAB_MARGINS)
        self._poll_timer = ui.VisibleTimer(self, POLL_INTERVAL_MS, self._poll)
        self._view.following_changed.connect(self._follow.setChecked)
        self._view.search_finished.connect(lambda has_match: self._missing.setText("" if has_match else "not found"))
        workbench.theme_changed.connect(self._reload)

    def _build_toolbar(self) -> QHBoxLayout:
        group = QButtonGroup(self)
        streams = []
        for stream, title in STREAMS:
            tip = f"What the run wrote to {stream}" if stream != "daemon" else "What the daemon logged about the run"
            choice = ui.tool_button(
                f"logs.{stream}", "", tip, partial(self._show_stream, stream), title, is_flat=False, is_checkable=True
            )
            choice.setChecked(stream == self._stream)
            group.addButton(choice)
            streams.append(choice)
        previous = ui.tool_button(
            "logs.previous", "mdi6.chevron-up", "Previous match (Shift+Enter)", lambda: self._find(True)
        )
        following = ui.tool_button("logs.next", "mdi6.chevron-down", "Next match (Enter)", lambda: self._find(False))
        wrap = ui.tool_button("logs.wrap", "mdi6.wrap", "Break long lines", is_checkable=True)
        wrap.toggled.connect(self._set_wrap)
        return ui.row(
            *streams,
            theme.GAP,
            self._earlier,
            ui.Stretch(),
            self._missing,
            self._search,
            previous,
            following,
            wrap,
            self._follow,
            spacing=4,
        )

    # --- what is shown

    def show_run(self, run_id: str) -> None:
        if run_id != self._run_id:
            self._run_id = run_id
            self._reload()

    def _show_stream(self, stream: str) -> None:
        self._stream = stream
        self._workbench.settings.put("logs.stream", stream)
        self._reload()

    def _reload(self) -> None:
        if not self._run_id:
            return
        self._request_id += 1
        self._is_loading = False
        self._is_complete = False
        self._start = self._end = 0
        self._text = LogDecoder()
        self._partial_first_line = ""
        self._view.reset()
        self._earlier.hide()
        self._stack.setCurrentWidget(self._view)
        self._request_slice(-PAGE_BYTES, None, self._on_first_slice)
        if self.isVisible():
            self._poll_timer.start()

    def _request_slice(self, offset: int, until: int | None, then: Callable[[LogSlice], None]) -> None:
        request_id, stream, run_id = self._request_id, self._stream, self._run_id
        self._is_loading = True

        def answered(part: LogSlice) -> None:
            if request_id == self._request_id:
                self._is_loading = False
                then(part)

        def failed(error: Exception) -> None:
            if request_id == self._request_id:
                self._is_loading = False
                self._is_complete = True
                self._empty.set_text("The log cannot be read", str(error))
                self._stack.setCurrentWidget(self._empty)

        if stream == "daemon":
            path, is_remote = self._workbench.workspace.daemon_log, self._workbench.is_remote
            self._workbench.bridge.run_in_background(
                lambda: _read_daemon_log(path, offset, until, is_remote), answered, failed, self
            )
        else:
            self._workbench.bridge.ask(
                lambda trainer: _read_run_log(trainer, run_id, stream == "stderr", offset, until),
                answered,
                failed,
                self,
            )

    def _on_first_slice(self, part: LogSlice) -> None:
        self._start = self._end = part.start
        self._text = LogDecoder(starts_mid_line=part.start > 0)
        self._earlier.setVisible(part.start > 0)
        self._append_slice(part)

    def _append_slice(self, part: LogSlice) -> None:
        self._end = part.end
        lines = self._text.decode(part.data)
        self._partial_first_line = self._partial_first_line or self._text.skipped_prefix
        self._view.append_lines(
            self._visible_lines(lines), "" if self._stream == "daemon" else visible_text(self._text.partial_line)
        )
        view = self._workbench.runs.get(self._run_id)
        is_ended = view is not None and view.stage == "finished"
        if is_ended and not part.data and self._stream != "daemon":
            # This read began after the run's end and returned nothing: the log is complete.
            self._is_complete = True
            self._poll_timer.stop()
        if self._end == 0:
            self._show_empty(is_ended)
        else:
            self._stack.setCurrentWidget(self._view)

    def _visible_lines(self, lines: list[str]) -> list[str]:
        if self._stream != "daemon":
            return lines
        return [format_daemon_line(line) for line in lines if self._run_id in line]

    def _show_empty(self, is_ended: bool) -> None:
        if is_ended:
            title, text = f"It wrote nothing to {self._stream}", "See its other stream."
        else:
            title, text = f"Nothing on {self._stream} yet", "Lines appear here as the run writes them."
        self._empty.set_text(title, text)
        self._stack.setCurrentWidget(self._empty)

    def _read_earlier(self) -> None:
        if self._is_loading or self._start == 0:
            return
        self._earlier.setEnabled(False)
        until = self._start
        self._request_slice(max(0, until - PAGE_BYTES), until, self._prepend_slice)

    def _prepend_slice(self, part: LogSlice) -> None:
        text = LogDecoder(starts_mid_line=part.start > 0)
        lines = text.decode(part.data)
        # The line that this part ends within was skipped when its second half was read.
        between = text.partial_line + self._partial_first_line
        self._view.prepend_lines(self._visible_lines([*lines, visible_text(between)] if between else lines))
        self._start, self._partial_first_line = part.start, text.skipped_prefix
        self._earlier.setEnabled(True)
        self._earlier.setVisible(part.start > 0)

    def _poll(self) -> None:
        if not self._is_loading and not self._is_complete:
            self._request_slice(self._end, None, self._append_slice)

    # --- searching

    def start_search(self) -> None:
        self._search.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self._search.selectAll()

    def _find(self, is_backwards: bool) -> None:
        self._view.follow(False)
        self._view.search(self._search.text(), is_backwards)

    def _set_wrap(self, is_wrapped: bool) -> None:
        mode = LogView.LineWrapMode.WidgetWidth if is_wrapped else LogView.LineWrapMode.NoWrap
        self._view.setLineWrapMode(mode)

    # --- events

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if self._search.hasFocus() and event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self._find(bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier))
        elif self._search.hasFocus() and event.key() == Qt.Key.Key_Escape:
            self._search.clear()
            self._view.setFocus()
        else:
            super().keyPressEvent(event)


def _read_run_log(trainer: TrainerClient, run_id: str, is_stderr: bool, offset: int, until: int | None) -> LogSlice:
    """Read from `offset`, or from `-offset` bytes before the end, up to `until` or to the end."""
    parts: list[bytes] = []
    size, end = 0, max(0, offset)
    chunks: Any = trainer.log(run_id, is_stderr, offset)
    for chunk in chunks:
        data = chunk.data
        if until is not None and chunk.offset > until:
            data = data[: len(data) - (chunk.offset - until)]
        parts.append(data)
        size += len(data)
        end = chunk.offset if until is None else min(until, chunk.offset)
        if size >= MAX_READ_BYTES or end == until:
            chunks.close()
            break
    return LogSlice(b"".join(parts), end - size, end)


def _read_daemon_log(path: Path, offset: int, until: int | None, is_remote: bool) -> LogSlice:
    if is_remote:
        raise NotAllowed("The daemon's log is on the trainer's machine: logs/trainer.log in its workspace.")
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size + offset) if offset < 0 else min(offset, size)
            file.seek(start)
            data = file.read(MAX_READ_BYTES if until is None else until - start)
    except FileNotFoundError:
        return LogSlice(b"", 0, 0)
    return LogSlice(data, start, start + len(data))
