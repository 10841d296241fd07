"""Which signal is due: a machine without I/O. Happenings and the clock go in, orders come out.

| what happens | at once | after grace stop | after grace term |
|---|---|---|---|
| a stop in the inbox | the worker reads it itself | SIGTERM to the tree | SIGKILL to the tree |
| running time passed, SIGTERM to the keeper | SIGTERM to the worker's main process | SIGKILL to the tree | |
| memory passed | SIGKILL to the tree | | |
| the main process has ended | SIGTERM to who is left, SIGKILL 2 s later | | |

SIGKILL is ordered again at every look until the tree is gone. The first cause stands.
"""

from __future__ import annotations

from math import inf
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM, Signals
from typing import NamedTuple

from mosaic.contracts.commands import PAUSE, RESUME, STOP
from mosaic.keeper.launch_spec import Grace, Limits

LEFTOVER_GRACE_S = 2.0
SAMPLE_FIRST_S = 0.3
SAMPLE_S = 2.0
SAMPLE_LATER_S = 10.0
_LATER_AFTER_S = 600.0


class Order(NamedTuple):
    signal: Signals
    is_for_tree: bool
    """Otherwise for the main process only."""
    event: str | None = None
    """What to write down when it was sent."""


def next_sample_s(running_s: float) -> float:
    """How long until the next sample: dense while somebody is likely to watch, sparse in a long run."""
    return SAMPLE_S if running_s < _LATER_AFTER_S else SAMPLE_LATER_S


class Warden:
    """Times are seconds of one monotonic clock."""

    def __init__(self, limits: Limits, grace_s: Grace, started: float) -> None:
        self.cause: str | None = None
        """Why the worker is being ended, as in the `exited` event."""
        self.limit: float | None = None
        """The limit that was passed."""
        self._limits = limits
        self._grace_s = grace_s
        self._started = started
        self._paused_at: float | None = None
        self._paused_s = 0.0
        self._is_stopped_by_signal = False
        self._has_main_ended = False
        self._term_at = inf
        self._kill_at = inf
        self._has_sent_term = False
        self._has_sent_kill = False

    def handle_command(self, kind: str, by_signal: bool, now: float) -> list[Order]:
        """A line of the inbox."""
        if self._is_ending:
            return []
        if kind == STOP:
            return self._begin_shutdown("stop", term_at=now + self._grace_s["stop"])
        if kind == PAUSE and self._paused_at is None:
            self._paused_at = now
            self._is_stopped_by_signal = by_signal
            return [Order(SIGSTOP, True, "paused_by_signal")] if by_signal else []
        if kind == RESUME and self._paused_at is not None:
            self._paused_s += now - self._paused_at
            self._paused_at = None
            return [Order(SIGCONT, True, "resumed_by_signal")] if self._is_stopped_by_signal else []
        return []

    def terminate(self, now: float) -> list[Order]:
        """The keeper itself was told to end."""
        return [] if self._is_ending else self._terminate_main("keeper_terminated", now)

    def exceeds_memory(self, private_mb: float) -> bool:
        limit_mb = self._limits["memory_mb"]
        return limit_mb is not None and private_mb > limit_mb and not self._has_main_ended

    def kill_for_memory(self, now: float) -> list[Order]:
        """A tree that is already being ended has no time left either."""
        if self.cause is None:
            self.cause, self.limit = "memory_limit", self._limits["memory_mb"]
        self._kill_at = now
        return self.due_orders(now)

    def on_main_exited(self, now: float) -> None:
        self._has_main_ended = True
        if not self._has_sent_term:
            self._term_at = now
        self._kill_at = min(self._kill_at, now + LEFTOVER_GRACE_S)

    def due_orders(self, now: float) -> list[Order]:
        """What the clock says. To be asked again and again while anybody is left."""
        seconds = self._limits["seconds"]
        if not self._is_ending and seconds is not None and self._running_s(now) >= seconds:
            self.limit = seconds
            return self._terminate_main("time_limit", now)
        if now >= self._kill_at:
            is_news = not self._has_sent_kill and not self._has_main_ended
            self._has_sent_kill = True
            return [Order(SIGKILL, True, "escalated" if is_news else None)]
        if now >= self._term_at:
            self._term_at = inf
            self._has_sent_term = True
            return [Order(SIGTERM, True, None if self._has_main_ended else "escalated")]
        return []

    @property
    def _is_ending(self) -> bool:
        return self.cause is not None or self._has_main_ended

    def _running_s(self, now: float) -> float:
        pause_s = now - self._paused_at if self._paused_at is not None else 0.0
        return now - self._started - self._paused_s - pause_s

    def _terminate_main(self, cause: str, now: float) -> list[Order]:
        """The main process only: a worker whose children die under it cannot save its checkpoint."""
        orders = self._begin_shutdown(cause, kill_at=now + self._grace_s["stop"])
        return [*orders, Order(SIGTERM, False, "escalated")]

    def _begin_shutdown(self, cause: str, term_at: float = inf, kill_at: float = inf) -> list[Order]:
        self.cause = cause
        self._term_at = term_at
        self._kill_at = min(kill_at, term_at + self._grace_s["term"])
        # Whoever is stopped, by us or by others, could not obey.
        return [Order(SIGCONT, True)]
