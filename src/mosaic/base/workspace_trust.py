"""Whether this user created a workspace, or trusts whoever did. Standard library only.

The proof is a mark in the workspace, signed with a key in the user's own configuration. It is bound to this copy of the
folder, so a mark that was copied with the files, as by a clone of the user's own repository, is worth nothing. With a
key, nothing has to be stored per workspace: the configuration may be read-only once the key exists.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from mosaic.base.files import config_folder, lock_private_folder, write_text
from mosaic.contracts.folder import Workspace

MARK_PREFIX = "owner-"
"""In `trainer/`: begins the names of marks, one for each key, as on two machines that share a workspace."""
_REPLACED_NAMES = ("daemon.json", "daemon.lock", "reserve", "index.sqlite", MARK_PREFIX)
"""In `trainer/`: begin the names of files that a daemon writes when it starts, whatever is in them."""


class Origin(StrEnum):
    OWN = "own"
    """This user created or trusted the workspace, or `MOSAIC_TRUST` names it."""
    NEW = "new"
    """Nothing is in it yet, so it becomes the user's own."""
    FOREIGN = "foreign"
    """Anybody may have made what it holds: that is read, and nothing of it is executed."""


def decide_origin(is_named: bool, has_mark: bool, has_content: bool) -> Origin:
    if is_named or has_mark:
        return Origin.OWN
    return Origin.FOREIGN if has_content else Origin.NEW


def find_origin(workspace: Workspace) -> Origin:
    is_named, is_marked = workspace.is_named_trusted, has_mark(workspace)
    return decide_origin(is_named, is_marked, is_named or is_marked or has_content(workspace))


def has_content(workspace: Workspace) -> bool:
    """Whether `trainer/` holds anything that a daemon, a run or a client would read: files with bytes, or links."""
    pending = [workspace.trainer] if os.path.lexists(workspace.trainer) else []
    try:
        for folder in pending:
            for entry in list(os.scandir(folder)):
                is_replaced = folder == workspace.trainer and entry.name.startswith(_REPLACED_NAMES)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(Path(entry))
                elif not entry.is_file(follow_symlinks=False) or not (is_replaced or entry.stat().st_size == 0):
                    return True
    except OSError:  # what cannot be read may be anything
        return True
    return False


def mark_own(workspace: Workspace) -> None:
    """Trust what is in the workspace now and later. Raises OSError where key or mark cannot be written."""
    workspace.trainer.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = _read_key()
    if key is None:
        with lock_private_folder(config_folder()):
            key = _read_key() or secrets.token_bytes(32)
            write_text(config_folder() / "workspace_key", key.hex(), is_durable=True)
    path = _mark_path(workspace, key)
    seconds = int(time.time()) // 2 * 2  # a FAT file system stores no other times
    write_text(path, sign_place(key, workspace.trainer.stat().st_ino, seconds))
    os.utime(path, (seconds, seconds))


def claim_if_new(workspace: Workspace) -> None:
    """Make an empty workspace the user's own before something is written there without a daemon."""
    if find_origin(workspace) is Origin.NEW:
        with suppress(OSError):  # the daemon says what to do
            mark_own(workspace)


def unmark(workspace: Workspace) -> None:
    if (key := _read_key()) is not None:
        _mark_path(workspace, key).unlink(missing_ok=True)


def has_mark(workspace: Workspace) -> bool:
    with suppress(OSError):
        if (key := _read_key()) is not None:
            path = _mark_path(workspace, key)
            status = path.lstat()
            expected = sign_place(key, workspace.trainer.stat().st_ino, int(status.st_mtime))
            is_plain = stat.S_ISREG(status.st_mode) and status.st_size == len(expected)
            return is_plain and hmac.compare_digest(path.read_bytes(), expected.encode())
    return False


def sign_place(key: bytes, inode: int, seconds: int) -> str:
    """The content of a mark: of the folder `trainer/` with this inode, in a file with this time of modification.

    The path is not part of it, so a workspace can be moved on its disk. The time is, because a folder that is made
    where another was deleted may get its inode.
    """
    return hmac.new(key, f"{inode}:{seconds}".encode(), hashlib.sha256).hexdigest()


def _mark_path(workspace: Workspace, key: bytes) -> Path:
    return workspace.trainer / f"{MARK_PREFIX}{hashlib.sha256(key).hexdigest()[:16]}"


def _read_key() -> bytes | None:
    with suppress(OSError, ValueError):
        return bytes.fromhex((config_folder() / "workspace_key").read_text(encoding="utf-8")) or None
    return None
