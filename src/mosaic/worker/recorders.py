"""Records what happens in environments: the steps and episodes of a training or an evaluation, and videos."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import gymnasium
import numpy as np

from mosaic.base.fastlane import FrameTap
from mosaic.base.fastlane.tap import FrameRenderer, can_render
from mosaic.base.media import VideoWriter
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.payload import Payload
from mosaic.contracts.play import ANY_AGENT
from mosaic.worker.checkpoints import Checkpoint
from mosaic.worker.envs.factory import find_family
from mosaic.worker.envs.reproducible import HASH_INTERVAL, random_state
from mosaic.worker.live_frames import LiveFrames
from mosaic.worker.recording import ActorChange, Ending, RecordedEpisode, RecordingHeader, RecordingWriter
from mosaic.worker.run import Run

if TYPE_CHECKING:
    from mosaic.contracts.play import PlayConfig
    from mosaic.worker.evaluation import Episode
    from mosaic.worker.play_envs import PlayEnv

# --- Records episodes as MP4 files. Frames are rendered on the environment's thread and encoded on another.


MAX_QUEUED_FRAMES = 32
"""Frames that may wait for the encoder. Beyond that, rendering waits, to bound the memory."""
DEFAULT_FPS = 30


class EpisodeVideo:
    """The video of one episode, with a `.meta.json` next to it."""

    def __init__(self, path: Path, fps: int) -> None:
        self.path = path
        self._fps = fps
        self._writer: VideoWriter | None = None

    def add_frame(self, image: np.ndarray) -> None:
        """Append a frame (bytes [height, width, 3: RGB or 4: BGRX])."""
        if self._writer is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = VideoWriter(self.path, self._fps)
        self._writer.add(image)

    def finish(self, episode_id: str, episode_return: float, episode_length: int) -> None:
        """Write the metadata and complete the video."""
        if self._writer is None:
            return
        metadata = {
            "episode_id": episode_id,
            "episode_return": episode_return,
            "episode_length": episode_length,
            "timestamp": time.time(),
        }
        # Before the video gets its name: a video that exists has its metadata.
        self.path.with_suffix(".meta.json").write_text(json.dumps(metadata, indent=1) + "\n", encoding="utf-8")
        self._writer.finish()

    def discard(self) -> None:
        """Remove the incomplete video of an episode that did not end."""
        if self._writer is not None:
            self._writer.discard()


class _Recording(NamedTuple):
    renderer: FrameRenderer
    video: EpisodeVideo


class VideoRecorder:
    """Records the episodes chosen by `should_record`. If a frame cannot be rendered, it warns once and stops."""

    def __init__(
        self,
        folder: Path,
        episode_name: str,
        should_record: Callable[[int], bool],
        warn: Callable[[str, str], None],
        on_finished: Callable[[list[Path]], None] | None = None,
    ) -> None:
        """`on_finished` is called with the complete videos, in the encoder's thread."""
        self._folder = folder
        self._episode_name = episode_name
        self._should_record = should_record
        self._warn = warn
        self._on_finished = on_finished
        self._recordings: dict[int, _Recording] = {}
        self._finished_videos: list[Path] = []
        self._problem: Exception | None = None
        self._has_given_up = False
        self._encode_queue: queue.Queue[Callable[[], None] | None] = queue.Queue(MAX_QUEUED_FRAMES)
        self._thread: threading.Thread | None = None

    @property
    def finished_videos(self) -> list[Path]:
        """Videos that are complete."""
        return list(self._finished_videos)

    def start_episode(self, number: int, env: Any) -> bool:
        """Start recording an episode and capture its first frame; return whether it is recorded."""
        if self._has_given_up or not self._should_record(number):
            return False
        if self._thread is None:
            self._thread = threading.Thread(target=self._encode_loop, name="video-encoder", daemon=True)
            self._thread.start()
        video = EpisodeVideo(self._folder / video_name(number), int(render_rate(env)))
        self._recordings[number] = _Recording(FrameRenderer(env), video)
        self.capture_frame(number)
        return True

    def capture_frame(self, number: int) -> None:
        """Call after each step of a recorded episode."""
        recording = self._recordings.get(number)
        if recording is None or self._has_given_up:
            return
        try:
            if self._problem is not None:
                raise self._problem
            # A copy: the next frame may reuse the same memory.
            frame = np.array(recording.renderer.render_frame())
        except Exception as error:
            # Graphics drivers, encoders and full disks raise all kinds of errors; none of them may fail the run.
            self._has_given_up = True
            self._warn(f"No video: {error}. To see what is wrong: mosaic doctor", "no_video")
            return
        self._encode_queue.put(lambda: recording.video.add_frame(frame))

    def finish_episode(self, number: int, episodic_return: float, length: int) -> None:
        recording = self._recordings.pop(number, None)
        if recording is None or self._has_given_up:
            return

        def finish() -> None:
            recording.video.finish(f"{self._episode_name}-{number}", episodic_return, length)
            self._finished_videos.append(recording.video.path)
            if self._on_finished is not None:
                self._on_finished(self.finished_videos)

        self._encode_queue.put(finish)

    def discard_episode(self, number: int) -> None:
        """Remove the video of an episode that was left before its first step."""
        recording = self._recordings.pop(number, None)
        if recording is not None:
            self._encode_queue.put(recording.video.discard)

    def _encode_loop(self) -> None:
        while (work := self._encode_queue.get()) is not None:
            try:
                if self._problem is None:
                    work()
            except Exception as error:
                self._problem = error

    def close(self) -> list[Path]:
        """Wait for the encoder, discard unfinished episodes and return the complete videos."""
        if self._thread is not None:
            self._encode_queue.put(None)
            self._thread.join()
            self._thread = None
        for recording in self._recordings.values():
            recording.video.discard()
        if self._problem is not None and not self._has_given_up:
            self._has_given_up = True
            self._warn(f"No video: {self._problem}. To see what is wrong: mosaic doctor", "no_video")
        return self.finished_videos


