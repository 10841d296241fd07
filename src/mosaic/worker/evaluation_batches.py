"""Evaluates a trained policy on seeds that training did not use, and writes the summary."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from mosaic.base.eval_summary import EvalSummaryInvalid, read_eval_summary
from mosaic.base.files import write_json
from mosaic.base.worker_registry import ActingPolicy, WorkerDescription
from mosaic.contracts.errors import BadInput
from mosaic.contracts.events import Steps
from mosaic.contracts.names import EVAL_LENGTH_TAG, EVAL_RETURN_TAG
from mosaic.contracts.options import OPTIONS
from mosaic.contracts.payload import Payload
from mosaic.contracts.views import EvaluationBatch, EvaluationSummary
from mosaic.worker.evaluation import (
    BATCH_SIZE,
    MAX_EPISODE_STEPS,
    Episode,
    EvaluablePolicy,
    evaluate,
    pool_summaries,
    summarize,
)
from mosaic.worker.recorders import EvaluationRecorder, VideoRecorder, open_evaluation_recorder
from mosaic.worker.recording import RecordingHeader
from mosaic.worker.run import Run
from mosaic.worker.worker_run import open_evaluation, run_folder

MAX_VIDEO_EPISODES = 3
"""The number of first episodes that are recorded if videos are requested."""
MAX_WRITING_SHARE = 0.05
"""The part of the time that writing a file may take while batches are repeated; the summary grows with every batch."""
SUMMARY_METRICS = ("avg_return", "median_return", "min_return", "max_return", "std_return", "iqm")
_POLICY_FIELDS = {"algo", "env_id", "policy_path", "checkpoint_step"}
_REQUEST_FIELDS = {"eval_batch_size", "eval_repeat", "tensorboard_dir"}
"""Fields of the summary that the run's events repeat."""

FLUSH_S = 0.25
"""Interval at which recorded steps are written."""
MAX_ROWS_PER_EVENT = 2_000


class StepRecorder:
    """Writes the steps of its environments to the run's journal, a few times a second."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.rows: list[tuple[int | None, int, float, float, Any]] = []
        self._flush_at = 0.0

    def wrap(self, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        return RecordedEnv(env, self)

    def flush_if_due(self) -> None:
        if len(self.rows) >= MAX_ROWS_PER_EVENT or (self.rows and time.monotonic() >= self._flush_at):
            self.flush()

    def flush(self) -> None:
        self._flush_at = time.monotonic() + FLUSH_S
        for start in range(0, len(self.rows), MAX_ROWS_PER_EVENT):
            self._run.event(Steps.KIND, rows=self.rows[start : start + MAX_ROWS_PER_EVENT])
        self.rows.clear()


class RecordedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: gymnasium.Env[Any, Any], recorder: StepRecorder) -> None:
        super().__init__(env)
        self._recorder = recorder
        self._seed: int | None = None
        self._length = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._seed, self._length = seed, 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self._length += 1
        self._recorder.rows.append(
            (self._seed, self._length, time.time(), float(result[1]), np.asarray(action).tolist())
        )
        return result


@dataclass(frozen=True)
class EvaluatedPolicy:
    """A saved policy that its worker has loaded for an evaluation."""

    path: Path
    step: int | None
    """The step of its checkpoint; None for a file of weights."""
    algo: str
    env_id: str
    first_seed: int
    policy: EvaluablePolicy
    make_env: Callable[..., Any]
    """Makes the environment, with the wrappers used in training."""
    header: RecordingHeader | None
    """What a recording makes the same environment from; None where its episodes cannot be simulated again."""


def first_evaluation_seed(training_seed: int) -> int:
    """Return the first evaluation seed, far away from the seeds that training uses."""
    return 1_000_000 + training_seed * 10_000


def warn_of_truncation(run: Run, env_id: str) -> None:
    run.warn(
        f"An episode was truncated after {MAX_EPISODE_STEPS:,} steps: {env_id} has no lower time limit, and the policy "
        "seems to be stuck.",
        "eval_cut_warning",
    )


def batch_size(payload: Payload) -> int:
    """Return the number of episodes of a batch."""
    episodes: int = payload.evaluation.episodes or OPTIONS["eval_batch_size"].default
    return episodes


def play_batches(payload: Payload, loaded: EvaluatedPolicy, run: Run) -> None:
    """Play one batch, or batches until stopped, and end the run."""
    batches = EvaluationBatches(payload, loaded, run)
    run.event("policy_eval_started", **batches.header.model_dump(include=_POLICY_FIELDS | _REQUEST_FIELDS))
    try:
        while batches.play_batch() and payload.evaluation.repeat:
            pass
    finally:
        batches.close()
    counts = {"batches": len(batches.completed_batches), "episodes": batches.episode_count}
    run.event("policy_eval_completed", **batches.header.model_dump(include=_REQUEST_FIELDS), **counts)
    run.finish("stopped" if run.stop_requested else "succeeded")


class _LoadedPolicy:
    """A policy of a worker's `load_policy`, as an evaluation plays it."""

    def __init__(self, loaded: ActingPolicy) -> None:
        if loaded.rows is not None:
            raise BadInput(f"{loaded.path}: a policy with memory cannot be evaluated by evaluate_saved_policy.")
        self.act, self.to_array = loaded.act, loaded.flatten


