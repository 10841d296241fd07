"""A file of episodes, each stored as what simulates it again: its start, its actions and its rewards.

The file begins with a line that names the format and a line of JSON, the header. Blocks follow, each with some episodes
or the next part of the one in progress, compressed; nothing that was written is changed. A block that is incomplete,
because the program was killed, is ignored. The random state at a reset takes some 20 bytes, a step of CartPole less
than one.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, repeat
from pathlib import Path
from typing import IO, Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, ValidationError

from mosaic.base.limited_json import decode_limited
from mosaic.contracts.errors import BadInput, RecordingDamaged
from mosaic.contracts.model import Contract, Int64
from mosaic.contracts.replays import EpisodeSummary

MAGIC = b"MOSAIC recording 1\n"
MAX_HEADER_BYTES = 1 << 20
MAX_BLOCK_BYTES = 1 << 25
MAX_UNPACKED_BYTES = 1 << 28
PREFIX = struct.Struct("<III")
"""Size of the compressed block, its checksum, and the size of its description."""
_MAX_TABLE = 256
"""Different rewards of a block that are stored as a table and one byte for each step."""
_LEVEL = 4
"""Of zlib: a quarter of the time of its default, for some percent more bytes."""
_SAMPLES, _SAMPLE_BYTES = 16, 256
_WORTHWHILE_RATIO = 0.9
_PCG64_KEYS = {"bit_generator", "state", "has_uint32", "uinteger"}
_PCG64_BYTES = 16
_HASH_TYPE = np.dtype("<u4")

Preprocessing = Literal["none", "atari_training", "atari_evaluation", "team"]
Ending = Literal["running", "terminated", "truncated"]
_ENDINGS: dict[str, Ending] = {"ru": "running", "te": "terminated", "tr": "truncated"}
_Size = Annotated[int, Field(ge=0, le=MAX_UNPACKED_BYTES)]


class ActorChange(NamedTuple):
    """From this step on, an agent is controlled by this actor."""

    step: int
    agent: str
    actor: str


@dataclass(frozen=True)
class RecordedEpisode:
    number: int
    """From 0, over all episodes of the file."""
    seed: int | None
    """Passed to the reset; None if it was reset without one."""
    random_state: Mapping[str, Any] | None
    """The environment's before the reset, where that had no seed."""
    actions: np.ndarray
    """One row per step; in an environment with turns, one per turn."""
    rewards: np.ndarray
    """One per step; with simultaneous actions, one row with the reward of each agent."""
    ending: Ending = "running"
    actors: tuple[ActorChange, ...] = ()
    """Who acted, and who took over when."""
    hashes: tuple[tuple[int, int], ...] = ()
    """Steps since the reset, each with the hash of the observation there; empty in older recordings."""

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def is_complete(self) -> bool:
        return self.ending != "running"

    @property
    def total_reward(self) -> float:
        return float(self.rewards.sum())


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


# --- blocks: some episodes, or a part of one, described by JSON and packed into bytes


class _ArrayForm(Contract):
    """How an array is stored."""

    dtype: str
    stored: str
    """The smaller type that holds its values."""
    shape: tuple[_Size, ...]
    table: tuple[float, ...] | None = None
    """Where the stored values are indices of it."""


class BlockDescription(Contract):
    """What is in a block. The lists have an entry for each episode."""

    step: Int64
    """Of the training when it was written."""
    numbers: tuple[Annotated[int, Field(ge=0, lt=1 << 63)], ...]
    lengths: tuple[_Size, ...]
    seeds: tuple[int | None, ...]
    endings: tuple[Literal["ru", "te", "tr"], ...]
    actors: tuple[tuple[ActorChange, ...], ...] | None
    increments: dict[_Size, Annotated[int, Field(ge=0, lt=1 << 128)]]
    """Of the generators PCG64, by the index of the episode; 0: that of the one before."""
    other_states: dict[_Size, dict[str, Any]]
    """Of other generators."""
    actions: _ArrayForm
    rewards: _ArrayForm
    action_bytes: _Size
    reward_bytes: _Size
    hash_counts: tuple[_Size, ...] = ()
    """The number of hashes of each episode; empty in recordings that have none."""


