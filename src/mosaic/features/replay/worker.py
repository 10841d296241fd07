"""`python -m mosaic.features.replay.worker verify|play|export FILE …`: replays recorded episodes.

`verify FILE [EPISODE…]` prints a `ReplayReport` per episode as a line of JSON; `play FILE` is a player that answers
requests; `export FILE TARGET` writes an .mp4, .gif or .jsonl and prints its progress. A failure is a `ReplayFailed` as
the last line. A process of its own: the command line and the window import no environment, and an environment that
crashes takes nothing else with it.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import queue
import signal
import sys
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Protocol

import numpy as np
from pydantic import ValidationError

from mosaic.base.fastlane import limit_size, scale_image_smoothly
from mosaic.base.fastlane.tap import RenderUnavailable
from mosaic.base.files import atomic_write, write_error
from mosaic.base.media import VideoWriter
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.contracts.replays import (
    ExportProgress,
    FrameShape,
    ReplayFailed,
    ReplayMessage,
    ReplayReport,
    ReplayRequest,
    ReplayStep,
)
from mosaic.contracts.views import SessionState
from mosaic.features.replay.worker_player import EpisodeReplay, ReplaySource
from mosaic.worker.play_envs import describe_action

# --- Writes recorded episodes as an MP4, as an animated GIF, or as JSONL with one line per step.


GIF_RATE_HZ = 12.0
MAX_GIF_FRAMES = 600
"""The frames of a GIF are in memory until it is written."""
MAX_GIF_SIDE_PX = 480
GIF_COLORS = 128
MAX_OBSERVATION_VALUES = 1024
"""Larger observations, such as images, are summarized."""

OnStep = Callable[[int], None]
"""Called with the number of steps that are done."""


class StepWriter(Protocol):
    """Gets each episode at its reset and after each of its steps."""

    def add(self, replay: EpisodeReplay) -> None: ...


def export_episodes(
    source: ReplaySource, path: Path, numbers: Sequence[int], on_step: OnStep, has_observations: bool = False
) -> list[ReplayReport]:
    """Write the episodes one after the other; the file appears when it is complete."""
    with _open_writer(path, source, numbers, has_observations) as writer:
        reports, done = [], 0
        for number in numbers:
            replay = source.open_episode(number)
            writer.add(replay)
            for index in range(1, len(replay.episode) + 1):
                if replay.is_at_end:
                    break
                replay.seek(index)
                writer.add(replay)
                on_step(done + index)
            done += len(replay.episode)
            on_step(done)
            reports.append(source.report(replay))
    return reports


@contextmanager
def _open_writer(
    path: Path, source: ReplaySource, numbers: Sequence[int], has_observations: bool
) -> Iterator[StepWriter]:
    suffix = path.suffix.lower()
    if suffix == ".jsonl":
        with atomic_write(path) as file:
            yield JsonlWriter(file, has_observations)
    elif suffix == ".mp4":
        video = VideoWriter(path, source.rate_hz)
        try:
            yield Mp4Writer(video)
            video.finish()
        except OSError as error:
            video.discard()
            raise write_error(path, error) from None
        except BaseException:
            video.discard()
            raise
    elif suffix == ".gif":
        gif = GifWriter(source.rate_hz)
        yield gif
        gif.write(path)
    else:
        raise BadInput(f"{path.name}: expected a name that ends in .mp4, .gif or .jsonl.")


class JsonlWriter:
    def __init__(self, file: IO[bytes], has_observations: bool) -> None:
        self._file = file
        self._has_observations = has_observations

    def add(self, replay: EpisodeReplay) -> None:
        if replay.position or self._has_observations:
            self._file.write(json.dumps(self._fields(replay)).encode() + b"\n")

    def _fields(self, replay: EpisodeReplay) -> dict[str, Any]:
        is_single = len(replay.agents) == 1
        rewards = {agent: _json_number(replay.reward(agent)) for agent in replay.agents}
        returns = {agent: _json_number(replay.episodic_return(agent)) for agent in replay.agents}
        actions = replay.last_actions
        chosen = {agent: np.asarray(action).tolist() for agent, action in actions.items()}
        names = {agent: describe_action(_plain(action), replay.names) for agent, action in actions.items()}
        actors = {agent: replay.actor(agent) or None for agent in replay.agents}
        first = replay.agents[0]
        fields: dict[str, Any] = {
            "episode": replay.episode.number,
            "step": replay.position,
            "action": chosen.get(first) if is_single else chosen,
            "action_name": names.get(first) if is_single else names,
            "reward": rewards[first] if is_single else rewards,
            "return": returns[first] if is_single else returns,
            "actor": actors[first] if is_single else actors,
            "ending": replay.episode.ending if replay.is_at_end else None,
        }
        if self._has_observations:
            observations = {turn.agent: _json_observation(turn.observation) for turn in replay.turns}
            fields["observation"] = observations.get(first) if is_single else observations
        return fields


def _plain(action: Any) -> Any:
    """Return a number of an array without dimensions as a number."""
    return action.item() if isinstance(action, np.ndarray) and action.ndim == 0 else action


def _json_number(value: float) -> float | str:
    return value if np.isfinite(value) else str(value)


def _json_observation(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _json_observation(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_json_observation(item) for item in value]
    array = np.asarray(value)
    if array.size > MAX_OBSERVATION_VALUES:
        summary = {"shape": list(array.shape), "dtype": str(array.dtype)}
        is_number = array.dtype.kind in "biuf"
        return summary | ({"min": array.min().item(), "max": array.max().item()} if is_number else {})
    if array.dtype.kind == "f":
        return [_json_number(number) for number in array.ravel().tolist()] if array.ndim else _json_number(array.item())
    return array.tolist() if array.dtype.kind in "biuSU" else str(value)


class Mp4Writer:
    def __init__(self, video: VideoWriter) -> None:
        self._video = video

    def add(self, replay: EpisodeReplay) -> None:
        self._video.add(_render(replay))


class GifWriter:
    """Collects frames at a lower rate than the steps, reduced in size and colors."""

    def __init__(self, rate_hz: float) -> None:
        self._stride = max(1, round(rate_hz / GIF_RATE_HZ))
        self._frame_ms = 1000 * self._stride / rate_hz
        self._frames: list[Any] = []

    def add(self, replay: EpisodeReplay) -> None:
        if replay.position % self._stride and not replay.is_at_end:
            return
        if len(self._frames) >= MAX_GIF_FRAMES:
            raise BadInput(f"A GIF has at most {MAX_GIF_FRAMES} frames here. Export a video (.mp4) instead.")
        from PIL import Image

        image = _render(replay)
        if image.shape[2] == 4:
            image = image[:, :, 2::-1]  # BGRX
        width, height = limit_size(image.shape[1], image.shape[0], MAX_GIF_SIDE_PX)
        if (width, height) != (image.shape[1], image.shape[0]):
            image = scale_image_smoothly(image, height, width)
        self._frames.append(Image.fromarray(np.ascontiguousarray(image)).quantize(GIF_COLORS))

    def write(self, path: Path) -> None:
        with atomic_write(path) as file:
            first, *others = self._frames
            first.save(file, "GIF", save_all=True, append_images=others, duration=round(self._frame_ms), loop=0)


def _render(replay: EpisodeReplay) -> Any:
    try:
        return replay.render()
    except RenderUnavailable as error:
        raise BadInput(f"It cannot be exported as images: {error} Export it as .jsonl instead.") from None


# --- `python -m mosaic.features.replay.worker verify|play|export FILE …`: replays recorded episodes. `verify FILE
#     [EPISODE…]` prints a `ReplayReport` per episode as a line of JSON; `play FILE` is a player that answers
#     requests; `export FILE TARGET` writes an .mp4, .gif or .jsonl and prints its progress. A failure is a
#     `ReplayFailed` as the last line. A process of its own: the command line and the window import no environment,
#     and an environment that crashes takes nothing else with it.


REPORT_S = 0.2
"""Interval between two reports of an export's progress."""

