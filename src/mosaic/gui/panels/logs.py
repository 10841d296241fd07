"""What a run wrote to its console, and what the daemon wrote about it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QHideEvent, QKeyEvent, QShowEvent
from PySide6.QtWidgets import (
    QButtonGroup,
    QHBoxLayout,
    QLineEdit,
    QPushButton,
    QStackedWidget,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from mosaic.client import Trainer
from mosaic.contracts.errors import NotAllowed
from mosaic.gui import theme
from mosaic.gui.models.log_text import LogText, daemon_line, shown
from mosaic.gui.views.empty import Empty
from mosaic.gui.views.log_view import LogView
from mosaic.gui.views.made import muted, named
from mosaic.gui.workbench import Workbench

FIRST_BYTES = 256 * 1024
"""How much of a log's end is read at first, and before that with each click."""
MOST_BYTES = 1024 * 1024
"""Read at once, so that a chatty run does not hold up the others."""
LOOK_MS = 500
STREAMS = (("stdout", "stdout"), ("stderr", "stderr"), ("daemon", "Daemon"))


@dataclass(frozen=True)
class Part:
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
        self._reading = 0
        """Counts what is shown: answers to earlier questions are passed over."""
        self._is_asking = False
        self._text = LogText()
        self._passed = ""
        self._start = self._end = 0
        self._is_over = False
        self._view = named(LogView(), "logs.text")
        self._search = named(QLineEdit(), "logs.search")
        self._earlier = named(QPushButton("Load earlier lines"), "logs.earlier")
        self._missing = muted("", "logs.missing")
        self._empty = Empty("")
        self._stack = QStackedWidget()
        self._buttons = QButtonGroup(self)
        self._build()
        self._paint_icons()
        self._clock = QTimer(self, interval=LOOK_MS)
        self._clock.timeout.connect(self._look)
        self._view.follows.connect(self._follow.setChecked)
        self._view.found.connect(lambda is_there: self._missing.setText("" if is_there else "not found"))
        workbench.theme_changed.connect(self._restyle)

    def _build(self) -> None:
        row = QHBoxLayout()
        row.setSpacing(4)
        for number, (stream, title) in enumerate(STREAMS):
            button = named(QToolButton(), f"logs.{stream}")
            button.setText(title)
            button.setCheckable(True)
            button.setChecked(stream == self._stream)
            button.setToolTip(
                f"What the run wrote to {stream}" if stream != "daemon" else "What the daemon logged of it"
            )
            button.clicked.connect(lambda _=False, stream=stream: self._show_stream(stream))
            self._buttons.addButton(button, number)
            row.addWidget(button)
        row.addSpacing(theme.GAP)
        row.addWidget(self._earlier)
        row.addStretch(1)
        row.addWidget(self._missing)
        self._missing.setWordWrap(False)
        self._search.setPlaceholderText("Search the log")
        self._search.setToolTip("Search (Ctrl+F); Enter goes on, Shift+Enter goes back")
        self._search.setClearButtonEnabled(True)
        self._search.setMaximumWidth(240)
        self._search.textChanged.connect(lambda text: self._view.search(text, is_fresh=True))
        row.addWidget(self._search)
        self._previous = self._tool("logs.previous", "Previous place (Shift+Enter)", lambda: self._find(True))
        self._next = self._tool("logs.next", "Next place (Enter)", lambda: self._find(False))
        self._wrap = self._tool("logs.wrap", "Break long lines", lambda: None)
        self._wrap.setCheckable(True)
        self._wrap.toggled.connect(self._set_wrap)
        self._follow = self._tool("logs.follow", "Stay at the end", lambda: None)
        self._follow.setCheckable(True)
        self._follow.setChecked(True)
        self._follow.toggled.connect(self._view.follow)
        for button in (self._previous, self._next, self._wrap, self._follow):
            row.addWidget(button)
        self._earlier.clicked.connect(self._read_earlier)
        self._earlier.hide()
        self._stack.addWidget(self._view)
        self._stack.addWidget(self._empty)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, theme.GAP)
        column.setSpacing(theme.GAP)
        column.addLayout(row)
        column.addWidget(self._stack, 1)

    def _tool(self, name: str, tip: str, act: Callable[[], None]) -> QToolButton:
        button = named(QToolButton(), name)
        button.setToolTip(tip)
        button.setProperty("flat", True)
        button.clicked.connect(lambda: act())
        return button

    def _paint_icons(self) -> None:
        self._previous.setIcon(theme.icon("mdi6.chevron-up"))
        self._next.setIcon(theme.icon("mdi6.chevron-down"))
        self._wrap.setIcon(theme.icon("mdi6.wrap"))
        self._follow.setIcon(theme.icon("mdi6.arrow-collapse-down"))

    def _restyle(self) -> None:
        self._paint_icons()
        self._view.restyle()
        self._read_anew()

    # --- what is shown

    def show_run(self, run_id: str) -> None:
        if run_id != self._run_id:
            self._run_id = run_id
            self._read_anew()

    def _show_stream(self, stream: str) -> None:
        self._stream = stream
        self._workbench.settings.put("logs.stream", stream)
        self._read_anew()

    def _read_anew(self) -> None:
        if not self._run_id:
            return
        self._reading += 1
        self._is_asking = False
        self._is_over = False
        self._start = self._end = 0
        self._text = LogText()
        self._passed = ""
        self._view.start_anew()
        self._earlier.hide()
        self._stack.setCurrentWidget(self._view)
        self._ask(-FIRST_BYTES, None, self._take_first)
        if self.isVisible():
            self._clock.start()

    def _ask(self, offset: int, until: int | None, then: Callable[[Part], None]) -> None:
        reading, stream, run_id = self._reading, self._stream, self._run_id
        self._is_asking = True

        def answered(part: Part) -> None:
            if reading == self._reading:
                self._is_asking = False
                then(part)

        def failed(error: Exception) -> None:
            if reading == self._reading:
                self._is_asking = False
                self._clock.stop()
                self._empty.say("The log cannot be read", str(error))
                self._stack.setCurrentWidget(self._empty)

        if stream == "daemon":
            path, is_remote = self._workbench.workspace.daemon_log, self._workbench.is_remote
            self._workbench.bridge.work(lambda: _file_part(path, offset, until, is_remote), answered, failed, self)
        else:
            self._workbench.bridge.ask(
                lambda trainer: _log_part(trainer, run_id, stream == "stderr", offset, until), answered, failed, self
            )

    def _take_first(self, part: Part) -> None:
        self._start = self._end = part.start
        self._text = LogText(is_cut=part.start > 0)
        self._earlier.setVisible(part.start > 0)
        self._take(part)

    def _take(self, part: Part) -> None:
        self._end = part.end
        lines = self._text.take(part.data)
        self._passed = self._passed or self._text.passed
        self._view.append_lines(self._shown(lines), "" if self._stream == "daemon" else shown(self._text.rest))
        view = self._workbench.runs.get(self._run_id)
        is_ended = view is not None and view["stage"] == "finished"
        if is_ended and not part.data and self._stream != "daemon":
            # Asked once more after its end, and there was nothing more.
            self._is_over = True
            self._clock.stop()
        if self._end == 0:
            self._say_nothing(is_ended)
        else:
            self._stack.setCurrentWidget(self._view)

    def _shown(self, lines: list[str]) -> list[str]:
        if self._stream != "daemon":
            return lines
        return [daemon_line(line) for line in lines if self._run_id in line]

    def _say_nothing(self, is_ended: bool) -> None:
        if is_ended:
            title, text = f"It wrote nothing to {self._stream}", "Its other stream may say more."
        else:
            title, text = f"Nothing on {self._stream} yet", "Lines appear here as the run writes them."
        self._empty.say(title, text)
        self._stack.setCurrentWidget(self._empty)

    def _read_earlier(self) -> None:
        if self._is_asking or self._start == 0:
            return
        self._earlier.setEnabled(False)
        until = self._start
        self._ask(max(0, until - FIRST_BYTES), until, self._take_earlier)

    def _take_earlier(self, part: Part) -> None:
        text = LogText(is_cut=part.start > 0)
        lines = text.take(part.data)
        # The line that this part ends within was passed over when its second half was read.
        between = text.rest + self._passed
        self._view.put_before(self._shown([*lines, shown(between)] if between else lines))
        self._start, self._passed = part.start, text.passed
        self._earlier.setEnabled(True)
        self._earlier.setVisible(part.start > 0)

    def _look(self) -> None:
        if not self._is_asking and not self._is_over:
            self._ask(self._end, None, self._take)

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

    # --- Qt's calls

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if self._search.hasFocus() and event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self._find(bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier))
        elif self._search.hasFocus() and event.key() == Qt.Key.Key_Escape:
            self._search.clear()
            self._view.setFocus()
        else:
            super().keyPressEvent(event)

    def showEvent(self, event: QShowEvent) -> None:
        if not self._is_over:
            self._clock.start()
        super().showEvent(event)

    def hideEvent(self, event: QHideEvent) -> None:
        self._clock.stop()
        super().hideEvent(event)


def _log_part(trainer: Trainer, run_id: str, is_stderr: bool, offset: int, until: int | None) -> Part:
    """From `offset`, or so many bytes before the end, up to `until` or to the end."""
    taken: list[bytes] = []
    size, end = 0, max(0, offset)
    chunks: Any = trainer.log(run_id, is_stderr, offset)
    for chunk in chunks:
        data = chunk.data
        if until is not None and chunk.offset > until:
            data = data[: len(data) - (chunk.offset - until)]
        taken.append(data)
        size += len(data)
        end = chunk.offset if until is None else min(until, chunk.offset)
        if size >= MOST_BYTES or end == until:
            chunks.close()
            break
    return Part(b"".join(taken), end - size, end)


def _file_part(path: Path, offset: int, until: int | None, is_remote: bool) -> Part:
    if is_remote:
        raise NotAllowed("The daemon's log is on the trainer's machine: logs/trainer.log in its workspace.")
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size + offset) if offset < 0 else min(offset, size)
            file.seek(start)
            data = file.read(MOST_BYTES if until is None else until - start)
    except FileNotFoundError:
        return Part(b"", 0, 0)
    return Part(data, start, start + len(data))
