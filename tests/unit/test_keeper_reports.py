from __future__ import annotations

from typing import Any

from mosaic.journal import Journal
from mosaic.keeper.keeper_loop import ReportQueue


class FlakyJournal(Journal):
    """Raises while its disk is full."""

    def __init__(self) -> None:
        self.is_full = False
        self.kinds: list[str] = []
        self.times: list[float] = []

    def append(self, kind: str, /, **fields: Any) -> int:
        if self.is_full:
            raise OSError(28, "No space left on device")
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


def test_the_final_flush_waits_for_room_until_its_timeout() -> None:
    journal = FlakyJournal()
    reports = ReportQueue(journal)
    journal.is_full = True
    reports.report("exited")
    sleeps: list[float] = []
    assert not reports.flush_until(60.0, sleeps.append)
    assert sum(sleeps) == 60.0

    def make_room(_: float) -> None:
        journal.is_full = False

    assert reports.flush_until(60.0, make_room)
    assert journal.kinds == ["exited"]
