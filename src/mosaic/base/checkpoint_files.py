"""The files of a checkpoint: its manifest, their hashes, and which checkpoints a run has. Standard library only."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mosaic.contracts.folder import RunFolder

FORMAT = 1
WEIGHTS = "weights.safetensors"
STATE = "state.npz"
MANIFEST = "manifest.json"

NO_LOG: dict[str, Any] = {"episodes": 0, "recent_returns": [], "scalars": {}}
"""The log of a run before its first episode."""


class DamagedError(Exception):
    """One checkpoint is damaged; the message is part of a sentence."""


def is_intact(path: Path, *, with_parts: bool = True) -> bool:
    try:
        verify_files(path, with_parts)
    except DamagedError:
        return False
    return True


def read_manifest(path: Path) -> dict[str, Any] | None:
    """Return the manifest without checking the other files; None if it cannot be read."""
    try:
        return _load_manifest(path)
    except DamagedError:
        return None


def list_steps(folder: RunFolder) -> list[int]:
    """Return the steps of all checkpoints, oldest first, intact or not."""
    return [int(path.name) for path in reversed(paths_newest_first(folder.checkpoints))]


def paths_newest_first(checkpoints_dir: Path) -> list[Path]:
    try:
        names = [name for name in os.listdir(checkpoints_dir) if name.isdecimal() and name.isascii()]
    except OSError:
        return []
    return [checkpoints_dir / name for name in sorted(names, key=int, reverse=True)]


def verify_files(path: Path, with_parts: bool = True) -> dict[str, Any]:
    manifest = _load_manifest(path)
    for name, entry in manifest["files"].items():
        if os.path.basename(name) != name or "\0" in name:
            raise DamagedError(f"{MANIFEST} names a file outside of it")
        if name not in (WEIGHTS, STATE) and not with_parts:
            continue
        try:
            size, digest = fingerprint(path / name)
        except OSError as error:
            raise DamagedError(f"{name}: {error.strerror}") from None
        if size != entry["size_bytes"]:
            raise DamagedError(f"{name} has {size} bytes, its manifest lists {entry['size_bytes']}")
        if digest != entry["sha256"]:
            raise DamagedError(f"{name}: hash mismatch")
    return manifest


def _load_manifest(path: Path) -> dict[str, Any]:
    try:
        text = (path / MANIFEST).read_text(encoding="utf-8")
        body = json.loads(text)
        # Compare byte for byte with what we would write: even changed whitespace is damage and a sign of more.
        if text != manifest_text(body) or body["sha256"] != manifest_digest(body):
            raise DamagedError(f"{MANIFEST}: hash mismatch")
        if body["format"] != FORMAT:
            raise DamagedError(f"{MANIFEST}: format {body['format']}, this version reads {FORMAT}")
        if not _has_valid_fields(body):
            raise DamagedError(f"{MANIFEST} cannot be read")
        if path.name.isdecimal() and body["step"] != int(path.name):
            raise DamagedError(f"it is that of step {body['step']}, under the name of another")
    except OSError as error:
        raise DamagedError(f"{MANIFEST}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DamagedError(f"{MANIFEST} cannot be read") from None
    manifest: dict[str, Any] = body
    return manifest


def _has_valid_fields(body: dict[str, Any]) -> bool:
    """Return whether the manifest has what resuming reads: anyone can give it a digest that is right."""
    files, log = body["files"], body.get("log", NO_LOG)
    return (
        isinstance(body["step"], int)
        and isinstance(body["facts"], dict)
        and {WEIGHTS, STATE} <= files.keys()
        and all(isinstance(file["size_bytes"], int) and isinstance(file["sha256"], str) for file in files.values())
        and isinstance(log["episodes"], int)
        and isinstance(log["scalars"], dict)
        and all(isinstance(value, float) for value in log["recent_returns"])
    )


def fingerprint(path: Path) -> tuple[int, str]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest


def describe_file(path: Path) -> dict[str, Any]:
    """Return the entry of a file in a manifest."""
    size, digest = fingerprint(path)
    return {"size_bytes": size, "sha256": digest}


def hard_link(path: Path, target: Path) -> None:
    """Link a file under another name; copy it where the file system has no hard links."""
    try:
        os.link(path, target)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise
        shutil.copyfile(path, target)


def seal_manifest(body: Mapping[str, Any]) -> str:
    """Return the text of a manifest, with its digest."""
    body = json.loads(json.dumps(body))  # so that the digest covers what a reader will parse
    return manifest_text({**body, "sha256": manifest_digest(body)})


def manifest_text(body: Mapping[str, Any]) -> str:
    return json.dumps(body, indent=1) + "\n"


def manifest_digest(body: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in body.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest).encode()).hexdigest()
