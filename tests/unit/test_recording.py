"""The file of recorded episodes: what is written is read again, whatever happens to the end of the file."""

from __future__ import annotations

import json
import resource
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mosaic.contracts.errors import BadInput
from mosaic.worker.envs.reproducible import random_state
from mosaic.worker.play_envs import make_play_env
from mosaic.worker.recorders import EpisodeRecorder
from mosaic.worker.recording import (
    PREFIX,
    ActorChange,
    RecordedEpisode,
    Recording,
    RecordingHeader,
    RecordingWriter,
    pack_block,
)

HEADER = RecordingHeader(env_id="CartPole-v1")
MAX_BYTES_PER_STEP = 4.0


def episode(number: int, length: int = 5, **changes: Any) -> RecordedEpisode:
    rng = np.random.default_rng(number)
    fields: dict[str, Any] = {
        "number": number,
        "seed": number,
        "random_state": None,
        "actions": rng.integers(0, 2, length),
        "rewards": rng.integers(0, 3, length).astype(np.float64),
        "ending": "terminated",
    }
    return RecordedEpisode(**fields | changes)


def assert_same(one: RecordedEpisode, other: RecordedEpisode) -> None:
    for name in ("number", "seed", "random_state", "ending", "actors", "hashes"):
        assert getattr(one, name) == getattr(other, name), name
    for name in ("actions", "rewards"):
        first, second = getattr(one, name), getattr(other, name)
        assert (first.dtype, first.shape, first.tobytes()) == (second.dtype, second.shape, second.tobytes()), name


def write(path: Path, *batches: list[RecordedEpisode]) -> list[int]:
    """Return where each block ends."""
    with RecordingWriter(path, HEADER) as writer:
        ends = []
        for batch in batches:
            writer.append(batch)
            ends.append(path.stat().st_size)
    return ends


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"actions": np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)},
        {"actions": np.array([-1, 300, 70000, 2, 3])},
        {"actions": np.array([[0, 1], [1, -1]]), "rewards": np.array([[0.5, -0.5], [np.nan, np.inf]])},
        {"rewards": np.random.default_rng(1).normal(size=5)},
        {"rewards": np.array([0.0, -0.0, 1.0, -0.0, 0.0])},
        {"actions": np.array([], np.int64), "rewards": np.array([])},
        {"actors": (ActorChange(0, "*", "human"), ActorChange(3, "*", "policy:ABC"))},
        {"hashes": ((0, 0), (3, 7), (5, 2**32 - 1))},
        {"seed": None, "random_state": {"bit_generator": "MT19937", "state": {"key": [1, 2], "pos": 3}}},
    ],
)
def test_what_is_written_is_read_again(tmp_path: Path, changes: dict[str, Any]) -> None:
    original = episode(0, **changes)
    write(tmp_path / "r", [original])
    with Recording(tmp_path / "r") as recording:
        assert_same(recording.episode(0), original)


def test_the_states_of_a_generator_are_read_again(tmp_path: Path) -> None:
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=1)
    states = []
    for index in range(4):
        states.append(random_state(env))
        env.reset()
        if index == 1:
            env.np_random.integers(2**31, dtype=np.int32)  # leaves half of a word in the generator
    episodes = [episode(number, seed=None, random_state=state) for number, state in enumerate(states)]
    assert any(state["has_uint32"] for state in states if state is not None)
    write(tmp_path / "r", episodes)
    with Recording(tmp_path / "r") as recording:
        assert [one.random_state for one in recording.episodes()] == states


def test_an_episode_is_written_in_parts(tmp_path: Path) -> None:
    whole = episode(0, 9, hashes=((0, 5), (9, 6)), actors=(ActorChange(0, "*", "human"), ActorChange(6, "*", "random")))
    parts = [
        RecordedEpisode(0, 0, None, whole.actions[:4], whole.rewards[:4], "running", whole.actors[:1], ((0, 5),)),
        RecordedEpisode(0, None, None, whole.actions[4:], whole.rewards[4:], "terminated", whole.actors[1:], ((9, 6),)),
    ]
    write(tmp_path / "r", parts[:1], parts[1:], [episode(1)])
    with Recording(tmp_path / "r") as recording:
        assert recording.numbers == [0, 1]
        assert_same(recording.episode(0), whole)


