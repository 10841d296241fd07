"""Which checkpoints of a run that has ended can be removed, and checkpoints without their replay buffer.

What is removed is first moved out of the run's folder by one rename, so that a kill at any moment leaves checkpoints
that are complete.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mosaic.common.checkpoint_files import (
    MANIFEST,
    STATE,
    describe_file,
    hard_link,
    is_intact,
    list_steps,
    read_manifest,
    seal_manifest,
)
from mosaic.common.files import fsync_path
from mosaic.contracts.folder import REPLAY_PREFIX, RunFolder

_AT_FDCWD = -100
_EXCHANGE = 2
"""RENAME_EXCHANGE of Linux, and RENAME_SWAP of macOS."""


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
    return [path for path in paths if _has_replay(read_manifest(path))]


def _has_replay(manifest: dict[str, Any] | None) -> bool:
    facts = (manifest or {}).get("facts", {}).get("replay")
    return isinstance(facts, dict) and facts.get("is_saved") is True


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
