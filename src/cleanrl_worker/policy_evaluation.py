"""Evaluates a trained policy on seeds that training did not use, and writes the summary."""

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
from cleanrl_worker.evaluation_policy import LoadedPolicy, check_evaluation, first_evaluation_seed, load_for_evaluation
from cleanrl_worker.worker_config import WorkerRequest
from mosaic.arena import Episode, pool_summaries, summarize
from mosaic.arena.evaluate import BATCH_SIZE, MAX_EPISODE_STEPS
from mosaic.arena.video_recorder import VideoRecorder
from mosaic.common.files import write_json
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.run_kind import RunKind
from mosaic.run import Run

__all__ = [
    "check_evaluation",
    "evaluate_after_training",
    "first_evaluation_seed",
    "load_for_evaluation",
    "run_evaluation",
]

Json = dict[str, Any]
MAX_VIDEO_EPISODES = 3
"""The number of first episodes that are recorded if videos are requested."""
EPISODES_AFTER_TRAINING = 10
CAPABILITIES = ("inbox", "pause")
SUMMARY_METRICS = ("avg_return", "median_return", "min_return", "max_return", "std_return", "iqm")
_PER_EPISODE_KEYS = ("seeds", "returns", "lengths")


def run_evaluation(request: WorkerRequest, loaded: LoadedPolicy, folder: RunFolder) -> None:
    """Run one batch, or batches until stopped."""
    with launcher.open_run(request, folder, capabilities=CAPABILITIES) as run:
        try:
            run.hello()
            asked = _request_fields(request, folder)
            run.event("policy_eval_started", **loaded.report_fields, **asked)
            run.frames = launcher.make_live_frames(request, run, loaded.env_id)
            batches = EvaluationBatches(request, loaded, run, asked)
            while batches.play_batch() and request.evaluation.repeat:
                pass
            run.event(
                "policy_eval_completed", **asked, batches=len(batches.completed_batches), episodes=batches.episode_count
            )
        except MosaicError as error:
            run.finish("rejected" if isinstance(error, BadInput) else "failed", str(error))
            raise
        run.finish("stopped" if run.stop_requested else "succeeded")


def evaluate_after_training(request: WorkerRequest, run: Run) -> None:
    """Evaluate as CleanRL does after saving a model: some episodes, whose returns go to the run's event file."""
    evaluation = request.evaluation.model_copy(
        update={
            "policy_path": str(run.folder.path),
            "episodes": request.evaluation.episodes or EPISODES_AFTER_TRAINING,
        }
    )
    asked = replace(
        request,
        config=request.config.model_copy(update={"algo": None, "env_id": None, "algo_params": {}}),
        payload=request.payload.model_copy(update={"kind": RunKind.POLICY_EVAL, "evaluation": evaluation}),
    )
    try:
        EvaluationBatches(
            asked, load_for_evaluation(asked), run, _request_fields(asked, run.folder), is_evaluation_run=False
        ).play_batch()
    except MosaicError as error:
        run.warn(f"The policy was trained but could not be evaluated: {error}", "eval_summary_warning")


def _request_fields(request: WorkerRequest, folder: RunFolder) -> Json:
    """Return the request's fields for the run's reports. Paths inside the run's folder are relative."""
    place = launcher.tensorboard_folder(request, folder)
    if place is not None and place.is_relative_to(folder.path):
        place = place.relative_to(folder.path)
    return {
        "eval_batch_size": request.eval_batch_size,
        "eval_repeat": request.evaluation.repeat,
        "tensorboard_dir": None if place is None else str(place),
    }


