"""Replays what a run recorded, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from mosaic.base.formatting import short_id
from mosaic.base.worker_registry import python_module
from mosaic.contracts.errors import BadInput, MosaicError, NotAllowed, error_class
from mosaic.contracts.folder import RECORDING_NAME
from mosaic.contracts.options import RunKind
from mosaic.contracts.replays import EXPORT_SUFFIXES, ExportProgress, ReplayFailed, ReplayReport

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView
    from mosaic.trainer.client.exports import ExportTask
    from mosaic.trainer.client.trainer_client import TrainerClient

REPLAY_COMMAND = python_module("mosaic.features.replay.worker")
END_TIMEOUT_S = 5.0
"""Between SIGTERM and SIGKILL: an export removes its incomplete file."""


def fetch_recording(trainer: TrainerClient, run_id: str) -> Path:
    """Return where the recording of a run can be opened here; from a remote trainer it is copied."""
    view = trainer.get_run(run_id)
    if not trainer.files(view.run_id, RECORDING_NAME):
        raise NotAllowed(f"Run {short_id(view.run_id)} recorded no episodes.")
    path = trainer.open_file(view.run_id, RECORDING_NAME)
    if view.kind is RunKind.PLAY and not trainer.is_local and trainer.files(view.run_id, "videos/*"):
        trainer.open_file(view.run_id, "videos")  # the frames of what cannot be simulated again
    return path


def replay_episodes(recording: Path, number: int | None = None) -> Iterator[ReplayReport]:
    """Simulate one recorded episode again, or all of them; yields each report when it is there."""
    command = ["verify", str(recording), *([] if number is None else [str(number)])]
    for reply in _run_worker(command):
        yield ReplayReport.model_validate(reply)


def check_export_path(path: Path) -> None:
    if path.suffix.lower() not in EXPORT_SUFFIXES:
        raise BadInput(f"{path.name}: expected a name that ends in {', '.join(EXPORT_SUFFIXES)}.")


def export_recording(
    trainer: TrainerClient,
    view: RunView,
    path: Path,
    task: ExportTask,
    number: int | None = None,
    has_observations: bool = False,
) -> list[ReplayReport]:
    """Write one recorded episode, or all of them, as a video, a GIF or JSONL; return how each was simulated."""
    check_export_path(path)
    command = ["export", str(fetch_recording(trainer, view.run_id)), str(path.absolute())]
    command += [] if number is None else ["--episode", str(number)]
    command += ["--observations"] if has_observations else []
    reports = []
    for reply in _run_worker(command):
        if "done" in reply:
            progress = ExportProgress.model_validate(reply)
            task.total = progress.total
            task.advance(progress.done - task.done)
        else:
            reports.append(ReplayReport.model_validate(reply))
    return reports


def _run_worker(arguments: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the replies of a worker, decoded; raise what it reports as a failure."""
    # A file, since nothing reads a pipe meanwhile: an environment that prints much would wait forever.
    with (
        tempfile.TemporaryFile() as printed,
        subprocess.Popen([*REPLAY_COMMAND, *arguments], stdout=subprocess.PIPE, stderr=printed) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                reply = json.loads(line)
                if "error" in reply:
                    problem = ReplayFailed.model_validate(reply)
                    raise error_class(problem.error)(problem.message)
                yield reply
            if process.wait() != 0:
                raise MosaicError(f"The replay ended with exit code {process.returncode}. {_last_line(printed)}")
        finally:
            process.terminate()
            try:
                process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _last_line(printed: IO[bytes]) -> str:
    printed.seek(0)
    lines = printed.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
