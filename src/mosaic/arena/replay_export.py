"""Writes recorded episodes as an MP4, as an animated GIF, or as JSONL with one line per step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from mosaic.arena.episode_replay import EpisodeReplay
from mosaic.arena.replay_source import ReplaySource
from mosaic.arena.state_text import describe_action
from mosaic.common.files import atomic_write, write_error
from mosaic.contracts.errors import BadInput
from mosaic.contracts.replays import ReplayReport
from mosaic.fastlane import limit_size, scale_image_smoothly
from mosaic.fastlane.tap import RenderUnavailable
from mosaic.media.video_writer import VideoWriter

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
