"""A replay player as a process: requests are written to it, and steps with their frames arrive as signals."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError
from PySide6.QtCore import QObject, QProcess, Signal
from PySide6.QtGui import QImage

from mosaic.api.replays import REPLAY_COMMAND
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.replays import FrameShape, ReplayFailed, ReplayOpened, ReplayRequest, ReplayStep
from mosaic.gui.models.child_process import ChildProcess

MAX_BUFFERED_BYTES = 64 << 20
"""More than any reply: what sends more is not a player."""


class ReplayProcess(ChildProcess):
    opened = Signal(object)
    """A `ReplayOpened`: at the start, and after a `refresh` if there is anything new."""
    step_shown = Signal(object, object)
    """A `ReplayStep`, and its frame as a QImage or None."""
    failed = Signal(str)
    """Why there is no reply. The process may have ended."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._buffer = bytearray()
        self._last_id = 0
        self._last_reply = 0

    @property
    def is_busy(self) -> bool:
        """Whether the reply to the last request has not arrived."""
        return self.is_running and self._last_reply != self._last_id

    def open(self, path: Path) -> None:
        self.stop()
        self._buffer.clear()
        self._last_id = self._last_reply = 0
        self._launch([*REPLAY_COMMAND, "play", str(path)], QProcess.ProcessChannelMode.SeparateChannels)

    def seek(self, episode: int, step: int) -> None:
        """Request a step. It replaces an earlier request that has no reply yet."""
        self._last_id += 1
        self._send(ReplayRequest(id=self._last_id, episode=episode, step=step))

    def refresh(self) -> bool:
        """Look for new episodes; return False while a reply is expected, and nothing is done."""
        if self.is_busy:
            return False
        self._send(ReplayRequest(kind="refresh"))
        return True

    def _send(self, request: ReplayRequest) -> None:
        if self._process is not None:
            self._process.write(request.model_dump_json().encode() + b"\n")

    def _on_output(self, output: bytes) -> None:
        self._buffer += output
        try:
            while self.is_running and self._read_reply():
                pass
        except (ValueError, ValidationError, MosaicError) as error:
            self._fail(f"The replay sent something that is not a reply: {error}")
        if len(self._buffer) > MAX_BUFFERED_BYTES:
            self._fail("The replay sent something that is not a reply.")

    def _fail(self, reason: str) -> None:
        self.stop()
        self._buffer.clear()
        self.failed.emit(reason)

    def _read_reply(self) -> bool:
        """Handle the first reply in the buffer; return False while it is incomplete."""
        end = self._buffer.find(b"\n") + 1
        if not end:
            return False
        reply = json.loads(bytes(self._buffer[:end]))
        if "error" in reply:
            problem = ReplayFailed.model_validate(reply)
            del self._buffer[:end]
            self._last_reply = problem.id
            self.failed.emit(problem.message)
        elif "columns" in reply:
            del self._buffer[:end]
            self.opened.emit(ReplayOpened.model_validate(reply))
        else:
            step = ReplayStep.model_validate(reply)
            size = step.frame.size_bytes if step.frame is not None else 0
            if len(self._buffer) < end + size:
                return False
            pixels = bytes(self._buffer[end : end + size])
            del self._buffer[: end + size]
            self._last_reply = step.id
            self.step_shown.emit(step, None if step.frame is None else _to_image(step.frame, pixels))
        return True

    def _on_exit(self, how: str) -> None:
        """It ends by itself only after a failure, which it has reported unless it crashed."""
        if how != "exit code 2":
            self.failed.emit(f"The replay ended unexpectedly with {how}. The recording was not changed.")

    def _on_failed_start(self, reason: str) -> None:
        self.failed.emit(f"The replay cannot be started: {reason}.")


def _to_image(shape: FrameShape, pixels: bytes) -> QImage:
    kind = QImage.Format.Format_RGB888 if shape.channels == 3 else QImage.Format.Format_RGB32
    image = QImage(pixels, shape.width, shape.height, shape.width * shape.channels, kind)
    return image.copy()  # the image outlives the bytes
