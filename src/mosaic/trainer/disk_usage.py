"""What the files of a workspace take on the disk, by kind. Symbolic links are not followed."""

from __future__ import annotations

import heapq
import os
import shutil
import stat
import time
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from mosaic.contracts.disk_views import DiskKind, DiskUsage, RunUsage
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.folder import PENDING_PARTS_DIR, PRUNED_PREFIX, REPLAY_PREFIX, RunFolder, is_run_id
from mosaic.trainer.records import Records

BLOCK_BYTES = 512
"""The unit of `st_blocks`, whatever the file system's own."""
REPORT_S = 0.25
"""How often what was found so far is reported."""
MIN_ARCHIVE_BYTES = 1 << 18
"""Smaller archives of arrays are not searched for a replay buffer: there may be ten thousands."""
_FOLDER = RunFolder("run")
_KINDS = {
    path.name: kind
    for kind, paths in {
        DiskKind.CHECKPOINTS: (_FOLDER.checkpoints,),
        DiskKind.VIDEOS: (_FOLDER.videos,),
        DiskKind.TENSORBOARD: (_FOLDER.tensorboard, _FOLDER.tensorboard_eval),
        DiskKind.LOGS: (_FOLDER.logs,),
        DiskKind.JOURNALS: (_FOLDER.journal, _FOLDER.keeper, _FOLDER.inbox, _FOLDER.sidecar, _FOLDER.recording),
        DiskKind.WANDB: (_FOLDER.wandb,),
    }.items()
    for path in paths
}
"""By the name of an entry in a run's folder."""


def allocated_bytes(status: os.stat_result) -> int:
    return status.st_blocks * BLOCK_BYTES


def read_disk_usage(records: Records, run_ids: list[str], largest: int) -> Iterator[DiskUsage]:
    """Yield what was found so far, now and then, and at last the whole; of these runs, or of the workspace."""
    root = records.workspace.root
    entries = [] if run_ids else _list_paths(records.workspace.runs)
    known = records.index.modification_times() if entries else {}
    # Of a link to a folder, only a run that was moved there counts.
    folders = [path for path in entries if path.name in known or (path.is_dir() and not path.is_symlink())]
    names = run_ids or [path.name for path in folders if is_run_id(path.name)]
    own = set(names)
    others = [path for path in entries if path.name not in own]
    sizes: Counter[DiskKind] = Counter() if run_ids else _measure_shared_files(records, others)
    top: list[tuple[int, str, Counter[DiskKind]]] = []
    reported_at = time.monotonic()
    for count, name in enumerate(names, 1):
        found = measure_run(records.workspace.runs / name)
        sizes += found
        if largest:
            top.append((found.total(), name, found))
            top = heapq.nlargest(largest, top) if len(top) > 2 * largest else top
        if time.monotonic() - reported_at > REPORT_S:
            yield DiskUsage(run_count=count, run_total=len(names), size_bytes=dict(sizes))
            reported_at = time.monotonic()
    yield DiskUsage(
        run_count=len(names),
        run_total=len(names),
        size_bytes=dict(sizes),
        free_bytes=shutil.disk_usage(root).free,
        largest=tuple(_describe(records, name, found) for _, name, found in heapq.nlargest(largest, top)),
    )


def measure_run(path: Path) -> Counter[DiskKind]:
    """Return what a run's folder takes; a file with several names counts once."""
    sizes: Counter[DiskKind] = Counter()
    seen: set[tuple[int, int]] = set()
    root = os.fspath(path)
    for name, status in _walk(root):
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            key = status.st_dev, status.st_ino
            if key in seen:
                continue
            seen.add(key)
        kind = classify_file(name)
        size = allocated_bytes(status)
        if kind is DiskKind.CHECKPOINTS and size >= MIN_ARCHIVE_BYTES and name.endswith(".npz"):
            replay = min(size, replay_bytes(path / name))
            sizes[DiskKind.REPLAY] += replay
            size -= replay
        sizes[kind] += size
    try:
        sizes[DiskKind.OTHER] += allocated_bytes(path.lstat())
    except OSError:
        return Counter()  # it has just been deleted
    return +sizes  # without kinds that take nothing


def classify_file(name: str) -> DiskKind:
    """Return the kind of a file by its path in a run's folder."""
    top, _, rest = name.partition("/")
    last = name[name.rfind("/") + 1 :]
    kind = _KINDS.get(top)
    if kind is DiskKind.CHECKPOINTS and (last.startswith(REPLAY_PREFIX) or rest.startswith(PENDING_PARTS_DIR)):
        return DiskKind.REPLAY
    if kind is not None:
        return kind
    if last.startswith("events.out.tfevents"):
        return DiskKind.TENSORBOARD
    return DiskKind.JOURNALS if top.startswith("journal.") else DiskKind.OTHER


def replay_bytes(archive: Path) -> int:
    """Return what a replay buffer takes in an archive of arrays; 0 where it cannot be read."""
    try:
        with zipfile.ZipFile(archive) as members:
            return sum(info.compress_size for info in members.infolist() if info.filename.startswith(REPLAY_PREFIX))
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return 0


def measure_folder(path: Path) -> int:
    """Return what a folder or file takes, with its own entry."""
    try:
        own = allocated_bytes(path.lstat())
    except OSError:
        return 0
    return own if path.is_symlink() else own + sum(allocated_bytes(status) for _, status in _walk(os.fspath(path)))


def _walk(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield everything below a folder by its path in it, without following links or what is deleted meanwhile."""
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            entries = list(os.scandir(f"{root}/{folder}"))
        except OSError:
            continue
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            name = folder + entry.name
            if stat.S_ISDIR(status.st_mode):
                folders.append(f"{name}/")
            yield name, status


def _measure_shared_files(records: Records, in_runs: Iterable[Path]) -> Counter[DiskKind]:
    """Return what belongs to no run in the list: the trash, the index, logs, and what else lies among the runs."""
    workspace = records.workspace
    sizes: Counter[DiskKind] = Counter()
    kinds = {workspace.trash: DiskKind.TRASH, workspace.logs: DiskKind.LOGS}
    for path in chain(_list_paths(workspace.trainer), in_runs, (workspace.logs, workspace.trackio)):
        if path == workspace.runs:
            continue
        kind = kinds.get(path, DiskKind.OTHER)
        if path.name.startswith(workspace.index.name):
            kind = DiskKind.INDEX
        elif path.name.startswith(PRUNED_PREFIX):
            kind = DiskKind.TRASH
        sizes[kind] += measure_folder(path)
    return sizes


def _list_paths(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _describe(records: Records, name: str, sizes: Counter[DiskKind]) -> RunUsage:
    try:
        record = records.get(name)
    except MosaicError:  # a folder that is not a run
        return RunUsage(run_id=name, size_bytes=dict(sizes))
    return RunUsage(run_id=name, size_bytes=dict(sizes), status=record.status, algo=record.algo, env_id=record.env_id)
