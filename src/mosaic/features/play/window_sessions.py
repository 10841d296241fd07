"""What is played on the Play page: one session, or two with the same seed that are stepped together.

The window starts, controls and follows them; nothing here blocks it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from PySide6.QtCore import QObject, Qt, QTimer, Signal

from mosaic.contracts.errors import MosaicError
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.play import (
    ANY_AGENT,
    FIRST_AGENT,
    HUMAN,
    HandBack,
    Pause,
    Reset,
    Resume,
    SessionCommand,
    SetRate,
    Step,
    TakeOver,
)
from mosaic.contracts.views import RunView, SessionState
from mosaic.features.play.core import ActorRequest, build_play_payload
from mosaic.features.play.window_draft import PlayRequest
from mosaic.trainer.client.trainer_client import SessionControl, TrainerClient, new_submission_key
from mosaic.window.bridge import Bridge
from mosaic.window.runs import RunsModel

POLL_MS = 16
REMOTE_POLL_MS = 80
"""Each poll of a remote session is a call of its trainer."""
LOG_TAIL_BYTES = 2000
LOG_TAIL_CHUNKS = 100
LOG_TAIL_LINES = 5
MAX_WAITING_COMMANDS = 32
OWN_SPEED: Literal["own"] = "own"
WATCHED_RATE_HZ = 15.0
"""Of a session without a human, in an environment without a rate of its own."""
Speed = float | Literal["own"] | None
"""Steps per second; None: as fast as possible."""


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


class PlayMatch(QObject):
    changed = Signal()
    """Whether something is played, is paused, or the score."""

    def __init__(self, bridge: Bridge, runs: RunsModel, is_remote: bool = False, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self.first, self.second = (PlaySession(bridge, runs, is_remote, self) for _ in range(2))
        self.is_compared = False
        """Whether there are two sessions."""
        self.wins = [0, 0]
        self.draws = 0
        self._counted = 0
        """Episodes that are in the score."""
        self._speed: Speed = OWN_SPEED
        self._is_held = False
        """Whether two sessions are paused: each step of theirs is requested here."""
        self._requested: dict[PlaySession, tuple[int, int, str]] = {}
        """The state from which a step of a session was requested."""
        self._next_step_at = 0.0
        self._timer = QTimer(self, singleShot=True)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._advance)
        self._has_applied_speed: set[PlaySession] = set()
        for session in (self.first, self.second):
            session.changed.connect(self._on_session_changed)
            session.state_changed.connect(self._on_state_changed)

    @property
    def sessions(self) -> Sequence[PlaySession]:
        return (self.first, self.second) if self.is_compared else (self.first,)

    @property
    def is_active(self) -> bool:
        return any(session.is_active for session in self.sessions)

    @property
    def is_playing(self) -> bool:
        return any(session.is_playing for session in self.sessions)

    @property
    def is_paused(self) -> bool:
        if self.is_compared:
            return self._is_held
        return self.first.state is not None and self.first.state.is_paused

    @property
    def switch(self) -> type[TakeOver] | type[HandBack] | None:
        """What can be done about who acts: a human takes over, or hands back; None where there is no standby."""
        seats = [seat for session in self.sessions if session.state for seat in session.state.seats if seat.can_switch]
        if not seats:
            return None
        return HandBack if any(seat.is_human for seat in seats) else TakeOver

    # --- commands

    def start(self, request: PlayRequest, second: ActorRequest | None, speed: Speed) -> None:
        """Start to play; the actor `second` plays the same in a session of its own."""
        self.is_compared = second is not None
        self._speed = speed
        self._is_held = bool(request.settings.get("is_paused", False))
        self.wins, self.draws, self._counted = [0, 0], 0, 0
        self._requested.clear()
        self._has_applied_speed.clear()
        if second is None:
            rate_hz = self._initial_rate(request)
            self.first.start(request, **({} if rate_hz is None else {"rate_hz": rate_hz}))
        else:
            self.first.start(request, is_paused=True)
            self.second.start(_with_actor(request, second), is_paused=True)

    def attach(self, run_id: str) -> None:
        """Show a session that was started elsewhere, at its speed."""
        self.is_compared = False
        self._has_applied_speed = {self.first}
        self.first.attach(run_id)

    def _initial_rate(self, request: PlayRequest) -> float | None:
        if self._speed == OWN_SPEED:
            return None if names_human(request.actors) else WATCHED_RATE_HZ
        return self._speed

    def stop(self) -> None:
        self._timer.stop()
        for session in self.sessions:
            session.stop()

    def close(self) -> None:
        """Stop following what is played; it continues, but for a comparison, which only this window steps."""
        self._timer.stop()
        for session in (self.first, self.second):
            if self.is_compared and session.is_active and (run_id := session.run_id) is not None:
                self._bridge.call_now(lambda trainer, run_id=run_id: trainer.cancel_run(run_id))  # type: ignore[misc]
            session.close()
        self.changed.emit()

    def set_paused(self, is_paused: bool) -> None:
        if not self.is_compared:
            self.first.set_paused(is_paused)
            return
        self._is_held = is_paused
        self._advance()
        self.changed.emit()

    def step(self) -> None:
        """One step of what is paused."""
        if self.is_compared:
            self._request_steps()
        else:
            self.first.send(Step())

    def reset(self, seed: int | None) -> None:
        self._requested.clear()
        self._send_all(Reset(seed=seed))

    def set_speed(self, speed: Speed) -> None:
        self._speed = speed
        if self.is_compared:
            self._advance()
        elif self.first.is_playing:
            self.first.send(SetRate(rate_hz=self._rate_of(self.first)))

    def switch_actor(self) -> None:
        if (command := self.switch) is not None:
            self._send_all(command())

    def send_input(self, command: SessionCommand) -> None:
        """Send keys or an action to the sessions with a human."""
        for session in self.sessions:
            if session.has_human:
                session.send(command)

    def _send_all(self, command: SessionCommand) -> None:
        for session in self.sessions:
            session.send(command)

    def _rate_of(self, session: PlaySession) -> float | None:
        if self._speed != OWN_SPEED:
            return self._speed
        own = None if session.state is None else session.state.own_rate_hz
        return own if own is not None or session.has_human else WATCHED_RATE_HZ

    # --- following

    def _on_session_changed(self) -> None:
        if self.is_compared:
            refused = [session for session in self.sessions if session.problem and session.run_id is None]
            if refused:  # one without the other is not a comparison
                for session in self.sessions:
                    if session not in refused and session.is_active:
                        session.stop()
        self._advance()
        self.changed.emit()

    def _on_state_changed(self) -> None:
        for session in self.sessions:
            if session.state is not None and session.is_playing and session not in self._has_applied_speed:
                self._has_applied_speed.add(session)
                rate_hz = None if self.is_compared else self._rate_of(session)
                if rate_hz != session.state.rate_hz:
                    session.send(SetRate(rate_hz=rate_hz))
        if self.is_compared:
            self._count_score()
            self._advance()
        self.changed.emit()

    def _count_score(self) -> None:
        states = [session.state for session in self.sessions]
        first, second = (0.0 if state is None else _last_return(state) for state in states)
        complete = min(0 if state is None else state.complete_episodes for state in states)
        if complete > self._counted:
            self._counted = complete
            if first == second:
                self.draws += 1
            else:
                self.wins[0 if first > second else 1] += 1

    # --- stepping two sessions together

    def _advance(self) -> None:
        """Request the next step of both when it is due and both have done the last."""
        if not self.is_compared or self._is_held or not self._are_ready():
            return
        left_s = self._next_step_at - time.monotonic()
        if left_s > 0:
            self._timer.start(max(1, round(1000 * left_s)))
            return
        self._request_steps()

    def _are_ready(self) -> bool:
        playing = [session for session in self.sessions if session.is_playing]
        if not playing or any(session.is_active and not session.is_playing for session in self.sessions):
            return False
        if any(session.state and session.state.waits_for_key for session in playing):
            return False
        return all(
            session.state is None or _progress(session.state) != self._requested.get(session) for session in playing
        )

    def _request_steps(self) -> None:
        """Of two episodes, the one that is over waits for the other."""
        playing = [session for session in self.sessions if session.is_playing and session.state is not None]
        unfinished = [session for session in playing if session.state and session.state.ending == "running"]
        for session in unfinished or playing:
            if session.state is not None and _progress(session.state) != self._requested.get(session):
                self._requested[session] = _progress(session.state)
                session.send(Step())
        rates = [self._rate_of(session) for session in playing]
        slowest = min((rate for rate in rates if rate is not None), default=None)
        self._next_step_at = time.monotonic() + (0.0 if slowest is None else 1 / slowest)


def _progress(state: SessionState) -> tuple[int, int, str]:
    return state.episode, state.step, state.ending


def _last_return(state: SessionState) -> float:
    """Return that of the first agent in the last complete episode."""
    returns = () if state.last_episode is None else tuple(state.last_episode.returns.values())
    return returns[0] if returns else 0.0


def _with_actor(request: PlayRequest, player: ActorRequest) -> PlayRequest:
    """Return the same request with another first player, alone."""
    agent = FIRST_AGENT if FIRST_AGENT in request.actors else next(iter(request.actors), ANY_AGENT)
    settings = {name: value for name, value in request.settings.items() if name not in ("standby", "alternate_steps")}
    return replace(
        request,
        actors={**request.actors, agent: player.actor},
        options={**request.options, agent: player.options},
        settings=settings,
    )
