"""F15: the clock jumps. Ids, the order of the queue, its pause and the trash do not follow it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from ulid import ULID

from mosaic.base.store import Index
from mosaic.contracts.folder import Workspace
from mosaic.contracts.states import RunRecord, Stage
from mosaic.trainer.records import STALLED_AFTER_S, Records
from mosaic.trainer.recovery import recover
from mosaic.trainer.scheduler import start_order

DAY_S = 24 * 3600.0


@pytest.fixture
def records(workspace: Workspace) -> Iterator[Records]:
    workspace.runs.mkdir(parents=True)
    index = Index(workspace.index)
    yield Records(workspace, index)
    index.close()


def add_run(records: Records, run_id: str, queued_at: float) -> RunRecord:
    record = RunRecord(run_id=run_id, worker="w", stage=Stage.QUEUED, submitted_at=queued_at, queued_at=queued_at)
    records.folder(run_id).path.mkdir()
    records.put(record)
    return record


def test_the_newest_run_is_the_last_after_the_clock_was_set_back(records: Records) -> None:
    """F15: a daemon that starts an hour earlier than its newest run gives ids that sort after it."""
    ahead = add_run(records, str(ULID.from_timestamp(time.time() + 3600.0)), time.time() + 3600.0)
    restarted = Records(records.workspace, records.index)
    later = add_run(restarted, restarted.new_id(), 1.0)
    assert later.run_id > ahead.run_id
    assert restarted.resolve("last") == later.run_id


def test_the_queue_keeps_its_order_when_the_clock_is_set_back(records: Records) -> None:
    """F15: a run that is queued later starts later."""
    first = add_run(records, records.new_id(), time.time() + 3600.0)
    second = add_run(records, records.new_id(), records.queue_time())
    assert [record.run_id for record in start_order([second, first], [])] == [first.run_id, second.run_id]


def test_a_clock_that_jumps_stalls_no_run(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    """F15: how long a run has made no progress is measured by the monotonic clock."""
    record = add_run(records, records.new_id(), time.time())
    records.put(record.model_copy(update={"stage": Stage.RUNNING, "started_at": time.time()}))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + DAY_S)
    assert not records.view(record.run_id).is_stalled
    started_at = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: started_at + STALLED_AFTER_S + 1.0)
    assert records.view(record.run_id).is_stalled


def test_a_clock_that_is_ahead_empties_no_trash(records: Records) -> None:
    """F15: what was deleted stays in the trash for 30 days in which the daemon was used."""
    deleted = records.workspace.trash / "RUN"
    deleted.mkdir(parents=True)
    recover(records)
    ages_file = records.workspace.trash / ".ages.json"
    ages = json.loads(ages_file.read_text())
    assert ages["ages"] == {"RUN": 0.0}
    ages_file.write_text(json.dumps({**ages, "checked_at": time.time() - 40 * DAY_S}))
    recover(records)
    assert deleted.is_dir()
    assert json.loads(ages_file.read_text())["ages"] == {"RUN": DAY_S}
    ages_file.write_text(json.dumps({"checked_at": time.time(), "ages": {"RUN": 31 * DAY_S}}))
    recover(records)
    assert not deleted.exists()
    ages_file.write_text("garbage")
    recover(records)
    assert json.loads(ages_file.read_text())["ages"] == {}