def test_a_part_without_steps_tells_the_ending_only(tmp_path: Path) -> None:
    part = episode(0, 1, actions=np.array([[1, 0]]), rewards=np.array([[0.5, 1.0]]), ending="running")
    write(tmp_path / "r", [part], [RecordedEpisode(0, None, None, np.array([]), np.array([]), "terminated")])
    with Recording(tmp_path / "r") as recording:
        assert_same(recording.episode(0), replace(part, ending="terminated"))


def test_a_block_that_does_not_fit_on_the_disk_leaves_no_part_of_it(tmp_path: Path) -> None:
    """What is written after it can be read."""
    path = tmp_path / "r"
    big = episode(1, rewards=np.random.default_rng(1).normal(size=20_000), actions=np.zeros(20_000, int))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with RecordingWriter(path, HEADER) as writer:
        writer.append([episode(0)])
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 1000, limits[1]))
        try:
            with pytest.raises(OSError, match=r"File too large|No space left"):
                writer.append([big])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        writer.append([episode(1)])
    with Recording(path) as recording:
        assert_same(recording.episode(1), episode(1))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("numbers", [[]]),
        ("numbers", ["x"]),
        ("numbers", [-1]),
        ("numbers", []),
        ("lengths", [-5]),
        ("lengths", [1 << 62]),
        ("lengths", [4]),
        ("seeds", []),
        ("endings", ["no"]),
        ("actors", [[[0, "*"]]]),
        ("increments", {"7": 1}),
        ("other_states", {"-1": {}}),
        ("action_bytes", -1),
        ("actions", {"dtype": "O", "stored": "O", "shape": [5]}),
        ("actions", {"dtype": "<i8", "stored": "|u1", "shape": [1 << 40, 1 << 40]}),
        ("rewards", {"dtype": "<f8", "stored": "|u1", "shape": [5], "table": []}),
        ("rewards", {"dtype": "<f8", "stored": "<f8", "shape": [5], "table": [1.0, 2.0]}),
        ("step", "x"),
        ("unknown", 1),
    ],
)
def test_a_description_that_was_forged_is_refused(tmp_path: Path, field: str, value: object) -> None:
    """F14: its checksum is right, and what it says is not."""
    path = tmp_path / "r"
    write(path)
    packed = pack_block([episode(0)], 0)
    _, _, described = PREFIX.unpack(packed[: PREFIX.size])
    begin = PREFIX.size + described
    description = json.loads(zlib.decompress(packed[PREFIX.size : begin])) | {field: value}
    forged = zlib.compress(json.dumps(description).encode())
    body = forged + packed[begin:]
    with path.open("ab") as file:
        file.write(PREFIX.pack(len(body), zlib.crc32(body), len(forged)) + body)
    with Recording(path) as recording:
        if recording.problem is None:
            with pytest.raises(BadInput, match=r"damaged|not in the recording"):
                recording.episode(0)


@given(cut=st.integers(0, 400))
@settings(deadline=None, max_examples=60)
def test_a_file_that_is_cut_keeps_what_is_complete(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "r"
    write(path)
    header_end = path.stat().st_size
    ends = write(path, [episode(0), episode(1)], [episode(2)])
    size = path.stat().st_size
    keep = size - min(cut, size)
    path.write_bytes(path.read_bytes()[:keep])
    if keep < header_end - 1:
        with pytest.raises(BadInput):
            Recording(path)
        return
    with Recording(path) as recording:
        expected = [0, 1, 2] if keep == size else [0, 1] if keep >= ends[0] else []
        assert recording.numbers == expected
        assert recording.problem is None
        assert recording.is_cut_off == (keep not in (size, ends[0], header_end, header_end - 1))


def test_an_interrupted_file_is_continued_after_its_last_complete_block(tmp_path: Path) -> None:
    path = tmp_path / "r"
    write(path, [episode(0)], [episode(1)])
    path.write_bytes(path.read_bytes()[:-3])
    with RecordingWriter(path, HEADER) as writer:
        assert writer.next_number == 1
        writer.append([episode(1, 7)])
    with Recording(path) as recording:
        assert_same(recording.episode(1), episode(1, 7))


def test_what_was_written_after_the_step_of_a_checkpoint_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "r"
    with RecordingWriter(path, HEADER) as writer:
        for number, step in enumerate((100, 200, 300)):
            writer.append([episode(number)], step)
    with RecordingWriter(path, HEADER, until_step=200) as writer:
        assert writer.next_number == 2
    with Recording(path) as recording:
        assert recording.numbers == [0, 1]


@given(place=st.integers(0, 5000), value=st.integers(1, 255))
@settings(deadline=None, max_examples=150)
def test_a_damaged_file_is_read_up_to_the_damage(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int
) -> None:
    """F14: no exception but ours, and no episode that differs from what was written."""
    path = tmp_path_factory.mktemp("damage") / "r"
    originals = [episode(0), episode(1), episode(2, 40)]
    ends = write(path, originals[:2], originals[2:])
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= value
    path.write_bytes(data)
    try:
        recording = Recording(path)
    except BadInput:
        return
    with recording:
        for number in recording.numbers:
            assert_same(recording.episode(number), originals[number])
        if place % len(data) >= ends[0]:
            assert recording.numbers[:2] == [0, 1]


def test_another_environment_is_not_mixed_into_a_recording(tmp_path: Path) -> None:
    write(tmp_path / "r", [episode(0)])
    with pytest.raises(BadInput, match="recording of CartPole-v1 with other settings"):
        RecordingWriter(tmp_path / "r", RecordingHeader(env_id="Acrobot-v1"))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"MOSAIC recording 2\n{}\n", b"MOSAIC recording 1\n{\n"])