def pack_block(episodes: Sequence[RecordedEpisode], step: int) -> bytes:
    # A part without steps tells its ending, and has no shape or type of actions.
    with_steps = [episode for episode in episodes if len(episode)] or episodes[:1]
    actions, action_form = _pack_actions(np.concatenate([episode.actions for episode in with_steps]))
    rewards, reward_form = _pack_rewards(np.concatenate([episode.rewards for episode in with_steps]))
    states, increments, other_states = _pack_states(episodes)
    description = BlockDescription.model_construct(
        step=step,
        numbers=tuple(episode.number for episode in episodes),
        lengths=tuple(len(episode) for episode in episodes),
        seeds=tuple(episode.seed for episode in episodes),
        endings=tuple(episode.ending[:2] for episode in episodes),
        actors=tuple(episode.actors for episode in episodes) if any(episode.actors for episode in episodes) else None,
        increments=increments,
        other_states=other_states,
        actions=action_form,
        rewards=reward_form,
        action_bytes=len(actions),
        reward_bytes=len(rewards),
        hash_counts=tuple(len(episode.hashes) for episode in episodes),
    )
    hashes = np.array([pair for episode in episodes for pair in episode.hashes], _HASH_TYPE).reshape(-1, 2)
    described = zlib.compress(description.model_dump_json(exclude_defaults=True).encode(), _LEVEL)
    packed = described + _deflate(actions + rewards + hashes.T.tobytes() + states)
    return PREFIX.pack(len(packed), zlib.crc32(packed), len(described)) + packed


