"""Plays a trained policy on seeds that training never saw, and writes down how it did."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cleanrl_worker import launcher
from cleanrl_worker.config import Assignment
from cleanrl_worker.evaluation_match import Match, check, fresh_seeds, matched
from mosaic.arena import Episode, pooled, summarise
from mosaic.arena.evaluate import AT_ONCE, LONGEST
from mosaic.arena.video import Camera
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.contracts.files import write_json
from mosaic.contracts.folder import RunFolder
from mosaic.run import Run
from mosaic.run.pictures import show_film

__all__ = ["check", "evaluate_trained", "fresh_seeds", "matched", "run_evaluation"]

Json = dict[str, Any]
VIDEOS = 3
"""Episodes that are recorded when videos are asked for: the first ones."""
EPISODES_AFTER_TRAINING = 10
CAPABILITIES = ("inbox", "pause")
FIGURES = ("avg_return", "median_return", "min_return", "max_return", "std_return", "iqm")
_LONG = ("seeds", "returns", "lengths")


def run_evaluation(assignment: Assignment, match: Match, folder: RunFolder) -> None:
    """One batch, or batch after batch until stopped."""
    with launcher.open_run(assignment, folder, capabilities=CAPABILITIES) as run:
        try:
            run.hello()
            asked = _asked(assignment, folder)
            run.event("policy_eval_started", **match.facts, **asked)
            run.frames = launcher.live_frames(assignment, run, match.env_id)
            batches = Batches(assignment, match, run, asked)
            while batches.play() and assignment.extras.eval_repeat:
                pass
            run.event("policy_eval_completed", **asked, batches=len(batches.done), episodes=batches.episodes)
        except MosaicError as error:
            run.finish("rejected" if isinstance(error, BadInput) else "failed", str(error))
            raise
        run.finish("stopped" if run.stop_requested else "succeeded")


def evaluate_trained(assignment: Assignment, run: Run) -> None:
    """What CleanRL does after it has saved a model: some episodes, whose returns go to the run's own event file."""
    extras = assignment.extras
    wanted = extras.eval_batch_size or extras.eval_episodes or EPISODES_AFTER_TRAINING
    path = {"mode": "policy_eval", "policy_path": str(run.folder.path), "seed_override": extras.seed_override}
    asked = replace(
        assignment,
        config=assignment.config.model_copy(update={"algo": None, "env_id": None}),
        extras=extras.model_copy(update={**path, "eval_batch_size": wanted, "eval_episodes": None}),
        settings={},
    )
    try:
        Batches(asked, matched(asked), run, _asked(asked, run.folder), is_own_run=False).play()
    except MosaicError as error:
        run.warn(f"The policy was trained but could not be evaluated: {error}", "eval_summary_warning")


def _asked(assignment: Assignment, folder: RunFolder) -> Json:
    """What the run's reports repeat of what was asked for. Paths are relative where they lie in the run's folder."""
    place = launcher.tensorboard_folder(assignment, folder)
    if place is not None and place.is_relative_to(folder.path):
        place = place.relative_to(folder.path)
    return {
        "eval_batch_size": assignment.eval_batch_size,
        "eval_repeat": bool(assignment.extras.eval_repeat),
        "tensorboard_dir": None if place is None else str(place),
    }


