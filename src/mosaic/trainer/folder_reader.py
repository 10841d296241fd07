"""Reads run folders for clients: files, evaluations, the state of W&B uploads."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePath

import structlog

from mosaic.common.eval_summary import EvalSummaryInvalid, read_eval_summary
from mosaic.common.files import path_inside
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import NotAllowed, UnknownName
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.states import RunRecord
from mosaic.contracts.views import Evaluation, EvaluationSummary, TrainedRun, WandbStatus
from mosaic.sidecar import sync_state
from mosaic.trainer.records import Records

log = structlog.get_logger("mosaic.trainer.folder_reader")

CHUNK_BYTES = 1 << 20


def list_files(folder: RunFolder, pattern: str) -> Iterator[pb.RunFile]:
    """Yields the files and links that match, sorted by folder; links out of the folder are left out."""
    root = folder.path.resolve()
    found: Iterable[tuple[str, list[str], list[str]]] = os.walk(root)
    if pattern and not glob.has_magic(pattern):  # the name of one file: nothing is searched
        path = root / pattern
        is_file = path.is_relative_to(root) and ".." not in path.parts and (path.is_symlink() or path.is_file())
        found = [(str(path.parent), [], [path.name])] if is_file else []
    for parent, folders, names in found:
        folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for path in sorted(Path(parent, name) for name in (*names, *links)):
            name = path.relative_to(root).as_posix()
            if fnmatch.fnmatchcase(name, pattern or "*") and path.resolve().is_relative_to(root):
                try:
                    yield _describe(path, name)
                except FileNotFoundError:
                    continue  # a run that is active also deletes files


def _describe(path: Path, name: str) -> pb.RunFile:
    status = path.lstat()
    target = os.readlink(path) if path.is_symlink() else ""
    return pb.RunFile(name=name, size_bytes=status.st_size, modified_at=status.st_mtime, link_target=target)


def read_file(folder: RunFolder, name: str, offset: int) -> Iterator[bytes]:
    """Yields the content from `offset` on; refuses whatever is not a regular file inside the folder."""
    path = path_inside(folder.path, name)
    if not path.is_file():
        raise UnknownName(f"Run {folder.run_id} has no file {name!r}. List them: mosaic show {folder.run_id}")
    with open(path, "rb") as file:
        file.seek(max(0, offset))
        while data := file.read(CHUNK_BYTES):
            yield data


def read_evaluations(records: Records, run_id: str = "", env_id: str = "") -> Iterator[Evaluation]:
    """Newest first, without evaluations that have no complete batch yet or whose summary is invalid.

    A training run that ended with an evaluation counts as one.
    """
    for record, folder in _runs_with_entry(records, run_id, "eval_summary.json"):
        summary = _read_summary(folder)
        if summary is None or (env_id and summary.env_id != env_id):
            continue
        yield Evaluation(
            run_id=record.run_id,
            stage=record.stage,
            outcome=record.outcome,
            evaluated_at=record.finished_at or folder.eval_summary.stat().st_mtime,
            summary=summary,
            trained=_find_trained_run(records, summary.policy_path or ""),
        )


def _runs_with_entry(records: Records, run_id: str, name: str) -> Iterator[tuple[RunRecord, RunFolder]]:
    """Yield the runs, newest first, or the one run, whose folder has a file or folder of this name.

    Most runs have none, which costs one system call each.
    """
    for candidate in [run_id] if run_id else records.index.list_run_ids():
        if os.path.exists(f"{records.workspace.runs}/{candidate}/{name}"):
            record = records.index.get_record(candidate)
            if record is not None:  # else it has just been deleted
                yield record, records.folder(candidate)


def _read_summary(folder: RunFolder) -> EvaluationSummary | None:
    """None where there is none, or where it is invalid: other people's workers write it, too."""
    try:
        summary = read_eval_summary(folder.eval_summary)
    except EvalSummaryInvalid as error:
        log.info("evaluation_unreadable", run_id=folder.run_id, error=str(error))
        return None
    if summary is None or summary.policy_path is None:
        return summary
    return summary.model_copy(update={"policy_path": folder.from_portable(summary.policy_path)})


def _find_trained_run(records: Records, policy_path: str) -> TrainedRun | None:
    """A run's folder is named by its id, wherever the workspace has been moved to."""
    for part in reversed(PurePath(policy_path).parts):
        record = records.index.get_record(part)
        if record is not None:
            progress = records.index.get_progress(part)
            return TrainedRun.model_validate(dict(record) | {"episodic_return": progress.mean_return})
    return None


def read_wandb_statuses(records: Records, run_id: str = "") -> Iterator[WandbStatus]:
    """Newest first, without runs that W&B has nothing of."""
    for record, folder in _runs_with_entry(records, run_id, "wandb"):
        state = _read_sync_state(records, folder)
        if state is not None:
            yield WandbStatus.model_validate(dict(record) | state.to_json())


def _read_sync_state(records: Records, folder: RunFolder) -> sync_state.SyncState | None:
    """Also for a run that asked to be tracked and has no recording yet: it can still be recorded."""
    state = sync_state.read(folder)
    with suppress(NotAllowed):  # a config that cannot be read
        if state is None and records.read_payload(folder.run_id).artifacts.wandb.enabled:
            return sync_state.SyncState(folder.run_id)
    return state