class EvaluationBatches:
    """Runs batches, each on the next seeds. Those of an earlier attempt are kept."""

    def __init__(
        self,
        request: WorkerRequest,
        loaded: LoadedPolicy,
        run: Run,
        request_fields: Json,
        is_evaluation_run: bool = True,
    ) -> None:
        self._batch_size = request.eval_batch_size
        self._captures_video = request.artifacts.video.capture_evaluation
        self._is_stochastic = request.evaluation.stochastic
        self._process_count = process_count(request.payload.resources.cpus)
        self._loaded = loaded
        self._run = run
        self._request_fields = request_fields
        self._is_evaluation_run = is_evaluation_run
        """Whether the run is an evaluation, not a training that ends with one."""
        earlier = _read_earlier_summary(run) if is_evaluation_run else {}
        self.completed_batches: list[Json] = earlier.get("batches", [])
        self._videos: list[str] = earlier.get("videos", [])
        self.episode_count = sum(batch["episodes"] for batch in self.completed_batches)
        self._is_first_batch = True
        self._has_warned_of_truncation = False
        self._step_count = sum(sum(batch["lengths"]) for batch in self.completed_batches)

    def play_batch(self) -> bool:
        """Run one batch; return False if the run was asked to stop."""
        run, loaded = self._run, self._loaded
        first_seed = loaded.first_seed + len(self.completed_batches) * self._batch_size
        first_episode = self.episode_count
        """The number of its first episode: videos are numbered over all batches."""
        camera = self._make_camera(first_episode) if self._captures_video and self._is_first_batch else None
        self._is_first_batch = False
        started = time.monotonic()

        def record(index: int, env: Any) -> None:
            assert camera is not None
            if index not in started_episodes:
                started_episodes.add(index)
                camera.start_episode(first_episode + index, env)
            else:
                camera.capture_frame(first_episode + index)

        def on_episode(episode: Episode) -> None:
            self._log_episode(episode)
            if camera is not None:
                camera.finish_episode(first_episode + episode.index, episode.episodic_return, episode.length)

        started_episodes: set[int] = set()
        steps_before = self._step_count
        try:
            episodes = loaded.spec.evaluator(
                loaded.policy,
                self._env_factory(),
                range(first_seed, first_seed + self._batch_size),
                not self._is_stochastic,
                on_episode=on_episode,
                record=record if camera else None,
                on_step=lambda steps: self._on_step(steps_before + steps),
                processes=self._process_count,
                make_helper_env=lambda: loaded.spec.make_env(loaded.env_id),
            )
        finally:
            if camera is not None:
                self._videos += [str(path.relative_to(run.folder.path)) for path in sorted(camera.close())]
        if episodes:
            self._write_summary(summarize(episodes), time.monotonic() - started)
        return not run.stop_requested

    def _on_step(self, steps: int) -> bool:
        self._step_count = steps
        self._run.update(steps if self._is_evaluation_run else self._run.global_step)
        return not self._run.stop_requested

    def _log_episode(self, episode: Episode) -> None:
        self.episode_count += 1
        if episode.length >= MAX_EPISODE_STEPS and not self._has_warned_of_truncation:
            self._has_warned_of_truncation = True
            self._run.warn(
                f"An episode was truncated after {MAX_EPISODE_STEPS:,} steps: {self._loaded.env_id} has no lower "
                "time limit, and the policy seems to be stuck.",
                "eval_cut_warning",
            )
        if self._is_evaluation_run:
            self._run.episode(
                env=episode.seed % BATCH_SIZE,
                step=self._step_count,
                episodic_return=episode.episodic_return,
                length=episode.length,
            )
        self._run.scalar("eval/episodic_return", episode.episodic_return, self.episode_count)
        self._run.scalar("eval/episodic_length", episode.length, self.episode_count)

    def _make_camera(self, number: int) -> VideoRecorder:
        folder = self._run.folder
        return VideoRecorder(
            folder.eval_videos,
            f"{folder.run_id}-eval",
            lambda episode: episode < number + MAX_VIDEO_EPISODES,
            self._run.warn,
            lambda videos: self._run.video_preview(videos[-1]),
        )

    def _env_factory(self) -> Callable[[], Any]:
        """Return a factory of environments whose frames are published, if the run publishes any."""
        from cleanrl_worker.vector_envs import TappedEnv

        run, loaded = self._run, self._loaded
        frames = run.frames if self._is_evaluation_run else None
        indices = itertools.count()

        def make_env() -> Any:
            env = loaded.spec.make_env(loaded.env_id)
            tap = frames.tap(env, next(indices), min(BATCH_SIZE, self._batch_size)) if frames else None
            return env if tap is None else TappedEnv(env, tap)

        return make_env

    def _write_summary(self, batch: Json, duration_s: float) -> None:
        batch["duration_s"] = duration_s
        batch["batch"] = len(self.completed_batches) + 1
        self.completed_batches.append(batch)
        run = self._run
        for name in SUMMARY_METRICS:
            if batch[name] is not None:
                run.scalar(f"eval/{name}", batch[name], batch["batch"])
        facts = {**self._loaded.report_fields, **self._request_fields, "deterministic": not self._is_stochastic}
        full_summary = {
            **facts,
            **pool_summaries(self.completed_batches),
            "batches": self.completed_batches,
            "videos": self._videos,
        }
        try:
            write_json(run.folder.eval_summary, full_summary)
        except OSError as error:
            run.warn(f"The summary of the evaluation could not be written ({error}).", "eval_summary_warning")
        batch_summary = {key: value for key, value in {**facts, **batch}.items() if key not in _PER_EPISODE_KEYS}
        run.artifact("evaluation", batch_summary)
        run.artifact("videos", self._videos)
        run.event("eval_summary_update", summary=batch_summary)


def _read_earlier_summary(run: Run) -> Json:
    """Read the summary of earlier attempts; an unreadable file is moved aside."""
    path = run.folder.eval_summary
    try:
        summary = json.loads(path.read_text())
        if all(isinstance(batch["episodes"], int) for batch in summary["batches"]) and isinstance(
            summary["videos"], list
        ):
            return dict(summary)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError):
        pass
    aside = path.with_name(f"{path.name}.damaged")
    with contextlib.suppress(OSError):
        os.replace(path, aside)
    run.warn(f"The earlier summary cannot be read; it was moved to {aside}.", "eval_summary_warning")
    return {}


def process_count(max_processes: int | None) -> int:
    """Return the number of processes to use: several only on Linux, where forking is safe."""
    if sys.platform != "linux":
        return 1
    cores = len(os.sched_getaffinity(0))
    return cores if max_processes is None else min(max_processes, cores)