MAX_CACHED_BYTES = 64 << 20
"""Of compressed frames that were shown."""
STEPS_BEFORE = 16
"""Frames that are rendered before the one that is shown after a step back, for the next steps back."""
MAX_SIDE_PX = 1280
STRIP_PARTS = 400


class ShownStep(NamedTuple):
    state: SessionState
    is_end: bool
    frame: FrameShape | None
    packed: bytes
    """The compressed frame."""
    frame_problem: str

    @property
    def size_bytes(self) -> int:
        return len(self.packed) + 4096  # roughly, with the state


class StepCache:
    """The steps that were shown last, by episode and step."""

    def __init__(self, max_bytes: int = MAX_CACHED_BYTES) -> None:
        self._steps: OrderedDict[tuple[int, int], ShownStep] = OrderedDict()
        self._max_bytes = max_bytes
        self.size_bytes = 0

    def get(self, episode: int, step: int) -> ShownStep | None:
        shown = self._steps.get((episode, step))
        if shown is not None:
            self._steps.move_to_end((episode, step))
        return shown

    def put(self, shown: ShownStep) -> None:
        key = shown.state.episode, shown.state.step
        self.remove(*key)
        self._steps[key] = shown
        self.size_bytes += shown.size_bytes
        while self.size_bytes > self._max_bytes and len(self._steps) > 1:
            self.remove(*next(iter(self._steps)))

    def remove(self, episode: int, step: int) -> None:
        if (old := self._steps.pop((episode, step), None)) is not None:
            self.size_bytes -= old.size_bytes

    def clear(self) -> None:
        self._steps.clear()
        self.size_bytes = 0