class _Request(NamedTuple):
    payload: Payload
    names: dict[str, str]


def evaluate_saved_policy(worker: WorkerDescription, config: Mapping[str, Any]) -> None:
    """Evaluate the policy that the config of an evaluation names, for the program of a worker with `load_policy`."""
    payload = Payload.parse(config)
    given, seed = payload.metadata.worker.config, payload.evaluation.seed
    assert payload.evaluation.policy_path is not None
    assert worker.load_policy is not None
    loaded = worker.load_policy(Path(payload.evaluation.policy_path), given.get("algo"), given.get("env_id"))
    first_seed = first_evaluation_seed(given.get("seed") or 1) if seed is None else seed
    facts = (loaded.path, loaded.step, loaded.algo, loaded.env_id, first_seed)
    evaluated = EvaluatedPolicy(*facts, _LoadedPolicy(loaded), loaded.make_env, header=None)
    folder = run_folder(given["run_id"])
    with open_evaluation(Run, worker.id, _Request(payload, {}), folder, loaded.env_id) as run:
        play_batches(payload, evaluated, run)


def _summary_header(payload: Payload, loaded: EvaluatedPolicy, run: Run) -> EvaluationSummary:
    """Return the summary before the first batch."""
    return EvaluationSummary(
        algo=loaded.algo,
        env_id=loaded.env_id,
        policy_path=run.folder.to_portable(loaded.path),
        checkpoint_step=loaded.step,
        deterministic=not payload.evaluation.stochastic,
        eval_batch_size=batch_size(payload),
        eval_repeat=payload.evaluation.repeat,
        tensorboard_dir=run.tensorboard_dir,
    )


