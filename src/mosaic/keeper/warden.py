"""Decides which signals to send: a state machine without I/O. Events and the clock go in, orders come out.

| event | immediately | after grace stop | after grace term |
|---|---|---|---|
| a stop in the inbox | the worker reads it; a script: SIGINT to the tree | SIGTERM to the tree | SIGKILL to the tree |
| time limit exceeded, SIGTERM to the keeper, lifeline lost | SIGTERM to the main process | SIGKILL to the tree | |
| memory limit exceeded | SIGKILL to the tree | | |
| the main process has exited | SIGTERM to the remaining processes, SIGKILL 2 s later | | |

SIGKILL is repeated at every tick until the tree is gone. The first cause is the one reported.

After a stop, a time limit or a SIGTERM, the signals to the tree wait while the worker writes a checkpoint, for grace
save at most, and grace stop begins again when it is complete. A second stop during that wait ends it.
"""

from __future__ import annotations

from math import inf
from signal import SIGCONT, SIGINT, SIGKILL, SIGSTOP, SIGTERM, Signals
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
    """Otherwise to the main process only."""
    event: str | None = None
    """The event to record when it has been sent."""


def next_sample_s(running_s: float) -> float:
    """Return the interval to the next sample: short at first, long in a long run."""
    return SAMPLE_S if running_s < _LATER_AFTER_S else SAMPLE_LATER_S


class Warden:
    """Escalates from a request to SIGKILL. Times are seconds of one monotonic clock."""

    def __init__(self, limits: Limits, grace_s: Grace, started: float, is_interrupted_first: bool = False) -> None:
        self.cause: str | None = None
        """Why the worker is being stopped, as in the `exited` event."""
        self.limit: float | None = None
        """The limit that was exceeded."""
        self.is_awaiting_checkpoint = False
        """Whether the worker would have been signaled if it were not writing a checkpoint."""
        self.checkpoint_limit_s = grace_s.get("save", 0.0)
        self._limits = limits
        self._grace_s = grace_s
        self._is_interrupted_first = is_interrupted_first
        self._started = started
        self._paused_at: float | None = None
        self._paused_s = 0.0
        self._is_stopped_by_signal = False
        self._has_main_ended = False
        self._term_at = inf
        self._kill_at = inf
        self._first_signal_at = inf
        self._save_until = inf
        self._stop_count = 0
        self._has_sent_term = False
        self._has_sent_kill = False

    def handle_command(self, kind: str, by_signal: bool, now: float) -> list[Order]:
        """Handle a command from the inbox."""
        self._stop_count += kind == STOP
        if self._is_ending:
            if kind == STOP and self._stop_count > 1 and self.is_awaiting_checkpoint:
                self._save_until = self._term_at = now
                self._kill_at = min(self._kill_at, now + self._grace_s["term"])
            return []
        if kind == STOP:
            orders = self._begin_shutdown("stop", now, term_at=now + self._grace_s["stop"])
            # As Ctrl-C in a terminal does: scripts save in `except KeyboardInterrupt`.
            return [*orders, Order(SIGINT, True)] if self._is_interrupted_first else orders
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
        """Handle a SIGTERM to the keeper itself."""
        return [] if self._is_ending else self._terminate_main("keeper_terminated", now)

    def abandon(self, now: float) -> list[Order]:
        """Handle the loss of the lifeline: nobody learns of this attempt any more."""
        return [] if self._is_ending else self._terminate_main("lifeline_lost", now)

    @property
    def may_wait(self) -> bool:
        """Whether a checkpoint that is being written would be waited for."""
        # Without its lifeline, the run may soon continue elsewhere, perhaps in this folder.
        is_stopped = self.cause not in (None, "memory_limit", "lifeline_lost")
        return is_stopped and not self._has_main_ended and not self._has_sent_kill

    def wait_for_checkpoint(self, now: float) -> None:
        """Postpone the signals to the tree, as the worker is writing a checkpoint."""
        if not self.may_wait or now >= self._save_until:
            return
        self.is_awaiting_checkpoint |= now >= self._first_signal_at
        at = min(now + self._grace_s["stop"], self._save_until)
        if self._term_at < inf:
            self._term_at = max(self._term_at, at)
            at = self._term_at + self._grace_s["term"]
        self._kill_at = max(self._kill_at, at)

    def exceeds_memory(self, private_mb: float) -> bool:
        limit_mb = self._limits["memory_mb"]
        return limit_mb is not None and private_mb > limit_mb and not self._has_main_ended

    def kill_for_memory(self, now: float) -> list[Order]:
        """Kill the tree at once, even if it is already shutting down."""
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
        """Return the orders that are due now. Call it at every tick while any process is left."""
        seconds = self._limits["seconds"]
        if not self._is_ending and seconds is not None and self._running_s(now) >= seconds:
            self.limit = seconds
            return self._terminate_main("time_limit", now)
        if now >= self._kill_at:
            is_escalation = not self._has_sent_kill and not self._has_main_ended
            self._has_sent_kill = True
            return [Order(SIGKILL, True, "escalated" if is_escalation else None)]
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
        """Signal the main process only: a worker whose children are killed cannot save its checkpoint."""
        orders = self._begin_shutdown(cause, now, kill_at=now + self._grace_s["stop"])
        return [*orders, Order(SIGTERM, False, "escalated")]

    def _begin_shutdown(self, cause: str, now: float, term_at: float = inf, kill_at: float = inf) -> list[Order]:
        self.cause = cause
        self._term_at = term_at
        self._kill_at = min(kill_at, term_at + self._grace_s["term"])
        self._first_signal_at = min(self._term_at, self._kill_at)
        self._save_until = now + self.checkpoint_limit_s
        # A stopped process, whoever stopped it, could not react.
        return [Order(SIGCONT, True)]
