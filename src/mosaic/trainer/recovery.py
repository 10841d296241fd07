"""Start-up of a daemon: the folders are the truth, and the index is updated to agree with them."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

import structlog

from mosaic.base.fastlane import reap_all
from mosaic.base.files import write_text
from mosaic.contracts.folder import PRUNED_PREFIX, RunFolder, is_run_id
from mosaic.contracts.states import Outcome, RunRecord, Stage
from mosaic.trainer.intake import Intake
from mosaic.trainer.records import UNREAD, Records
from mosaic.trainer.trash import delete_expired

log = structlog.get_logger("mosaic.trainer.recovery")

READ_BUDGET_S = 2.0
"""How long to read the files of runs that the index does not know, before the daemon starts to answer."""


def recover(records: Records) -> list[str]:
    """Put every run folder into the index and every active run into memory.

    Returns the finished runs whose files are still to be read into the index: a daemon must not start late.
    """
    index, workspace = records.index, records.workspace
    workspace.runs.mkdir(parents=True, exist_ok=True)
    known = index.modification_times()
    folders: set[str] = set()
    unread: list[str] = []
    with index.transaction():
        for name in sorted(os.listdir(workspace.runs)):
            if _is_read(f"{workspace.runs}/{name}/record.json", known.get(name, UNREAD)):
                folders.add(name)
                continue
            path = workspace.runs / name
            try:
                record = _read_folder(records, path, known)
                if record is not None and _save(records, record, bool(known.get(path.name))):
                    unread.append(path.name)
            except (OSError, ValueError, ArithmeticError):
                log.exception("run_folder_unreadable", path=str(path))
                folders.add(path.name)  # it may be readable at the next start
                continue
            if record is not None or path.name in known:
                folders.add(path.name)
        for run_id in known.keys() - folders:
            record = index.get_record(run_id)
            if record is not None and record.is_active:
                records.put(record)  # its processes may be alive
                continue
            index.delete_run(run_id)
            log.warning("run_folder_gone", run_id=run_id)
    for record in index.active_records():
        records.cache(record)
        log.info("run_found", run_id=record.run_id, stage=record.stage)
    records.environments.remove_stale(records.active)
    records.tracking.remove_stale({*records.active, *folders})
    reason = index.recreate_reason or ("The index was missing." if folders and not known else None)
    if reason:
        log.warning("index_rebuilt", reason=reason, runs=len(folders))
        found = "1 run folder" if len(folders) == 1 else f"{len(folders)} run folders"
        records.rebuilt_index = f"{reason} It was rebuilt from {found}."
    if not records.is_read_only:
        delete_expired(records.workspace)
    lanes = reap_all()
    if lanes:
        log.info("lanes_reaped", count=lanes)
    intake, deadline = Intake(records), time.monotonic() + READ_BUDGET_S
    done = [run_id for run_id in unread if intake.read_all(run_id, deadline)]
    for run_id in done:
        records.mark_read(records.get(run_id))
    return sorted(set(unread) - set(done))


def _is_read(record_path: str, known_mtime: int) -> bool:
    """Return whether the index has this record; it costs one system call, as there may be thousands of runs."""
    try:
        return known_mtime != UNREAD and os.stat(record_path).st_mtime_ns == known_mtime
    except OSError:
        return False


def _save(records: Records, record: RunRecord, is_known: bool) -> bool:
    """Put a record into the index; return whether the files of its run are still to be read, too."""
    if is_known or record.holds_slot:  # what holds a slot is followed from its beginning by the supervisor
        records.mark_read(record)
        return False
    records.index.save(record, UNREAD)
    return True


def _read_folder(records: Records, path: Path, known: dict[str, int]) -> RunRecord | None:
    """Return the record of a run's folder that the index has not read; None where it is not one."""
    if path.name.startswith((".making-", PRUNED_PREFIX)):
        shutil.rmtree(path, ignore_errors=True)  # never acknowledged, or about to be deleted
    if path.name.startswith(".") or not path.is_dir():
        return None
    if not is_run_id(path.name):
        log.warning("run_folder_misnamed", path=str(path))
        return None
    folder = RunFolder(path)
    if not folder.record.is_file() and path.name not in known:
        if not folder.config.exists():  # with one, it is a run that was started by hand and is adopted when it ends
            log.warning("run_folder_without_record", path=str(path))
        return None
    record = records.read(folder)
    if record is None:
        return _restore_record(records, folder)
    if record.run_id != path.name:
        log.warning("run_folder_of_another_run", path=str(path), run_id=record.run_id)
        return None
    return record


def _restore_record(records: Records, folder: RunFolder) -> RunRecord:
    """Replace a missing or damaged record.json by the index's copy; without one, show what can be read of the run."""
    what = "damaged" if folder.record.exists() else "missing"
    record = records.index.get_record(folder.run_id)
    with suppress(OSError, ValueError):
        readable = RunRecord.read(folder.record.read_bytes(), folder.run_id)
        is_new = readable.problem is not None and (record is None or record.problem == readable.problem)
        if is_new and (readable.attempts or not readable.holds_slot):
            return readable
    if record is None:
        at = folder.record.stat().st_mtime
        record = RunRecord(
            run_id=folder.run_id,
            worker="",
            stage=Stage.FINISHED,
            outcome=Outcome.LOST,
            reason="Its record.json is damaged, and the index has no copy of it.",
            problem=f"{folder.record} is damaged. It was left as it is.",
            submitted_at=at,
            queued_at=at,
        )
    else:
        aside = records.set_record_aside(folder)
        kept = f" The damaged file is {aside.name}." if aside else ""
        record = records.restore_folder(record).model_copy(
            update={"problem": f"Its record.json was {what}; it was restored from the index.{kept}"}
        )
        write_text(folder.record, record.model_dump_json(indent=2) + "\n", is_durable=True)
    log.warning("record_restored", run_id=folder.run_id, problem=record.problem)
    return record
