"""A file of episodes, each stored as what simulates it again: its start, its actions and its rewards.

The file begins with a line that names the format and a line of JSON, the header. Blocks follow, each with some episodes
or the next part of the one in progress, compressed; nothing that was written is changed. A block that is incomplete,
because the program was killed, is ignored. The random state at a reset takes some 20 bytes, a step of CartPole less
than one.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, ValidationError

from mosaic.common.limited_json import decode_limited
from mosaic.contracts.errors import BadInput
from mosaic.contracts.model import Contract

MAGIC = b"MOSAIC recording 1\n"
MAX_HEADER_BYTES = 1 << 20
MAX_BLOCK_BYTES = 1 << 25
MAX_UNPACKED_BYTES = 1 << 28
_BLOCK = struct.Struct("<III")
"""Size of the compressed block, its checksum, and the size of its description."""
_MAX_TABLE = 256
"""Different rewards of a block that are stored as a table and one byte for each step."""

Ending = Literal["running", "terminated", "truncated"]


class RecordingHeader(Contract):
    """What the environment of all episodes of a file is made from."""

    env_id: str
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    interface: Literal["gymnasium", "aec", "parallel"] = "gymnasium"
    """How it is stepped: by Gymnasium's interface, or by PettingZoo's for turns (`aec`) or simultaneous actions."""
    preprocessing: Literal["none", "atari_training", "atari_evaluation"] = "none"
    versions: dict[str, str] = Field(default_factory=dict)
    """The libraries it was simulated with; others may simulate something else."""


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

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def is_complete(self) -> bool:
        return self.ending != "running"

    @property
    def total_reward(self) -> float:
        return float(self.rewards.sum())


class RecordingDamaged(BadInput):
    """A recording that cannot be read."""


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
            self._file = open(path, "r+b")  # noqa: SIM115 - closed by `close`
            self._file.truncate(end)
            self._file.seek(end)
        else:
            self.next_number = 0
            self._file = open(path, "wb")  # noqa: SIM115 - closed by `close`
            self._file.write(MAGIC + header.model_dump_json().encode() + b"\n")
            self._file.flush()

    def append(self, episodes: Sequence[RecordedEpisode], step: int = 0) -> int:
        """Write a block and return its bytes. An episode with the number of the one before continues it.

        `step` is that of the training at this time.
        """
        if not episodes:
            return 0
        block = _pack(episodes, step)
        self._file.write(block)
        self._file.flush()
        self.next_number = max(self.next_number, episodes[-1].number + 1)
        return len(block)

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
            self.problem: str | None = None
            """Why the rest of the file could not be read; an incomplete last block is not a problem."""
            self.end = self._file.tell()
            """Where the last complete block ends."""
            self._find_episodes()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
        while self.end + _BLOCK.size <= size:
            self._file.seek(self.end)
            packed_size, _, described = _BLOCK.unpack(self._file.read(_BLOCK.size))
            if packed_size > MAX_BLOCK_BYTES or described > packed_size:
                self.problem = f"The recording is damaged at byte {self.end:,}."
                return
            if self.end + _BLOCK.size + packed_size > size:
                return
            try:
                description = self._read_block(self.end)[0]
                numbers, step = description["numbers"], int(description["step"])
            except (RecordingDamaged, KeyError, TypeError, ValueError) as error:
                self.problem = str(error)
                return
            self._block_steps[self.end] = step
            for number in numbers:
                places = self._blocks.setdefault(number, [])
                if not places or places[-1] != self.end:
                    places.append(self.end)
            self.end += _BLOCK.size + packed_size

    def _read_block(self, begin: int) -> tuple[dict[str, Any], bytes]:
        """Return the description and the data of a block, unpacked."""
        self._file.seek(begin)
        packed_size, checksum, described = _BLOCK.unpack(self._file.read(_BLOCK.size))
        packed = self._file.read(packed_size)
        if zlib.crc32(packed) != checksum:
            raise RecordingDamaged(f"The recording is damaged at byte {begin:,}.")
        try:
            description = _inflate(packed[:described])
            return json.loads(description), _inflate(packed[described:])
        except (zlib.error, ValueError) as error:
            raise RecordingDamaged(f"The recording is damaged at byte {begin:,}: {error}.") from None

    def end_at_step(self, step: int | None) -> int:
        """Return where the blocks end that were written until this step; None: all."""
        later = [] if step is None else [begin for begin, written in self._block_steps.items() if written > step]
        return min(later, default=self.end)

    def count_before(self, end: int) -> int:
        """Return the number of episodes that begin before this byte."""
        return sum(places[0] < end for places in self._blocks.values())

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
        parts = [
            part
            for begin in self._blocks[number]
            for part in _unpack(*self._read_block(begin))
            if part.number == number
        ]
        return _join(parts)

    def episodes(self) -> Iterator[RecordedEpisode]:
        return (self.episode(number) for number in self.numbers)


def _join(parts: Sequence[RecordedEpisode]) -> RecordedEpisode:
    if len(parts) == 1:
        return parts[0]
    return replace(
        parts[0],
        actions=np.concatenate([part.actions for part in parts]),
        rewards=np.concatenate([part.rewards for part in parts]),
        ending=parts[-1].ending,
        actors=tuple(change for part in parts for change in part.actors),
    )


# --- blocks


def _pack(episodes: Sequence[RecordedEpisode], step: int) -> bytes:
    actions, action_form = _pack_actions(np.concatenate([episode.actions for episode in episodes]))
    rewards, reward_form = _pack_rewards(np.concatenate([episode.rewards for episode in episodes]))
    states, increments, other_states = _pack_states(episodes)
    description = {
        "step": step,
        "numbers": [episode.number for episode in episodes],
        "lengths": [len(episode) for episode in episodes],
        "seeds": [episode.seed for episode in episodes],
        "endings": [episode.ending[:2] for episode in episodes],
        "actors": [episode.actors for episode in episodes] if any(episode.actors for episode in episodes) else None,
        "increments": increments,
        "other_states": other_states,
        "actions": action_form,
        "rewards": reward_form,
        "action_bytes": len(actions),
        "reward_bytes": len(rewards),
    }
    described = zlib.compress(json.dumps(description, separators=(",", ":")).encode())
    packed = described + zlib.compress(actions + rewards + states)
    return _BLOCK.pack(len(packed), zlib.crc32(packed), len(described)) + packed


def _unpack(description: dict[str, Any], data: bytes) -> list[RecordedEpisode]:
    try:
        split, end = description["action_bytes"], description["action_bytes"] + description["reward_bytes"]
        actions = _unpack_actions(data[:split], description["actions"])
        rewards = _unpack_rewards(data[split:end], description["rewards"])
        lengths = description["lengths"]
        if not len(actions) == len(rewards) == sum(lengths):
            raise ValueError("the lengths do not add up")
        states = _unpack_states(data[end:], description, len(lengths))
        ends = np.cumsum(lengths, dtype=np.int64)
        return [
            RecordedEpisode(
                number=number,
                seed=seed,
                random_state=state,
                actions=actions[stop - length : stop],
                rewards=rewards[stop - length : stop],
                ending=_ENDINGS[ending],
                actors=tuple(ActorChange(*change) for change in actors),
            )
            for number, seed, state, length, stop, ending, actors in zip(
                description["numbers"],
                description["seeds"],
                states,
                lengths,
                ends.tolist(),
                description["endings"],
                description["actors"] or [()] * len(lengths),
                strict=True,
            )
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise RecordingDamaged(f"A block of the recording is damaged: {error}.") from None


_ENDINGS: dict[str, Ending] = {"ru": "running", "te": "terminated", "tr": "truncated"}


def _inflate(data: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    unpacked = unpacker.decompress(data, MAX_UNPACKED_BYTES)
    if not unpacker.eof:
        raise ValueError("it is larger than a block may be, or incomplete")
    return unpacked


def _pack_actions(actions: np.ndarray) -> tuple[bytes, dict[str, Any]]:
    """Store whole numbers in the smallest type that holds them."""
    small: np.dtype[Any] = actions.dtype
    if actions.dtype.kind in "iu" and actions.size:
        small = np.promote_types(np.min_scalar_type(actions.min()), np.min_scalar_type(actions.max()))
    return actions.astype(small).tobytes(), _form(actions, small)


def _unpack_actions(data: bytes, form: dict[str, Any]) -> np.ndarray:
    return _unpack_array(data, form["stored"], form["shape"]).astype(_numeric(form["dtype"]))


def _pack_rewards(rewards: np.ndarray) -> tuple[bytes, dict[str, Any]]:
    table, indices = np.unique(rewards, return_inverse=True)
    if len(table) <= _MAX_TABLE and np.isfinite(table).all():
        stored = indices.reshape(rewards.shape).astype(np.uint8)
        return stored.tobytes(), _form(rewards, stored.dtype) | {"table": table.tolist()}
    return rewards.tobytes(), _form(rewards, rewards.dtype)


def _unpack_rewards(data: bytes, form: dict[str, Any]) -> np.ndarray:
    stored = _unpack_array(data, form["stored"], form["shape"])
    dtype = _numeric(form["dtype"])
    return np.array(form["table"], dtype)[stored] if "table" in form else stored.astype(dtype)


def _form(array: np.ndarray, stored: np.dtype[Any]) -> dict[str, Any]:
    return {"dtype": array.dtype.str, "stored": stored.str, "shape": list(array.shape)}


def _numeric(name: str) -> np.dtype[Any]:
    dtype = np.dtype(name)
    if dtype.kind not in "biuf":
        raise ValueError(f"{name!r} is not a type of numbers")
    return dtype


def _unpack_array(data: bytes, dtype: str, shape: Sequence[int]) -> np.ndarray:
    return np.frombuffer(data, _numeric(dtype)).reshape(shape)


def _pack_states(episodes: Iterable[RecordedEpisode]) -> tuple[bytes, dict[str, int], dict[str, Any]]:
    """Return the states of PCG64 as bytes, their increments, which hardly ever change, and all other states."""
    states, increments, others = bytearray(), dict[str, int](), dict[str, Any]()
    last_increment = None
    for index, episode in enumerate(episodes):
        state = episode.random_state
        if state is None:
            continue
        if state.get("bit_generator") != "PCG64" or state.keys() - _PCG64_KEYS or state["has_uint32"]:
            others[str(index)] = dict(state)
            continue
        states += state["state"]["state"].to_bytes(16, "little")
        increment = state["state"]["inc"]
        increments[str(index)] = 0 if increment == last_increment else increment
        last_increment = increment
    return bytes(states), increments, others


_PCG64_KEYS = {"bit_generator", "state", "has_uint32", "uinteger"}


def _unpack_states(data: bytes, description: dict[str, Any], count: int) -> list[dict[str, Any] | None]:
    states: list[dict[str, Any] | None] = [None] * count
    for index, state in description["other_states"].items():
        states[int(index)] = state
    increment = 0
    for place, (index, given) in enumerate(description["increments"].items()):
        increment = given or increment
        value = int.from_bytes(data[16 * place : 16 * place + 16], "little")
        states[int(index)] = {
            "bit_generator": "PCG64",
            "state": {"state": value, "inc": increment},
            "has_uint32": 0,
            "uinteger": 0,
        }
    return states
