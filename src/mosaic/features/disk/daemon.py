"""What the workspace holds, and what can be removed of it.

What is removed is first moved out of the run's folder by one rename under the lock, so that a kill at any moment leaves
checkpoints that are complete, and deleted outside of the lock.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
import sys
import time
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import structlog

from mosaic.base.checkpoint_files import (
    MANIFEST,
    STATE,
    describe_file,
    hard_link,
    is_intact,
    list_steps,
    read_manifest,
    seal_manifest,
)
from mosaic.base.files import fsync_path
from mosaic.base.formatting import format_size
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.disk_views import DiskKind, DiskUsage, PruneItem, PrunePart, TrashedRun
from mosaic.contracts.errors import BadInput, NotAllowed, UnknownName
from mosaic.contracts.folder import PRUNED_PREFIX, REPLAY_PREFIX, RunFolder
from mosaic.contracts.states import HistoryEntry, RunRecord
from mosaic.contracts.trainer_pb2_handlers import Handlers
from mosaic.features.evaluate.daemon import find_evaluations
from mosaic.trainer import disk_usage, trash
from mosaic.trainer.disk_usage import REPORT_S, allocated_bytes, replay_bytes
from mosaic.trainer.records import Records
from mosaic.trainer.services import Services
from mosaic.trainer.trash import delete_for_good

log = structlog.get_logger("mosaic.features.disk.daemon")

_AT_FDCWD = -100
_EXCHANGE = 2
"""RENAME_EXCHANGE of Linux, and RENAME_SWAP of macOS."""


def list_trash(services: Services, request: pb.TrashRequest) -> Iterator[TrashedRun]:
    return trash.list_trash(services.records.workspace, request.has_sizes)


def read_disk_usage(services: Services, request: pb.DiskRequest) -> Iterator[DiskUsage]:
    run_ids = [services.records.resolve(run) for run in request.runs]
    return disk_usage.read_disk_usage(services.records, run_ids, request.largest)


def prune_runs(services: Services, request: pb.PruneRequest) -> Iterator[PrunePart]:
    return Pruner(services.records, request).run()


class Removal(NamedTuple):
    kind: DiskKind
    paths: tuple[Path, ...]
    """What is removed; of replay buffers, the checkpoints that contain them."""
    size_bytes: int


class FreedSpace:
    """Counts the bytes that become free: those of a file with several names with the last of them."""

    def __init__(self) -> None:
        self._removed_names: Counter[tuple[int, int]] = Counter()

    def add(self, path: Path) -> int:
        """Return what removing a file, or a folder with its content, makes free."""
        if path.is_dir() and not path.is_symlink():
            own = allocated_bytes(path.lstat())
            return own + sum(self.add(path / name) for name in os.listdir(path))
        status = path.lstat()
        if status.st_nlink > 1:
            self._removed_names[status.st_dev, status.st_ino] += 1
            if self._removed_names[status.st_dev, status.st_ino] < status.st_nlink:
                return 0
        return allocated_bytes(status)


class Pruner:
    """One request. It looks at one run after the other, so that a caller can follow it."""

    def __init__(self, records: Records, request: pb.PruneRequest) -> None:
        self._records = records
        self._request = request
        self._uses: dict[str, str] = {}
        """The payloads of active runs as text, in which the ids of other runs are searched."""

    def run(self) -> Iterator[PrunePart]:
        """Yield what is removed, or would be: some runs at a time."""
        request = self._request
        has_trash = request.trash or bool(request.trashed)
        if not (request.checkpoints or request.replay or request.videos or has_trash):
            raise BadInput("Nothing to prune was named; expected checkpoints, replay buffers, videos or the trash.")
        run_ids = self._list_runs()
        evaluated = self._find_evaluated_checkpoints() if request.checkpoints and run_ids else {}
        items: list[PruneItem] = []
        notes: list[str] = []
        reported_at = time.monotonic()
        for count, run_id in enumerate(run_ids, 1):
            with suppress(UnknownName):  # it has just been deleted
                record = self._records.get(run_id)
                if record.is_active or time.time() - (record.finished_at or 0.0) < request.older_than_s:
                    continue
                items += self._prune_run(record, evaluated.get(run_id, set()), notes)
            if time.monotonic() - reported_at > REPORT_S:
                yield PrunePart(run_count=count, run_total=len(run_ids), items=tuple(items), notes=tuple(notes))
                items, notes, reported_at = [], [], time.monotonic()
        if has_trash:
            workspace = self._records.workspace
            items += delete_for_good(workspace, request.trashed, request.older_than_s, request.is_dry_run)
        yield PrunePart(run_count=len(run_ids), run_total=len(run_ids), items=tuple(items), notes=tuple(notes))

    def _list_runs(self) -> list[str]:
        run_ids = [self._records.resolve(run) for run in self._request.runs]
        for run_id in run_ids:
            record = self._records.get(run_id)
            if record.is_active:
                raise NotAllowed(
                    f"Run {run_id} is {record.status}, so nothing was removed. Wait for its end, or stop it first: "
                    f"mosaic cancel {run_id}"
                )
        if not (self._request.checkpoints or self._request.replay or self._request.videos):
            return []
        return run_ids or self._records.index.list_run_ids(include_archived=True)

    def _find_evaluated_checkpoints(self) -> Mapping[str, set[str]]:
        """Return the names of checkpoints by run that results of evaluations refer to."""
        names: defaultdict[str, set[str]] = defaultdict(set)
        for evaluation in find_evaluations(self._records):
            if evaluation.trained is not None:
                path = Path(evaluation.summary.policy_path or "")
                names[evaluation.trained.run_id] |= {path.name, str(evaluation.summary.checkpoint_step)}
        return names

    def _find_user(self, run_id: str) -> RunRecord | None:
        """Return an active run whose config names this one: it evaluates, plays or continues its policy."""
        active = dict(self._records.active)  # other threads change it
        for other_id in self._uses.keys() - active.keys():
            del self._uses[other_id]
        for other_id in active.keys() - self._uses.keys():
            try:
                self._uses[other_id] = self._records.read_payload(other_id).model_dump_json()
            except (OSError, NotAllowed):
                self._uses[other_id] = ""
        user_id = next((other_id for other_id, text in self._uses.items() if run_id in text), None)
        return active.get(user_id or "")

    # --- one run

    def _prune_run(self, record: RunRecord, evaluated: set[str], notes: list[str]) -> list[PruneItem]:
        folder = self._records.folder(record.run_id)
        try:
            removals = plan_removals(folder, self._request, evaluated)
            if not removals:
                return []
            user = self._find_user(record.run_id)
            if user is not None:
                notes.append(
                    f"Run {record.run_id} keeps its files: run {user.run_id}, which is {user.status}, uses them."
                )
                return []
            if not self._request.is_dry_run:
                removals = self._remove(record, removals, notes)
        except (OSError, zipfile.BadZipFile) as error:
            log.warning("run_not_pruned", run_id=record.run_id, error=str(error))
            notes.append(f"Run {record.run_id} was not pruned, or only in part: {error}.")
            return []
        return [_describe(record.run_id, removal) for removal in removals]

    def _remove(self, record: RunRecord, removals: list[Removal], notes: list[str]) -> list[Removal]:
        """Remove files of a run and return what was removed; a note says why where it is less."""
        folder = self._records.folder(record.run_id)
        discarded = [path for removal in removals if removal.kind is DiskKind.CHECKPOINTS for path in removal.paths]
        if discarded and newest_intact(folder, discarded) is None:
            notes.append(f"Run {record.run_id} keeps its files: the checkpoints that would be left are damaged.")
            return []
        pruned = self._records.workspace.runs / f"{PRUNED_PREFIX}{record.run_id}-{secrets.token_hex(4)}"
        pruned.mkdir()
        try:
            smaller = {
                path: pruned / f"{path.name}.smaller"
                for removal in removals
                if removal.kind is DiskKind.REPLAY
                for path in removal.paths
                if path.name.isdecimal()
            }
            for path, draft in smaller.items():
                copy_without_replay(path, draft)
            with self._records.lock:
                now = self._records.get(record.run_id)
                if now.is_active or len(now.attempts) != len(record.attempts) or self._find_user(record.run_id):
                    notes.append(f"Run {record.run_id} keeps its files: it was used again meanwhile.")
                    return []
                for path in (path for removal in removals for path in removal.paths if path not in smaller):
                    path.rename(pruned / path.name)
                for path, draft in smaller.items():
                    exchange_folders(path, draft)
                if discarded or smaller:
                    fsync_path(folder.checkpoints)
                entry = HistoryEntry(at=time.time(), stage=now.stage, message=_history_message(removals))
                self._records.put(now.model_copy(update={"history": (*now.history, entry)}))
        finally:
            shutil.rmtree(pruned, ignore_errors=True)
        log.info("run_pruned", run_id=record.run_id, size_bytes=sum(removal.size_bytes for removal in removals))
        return removals


def plan_removals(folder: RunFolder, request: pb.PruneRequest, needed: Iterable[str]) -> list[Removal]:
    """Return what of a run's folder is removed; nothing is changed."""
    removals: list[Removal] = []
    freed = FreedSpace()
    discarded: list[Path] = []
    has_checkpoints = folder.checkpoints.is_dir()
    leftovers = list_leftovers(folder) if has_checkpoints else []
    if request.checkpoints and has_checkpoints:
        discarded = removable_checkpoints(folder, request.keep, needed)
        if discarded:
            discarded, leftovers = [*discarded, *leftovers], []
            removals.append(Removal(DiskKind.CHECKPOINTS, tuple(discarded), sum(map(freed.add, discarded))))
    if request.replay and has_checkpoints:
        paths = [*(path for path in checkpoints_with_replay(folder) if path not in discarded), *leftovers]
        if paths:
            size = sum(_replay_size(path, freed) if path.name.isdecimal() else freed.add(path) for path in paths)
            removals.append(Removal(DiskKind.REPLAY, tuple(paths), size))
    if request.videos and folder.videos.is_dir():
        removals.append(Removal(DiskKind.VIDEOS, (folder.videos,), freed.add(folder.videos)))
    return removals


