"""Runs that fail as soon as they start: a queue that would burn through a hundred of them waits instead. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from mosaic.contracts.states import Outcome, RunRecord
from mosaic.formatting import short_id

FAST_FAILURE_S = 10.0
"""A run that fails within this time of its start is a fast failure."""
MAX_FAST_FAILURES = 3


class FastFailureBreaker:
    """Counts fast failures in a row; any other end resets the count."""

    def __init__(self) -> None:
        self._failed_run_ids: list[str] = []
        self.paused_at: float | None = None

    def record_end(self, record: RunRecord) -> bool:
        """Whether the queue pauses with this end of a run."""
        if not _is_fast_failure(record):
            if record.outcome is not Outcome.CANCELLED:
                self._failed_run_ids.clear()
            return False
        self._failed_run_ids.append(record.run_id)
        if len(self._failed_run_ids) < MAX_FAST_FAILURES or self.paused_at is not None:
            return False
        self.paused_at = record.finished_at
        return True

    def blocks_queue(self, queued: Iterable[RunRecord]) -> bool:
        """Whether these wait. Without one from before the pause there is nothing to protect, and it is over."""
        if self.paused_at is None:
            return False
        if any(record.queued_at <= self.paused_at for record in queued):
            return True
        self.clear()
        return False

    def clear(self) -> None:
        self._failed_run_ids.clear()
        self.paused_at = None

    @property
    def pause_reason(self) -> str | None:
        """Why the queue is paused."""
        if self.paused_at is None:
            return None
        return (
            f"The last {MAX_FAST_FAILURES} runs failed within {FAST_FAILURE_S:g} seconds of their start, so the queue "
            f"waits. See why: mosaic show {short_id(self._failed_run_ids[-1])}    Continue: mosaic daemon continue"
        )


def _is_fast_failure(record: RunRecord) -> bool:
    if record.outcome not in (Outcome.FAILED, Outcome.REJECTED, Outcome.LOST) or record.finished_at is None:
        return False
    began = record.attempts[-1].started_at if record.attempts else record.queued_at
    return record.finished_at - began < FAST_FAILURE_S