class RequestQueue:
    """Reads requests in a thread of its own; only the last one that was not started counts."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = lines
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="requests", daemon=True).start()

    def _read(self) -> None:
        for line in self._lines:
            self._queue.put(line)
        self._queue.put(None)

    def is_waiting(self) -> bool:
        return not self._queue.empty()

    def next(self) -> str | None:
        """Return the last request that has arrived; None at the end of the input."""
        line = self._queue.get()
        while line is not None and not self._queue.empty():
            line = self._queue.get()
        return line


class ReplayPlayer:
    def __init__(self, source: ReplaySource, requests: RequestQueue, replies: IO[bytes]) -> None:
        self._source = source
        self._requests = requests
        self._replies = replies
        self._replay: EpisodeReplay | None = None
        self._cache = StepCache()
        self._shown = -1
        """The last step that was shown."""

    def serve(self) -> None:
        self._reply(self._source.describe())
        while (line := self._requests.next()) is not None:
            request = ReplayRequest()
            try:
                request = ReplayRequest.model_validate_json(line)
                if request.kind == "refresh":
                    self._refresh()
                else:
                    self._show(request)
            except ValidationError as error:
                self._reply(ReplayFailed(error="BadInput", message=f"The request is not valid: {error}"))
            except MosaicError as error:
                self._reply(ReplayFailed(id=request.id, error=type(error).__name__, message=str(error)))

    def _reply(self, message: ReplayMessage, frame: bytes = b"") -> None:
        self._replies.write(message.model_dump_json().encode() + b"\n" + frame)
        self._replies.flush()

    def _refresh(self) -> None:
        if not self._source.recording.refresh():
            return
        if self._replay is not None and not self._replay.episode.is_complete:  # it may have grown
            self._replay = None
            self._cache.clear()
        self._reply(self._source.describe())

    def _show(self, request: ReplayRequest) -> None:
        replay, strip = self._replay, None
        if replay is None or replay.episode.number != request.episode:
            self._replay = replay = self._source.open_episode(request.episode)
            strip = reward_strip(replay.episode.rewards)
            self._shown = -1
        step = min(max(request.step, 0), len(replay.episode))
        shown = self._cache.get(request.episode, step)
        if shown is None:
            if step < self._shown and self._shown - step < STEPS_BEFORE:
                self._render_before(replay, step)
            replay.seek(step, self._requests.is_waiting)
            if strip is None and self._requests.is_waiting() and replay.position != step and not replay.is_at_end:
                return  # superseded on the way
            shown = self._render(replay)
        self._shown = step
        self._reply(
            ReplayStep(
                id=request.id,
                steps=len(replay.episode),
                state=shown.state,
                is_end=shown.is_end,
                verified_steps=replay.verified_steps,
                compared=self._source.list_compared(replay.episode),
                difference=replay.difference,
                rewards=strip,
                frame=shown.frame,
                frame_problem=shown.frame_problem,
            ),
            zlib.decompress(shown.packed) if shown.frame is not None else b"",
        )

    def _render_before(self, replay: EpisodeReplay, step: int) -> None:
        for index in range(max(0, step - STEPS_BEFORE), step):
            if self._cache.get(replay.episode.number, index) is None:
                replay.seek(index, self._requests.is_waiting)
                if self._requests.is_waiting():
                    return
                self._render(replay)

    def _render(self, replay: EpisodeReplay) -> ShownStep:
        shape, packed, problem = None, b"", ""
        try:
            shape, data = shrink(replay.render())
            packed = zlib.compress(data, 1)
        except RenderUnavailable as error:
            problem = str(error)
        except Exception as error:  # whatever an environment's render raises, the steps can be shown
            problem = f"No frame: {error}"
        shown = ShownStep(replay.state(), replay.is_at_end, shape, packed, problem)
        self._cache.put(shown)
        return shown


def shrink(image: Any) -> tuple[FrameShape, bytes]:
    """Return a frame as bytes, scaled down to at most MAX_SIDE_PX."""
    height, width, channels = image.shape
    if max(height, width) > MAX_SIDE_PX:
        width, height = limit_size(width, height, MAX_SIDE_PX)
        image = scale_image_smoothly(image, height, width)
    kind: Literal[3, 4] = 3 if channels == 3 else 4
    return FrameShape(width=width, height=height, channels=kind), np.ascontiguousarray(image, np.uint8).tobytes()


def reward_strip(rewards: np.ndarray, parts: int = STRIP_PARTS) -> tuple[tuple[float, float], ...]:
    """Return the lowest and highest reward in equal parts of an episode; with several agents, of the first."""
    first = rewards if rewards.ndim == 1 else rewards[:, 0]
    groups = np.array_split(first, min(parts, len(first))) if len(first) else []
    return tuple((float(group.min()), float(group.max())) for group in groups)


def _export(source: ReplaySource, args: argparse.Namespace, reply: Callable[[ReplayMessage], None]) -> None:
    numbers = source.recording.numbers if args.episode is None else [args.episode]
    if not numbers:
        raise BadInput("The recording has no episodes yet.")
    total = sum(len(source.recording.episode(number)) for number in numbers)
    next_at = 0.0

    def on_step(done: int) -> None:
        nonlocal next_at
        if time.monotonic() >= next_at or done == total:
            next_at = time.monotonic() + REPORT_S
            reply(ExportProgress(done=done, total=total))

    for report in export_episodes(source, args.target, numbers, on_step, args.observations):
        reply(report)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m mosaic.features.replay.worker", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("verify", "play", "export"):
        command = commands.add_parser(name)
        command.add_argument("recording", type=Path)
        if name == "verify":
            command.add_argument("episodes", type=int, nargs="*")
        if name == "export":
            command.add_argument("target", type=Path)
            command.add_argument("--episode", type=int)
            command.add_argument("--observations", action="store_true")
    args = parser.parse_args(argv)
    faulthandler.enable()
    # An export removes its incomplete file. And SDL, which renders some environments, would ignore the signal.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries print to stdout

    def reply(message: ReplayMessage) -> None:
        replies.write(message.model_dump_json().encode() + b"\n")
        replies.flush()

    try:
        with ReplaySource(args.recording) as source:
            if args.command == "play":
                ReplayPlayer(source, RequestQueue(sys.stdin), replies).serve()
            elif args.command == "export":
                _export(source, args, reply)
            else:
                for number in args.episodes or source.recording.numbers:
                    reply(source.verify(number))
    except BrokenPipeError:
        return 1  # the reader has gone
    except MosaicError as error:
        reply(ReplayFailed(error=type(error).__name__, message=str(error)))
        return 2
    except Exception as error:
        # An environment may raise anything; the traceback is on stderr.
        reply(ReplayFailed(error="MosaicError", message=f"The replay failed: {type(error).__name__}: {error}"))
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