def _replay_size(checkpoint: Path, freed: FreedSpace) -> int:
    parts = (path for path in checkpoint.iterdir() if path.name.startswith(REPLAY_PREFIX))
    return sum(map(freed.add, parts)) + sum(map(replay_bytes, checkpoint.glob("*.npz")))


def _describe(run_id: str, removal: Removal) -> PruneItem:
    names = tuple(path.name for path in removal.paths if not path.name.startswith("."))
    return PruneItem(run_id=run_id, kind=removal.kind, names=names, size_bytes=removal.size_bytes)


def _history_message(removals: list[Removal]) -> str:
    parts = {
        DiskKind.CHECKPOINTS: "old checkpoints",
        DiskKind.REPLAY: "the replay buffer",
        DiskKind.VIDEOS: "the videos",
    }
    what = ", ".join(parts[removal.kind] for removal in removals)
    return f"Pruned: {what} ({format_size(sum(removal.size_bytes for removal in removals))})."


# --- checkpoints


def removable_checkpoints(folder: RunFolder, keep: int, needed: Iterable[str] = ()) -> list[Path]:
    """Return what is neither among the newest `keep`, nor `last` or `best`, nor `needed` (names), oldest first.

    The newest checkpoint with all of its files is never among them. Empty where there is none: what such checkpoints
    are worth only their worker knows.
    """
    steps = list_steps(folder)
    complete = next((step for step in reversed(steps) if has_all_files(folder.checkpoint(step))), None)
    if complete is None:
        return []
    kept = {*needed, str(complete), *(str(step) for step in steps[-max(1, keep) :])}
    for link in (folder.last_checkpoint, folder.best_checkpoint):
        if link.is_symlink():
            kept.add(os.path.basename(os.readlink(link)))
    aside = sorted(
        entry.name
        for entry in os.scandir(folder.checkpoints)
        if entry.is_dir(follow_symlinks=False) and entry.name.split(".")[0].isdecimal() and "." in entry.name
    )
    return [folder.checkpoints / name for name in (*map(str, steps), *aside) if name not in kept]


