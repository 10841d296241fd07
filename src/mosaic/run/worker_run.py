"""What every worker does around its training or evaluation, by the sections of the payload that all of them share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mosaic import __version__
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.contracts.folder import RUN_DIR_VARIABLE, TENSORBOARD_VARIABLE, RunFolder, Workspace
from mosaic.contracts.payload import Payload
from mosaic.envs.factory import render_help
from mosaic.run.handle import Run
from mosaic.run.live_frames import LiveFrames


def run_folder(run_id: str) -> RunFolder:
    """Return the folder given by the environment, else one in the workspace."""
    run_dir = os.environ.get(RUN_DIR_VARIABLE)
    return RunFolder(run_dir) if run_dir else Workspace.resolve().run(run_id)


def tensorboard_folder(payload: Payload, folder: RunFolder) -> Path | None:
    """Return the folder of event files; None if they are disabled."""
    tensorboard = payload.artifacts.tensorboard
    if not tensorboard.enabled:
        return None
    if tensorboard.directory is not None:
        return folder.path / tensorboard.directory
    if payload.is_evaluation:
        return folder.tensorboard_eval
    directory = os.environ.get(TENSORBOARD_VARIABLE)
    return Path(directory).absolute() if directory else folder.tensorboard


def make_live_frames(payload: Payload, run: Run, env_id: str) -> LiveFrames | None:
    """Publish frames as set by `artifacts.video.mode`; nothing is rendered without a viewer."""
    video = payload.artifacts.video
    if video.mode == "off":
        return None
    limit = 1 if video.mode == "single" else video.grid_limit
    return LiveFrames(run.folder, limit, run.warn, render_help(env_id))


@contextmanager
def finish_with_errors(run: Run) -> Iterator[None]:
    """End the run with the reason of an error that the user can act on."""
    try:
        yield
    except MosaicError as error:
        run.finish("rejected" if isinstance(error, BadInput) else "failed", str(error))
        raise


def write_rejection(worker: str, folder: RunFolder, reason: str) -> None:
    """Record that the worker refused an accepted run."""
    with Run(folder, worker=worker, version=__version__, capabilities=()) as run:
        if run.attempt == 1:  # a later attempt that starts nothing must not drop the results of earlier ones
            run.hello()
        run.finish("rejected", reason)
