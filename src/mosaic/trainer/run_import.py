"""Imports a run: an exported zip, or a folder such as one in the trash."""

from __future__ import annotations

import json
import os
import shutil
import stat
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

from mosaic.common.files import write_json, write_text
from mosaic.contracts.errors import BadInput, NotAllowed
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.payload import Payload
from mosaic.contracts.states import Outcome, RunRecord, Stage
from mosaic.contracts.views import RunView
from mosaic.secrets import redact_secrets, store_secrets
from mosaic.trainer.intake import Intake
from mosaic.trainer.records import Records

_CONFIG = RunFolder("/").config.name


def import_run(records: Records, source: str) -> RunView:
    """Imports a run under its own id and returns its view; refuses one that is in the workspace already."""
    path = Path(source)
    staging = records.workspace.runs / f".making-import-{os.getpid()}-{records.new_id()}"
    try:
        if path.is_dir():
            config_with_secrets = _copy(path, staging)
        elif path.is_file():
            config_with_secrets = _unpack(path, staging)
        else:
            raise BadInput(f"{source}: no such file. Expected a zip made by: mosaic export RUN --zip F.zip")
        record = _read_record(staging, source)
        target = records.folder(record.run_id)
        _refuse_duplicate(target)
        if config_with_secrets is not None:  # a keyring may be slow: never under the lock
            write_json(RunFolder(staging).config, store_secrets(config_with_secrets))
        with records.lock:
            _refuse_duplicate(target)
            write_text(staging / target.record.name, record.model_dump_json(indent=2) + "\n")
            staging.rename(target.path)
            records.put(record)
        Intake(records).read_all(record.run_id)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    if path.is_dir() and path.parent == records.workspace.trash:
        shutil.rmtree(path, ignore_errors=True)
    records.notify_watchers()
    return records.view(record.run_id)


def _refuse_duplicate(target: RunFolder) -> None:
    if target.path.exists():
        raise NotAllowed(f"Run {target.run_id} is in this workspace already: {target.path}")


def _copy(path: Path, staging: Path) -> Any:
    """Copies a folder; returns its config if that holds a secret, which the copy does not."""
    config = path / _CONFIG
    shutil.copytree(path, staging, symlinks=True, ignore=lambda folder, _: [_CONFIG] if Path(folder) == path else [])
    return _write_config_without_secrets(config.read_bytes(), staging) if config.is_file() else None


def _write_config_without_secrets(text: bytes, staging: Path) -> Any:
    """Writes a config without its secrets; returns all of it if it has any."""
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    clean = redact_secrets(data)
    if data is None or clean == data:
        (staging / _CONFIG).write_bytes(text)
        return None
    write_json(staging / _CONFIG, clean)
    return data


def _unpack(path: Path, staging: Path) -> Any:
    """Unpacks a zip; returns what `_copy` returns."""
    config_with_secrets = None
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            tops = {PurePosixPath(member.filename).parts[0] for member in members if member.filename.strip("/")}
            if len(tops) != 1:
                raise BadInput(f"{path}: expected one run folder inside, found {len(tops)} entries at the top.")
            staging.mkdir(parents=True)
            for member in members:
                if PurePosixPath(member.filename).parts[1:] == (_CONFIG,):
                    config_with_secrets = _write_config_without_secrets(archive.read(member), staging)
                else:
                    _extract(archive, member, staging, path)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise BadInput(f"{path}: this zip cannot be read ({error}).") from None
    return config_with_secrets


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, staging: Path, path: Path) -> None:
    parts = PurePosixPath(member.filename).parts[1:]
    if not parts:
        return
    if any(part in ("..", "") or "\0" in part or part.startswith("/") for part in parts) or "\\" in member.filename:
        raise BadInput(f"{path}: {member.filename!r} points outside of the run folder.")
    target = staging.joinpath(*parts)
    if any(parent.is_symlink() for parent in target.parents if parent != staging and staging in parent.parents):
        raise BadInput(f"{path}: {member.filename!r} is inside a symbolic link.")
    target.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISLNK(member.external_attr >> 16):
        link_target = archive.read(member).decode("utf-8", "replace")
        if not link_target.isdigit():  # only `checkpoints/last` and `best` may be links, to a step in the same folder
            raise BadInput(f"{path}: the link {member.filename!r} points at {link_target!r}, not at a checkpoint.")
        target.symlink_to(link_target)
    elif member.is_dir():
        target.mkdir(exist_ok=True)
    else:
        with archive.open(member) as source, open(target, "wb") as file:
            shutil.copyfileobj(source, file)


def _read_record(staging: Path, source: str) -> RunRecord:
    folder = RunFolder(staging)
    try:
        record = RunRecord.model_validate_json(folder.record.read_text())
        Payload.read(folder.config)
    except (OSError, ValueError) as error:
        raise BadInput(f"{source}: this is not a MOSAIC run ({str(error).splitlines()[0]}).") from None
    if not record.run_id.isalnum():
        raise BadInput(f"{source}: {record.run_id!r} is not a run id.")
    if record.is_active:
        # It was exported while it ran: none of its processes is here.
        changes = {"stage": Stage.FINISHED, "outcome": Outcome.LOST, "reason": "It was exported while it ran."}
        record = record.model_copy(update=changes)
    return record