def has_all_files(path: Path) -> bool:
    """Whether a checkpoint has all files of its manifest, by their sizes; `is_intact` compares their hashes, too."""
    manifest = read_manifest(path)
    if manifest is None:
        return False
    try:
        return all((path / name).stat().st_size == file["size_bytes"] for name, file in manifest["files"].items())
    except OSError:
        return False


def newest_intact(folder: RunFolder, excluded: Iterable[Path]) -> int | None:
    """Return the step of the newest intact checkpoint that is not excluded.

    Its bytes are read, except those of parts, which may be many: their sizes are compared.
    """
    others = set(excluded)
    for step in reversed(list_steps(folder)):
        path = folder.checkpoint(step)
        if path not in others and has_all_files(path) and is_intact(path, with_parts=False):
            return step
    return None


def checkpoints_with_replay(folder: RunFolder) -> list[Path]:
    """Return the checkpoints that contain a replay buffer, oldest first."""
    paths = [folder.checkpoint(step) for step in list_steps(folder)]
    facts = {path: (read_manifest(path) or {}).get("facts", {}).get("replay") for path in paths}
    return [path for path, replay in facts.items() if isinstance(replay, dict) and replay.get("is_saved") is True]


def copy_without_replay(path: Path, draft: Path) -> None:
    """Make a complete checkpoint of another one, without its replay buffer; weights are linked, not copied."""
    manifest = read_manifest(path)
    if manifest is None:
        raise FileNotFoundError(errno.ENOENT, "its manifest cannot be read", str(path))
    draft.mkdir(parents=True)
    names = [name for name in manifest["files"] if not name.startswith(REPLAY_PREFIX)]
    for name in names:
        if name == STATE:
            _copy_arrays(path / name, draft / name)
        else:
            hard_link(path / name, draft / name)
    files = {name: describe_file(draft / name) if name == STATE else manifest["files"][name] for name in names}
    replay = {**manifest["facts"]["replay"], "is_saved": False, "is_pruned": True}
    body = {key: value for key, value in manifest.items() if key != "sha256"}
    body |= {"files": files, "facts": {**manifest["facts"], "replay": replay}}
    (draft / MANIFEST).write_text(seal_manifest(body), encoding="utf-8")
    for entry in (draft / STATE, draft / MANIFEST, draft):
        fsync_path(entry)