def test_another_file_is_refused_with_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "r").write_bytes(content)
    with pytest.raises(BadInput, match=r"not a recording|header .* is damaged"):
        Recording(tmp_path / "r")


def test_a_missing_episode_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    write(tmp_path / "r", [episode(0), episode(1)])
    with Recording(tmp_path / "r") as recording, pytest.raises(BadInput, match="has episodes 0 to 1"):
        recording.episode(7)


def play_cartpole(recorder: EpisodeRecorder, episodes: int) -> int:
    """Play at random; return the number of steps."""
    env, rng, steps = gymnasium.make("CartPole-v1"), np.random.default_rng(1), 0
    for seed in range(episodes):
        env.reset(seed=seed)
        recorder.start(seed, {"*": "random"})
        is_terminal = False
        while not is_terminal:
            action = int(rng.integers(2))
            is_terminal = bool(env.step(action)[2])
            recorder.add(action, 1.0)
            steps += 1
        recorder.finish("terminated")
    return steps


@pytest.mark.parametrize("flush_s", [-1.0, 60.0], ids=["each step", "at the end"])
def test_a_session_is_recorded_whenever_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush_s: float
) -> None:
    """Its short episodes share blocks, so a step takes less than four bytes."""
    monkeypatch.setattr("mosaic.worker.recorders.FLUSH_S", flush_s)
    recorder = EpisodeRecorder(tmp_path / "r", HEADER, lambda *_: None, make_play_env(HEADER))
    steps = play_cartpole(recorder, 40)
    recorder.close()
    with Recording(tmp_path / "r") as recording:
        episodes = list(recording.episodes())
    assert [one.seed for one in episodes] == list(range(40))
    assert {(one.ending, one.actions.dtype.kind, one.actors) for one in episodes} == {
        ("terminated", "i", (ActorChange(0, "*", "random"),))
    }
    assert sum(map(len, episodes)) == steps
    if flush_s > 0:
        assert (tmp_path / "r").stat().st_size / steps < MAX_BYTES_PER_STEP


def test_a_session_without_space_warns_once_and_continues(tmp_path: Path) -> None:
    warnings: list[str] = []
    (tmp_path / "r").mkdir()
    env = make_play_env(HEADER)
    recorder = EpisodeRecorder(tmp_path / "r", HEADER, lambda text, code: warnings.append(f"{code}: {text}"), env)
    play_cartpole(recorder, 2)
    recorder.close()
    (warning,) = warnings
    assert warning.startswith("recording_failed: No more episodes are recorded")


def test_a_step_of_cartpole_takes_less_than_four_bytes(tmp_path: Path) -> None:
    """Random episodes are short, so their starts count most: a trained policy takes less."""
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=1)
    rng = np.random.default_rng(1)
    episodes: list[RecordedEpisode] = []
    for number in range(200):
        state = random_state(env)
        env.reset()
        actions: list[int] = []
        is_terminal = False
        while not is_terminal:
            actions.append(int(rng.integers(2)))
            is_terminal = env.step(actions[-1])[2]
        rewards = np.ones(len(actions))
        episodes.append(RecordedEpisode(number, None, state, np.array(actions), rewards, "terminated"))
    write(tmp_path / "r", episodes)
    assert (tmp_path / "r").stat().st_size / sum(map(len, episodes)) < MAX_BYTES_PER_STEP
