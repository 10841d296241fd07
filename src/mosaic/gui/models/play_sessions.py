"""One play session, as the window starts, controls and follows it. Nothing here blocks the window."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, Qt, QTimer, Signal

from mosaic.api.play_payload import build_play_payload
from mosaic.client import TrainerClient
from mosaic.client.trainer_client import SessionControl, new_submission_key
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.play import HUMAN
from mosaic.contracts.play_commands import Pause, Resume, SessionCommand, Step
from mosaic.contracts.views import RunView, SessionState
from mosaic.gui.bridge import Bridge
from mosaic.gui.models.play_request import PlayRequest
from mosaic.gui.models.runs_model import RunsModel

POLL_MS = 16
REMOTE_POLL_MS = 80
"""Each poll of a remote session is a call of its trainer."""
LOG_TAIL_BYTES = 2000
LOG_TAIL_CHUNKS = 100
LOG_TAIL_LINES = 5
MAX_WAITING_COMMANDS = 32


class PlaySession(QObject):
    changed = Signal()
    """Whether it runs, or why it does not."""
    state_changed = Signal()
    """`state` is new."""
    rejected = Signal(object)
    """The error, for a form to show at its field."""

    def __init__(self, bridge: Bridge, runs: RunsModel, is_remote: bool = False, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self._runs = runs
        self._is_remote = is_remote
        self.run_id: str | None = None
        self.request: PlayRequest | None = None
        self.state: SessionState | None = None
        self.problem = ""
        """Why it was not started, or has failed."""
        self.log_tail = ""
        """The last lines of the log of a session that has failed."""
        self._is_starting = False
        self._is_stopping = False
        self._control: SessionControl | None = None
        self._is_opening = False
        self._waiting: list[SessionCommand] = []
        """Sent when the stream is open."""
        self._is_reading = False
        self._last_read: tuple[int, int] = (0, 0)
        self._timer = QTimer(self, interval=REMOTE_POLL_MS if is_remote else POLL_MS)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._read)
        runs.changed.connect(self._on_runs_changed)
        runs.reset.connect(lambda: self._on_runs_changed({self.run_id or ""}))

    # --- what it is

    @property
    def view(self) -> RunView | None:
        return self._runs.get(self.run_id) if self.run_id else None

    @property
    def is_active(self) -> bool:
        """Whether it is starting or running."""
        return self._is_starting or self._timer.isActive()

    @property
    def is_playing(self) -> bool:
        """Whether it accepts commands."""
        return self._timer.isActive() and self.state is not None and not self._is_stopping

    @property
    def has_human(self) -> bool:
        return self.state is not None and any(seat.is_human or seat.can_switch for seat in self.state.seats)

    @property
    def status(self) -> str:
        """One sentence while there is nothing to see; empty while it is played."""
        view = self.view
        if self._is_starting:
            return "Checking the configuration…"
        if self._is_stopping and self.is_active:
            return "Stopping…"
        if view is None or not self.is_active:
            return ""
        if view.stage == "queued":
            return f"The session is queued: {view.wait_reason or 'it waits for a slot'}."
        return "" if self.state is not None else "The session is starting…"

    # --- life

    def start(self, request: PlayRequest, **settings: Any) -> None:
        """Start a session; `settings` are added to those of the request."""
        requested = self.request = replace(
            request, settings={"pauses_on_failure": True, **request.settings, **settings}
        )
        self._forget()
        self._is_starting = True
        self.changed.emit()

        def submit(trainer: TrainerClient) -> RunView:
            payload = build_play_payload(
                trainer, requested.env_id, requested.actors, requested.settings, requested.options
            )
            return trainer.submit(payload, key=key)

        key = new_submission_key()
        self._bridge.ask(submit, self._on_submitted, self._on_refused, self, is_repeatable=True)

    def attach(self, run_id: str) -> None:
        """Follow and control a session that was started elsewhere."""
        self.request = None
        self._forget()
        self.run_id = run_id
        self._timer.start()
        self.changed.emit()

    def _forget(self) -> None:
        self.close()
        self.run_id, self.state, self.problem, self.log_tail = None, None, "", ""
        self._is_stopping = False
        self._last_read = (0, 0)
        self._waiting.clear()

    def _on_submitted(self, view: RunView) -> None:
        self._is_starting = False
        self.run_id = view.run_id
        self._timer.start()
        self._runs.update([view])
        if self._is_stopping:
            self.stop()
        self.changed.emit()

    def _on_refused(self, error: Exception) -> None:
        self._is_starting = False
        self.problem = str(error)
        self.rejected.emit(error)
        self.changed.emit()

    def stop(self) -> None:
        """End it; its episodes so far are kept."""
        self._is_stopping = True
        if self.run_id is not None and self.is_active:
            run_id = self.run_id
            self._bridge.ask(lambda trainer: trainer.cancel_run(run_id), None, self._on_call_failed, self)
        self.changed.emit()

    def retry(self) -> None:
        """Let an actor that has failed try again."""
        if self.request is not None and self.request.settings.get("is_paused"):
            self.send(Step())  # it is stepped: resumed, it would not stop after this step
        else:
            self.set_paused(False)

    def set_paused(self, is_paused: bool) -> None:
        self.send(Pause() if is_paused else Resume())

    def close(self) -> None:
        """Stop following it; it continues."""
        self._timer.stop()
        self._close_control()

    def _on_call_failed(self, error: Exception) -> None:
        if self.is_active:
            self.problem = str(error)
            self.changed.emit()

    def _on_runs_changed(self, run_ids: set[str]) -> None:
        if self.run_id not in run_ids or not self._timer.isActive():
            return
        view = self.view
        if view is not None and view.stage == "finished":
            self._timer.stop()
            self._close_control()
            self._read()  # the last state
            if view.outcome not in ("succeeded", "cancelled"):
                self.problem = view.reason or f"The session has ended: {view.outcome}."
                self._read_log()
        self.changed.emit()

    def _read_log(self) -> None:
        run_id = self.run_id or ""

        def read(trainer: TrainerClient) -> str:
            chunks = trainer.log(run_id, is_stderr=True, offset=-LOG_TAIL_BYTES)
            tail = b"".join(chunk.data for chunk in itertools.islice(chunks, LOG_TAIL_CHUNKS))
            return "\n".join(tail.decode(errors="replace").strip().splitlines()[-LOG_TAIL_LINES:])

        def take(tail: str) -> None:
            if run_id == self.run_id:
                self.log_tail = tail
                self.changed.emit()

        self._bridge.ask(read, take, None, self)

    # --- commands

    def send(self, command: SessionCommand) -> None:
        """Send a command; one that cannot be sent now is sent when there is a connection again."""
        if not self.is_playing:
            return
        if self._control is None:
            self._waiting.append(command)
            del self._waiting[:-MAX_WAITING_COMMANDS]
            self._open_control()
            return
        try:
            self._control.send(command)
        except MosaicError:  # the connection was lost, or the session has ended: the next stream tells which
            self._close_control()
            self.send(command)

    def _open_control(self) -> None:
        if self._is_opening or self.run_id is None:
            return
        self._is_opening = True
        run_id = self.run_id
        self._bridge.ask(
            lambda trainer: trainer.control_session(run_id), self._on_control_opened, self._on_control_failed, self
        )

    def _on_control_opened(self, control: SessionControl) -> None:
        self._is_opening = False
        self._control = control
        if not self.is_playing:
            self._close_control()
            return
        waiting, self._waiting = self._waiting, []
        for command in waiting:
            self.send(command)

    def _on_control_failed(self, error: Exception) -> None:
        self._is_opening = False
        self._waiting.clear()
        self._on_call_failed(error)

    def _close_control(self) -> None:
        control, self._control = self._control, None
        if control is not None:
            control.end()

    # --- the state

    def _read(self) -> None:
        """Read the state off the GUI thread, unless that is under way."""
        view = self.view
        if self._is_reading or view is None:
            return
        self._is_reading = True
        if self._is_remote:
            run_id = view.run_id
            self._bridge.ask(lambda trainer: _fetch_state(trainer, run_id), self._on_state, self._on_unread, self)
        else:
            last = self._last_read
            path = RunFolder(view.run_dir).session_state
            self._bridge.run_in_background(lambda: _read_state(path, last), self._on_read, self._on_unread, self)

    def _on_read(self, answer: tuple[tuple[int, int], SessionState | None]) -> None:
        self._last_read, state = answer
        self._on_state(state)

    def _on_unread(self, _: Exception) -> None:
        """Nothing could be read this time: not written yet, or replaced meanwhile."""
        self._is_reading = False

    def _on_state(self, state: SessionState | None) -> None:
        self._is_reading = False
        if state is None or state == self.state:
            return
        is_first = self.state is None
        self.state = state
        if is_first:
            self._open_control()
            self.changed.emit()
        self.state_changed.emit()


def _read_state(path: Path, last: tuple[int, int]) -> tuple[tuple[int, int], SessionState | None]:
    """Return the version of the file and the state in it; None if it is that of `last`."""
    stat = path.stat()
    version = (stat.st_mtime_ns, stat.st_ino)
    return version, None if version == last else SessionState.model_validate_json(path.read_bytes())


def _fetch_state(trainer: TrainerClient, run_id: str) -> SessionState:
    name = RunFolder("").session_state.name
    return SessionState.model_validate_json(trainer.read_small_file(run_id, name))


def names_human(actors: Mapping[str, str]) -> bool:
    """Return whether a human is among the actors."""
    return any(text.partition(":")[0] == HUMAN for text in actors.values())