def _copy_arrays(path: Path, target: Path) -> None:
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for info in old.infolist():
            if not info.filename.startswith(REPLAY_PREFIX):
                with old.open(info) as source, new.open(info.filename, "w", force_zip64=True) as copy:
                    shutil.copyfileobj(source, copy)


def exchange_folders(one: Path, other: Path) -> None:
    """Swap two names at once; where the file system cannot, in steps that the next resume completes."""
    libc = ctypes.CDLL(None, use_errno=True)
    paths = os.fsencode(one), os.fsencode(other)
    try:
        if sys.platform == "darwin":
            failed = libc.renamex_np(*paths, _EXCHANGE)
        else:
            failed = libc.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _EXCHANGE)
    except AttributeError:  # an old C library
        failed = True
    if not failed:
        return
    aside = one.with_name(f".{one.name}.old.tmp")  # the name that recover_interrupted_writes restores
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def list_leftovers(folder: RunFolder) -> list[Path]:
    """Return what killed processes left incomplete, without checkpoints that a resume restores."""
    leftovers = []
    for path in sorted(folder.checkpoints.glob(".*.tmp")):
        step = path.name.removeprefix(".").removesuffix(".old.tmp")
        if not step.isdecimal() or folder.checkpoint(int(step)).exists():
            leftovers.append(path)
    return leftovers


HANDLERS: Handlers = {"ListTrash": list_trash, "PruneRuns": prune_runs, "ReadDiskUsage": read_disk_usage}
