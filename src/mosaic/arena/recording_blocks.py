"""The blocks of a recording: some episodes, or a part of one, described by JSON and packed into bytes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, ValidationError

from mosaic.contracts.errors import RecordingDamaged
from mosaic.contracts.model import Contract, Int64

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
