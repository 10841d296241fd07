"""Start-up of a daemon: the folders are the truth, and the index is updated to agree with them."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import structlog

from mosaic.contracts.folder import RunFolder
from mosaic.fastlane import reap_all
from mosaic.store.ingest import event_sources, ingest
from mosaic.trainer.records import Records

log = structlog.get_logger("mosaic.trainer.recovery")

TRASH_RETENTION_S = 30 * 24 * 3600.0


def recover(records: Records) -> None:
    """Afterwards every readable run folder is in the index and every active run is in memory; live ones continue."""
    index, workspace = records.index, records.workspace
    workspace.runs.mkdir(parents=True, exist_ok=True)
    known = index.modification_times()
    with index.transaction():
        run_ids = {path.name for path in sorted(workspace.runs.iterdir()) if _index_folder(records, path, known)}
        for run_id in known.keys() - run_ids:
            index.delete_run(run_id)
            log.warning("run_folder_gone", run_id=run_id)
    for record in index.active_records():
        records.cache(record)
        log.info("run_found", run_id=record.run_id, stage=record.stage)
    if index.recreate_reason:
        log.warning("index_rebuilt", reason=index.recreate_reason, runs=len(run_ids))
    _empty_trash(records)
    lanes = reap_all()
    if lanes:
        log.info("lanes_reaped", count=lanes)


def _index_folder(records: Records, path: Path, known: dict[str, int]) -> bool:
    """Whether this is a run's folder; new events in it are added to the index."""
    if path.name.startswith(".making-"):
        shutil.rmtree(path, ignore_errors=True)  # never acknowledged
    if path.name.startswith(".") or not path.is_dir():
        return False
    folder = RunFolder(path)
    try:
        mtime = folder.record.stat().st_mtime_ns
    except FileNotFoundError:
        log.warning("run_folder_without_record", path=str(path))
        return False
    if known.get(path.name) == mtime:
        return True
    record = records.read(folder)
    if record is None or record.run_id != path.name:
        return False
    records.index.save(record, mtime)
    if path.name not in known and not record.holds_slot:
        ingest_all_files(records, record.run_id)  # what holds a slot is followed from its beginning by the supervisor
    return True


def ingest_all_files(records: Records, run_id: str) -> None:
    """Ingests all of a run's files; its record is left as it is."""
    folder = records.folder(run_id)
    for name, path in event_sources(folder).items():
        while ingest(records.index, folder, name, path):
            pass


def _empty_trash(records: Records) -> None:
    trash = records.workspace.trash
    if trash.is_dir():
        for path in trash.iterdir():
            if time.time() - path.stat().st_ctime > TRASH_RETENTION_S:
                shutil.rmtree(path, ignore_errors=True)
