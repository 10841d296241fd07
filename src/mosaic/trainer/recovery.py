"""What a new daemon does with what it finds: the folders are the truth, the index is made to agree with them."""

from __future__ import annotations

import shutil
import time

import structlog

from mosaic.store.ingest import ingest, sources
from mosaic.trainer.records import Records

log = structlog.get_logger("mosaic.trainer.recovery")

TRASH_KEPT_S = 30 * 24 * 3600.0


def recover(records: Records) -> None:
    """Afterwards every readable run folder is in the index and every active run is held; live ones go on."""
    workspace = records.workspace
    workspace.runs.mkdir(parents=True, exist_ok=True)
    known = records.index.modification_times()
    found = set()
    taken = 0
    for path in sorted(workspace.runs.iterdir()):
        if path.name.startswith(".making-"):
            shutil.rmtree(path, ignore_errors=True)  # never acknowledged
            continue
        if path.name.startswith(".") or not path.is_dir():
            continue
        folder = workspace.run(path.name)
        try:
            mtime = folder.record.stat().st_mtime_ns
        except FileNotFoundError:
            log.warning("run_folder_without_record", path=str(path))
            continue
        found.add(path.name)
        if known.get(path.name) == mtime:
            continue
        record = records.read(folder)
        if record is None or record.run_id != path.name:
            found.discard(path.name)
            continue
        is_new = path.name not in known
        records.take_in(record, mtime)
        if is_new:
            taken += 1
            if not record.holds_slot:  # what holds a slot is followed from its beginning by the supervisor
                take_in_files(records, record.run_id)
    for run_id in known.keys() - found:
        records.index.forget(run_id)
        log.warning("run_folder_gone", run_id=run_id)
    for record in records.index.active():
        records.take_in(record, records.index.modification_times()[record.run_id])
        log.info("run_found", run_id=record.run_id, stage=record.stage)
    if records.index.begun_anew:
        log.warning("index_rebuilt", said=records.index.begun_anew, runs=len(found))
    elif taken:
        log.info("runs_taken_in", count=taken)
    _empty_trash(records)


def take_in_files(records: Records, run_id: str) -> None:
    """The whole of a run's files into the index; its record stays as it is."""
    folder = records.folder(run_id)
    for name, path in sources(folder).items():
        while ingest(records.index, folder, name, path):
            pass


def _empty_trash(records: Records) -> None:
    trash = records.workspace.trash
    if trash.is_dir():
        for path in trash.iterdir():
            if time.time() - path.stat().st_ctime > TRASH_KEPT_S:
                shutil.rmtree(path, ignore_errors=True)