class TimeBudget:
    """Bounds the share of time that a repeated block takes."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._available_at = 0.0

    @property
    def is_available(self) -> bool:
        return time.monotonic() >= self._available_at

    def __enter__(self) -> None:
        self._started_at = time.monotonic()

    def __exit__(self, *_: object) -> None:
        now = time.monotonic()
        self._available_at = now + (now - self._started_at) / self._share


class EvaluationBatches:
    """Runs batches, each on the next seeds. Those of an earlier attempt are kept."""

    def __init__(
        self,
        payload: Payload,
        loaded: EvaluatedPolicy,
        run: Run,
        is_evaluation_run: bool = True,
        logs_points: bool = True,
    ) -> None:
        self.header = _summary_header(payload, loaded, run)
        self._batch_size = batch_size(payload)
        self._captures_video = payload.artifacts.video.capture_evaluation
        self._steps = StepRecorder(run) if payload.evaluation.record_steps else None
        # Helper processes could not write to the journal.
        self._process_count = 1 if self._steps else process_count(payload.resources.cpus)
        self._loaded = loaded
        self._run = run
        self._is_evaluation_run = is_evaluation_run
        """Whether the run is an evaluation, not a training that ends with one."""
        self._logs_points = logs_points
        """Whether results are points, by number of episode and batch; not where the tags have points by step."""
        earlier = _read_earlier_summary(run) if is_evaluation_run else None
        self.completed_batches = [] if earlier is None else list(earlier.batches)
        self._videos = [] if earlier is None else list(earlier.videos)
        earlier_videos = [] if is_evaluation_run else sorted(run.folder.videos.glob("*.mp4"))
        self._training_videos = [str(path.relative_to(run.folder.path)) for path in earlier_videos]
        self.episode_count = sum(batch.episodes for batch in self.completed_batches)
        self._is_first_batch = True
        self._has_unwritten_batches = False
        self._summary_budget = TimeBudget(MAX_WRITING_SHARE)
        self._analytics_budget = TimeBudget(MAX_WRITING_SHARE)
        self._has_warned_of_truncation = False
        self._recorder: EvaluationRecorder | None = None
        if payload.artifacts.record_episodes:
            completed = len(self.completed_batches) if is_evaluation_run else None
            self._recorder = open_evaluation_recorder(run, loaded.header, self._batch_size, completed)
        self._step_count = sum(sum(batch.lengths) for batch in self.completed_batches)

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
            if self._recorder is not None:
                self._recorder.add(episode)
            if camera is not None:
                camera.finish_episode(first_episode + episode.index, episode.episodic_return, episode.length)

        started_episodes: set[int] = set()
        steps_before = self._step_count
        try:
            episodes = evaluate(
                loaded.policy,
                self._env_factory(),
                range(first_seed, first_seed + self._batch_size),
                self.header.deterministic,
                on_episode=on_episode,
                record=record if camera else None,
                on_step=lambda steps: self._on_step(steps_before + steps),
                processes=self._process_count,
                make_helper_env=loaded.make_env,
                records_steps=self._recorder is not None,
            )
        finally:
            if self._steps is not None:
                self._steps.flush()
            if self._recorder is not None:
                self._recorder.finish_batch()
            if camera is not None:
                self._videos += [str(path.relative_to(run.folder.path)) for path in sorted(camera.close())]
        if episodes:
            number, duration_s = len(self.completed_batches) + 1, time.monotonic() - started
            self._add_batch(EvaluationBatch(**summarize(episodes), batch=number, duration_s=duration_s))
        return not run.stop_requested

    def _on_step(self, steps: int) -> bool:
        self._step_count = steps
        if self._steps is not None:
            self._steps.flush_if_due()
        self._run.update(steps if self._is_evaluation_run else self._run.global_step)
        return not self._run.stop_requested

    def _log_episode(self, episode: Episode) -> None:
        self.episode_count += 1
        if episode.length >= MAX_EPISODE_STEPS and not self._has_warned_of_truncation:
            self._has_warned_of_truncation = True
            warn_of_truncation(self._run, self._loaded.env_id)
        if self._is_evaluation_run:
            self._run.episode(
                env=episode.seed % BATCH_SIZE,
                step=self._step_count,
                episodic_return=episode.episodic_return,
                length=episode.length,
            )
        if self._logs_points:
            self._run.scalar(EVAL_RETURN_TAG, episode.episodic_return, self.episode_count)
            self._run.scalar(EVAL_LENGTH_TAG, episode.length, self.episode_count)

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
        from mosaic.worker.recorders import TappedEnv

        run, loaded = self._run, self._loaded
        frames = run.frames if self._is_evaluation_run else None
        indices = itertools.count()

        def make_env() -> Any:
            env = loaded.make_env()
            if self._steps is not None:
                env = self._steps.wrap(env)
            tap = frames.tap(env, next(indices), min(BATCH_SIZE, self._batch_size)) if frames else None
            return env if tap is None else TappedEnv(env, tap)

        return make_env

    def _add_batch(self, batch: EvaluationBatch) -> None:
        """Log a batch and write the summary of all batches."""
        self.completed_batches.append(batch)
        run = self._run
        for name in SUMMARY_METRICS if self._logs_points else ():
            if (value := getattr(batch, name)) is not None:
                run.scalar(f"eval/{name}", value, batch.batch)
        self._has_unwritten_batches = True
        if self._summary_budget.is_available:
            self.write_summary()
        report = self.header.model_dump(include=_POLICY_FIELDS | _REQUEST_FIELDS | {"deterministic"})
        report |= batch.model_dump(exclude={"seeds", "returns", "lengths"})
        run.artifact("evaluation", report)
        run.artifact("videos", self._training_videos + self._videos)
        run.event("eval_summary_update", summary=report)
        if self._analytics_budget.is_available:
            with self._analytics_budget:
                run.write_analytics()

    def close(self) -> None:
        """Write what is left: the summary, and the recording."""
        self.write_summary()
        if self._recorder is not None:
            self._recorder.close()

    def write_summary(self) -> None:
        """Write the summary of all batches, unless the file has them already."""
        if not self._has_unwritten_batches:
            return
        with self._summary_budget:
            pooled = pool_summaries([one.model_dump() for one in self.completed_batches])
            batches = {"batches": self.completed_batches, "videos": self._videos}
            summary = EvaluationSummary.model_validate(self.header.model_dump() | pooled | batches)
            try:
                write_json(self._run.folder.eval_summary, summary.model_dump(exclude={"batch", "duration_s"}))
                self._has_unwritten_batches = False
            except OSError as error:
                self._run.warn(f"The summary of the evaluation could not be written ({error}).", "eval_summary_warning")


def _read_earlier_summary(run: Run) -> EvaluationSummary | None:
    """Read the summary of earlier attempts; an invalid file is moved aside."""
    path = run.folder.eval_summary
    try:
        return read_eval_summary(path)
    except EvalSummaryInvalid:
        aside = path.with_name(f"{path.name}.damaged")
        with contextlib.suppress(OSError):
            os.replace(path, aside)
        run.warn(f"The earlier summary cannot be read; it was moved to {aside}.", "eval_summary_warning")
        return None


def process_count(max_processes: int | None) -> int:
    """Return the number of processes to use: several only on Linux, where forking is safe."""
    if sys.platform != "linux":
        return 1
    cores = len(os.sched_getaffinity(0))
    return cores if max_processes is None else min(max_processes, cores)