def read_description(packed: bytes) -> BlockDescription:
    """Decode the compressed description of a block."""
    try:
        return BlockDescription.model_validate_json(_inflate(packed))
    except ValidationError as error:
        first = error.errors()[0]
        raise RecordingDamaged(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (zlib.error, ValueError) as error:
        raise RecordingDamaged(str(error)) from None


def unpack_block(description: BlockDescription, packed: bytes) -> list[RecordedEpisode]:
    try:
        data = _inflate(packed)
        split, end = description.action_bytes, description.action_bytes + description.reward_bytes
        actions = _unpack_array(data[:split], description.actions)
        rewards = _unpack_array(data[split:end], description.rewards)
        lengths = description.lengths
        if not len(actions) == len(rewards) == sum(lengths):
            raise ValueError("the lengths do not add up")
        counts = description.hash_counts or (0,) * len(lengths)
        hash_end = end + 2 * _HASH_TYPE.itemsize * sum(counts)
        if hash_end > len(data):
            raise ValueError("hashes are missing")
        hashes = iter(np.frombuffer(data[end:hash_end], _HASH_TYPE).reshape(2, -1).T.tolist())
        states = _unpack_states(data[hash_end:], description)
        stops = np.cumsum(lengths, dtype=np.int64).tolist()
        return [
            RecordedEpisode(
                number=number,
                seed=seed,
                random_state=state,
                actions=actions[stop - length : stop],
                rewards=rewards[stop - length : stop],
                ending=_ENDINGS[ending],
                actors=changes,
                hashes=tuple((step, value) for step, value in islice(hashes, count)),
            )
            for number, seed, state, length, stop, ending, changes, count in zip(
                description.numbers,
                description.seeds,
                states,
                lengths,
                stops,
                description.endings,
                description.actors or list(repeat((), len(lengths))),
                counts,
                strict=True,
            )
        ]
    except (zlib.error, ValueError, TypeError, IndexError) as error:
        raise RecordingDamaged(str(error)) from None


def _inflate(data: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    unpacked = unpacker.decompress(data, MAX_UNPACKED_BYTES)
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("it is larger than a block may be, or its size is wrong")
    return unpacked


def _deflate(data: bytes) -> bytes:
    """Compress, unless a sample shows that it is hardly worth the time, as for random floats."""
    stride = max(len(data) // _SAMPLES, _SAMPLE_BYTES)
    sample = b"".join(data[begin : begin + _SAMPLE_BYTES] for begin in range(0, len(data), stride))
    is_worthwhile = len(zlib.compress(sample, 1)) < _WORTHWHILE_RATIO * len(sample)
    return zlib.compress(data, _LEVEL if is_worthwhile else 0)


def _pack_actions(actions: np.ndarray) -> tuple[bytes, _ArrayForm]:
    """Store whole numbers in the smallest type that holds them."""
    small: np.dtype[Any] = actions.dtype
    if actions.dtype.kind in "iu" and actions.size:
        small = np.promote_types(np.min_scalar_type(actions.min()), np.min_scalar_type(actions.max()))
    return actions.astype(small).tobytes(), _form(actions, small)


def _pack_rewards(rewards: np.ndarray) -> tuple[bytes, _ArrayForm]:
    # By their bits: 0.0 and -0.0 are equal, and a replay tells them apart.
    values = np.ascontiguousarray(rewards).view(f"u{rewards.itemsize}")
    bits: np.ndarray
    indices: np.ndarray
    if (values == values.flat[:1]).all():  # often, and much quicker than to sort them
        bits, indices = values.flat[:1], np.zeros(values.shape, np.uint8)
    else:
        bits, indices = np.unique(values, return_inverse=True)
    table = bits.view(rewards.dtype)
    if len(table) <= _MAX_TABLE and np.isfinite(table).all():
        stored = indices.reshape(rewards.shape).astype(np.uint8)
        return stored.tobytes(), _form(rewards, stored.dtype, tuple(table.tolist()))
    return rewards.tobytes(), _form(rewards, rewards.dtype)


def _form(array: np.ndarray, stored: np.dtype[Any], table: tuple[float, ...] | None = None) -> _ArrayForm:
    return _ArrayForm(dtype=array.dtype.str, stored=stored.str, shape=array.shape, table=table)


def _unpack_array(data: bytes, form: _ArrayForm) -> np.ndarray:
    stored = np.frombuffer(data, _numeric(form.stored)).reshape(form.shape)
    dtype = _numeric(form.dtype)
    return stored.astype(dtype) if form.table is None else np.array(form.table, dtype)[stored]


def _numeric(name: str) -> np.dtype[Any]:
    dtype = np.dtype(name)
    if dtype.kind not in "biuf":
        raise ValueError(f"{name!r} is not a type of numbers")
    return dtype


def _pack_states(episodes: Iterable[RecordedEpisode]) -> tuple[bytes, dict[int, int], dict[int, dict[str, Any]]]:
    """Return the states of PCG64 as bytes, their increments, which hardly ever change, and all other states."""
    states, increments, others = bytearray(), dict[int, int](), dict[int, dict[str, Any]]()
    last_increment = None
    for index, episode in enumerate(episodes):
        state = episode.random_state
        if state is None:
            continue
        if state.get("bit_generator") != "PCG64" or state.keys() - _PCG64_KEYS or state["has_uint32"]:
            others[index] = dict(state)
            continue
        states += state["state"]["state"].to_bytes(_PCG64_BYTES, "little")
        increment = state["state"]["inc"]
        increments[index] = 0 if increment == last_increment else increment
        last_increment = increment
    return bytes(states), increments, others


def _unpack_states(data: bytes, description: BlockDescription) -> list[dict[str, Any] | None]:
    states: list[dict[str, Any] | None] = [None] * len(description.lengths)
    for index, state in description.other_states.items():
        states[index] = state
    increment = 0
    for place, (index, given) in enumerate(description.increments.items()):
        increment = given or increment
        value = int.from_bytes(data[_PCG64_BYTES * place : _PCG64_BYTES * (place + 1)], "little")
        states[index] = {
            "bit_generator": "PCG64",
            "state": {"state": value, "inc": increment},
            "has_uint32": 0,
            "uinteger": 0,
        }
    return states
