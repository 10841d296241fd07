"""What a training stores of its episodes on request: videos of some, and recordings of all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mosaic.arena.recording import RecordingHeader
from mosaic.arena.training_recorder import TrainingRecorder
from mosaic.arena.video_recorder import VideoRecorder, is_cubic
from mosaic.contracts.payload import Payload
from mosaic.run import Checkpoint, Run
from mosaic.run.live_frames import LiveFrames


@contextmanager
def record_training(payload: Payload, run: Run, header: RecordingHeader, resumed: Checkpoint | None) -> Iterator[None]:
    """Store what is requested."""
    with _record_videos(payload, run), _record_episodes(payload, run, header, resumed):
        yield


@contextmanager
def _record_videos(payload: Payload, run: Run) -> Iterator[None]:
    """Record videos of the first environment on CleanRL's schedule, if requested."""
    if not payload.artifacts.video.capture:
        yield
        return
    folder = run.folder

    def report_videos(videos: list[Path]) -> None:
        run.video_preview(videos[-1])
        earlier = folder.videos.glob("*.mp4") if run.attempt > 1 else ()
        run.artifact("videos", sorted({str(path.relative_to(folder.path)) for path in (*earlier, *videos)}))

    camera = VideoRecorder(folder.videos, folder.run_id, is_cubic, run.warn, report_videos)
    run.frames = run.frames or LiveFrames(folder, 0, run.warn)
    run.frames.camera = camera
    try:
        yield
    finally:
        camera.close()


@contextmanager
def _record_episodes(payload: Payload, run: Run, header: RecordingHeader, resumed: Checkpoint | None) -> Iterator[None]:
    """Store every episode, if requested. What an earlier attempt recorded after its checkpoint is dropped."""
    if not payload.artifacts.record_episodes:
        yield
        return
    recorder = TrainingRecorder(run, header)
    recorder.open(0 if resumed is None else resumed.step)
    run.frames = run.frames or LiveFrames(run.folder, 0, run.warn)
    run.frames.recorder = recorder
    try:
        yield
    finally:
        recorder.close()
