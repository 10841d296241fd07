"""Records episodes: of a session while they are played, of a training on request, and of an evaluation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import gymnasium
import numpy as np

from mosaic.arena.recording import ActorChange, Ending, RecordedEpisode, RecordingHeader, RecordingWriter
from mosaic.arena.video_recorder import VideoRecorder, is_cubic, render_rate
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.payload import Payload
from mosaic.contracts.play import ANY_AGENT
from mosaic.envs.factory import find_family
from mosaic.envs.reproducible import HASH_INTERVAL, random_state
from mosaic.fastlane.tap import FrameRenderer, can_render
from mosaic.run import Checkpoint, Run
from mosaic.run.live_frames import LiveFrames

if TYPE_CHECKING:
    from mosaic.arena.evaluate import Episode
    from mosaic.arena.play_envs import PlayEnv
    from mosaic.contracts.play import PlayConfig

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
