"""What is played on the Play page: one session, or two with the same seed that are stepped together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from PySide6.QtCore import QObject, Qt, QTimer, Signal

from mosaic.api.play_payload import ActorRequest
from mosaic.contracts.play import ANY_AGENT, FIRST_AGENT
from mosaic.contracts.play_commands import HandBack, Reset, SessionCommand, SetRate, Step, TakeOver
from mosaic.contracts.views import SessionState
from mosaic.gui.bridge import Bridge
from mosaic.gui.models.play_request import PlayRequest
from mosaic.gui.models.play_sessions import PlaySession, names_human
from mosaic.gui.models.runs_model import RunsModel

OWN_SPEED: Literal["own"] = "own"
WATCHED_RATE_HZ = 15.0
"""Of a session without a human, in an environment without a rate of its own."""
Speed = float | Literal["own"] | None
"""Steps per second; None: as fast as possible."""


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