def render_rate(env: Any) -> float:
    """Return the frames per second at which an environment is meant to be watched."""
    return float((getattr(env, "metadata", None) or {}).get("render_fps") or DEFAULT_FPS)


def video_name(number: int) -> str:
    return f"rl-video-episode-{number}.mp4"


def is_cubic(number: int) -> bool:
    """Return whether an episode is recorded during training: 0, 1, 8, 27, …, then every thousandth."""
    return round(number ** (1 / 3)) ** 3 == number if number < 1000 else number % 1000 == 0


# --- Records episodes: of a session while they are played, of a training on request, and of an evaluation.


Warn = Callable[[str, str], None]

FLUSH_S = 1.0
"""How long a step of a session may be unrecorded if the process is killed."""
FLUSH_STEPS = 20_000
"""Steps of complete episodes of a run that are packed together."""
EVALUATION_ACTOR = "policy"
"""Who acts; in the recording of a training, this tells the episodes of its evaluation from the others."""


class _Recorder:
    """Appends episodes to a recording. If that fails, it warns once and records nothing more: the run continues."""

    def __init__(self, path: Path, header: RecordingHeader, warn: Warn) -> None:
        self._path, self._header, self._warn = path, header, warn
        self._writer: RecordingWriter | None = None
        self.next_number = 0
        """Of an episode."""

    def open(self, until_step: int | None = None) -> None:
        """Start or continue the file. What was recorded after this step is dropped; None: nothing."""
        with self._ending_on_errors():
            self._writer = RecordingWriter(self._path, self._header, until_step)
            self.next_number = self._writer.next_number

    @property
    def is_open(self) -> bool:
        return self._writer is not None

    def _append(self, episodes: Sequence[RecordedEpisode], step: int = 0) -> None:
        if self._writer is not None and episodes:
            with self._ending_on_errors():
                self._writer.append(episodes, step)

    @contextmanager
    def _ending_on_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, MosaicError) as error:
            self._end()
            self._warn(f"No more episodes are recorded: {error}", "recording_failed")

    def _end(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


# --- of a session


class EpisodeRecorder(_Recorder):
    """Collects episodes and the steps of the current one, and appends them to the recording at intervals.

    Short episodes share a block, which takes less space than one for each.
    """

    def __init__(
        self,
        path: Path | None,
        header: RecordingHeader,
        warn: Warn,
        env: PlayEnv,
        camera: VideoRecorder | None = None,
    ) -> None:
        """Without a path, nothing is recorded. A `camera` stores the frames of `env`, too."""
        super().__init__(path or Path(), header, warn)
        self._renderer = FrameRenderer(env.env) if header.has_frame_hashes else None
        self._camera = camera
        self._env = env
        if path is not None:
            self.open()
        self._flushed_at = time.monotonic()
        self._parts: list[RecordedEpisode] = []
        """Of episodes that have ended since the last block."""
        self._length = 0
        self._actions: list[Any] = []
        self._rewards: list[Any] = []
        self._hashes: list[tuple[int, int]] = []
        self._changes: list[ActorChange] = []

    def start(self, seed: int, actors: Mapping[str, str]) -> None:
        self._seed: int | None = seed
        self._actions, self._rewards, self._length = [], [], 0
        self._changes = [ActorChange(0, agent, actor) for agent, actor in actors.items()]
        self._total_reward = 0.0
        self._hashes = []
        self._add_hash()
        if self._camera is not None:
            self._camera.start_episode(self.next_number, self._env.env)

    def _add_hash(self) -> None:
        if self.is_open:
            value = self._env.hash_observation()
            self._hashes.append((self._length, value if self._renderer is None else self._renderer.hash_frame(value)))

    def add(self, action_row: Any, reward_row: Any) -> None:
        self._actions.append(action_row)
        self._rewards.append(reward_row)
        self._length += 1
        self._total_reward += float(np.sum(reward_row))
        if self._length % HASH_INTERVAL == 0:
            self._add_hash()
        if self._camera is not None:
            self._camera.capture_frame(self.next_number)
        self.flush_if_due()

    def flush_if_due(self) -> None:
        """Write what was played, also while nothing happens: a player may think for long."""
        if (self._actions or self._parts) and time.monotonic() - self._flushed_at > FLUSH_S:
            self._flush()

    def change_actor(self, agent: str, actor: str) -> None:
        self._changes.append(ActorChange(self._length, agent, actor))

    def finish(self, ending: Ending) -> None:
        """End the episode; one that was left in the middle stays `running`."""
        if self._length and self._length % HASH_INTERVAL:
            self._add_hash()
        if self._length and (self._actions or ending != "running"):
            self._end_part(ending)
            self.flush_if_due()
        if self._camera is not None and self._length:
            self._camera.finish_episode(self.next_number, self._total_reward, self._length)
        elif self._camera is not None:
            self._camera.discard_episode(self.next_number)
        self.next_number += bool(self._length)

    def _end_part(self, ending: Ending) -> None:
        """Move the steps of the current episode to the parts of the next block."""
        number, actions, rewards = self.next_number, np.array(self._actions), np.array(self._rewards, np.float64)
        changes, hashes = tuple(self._changes), tuple(self._hashes)
        self._parts.append(RecordedEpisode(number, self._seed, None, actions, rewards, ending, changes, hashes))
        self._seed, self._actions, self._rewards, self._changes, self._hashes = None, [], [], [], []

    def _flush(self) -> None:
        self._flushed_at = time.monotonic()
        if self._actions:
            self._end_part("running")
        parts, self._parts = self._parts, []
        self._append(parts)

    def close(self) -> None:
        self._flush()
        self._end()

    def _end(self) -> None:
        if self._camera is not None:
            self._camera.close()
            self._camera = None
        super()._end()


# --- of a training, and of an evaluation


class RunRecorder(_Recorder):
    """Collects complete episodes and appends them to the run's recording."""

    def __init__(self, run: Run, header: RecordingHeader, read_step: Callable[[], int]) -> None:
        """`read_step` returns the step that is written with a block, and by which a later attempt drops blocks."""
        super().__init__(run.folder.recording, choose_replay_without_frames(header, run.warn), run.warn)
        self._read_step = read_step
        self._episodes: list[RecordedEpisode] = []
        self._steps = 0

    def add_episode(self, episode: RecordedEpisode) -> None:
        if not self.is_open:
            return
        self.next_number = max(self.next_number, episode.number + 1)
        self._episodes.append(episode)
        self._steps += len(episode)
        if self._steps >= FLUSH_STEPS:
            self.flush()

    def flush(self) -> None:
        """Write what is collected."""
        if self.is_open and self._episodes:
            episodes, self._episodes, self._steps = self._episodes, [], 0
            self._append(episodes, self._read_step())

    def close(self) -> None:
        self.flush()
        self._end()


class TrainingRecorder(RunRecorder):
    """Gets every episode from the arrays of rollouts. Flushed before a checkpoint, so that a resumed run continues
    exactly there."""

    def __init__(self, run: Run, header: RecordingHeader) -> None:
        super().__init__(run, header, lambda: int(run.global_step))

    def add(
        self,
        seed: int | None,
        random_state: Mapping[str, Any] | None,
        actions: Sequence[np.ndarray],
        rewards: Sequence[np.ndarray],
        is_terminal: bool,
        hashes: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Add a complete episode, in parts; `hashes` are those of observations, by step."""
        if not self.is_open:
            return
        self.add_episode(
            RecordedEpisode(
                self.next_number,
                seed,
                random_state,
                actions[0] if len(actions) == 1 else np.concatenate(actions),
                rewards[0] if len(rewards) == 1 else np.concatenate(rewards),
                "terminated" if is_terminal else "truncated",
                hashes=tuple(hashes),
            )
        )


class EvaluationRecorder(RunRecorder):
    """Numbers episodes by their seeds, in whatever order they end.

    In a run that is an evaluation, blocks are written with the number of their batch: a further attempt drops those of
    a batch that it plays again. Those of an evaluation after training are appended to the training's recording.
    """

    def __init__(self, run: Run, header: RecordingHeader, batch_size: int, completed_batches: int | None) -> None:
        """`completed_batches` of an evaluation; None after training."""
        self._batch_size = batch_size
        self._batch = None if completed_batches is None else completed_batches + 1
        super().__init__(run, header, lambda: int(run.global_step) if self._batch is None else self._batch)
        self.open(completed_batches)
        self._first_number = self.next_number if completed_batches is None else completed_batches * batch_size

    def add(self, episode: Episode) -> None:
        steps = episode.steps
        assert steps is not None
        self.add_episode(
            RecordedEpisode(
                self._first_number + episode.index,
                episode.seed,
                None,
                steps.actions,
                steps.rewards,
                "terminated" if steps.is_terminated else "truncated",
                (ActorChange(0, ANY_AGENT, EVALUATION_ACTOR),),
                steps.hashes,
            )
        )

    def finish_batch(self) -> None:
        self.flush()
        self._first_number += self._batch_size
        if self._batch is not None:
            self._batch += 1


def open_evaluation_recorder(
    run: Run, header: RecordingHeader | None, batch_size: int, completed_batches: int | None
) -> EvaluationRecorder | None:
    """Return what records an evaluation; None, with a warning, where that is impossible."""
    problem = ""
    if header is None:
        problem = "The evaluation is not recorded: its environment cannot be simulated again."
    elif completed_batches is None and header.preprocessing != "none":
        problem = (
            "The evaluation after training is not recorded: its games are whole, those of the training end with each "
            "life. Record one: mosaic eval RUN --record-episodes"
        )
    if header is not None and not problem:
        return EvaluationRecorder(run, header, batch_size, completed_batches)
    run.warn(problem, "recording_failed")
    return None


@contextmanager
def record_training(payload: Payload, run: Run, header: RecordingHeader, resumed: Checkpoint | None) -> Iterator[None]:
    """Store what is requested: videos of the first environment on CleanRL's schedule, and recordings of all episodes.

    What an earlier attempt recorded after its checkpoint is dropped.
    """
    folder = run.folder
    camera = recorder = None

    def report_videos(videos: list[Path]) -> None:
        run.video_preview(videos[-1])
        earlier = folder.videos.glob("*.mp4") if run.attempt > 1 else ()
        run.artifact("videos", sorted({str(path.relative_to(folder.path)) for path in (*earlier, *videos)}))

    if payload.artifacts.video.capture or payload.artifacts.record_episodes:
        run.frames = run.frames or LiveFrames(folder, 0, run.warn)
    if payload.artifacts.video.capture:
        assert run.frames is not None
        camera = run.frames.camera = VideoRecorder(folder.videos, folder.run_id, is_cubic, run.warn, report_videos)
    try:
        if payload.artifacts.record_episodes:
            assert run.frames is not None
            recorder = run.frames.recorder = TrainingRecorder(run, header)
            recorder.open(0 if resumed is None else resumed.step)
        yield
    finally:
        for one in (recorder, camera):
            if one is not None:
                one.close()


# --- whether episodes can be simulated again, and what is stored where they cannot


def explain_irreproducible(env_id: str, core: Any = None) -> str:
    """Return why the same start and actions may give another episode; empty where they give the same one.

    `core` is the unwrapped environment, where there is one.
    """
    family, spec = find_family(env_id), gymnasium.registry.get(env_id.rpartition(":")[2])
    if family is not None and not family.is_reproducible:
        return f"episodes of {family.title} are different each time"
    if spec is not None and spec.nondeterministic:
        return "it is registered as nondeterministic"
    if spec is not None and core is not None and random_state(core) is None:
        return "it has no random state that can be stored"
    return ""


def choose_session_replay(
    header: RecordingHeader, env: PlayEnv, config: PlayConfig, names: tuple[str, ...], warn: Warn
) -> RecordingHeader:
    """Return the header of a session: where its episodes cannot be simulated again, frames are stored if there are."""
    reason = explain_irreproducible(header.env_id, env.core)
    problem = _find_render_problem(env, config.seed) if reason or config.compare_frames else ""
    if not reason:
        if problem:
            warn(f"Frames of {header.env_id} are not compared in a replay: {problem}", "frames_not_compared")
        return header.model_copy(update={"has_frame_hashes": config.compare_frames and not problem})
    stored: Literal["frames", "nothing"] = "nothing" if problem else "frames"
    consequence = f"only actions and rewards are recorded: {problem}" if problem else "its frames are stored as videos"
    warn(f"{header.env_id} cannot be simulated again, because {reason}, so {consequence}.", "not_simulated_again")
    return header.model_copy(
        update={"replay": stored, "reason": reason, "action_names": names, "rate_hz": render_rate(env.env)}
    )


def _find_render_problem(env: PlayEnv, seed: int) -> str:
    """Return why the environment cannot be rendered, by rendering it once; empty where it can."""
    if not can_render(env.env):
        return "it cannot be rendered"
    try:
        env.reset(seed)
        FrameRenderer(env.env).render_frame()
    except Exception as error:  # graphics drivers raise all kinds of errors
        return str(error) or type(error).__name__
    return ""


def choose_replay_without_frames(header: RecordingHeader, warn: Warn) -> RecordingHeader:
    """Return the header of a training or an evaluation. Rendering each step would be too slow there."""
    reason = explain_irreproducible(header.env_id)
    if not reason:
        return header
    warn(
        f"{header.env_id} cannot be simulated again, because {reason}, so only actions and rewards are recorded.",
        "not_simulated_again",
    )
    return header.model_copy(update={"replay": "nothing", "reason": reason})


# --- Environments whose frames are published.


class TappedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A single environment whose frames are published."""

    def __init__(self, env: gymnasium.Env[Any, Any], tap: FrameTap) -> None:
        super().__init__(env)
        self._tap = tap

    def step(self, action: Any) -> Any:
        observation, reward, is_terminal, is_truncated, info = self.env.step(action)
        self._tap.step(float(reward), is_terminal or is_truncated)
        return observation, reward, is_terminal, is_truncated, info

    def reset(self, **options: Any) -> Any:
        self._tap.reset()
        return self.env.reset(**options)

    def close(self) -> None:
        self._tap.close()
        super().close()
