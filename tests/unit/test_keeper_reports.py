from __future__ import annotations

import errno
from typing import Any

from mosaic.base.journal import Journal
from mosaic.keeper.keeper_loop import ReportQueue


class FlakyJournal(Journal):
    """Raises while its disk is full or broken."""

    def __init__(self) -> None:
        self.is_full = False
        self.is_broken = False
        self.kinds: list[str] = []
        self.times: list[float] = []

    def append(self, kind: str, /, **fields: Any) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        if self.is_broken:
            raise OSError(errno.EIO, "Input/output error")
        self.kinds.append(kind)
        self.times.append(fields["at"])
        return len(self.kinds)


def test_events_that_could_not_be_written_are_written_later_in_order_with_their_own_time() -> None:
    journal = FlakyJournal()
    reports = ReportQueue(journal)
    journal.is_full = True
    reports.report("worker_started", at=1.0)
    reports.report("escalated", at=2.0)
    assert not reports.try_flush()
    journal.is_full = False
    reports.report("exited", at=3.0)
    assert journal.kinds == ["worker_started", "escalated", "exited"]
    assert journal.times == [1.0, 2.0, 3.0]
    assert reports.try_flush()


def test_samples_are_dropped_while_the_disk_is_full() -> None:
    journal = FlakyJournal()
    reports = ReportQueue(journal)
    journal.is_full = True
    reports.report_if_possible("sample")
    reports.report("escalated")
    reports.report_if_possible("sample")
    journal.is_full = False
    reports.report_if_possible("sample")
    assert journal.kinds == ["escalated", "sample"]


def test_the_final_report_waits_for_room_however_long_that_takes() -> None:
    """F9: while the daemon sees the keeper alive, the run is not taken for lost."""
    journal = FlakyJournal()
    reports = ReportQueue(journal)
    journal.is_full = True
    reports.report("exited")
    sleeps: list[float] = []

    def make_room_after_an_hour(seconds: float) -> None:
        sleeps.append(seconds)
        journal.is_full = sum(sleeps) < 3600

    assert reports.flush_patiently(60.0, make_room_after_an_hour)
    assert journal.kinds == ["exited"]


def test_the_final_report_to_a_broken_disk_has_a_timeout() -> None:
    journal = FlakyJournal()
    reports = ReportQueue(journal)
    journal.is_broken = True
    reports.report("exited")
    sleeps: list[float] = []
    assert not reports.flush_patiently(60.0, sleeps.append)
    assert sum(sleeps) == 60.0
