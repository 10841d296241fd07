"""One training run from its config to its last file."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cleanrl_worker.config import WORKER, Assignment, algorithm_config
from cleanrl_worker.registry import algorithm
from mosaic import __version__
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.contracts.folder import RunFolder, file_name
from mosaic.envs import make
from mosaic.envs.factory import render_help
from mosaic.run import Checkpoint, Run, last_good_checkpoint
from mosaic.run.frames import Frames
from mosaic.run.pictures import show_film

TENSORBOARD_VARIABLE = "CLEANRL_TENSORBOARD_DIR"
CONSOLE_S = 1.0
CAPABILITIES = ("inbox", "pause", "checkpoint", "resume")
KEEP_CHECKPOINTS = 3
GRID_LIMIT = 8
"""Environments that can be watched, unless `grid_limit` says otherwise."""


class ConsoleRun(Run):
    """Says in CleanRL's words on stdout how far it is: by the clock, because a line for each episode costs."""

    _said_at = 0.0
    _said_step = -1

    def update(self, global_step: int) -> None:
        super().update(global_step)
        if self._recent_returns and time.monotonic() - self._said_at >= CONSOLE_S:
            self.say()

    def say(self) -> None:
        if self._recent_returns and self.global_step != self._said_step:
            self._said_at = time.monotonic()
            self._said_step = self.global_step
            # Nobody may be listening any more; that is no reason to stop.
            try:
                print(f"global_step={self.global_step}, episodic_return={self._recent_returns[-1]:g}", flush=True)
            except OSError:
                self._said_at = float("inf")


def tensorboard_folder(assignment: Assignment, folder: RunFolder) -> Path | None:
    """Where event files go; none where they are switched off."""
    if not assignment.tensorboard_enabled:
        return None
    if assignment.extras.tensorboard_dir is not None:
        return folder.path / assignment.extras.tensorboard_dir
    if assignment.is_evaluation:
        return folder.tensorboard_eval
    told = os.environ.get(TENSORBOARD_VARIABLE)
    return Path(told).absolute() if told else folder.tensorboard


def open_run(assignment: Assignment, folder: RunFolder, **more: Any) -> ConsoleRun:
    return ConsoleRun.open(
        folder,
        worker=WORKER,
        version=__version__,
        tensorboard=tensorboard_folder(assignment, folder),
        **more,
    )


def live_frames(assignment: Assignment, run: Run, env_id: str) -> Frames | None:
    """Pictures while somebody watches, as `video_mode` says; without a watcher nothing is drawn."""
    extras = assignment.extras
    if extras.video_mode == "off":
        return None
    limit = 1 if extras.video_mode == "single" else extras.grid_limit or GRID_LIMIT
    return Frames(run.folder, limit, run.warn, render_help(env_id))


@contextlib.contextmanager
def filmed(assignment: Assignment, run: Run) -> Iterator[None]:
    """Where videos of the training are asked for: of the first environment, on CleanRL's schedule."""
    if not assignment.extras.capture_video:
        yield
        return
    from mosaic.arena.video import Camera, is_cubic

    folder = run.folder

    def tell(films: list[Path]) -> None:
        show_film(run, films[-1])
        earlier = folder.videos.glob("*.mp4") if run.attempt > 1 else ()
        run.artifact("videos", sorted({str(path.relative_to(folder.path)) for path in (*earlier, *films)}))

    camera = Camera(folder.videos, folder.run_id, is_cubic, run.warn, tell)
    run.frames = run.frames or Frames(folder, 0, run.warn)
    run.frames.camera = camera
    try:
        yield
    finally:
        camera.close()


def check(assignment: Assignment) -> tuple[Any, dict[str, Any], Any]:
    """The algorithm's config, what it says of the environment, and that environment; or why they do not fit."""
    module = algorithm(assignment.algo)
    config = algorithm_config(assignment)
    env = getattr(module, "make_env", make)(config.env_id)
    try:
        facts: dict[str, Any] = module.check(config, env)
    finally:
        env.close()
    return config, facts, env


Work = Callable[[RunFolder, bool], None]
"""Does what was asked in a run folder; the flag says whether to go on from its last good checkpoint."""


def prepared(assignment: Assignment) -> Work:
    """Checks everything as a dry run does, so that what is refused is refused before a folder is touched."""
    if assignment.is_foreign:
        from cleanrl_worker.scripts import planned

        plan = planned(assignment)
        return lambda folder, _: plan.run(folder)
    if assignment.is_evaluation:
        from cleanrl_worker.evaluation import matched, run_evaluation

        match = matched(assignment)
        return lambda folder, _: run_evaluation(assignment, match, folder)
    config, _, _ = check(assignment)
    return lambda folder, is_resume: train(assignment, config, folder, is_resume)


def train(assignment: Assignment, config: Any, folder: RunFolder, is_resume: bool) -> None:
    """Trains until done or stopped."""
    module = algorithm(assignment.algo)
    with open_run(
        assignment,
        folder,
        capabilities=CAPABILITIES,
        total_timesteps=config.total_timesteps,
        keep_checkpoints=assignment.keep_checkpoints or KEEP_CHECKPOINTS,
        checkpoint_every=config.checkpoint_interval,
    ) as run:
        try:
            resumed = last_good_checkpoint(folder) if is_resume else None
            run.hello(resumed)
            if is_resume and resumed is None:
                run.warn("No checkpoint to resume from is whole: the run starts from the beginning.", "no_checkpoint")
            if resumed is None:
                run.hyperparameters(config.model_dump())
            run.frames = live_frames(assignment, run, config.env_id)
            with filmed(assignment, run):
                module.train(config, run, resumed)
            run.say()
            if assignment.saves_model:
                _save_model(run, assignment.algo, config)
            if assignment.evaluates_model and not run.stop_requested:
                from cleanrl_worker.evaluation import evaluate_trained

                evaluate_trained(assignment, run)
        except MosaicError as error:
            run.finish("rejected" if isinstance(error, BadInput) else "failed", str(error))
            raise
        is_done = run.global_step >= config.total_timesteps or not run.stop_requested
        run.finish("succeeded" if is_done else "stopped")


def reject(folder: RunFolder, sentence: str) -> None:
    """Writes down that an accepted run was refused by the worker after all."""
    with Run.open(folder, worker=WORKER, version=__version__, capabilities=()) as run:
        if run.attempt == 1:  # a later one that begins nothing must not drop what the earlier ones did
            run.hello()
        run.finish("rejected", sentence)


def _save_model(run: Run, algo: str, config: Any) -> None:
    """The file that users of CleanRL know, from the checkpoint that training ended with."""
    checkpoint = last_good_checkpoint(run.folder, with_parts=False)
    if checkpoint is None:
        run.warn("No checkpoint was saved, so no .cleanrl_model was written.", "no_model")
        return
    path = run.folder.model(_run_name(run.folder, config), algo)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_model(checkpoint, path)
    run.artifact("model", str(path.relative_to(run.folder.path)))


def write_model(checkpoint: Checkpoint, path: Path) -> None:
    from mosaic.run.torchfile import save_state_dict

    save_state_dict(path, algorithm(checkpoint.facts["algorithm"]).state_dict_of(checkpoint))


def _run_name(folder: RunFolder, config: Any) -> str:
    """CleanRL's name of a run; a resumed run keeps the one it has."""
    stem = file_name(f"{config.env_id}__{config.exp_name}__{config.seed}__")
    earlier = sorted(path.name for path in folder.models.glob("*") if path.name.startswith(stem))
    return earlier[-1] if earlier else f"{stem}{int(time.time())}"
