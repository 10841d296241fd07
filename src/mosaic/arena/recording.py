"""A file of episodes, each stored as what simulates it again: its start, its actions and its rewards.

The file begins with a line that names the format and a line of JSON, the header. Blocks follow, each with some episodes
or the next part of the one in progress, compressed; nothing that was written is changed. A block that is incomplete,
because the program was killed, is ignored. The random state at a reset takes some 20 bytes, a step of CartPole less
than one.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Literal, Self

import numpy as np
from pydantic import Field, ValidationError

from mosaic.arena.recording_blocks import (
    MAX_BLOCK_BYTES,
    PREFIX,
    ActorChange,
    BlockDescription,
    Ending,
    RecordedEpisode,
    pack_block,
    read_description,
    unpack_block,
)
from mosaic.common.limited_json import decode_limited
from mosaic.contracts.errors import BadInput, RecordingDamaged
from mosaic.contracts.model import Contract
from mosaic.contracts.replays import EpisodeSummary

__all__ = [
    "ActorChange",
    "Ending",
    "Preprocessing",
    "RecordedEpisode",
    "Recording",
    "RecordingHeader",
    "RecordingWriter",
]

MAGIC = b"MOSAIC recording 1\n"
MAX_HEADER_BYTES = 1 << 20


Preprocessing = Literal["none", "atari_training", "atari_evaluation", "team"]


class RecordingHeader(Contract):
    """What the environment of all episodes of a file is made from."""

    env_id: str
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    preprocessing: Preprocessing = "none"
    versions: dict[str, str] = Field(default_factory=dict)
    """The libraries it was simulated with; others may simulate something else."""
    replay: Literal["simulation", "frames", "nothing"] = "simulation"
    """What a replay shows: the episodes simulated again, or frames that were stored as videos, or neither."""
    reason: str = ""
    """Why they are not simulated again."""
    action_names: tuple[str, ...] = ()
    """Stored where they are not simulated again."""
    rate_hz: float | None = None
    """Steps per second at which they are watched, stored in the same case."""
    has_frame_hashes: bool = False
    """Whether hashes are of the observation and the rendered frame."""


class RecordingWriter:
    """Appends to a recording; one that exists is continued if it is of the same environment."""

    def __init__(self, path: Path, header: RecordingHeader, until_step: int | None = None) -> None:
        """With `until_step`, blocks that were written after that step of a training are dropped."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes]
        if path.exists() and path.stat().st_size:
            with Recording(path) as existing:
                if existing.header.model_copy(update={"versions": header.versions}) != header:
                    raise BadInput(f"{path} is a recording of {existing.header.env_id} with other settings.")
                end = existing.end_at_step(until_step)
                self.next_number = existing.count_before(end)
            self._file = open(path, "r+b", buffering=0)  # noqa: SIM115 - closed by `close`
            self._file.truncate(end)
            self._file.seek(end)
        else:
            self.next_number = 0
            self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - closed by `close`
            self._write(MAGIC + header.model_dump_json().encode() + b"\n")

    def append(self, episodes: Sequence[RecordedEpisode], step: int = 0) -> int:
        """Write a block and return its bytes. An episode with the number of the one before continues it.

        `step` is that of the training at this time.
        """
        if not episodes:
            return 0
        block = pack_block(episodes, step)
        self._write(block)
        self.next_number = max(self.next_number, episodes[-1].number + 1)
        return len(block)

    def _write(self, data: bytes) -> None:
        """Write all of it or nothing: what follows a part of a block could not be read."""
        begin = self._file.tell()
        try:
            if self._file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            self._file.truncate(begin)
            self._file.seek(begin)
            raise

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Recording:
    """Reads a recording. Episodes are found by the descriptions of their blocks and unpacked when they are needed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = open(path, "rb")  # noqa: SIM115 - closed on exit
        except OSError as error:
            raise BadInput(f"The recording {path} cannot be opened: {error.strerror or error}.") from None
        try:
            self.header = self._read_header()
            self._blocks: dict[int, list[int]] = {}
            """By the number of an episode: where its blocks begin."""
            self._block_steps: dict[int, int] = {}
            """By the begin of a block: the step of the training when it was written."""
            self._summaries: dict[int, EpisodeSummary] = {}
            self._summarized: set[int] = set()
            """The begins of the blocks that are in the summaries."""
            self.problem: str | None = None
            """Why the rest of the file could not be read; an incomplete last block is not a problem."""
            self.is_cut_off = False
            """Whether the last block is incomplete."""
            self.end = self._file.tell()
            """Where the last complete block ends."""
            self._find_episodes()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def _read_header(self) -> RecordingHeader:
        if self._file.read(len(MAGIC)) != MAGIC:
            raise RecordingDamaged(f"{self.path} is not a recording of this version of MOSAIC.")
        line = self._file.readline(MAX_HEADER_BYTES)
        try:
            return RecordingHeader.model_validate(decode_limited(line.decode(), "The header"))
        except (ValidationError, UnicodeDecodeError, BadInput) as error:
            raise RecordingDamaged(f"The header of {self.path} is damaged: {error}") from None

    def _find_episodes(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        while self.end + PREFIX.size <= size:
            self._file.seek(self.end)
            packed_size, _, described = PREFIX.unpack(self._file.read(PREFIX.size))
            if packed_size > MAX_BLOCK_BYTES or described > packed_size:
                self.problem = f"The recording is damaged at byte {self.end:,}."
                return
            if self.end + PREFIX.size + packed_size > size:
                break
            try:
                description, _ = self._read_block(self.end)
            except RecordingDamaged as error:
                self.problem = str(error)
                return
            self._block_steps[self.end] = description.step
            for number in description.numbers:
                places = self._blocks.setdefault(number, [])
                if not places or places[-1] != self.end:
                    places.append(self.end)
            self.end += PREFIX.size + packed_size
        self.is_cut_off = self.end < size

    def _read_block(self, begin: int) -> tuple[BlockDescription, bytes]:
        """Return the description of a block, and its data, packed."""
        self._file.seek(begin)
        packed_size, checksum, described = PREFIX.unpack(self._file.read(PREFIX.size))
        packed = self._file.read(packed_size)
        if zlib.crc32(packed) != checksum:
            raise RecordingDamaged(f"The recording is damaged at byte {begin:,}.")
        try:
            return read_description(packed[:described]), packed[described:]
        except RecordingDamaged as error:
            raise RecordingDamaged(f"The recording is damaged at byte {begin:,}: {error}.") from None

    def end_at_step(self, step: int | None) -> int:
        """Return where the blocks end that were written until this step; None: all."""
        later = [] if step is None else [begin for begin, written in self._block_steps.items() if written > step]
        return min(later, default=self.end)

    def count_before(self, end: int) -> int:
        """Return the number of episodes that begin before this byte."""
        return sum(places[0] < end for places in self._blocks.values())

    def refresh(self) -> bool:
        """Find the episodes that were appended meanwhile; return whether there is anything new."""
        before = self.end
        if self.problem is None:
            self._find_episodes()
        return self.end != before

    @property
    def episode_count(self) -> int:
        return len(self._blocks)

    @property
    def numbers(self) -> list[int]:
        return sorted(self._blocks)

    def episode(self, number: int) -> RecordedEpisode:
        if number not in self._blocks:
            count = f"episodes {min(self._blocks)} to {max(self._blocks)}" if self._blocks else "no episodes"
            raise BadInput(f"Episode {number} is not in the recording, which has {count}.")
        blocks = [self._read_block(begin) for begin in self._blocks[number]]
        try:
            return _join([part for block in blocks for part in unpack_block(*block) if part.number == number])
        except (RecordingDamaged, ValueError) as error:
            raise RecordingDamaged(f"Episode {number} of the recording is damaged: {error}.") from None

    def episodes(self) -> Iterator[RecordedEpisode]:
        return (self.episode(number) for number in self.numbers)

    def summarize(self) -> list[EpisodeSummary]:
        """Return a row for each episode that can be read; each block is read once."""
        for begin in sorted(self._block_steps.keys() - self._summarized):
            self._summarized.add(begin)
            try:
                parts = unpack_block(*self._read_block(begin))
            except (RecordingDamaged, ValueError) as error:
                self.problem = f"A part of the recording is damaged: {error}"
                continue
            for part in parts:
                row = self._summaries.get(part.number) or EpisodeSummary(part.number, 0, 0.0, "running", "")
                actors = dict.fromkeys([*filter(None, row.actors.split(", ")), *(one.actor for one in part.actors)])
                self._summaries[part.number] = EpisodeSummary(
                    part.number,
                    row.steps + len(part),
                    row.total_reward + part.total_reward,
                    part.ending,
                    ", ".join(actors),
                )
        return [self._summaries[number] for number in sorted(self._summaries)]


def _join(parts: Sequence[RecordedEpisode]) -> RecordedEpisode:
    # A part without steps only tells the ending, and has no shape or type of actions.
    steps = [part for part in parts if len(part)] or parts[:1]
    return replace(
        parts[0],
        actions=np.concatenate([part.actions for part in steps]),
        rewards=np.concatenate([part.rewards for part in steps]),
        ending=parts[-1].ending,
        actors=tuple(change for part in parts for change in part.actors),
        hashes=tuple(pair for part in parts for pair in part.hashes),
    )