class Batches:
    """Batch after batch, each on the next seeds. Those of an earlier attempt are kept."""

    def __init__(self, assignment: Assignment, match: Match, run: Run, asked: Json, is_own_run: bool = True) -> None:
        self._size = assignment.eval_batch_size
        self._captures = bool(assignment.extras.eval_capture_video)
        self._is_stochastic = bool(assignment.extras.eval_stochastic)
        self._processes = processes(assignment.cpus)
        self._match = match
        self._run = run
        self._asked = asked
        self._is_own_run = is_own_run
        """Whether the run is the evaluation's, and not a training that ends with one."""
        earlier = _earlier(run) if is_own_run else {}
        self.done: list[Json] = earlier.get("batches", [])
        self._videos: list[str] = earlier.get("videos", [])
        self.episodes = sum(batch["episodes"] for batch in self.done)
        self._is_first = True
        self._is_cut = False
        self._steps = sum(sum(batch["lengths"]) for batch in self.done)

    def play(self) -> bool:
        """One batch; False when the run was asked to stop."""
        run, match = self._run, self._match
        first = match.first_seed + len(self.done) * self._size
        number = self.episodes
        """Of its first episode: films are counted through."""
        camera = self._camera(number) if self._captures and self._is_first else None
        self._is_first = False
        started = time.monotonic()

        def record(index: int, env: Any) -> None:
            assert camera is not None
            if index not in begun:
                begun.add(index)
                camera.begin(number + index, env)
            else:
                camera.shoot(number + index)

        def on_episode(episode: Episode) -> None:
            self._note(episode)
            if camera is not None:
                camera.finish(number + episode.index, episode.episodic_return, episode.length)

        begun: set[int] = set()
        steps_before = self._steps
        try:
            episodes = match.recipe.evaluator(
                match.policy,
                self._maker(),
                range(first, first + self._size),
                not self._is_stochastic,
                on_episode=on_episode,
                record=record if camera else None,
                on_step=lambda steps: self._go_on(steps_before + steps),
                processes=self._processes,
                make_plain=lambda: match.recipe.environment(match.env_id),
            )
        finally:
            if camera is not None:
                self._videos += [str(path.relative_to(run.folder.path)) for path in sorted(camera.close())]
        if episodes:
            self._write(summarise(episodes), time.monotonic() - started)
        return not run.stop_requested

    def _go_on(self, steps: int) -> bool:
        self._steps = steps
        self._run.update(steps if self._is_own_run else self._run.global_step)
        return not self._run.stop_requested

    def _note(self, episode: Episode) -> None:
        self.episodes += 1
        if episode.length >= LONGEST and not self._is_cut:
            self._is_cut = True
            self._run.warn(
                f"An episode was cut after {LONGEST:,} steps: {self._match.env_id} has no earlier limit, and the "
                "policy seems to be stuck.",
                "eval_cut_warning",
            )
        if self._is_own_run:
            self._run.episode(
                env=episode.seed % AT_ONCE,
                step=self._steps,
                episodic_return=episode.episodic_return,
                length=episode.length,
            )
        self._run.scalar("eval/episodic_return", episode.episodic_return, self.episodes)
        self._run.scalar("eval/episodic_length", episode.length, self.episodes)

    def _camera(self, number: int) -> Camera:
        folder = self._run.folder
        return Camera(
            folder.eval_videos,
            f"{folder.run_id}-eval",
            lambda episode: episode < number + VIDEOS,
            self._run.warn,
            lambda films: show_film(self._run, films[-1]),
        )

    def _maker(self) -> Callable[[], Any]:
        """Makes one environment after the other, each to be watched as far as the run shows any."""
        from cleanrl_worker.vector import Watched

        run, match = self._run, self._match
        frames = run.frames if self._is_own_run else None
        indices = itertools.count()

        def made() -> Any:
            env = match.recipe.environment(match.env_id)
            tap = frames.tap(env, next(indices), min(AT_ONCE, self._size)) if frames else None
            return env if tap is None else Watched(env, tap)

        return made

    def _write(self, batch: Json, duration_s: float) -> None:
        batch["duration_s"] = duration_s
        batch["batch"] = len(self.done) + 1
        self.done.append(batch)
        run = self._run
        for name in FIGURES:
            if batch[name] is not None:
                run.scalar(f"eval/{name}", batch[name], batch["batch"])
        facts = {**self._match.facts, **self._asked, "deterministic": not self._is_stochastic}
        whole = {**facts, **pooled(self.done), "batches": self.done, "videos": self._videos}
        try:
            write_json(run.folder.eval_summary, whole)
        except OSError as error:
            run.warn(f"The summary of the evaluation could not be written ({error}).", "eval_summary_warning")
        brief = {key: value for key, value in {**facts, **batch}.items() if key not in _LONG}
        run.artifact("evaluation", brief)
        run.artifact("videos", self._videos)
        run.event("eval_summary_update", summary=brief)


def _earlier(run: Run) -> Json:
    """What earlier attempts have written; a file that cannot be read is kept under another name."""
    path = run.folder.eval_summary
    try:
        said = json.loads(path.read_text())
        if all(isinstance(batch["episodes"], int) for batch in said["batches"]) and isinstance(said["videos"], list):
            return dict(said)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError):
        pass
    aside = path.with_name(f"{path.name}.damaged")
    with contextlib.suppress(OSError):
        os.replace(path, aside)
    run.warn(f"The earlier summary cannot be read; it is kept as {aside}.", "eval_summary_warning")
    return {}


def processes(allowed: int | None) -> int:
    """How many may play. Only Linux forks without harm."""
    if sys.platform != "linux":
        return 1
    cores = len(os.sched_getaffinity(0))
    return cores if allowed is None else min(allowed, cores)
