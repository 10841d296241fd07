"""The trash: folders of deleted runs, which are kept for 30 days; `mosaic restore` takes them out of it."""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from mosaic.base.files import write_json
from mosaic.contracts.disk_views import DiskKind, PruneItem, TrashedRun
from mosaic.contracts.errors import NotAllowed
from mosaic.contracts.folder import PRUNED_PREFIX, RunFolder, Workspace, is_run_id
from mosaic.contracts.states import RunRecord
from mosaic.contracts.views import RunView
from mosaic.features.tracking.sidecar import sync_state
from mosaic.trainer.disk_usage import measure_folder
from mosaic.trainer.records import Records

log = structlog.get_logger("mosaic.trainer.trash")

RETENTION_S = 30 * 24 * 3600.0
MAX_AGING_S = 24 * 3600.0
MAX_RECORD_BYTES = 8 << 20


@dataclass(frozen=True)
class TrashAges:
    """How long each run has been in the trash, when that was counted last."""

    checked_at: float
    seconds: Mapping[str, float]

    def after(self, now: float, names: Collection[str]) -> TrashAges:
        """Count up by a day at most: a clock that was wrong once deletes nothing."""
        passed_s = min(max(0.0, now - self.checked_at), MAX_AGING_S)
        known = self.seconds
        return TrashAges(now, {name: known[name] + passed_s if name in known else 0.0 for name in names})


def _ages_file(workspace: Workspace) -> Path:
    return workspace.trash / ".ages.json"


def _read_ages(workspace: Workspace) -> TrashAges:
    try:
        seen = json.loads(_ages_file(workspace).read_text(encoding="utf-8"))
        return TrashAges(float(seen["checked_at"]), {str(name): float(age) for name, age in seen["ages"].items()})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return TrashAges(time.time(), {})


def _list_folders(workspace: Workspace) -> list[Path]:
    try:
        return sorted(path for path in workspace.trash.iterdir() if is_run_id(path.name))
    except FileNotFoundError:
        return []


def delete_expired(workspace: Workspace) -> None:
    """Delete what has been in the trash for long; ages are counted at each start of a daemon."""
    if not workspace.trash.is_dir():
        return
    folders = {path.name: path for path in _list_folders(workspace)}
    ages = dict(_read_ages(workspace).after(time.time(), folders).seconds)
    for name in [name for name, age in ages.items() if age > RETENTION_S]:
        shutil.rmtree(folders[name], ignore_errors=True)
        del ages[name]
    try:
        write_json(_ages_file(workspace), {"checked_at": time.time(), "ages": ages})
    except OSError as error:
        log.warning("trash_not_dated", error=str(error))


def list_trash(workspace: Workspace, has_sizes: bool) -> Iterator[TrashedRun]:
    """Yield what is in the trash, the newest first; measuring takes longer."""
    folders = _list_folders(workspace)
    ages = _read_ages(workspace).after(time.time(), [path.name for path in folders]).seconds
    found: list[tuple[float, Path]] = []
    for path in folders:
        try:
            found.append((_deleted_at(path), path))
        except FileNotFoundError:
            continue  # it has just been restored
    for deleted_at, path in sorted(found, reverse=True):
        record = _read_record(path)
        yield TrashedRun(
            run_id=path.name,
            path=str(path),
            deleted_at=deleted_at,
            seconds_left=max(0.0, RETENTION_S - ages[path.name]),
            size_bytes=measure_folder(path) if has_sizes else None,
            run_name=record.run_name,
            group=record.group,
            algo=record.algo,
            env_id=record.env_id,
            seed=record.seed,
        )


def _deleted_at(path: Path) -> float:
    """The time of the last rename: the run was moved there."""
    return path.lstat().st_ctime


def _read_record(path: Path) -> RunRecord:
    """Its record; one that states nothing where it cannot be read."""
    file = RunFolder(path).record
    try:
        if file.stat().st_size <= MAX_RECORD_BYTES:
            return RunRecord.read(file.read_bytes(), path.name)
    except (OSError, ValueError):
        pass
    return RunRecord(run_id=path.name, worker="", submitted_at=0.0, queued_at=0.0)


def delete_for_good(
    workspace: Workspace, run_ids: Collection[str], older_than_s: float, is_dry_run: bool
) -> list[PruneItem]:
    """Delete runs of the trash, all without `run_ids`; return what was deleted, or would be."""
    items = []
    for path in _list_folders(workspace):
        with suppress(FileNotFoundError):  # it has just been restored
            if (run_ids and path.name not in run_ids) or time.time() - _deleted_at(path) < older_than_s:
                continue
            item = PruneItem(run_id=path.name, kind=DiskKind.TRASH, names=(), size_bytes=measure_folder(path))
            if not is_dry_run:
                pruned = workspace.runs / f"{PRUNED_PREFIX}{path.name}-{secrets.token_hex(4)}"
                path.rename(pruned)
                shutil.rmtree(pruned, ignore_errors=True)
            items.append(item)
    return items


def move_to_trash(records: Records, reference: str) -> RunView:
    """Move a run that has ended to the trash; the returned view has its new path."""
    run_id = _require_ended(records, reference)
    folder, trash_path = records.folder(run_id), records.workspace.trash / run_id
    # The sidecar is ended outside of the lock, which others may want meanwhile.
    with sync_state.hold_for_move(folder) as has_ended_sidecar, records.lock:
        _require_ended(records, run_id)
        view = records.view(run_id)
        trash_path.parent.mkdir(parents=True, exist_ok=True)
        if trash_path.exists() and folder.path.exists():
            shutil.rmtree(trash_path)
        with records.index.transaction():
            records.index.delete_run(run_id)
            with suppress(FileNotFoundError):  # an earlier attempt got as far as this, or the user deleted it
                folder.path.rename(trash_path)
    if has_ended_sidecar:
        log.info("sidecar_ended", run_id=run_id)
    records.notify_watchers()
    return view.model_copy(update={"run_dir": str(trash_path)})


def _require_ended(records: Records, reference: str) -> str:
    with records.lock:
        record = records.find(reference)
    if record.is_active:
        raise NotAllowed(
            f"Run {record.run_id} is {record.status} and cannot be deleted. "
            f"Stop it first: mosaic cancel {record.run_id}"
        )
    return record.run_id
