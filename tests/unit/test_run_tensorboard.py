"""TensorBoard's own reader reads what our writer writes."""

from __future__ import annotations

import math
import os
import re
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tests.helpers.run_folders import load_event_file, tensorboard_points

from mosaic.worker.run_log import EventWriter


def records(path: Path) -> list[Event]:
    """Return the records, whose crc TensorBoard's reader checks."""
    [file] = path.iterdir()
    return [Event.FromString(record) for record in RawEventFileLoader(str(file)).Load()]


def test_scalars_are_read_back_exactly_with_their_time(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path)
    logged = [(step, 1.7e9 + step / 3, math.sin(step) * 10.0 ** (step % 30)) for step in range(500)]
    for step, at, value in logged:
        writer.add_scalar("losses/value_loss", value, step, at)
    writer.close()
    rounded = [(step, at, struct.unpack("<f", struct.pack("<f", value))[0]) for step, at, value in logged]
    assert tensorboard_points(tmp_path) == {"losses/value_loss": rounded}


@given(
    tag=st.text(min_size=1, max_size=300),
    step=st.integers(-(2**63), 2**63 - 1),
    at=st.floats(0, 1e11),
    value=st.floats(width=32),
)
def test_any_point_is_encoded_as_tensorboards_protobuf(tag: str, step: int, at: float, value: float) -> None:
    try:
        tag.encode()
    except UnicodeEncodeError:
        return
    encoded = EventWriter("nowhere")._encode([(tag, step, at, value)])
    (length,) = struct.unpack("<Q", encoded[:8])
    event = Event.FromString(encoded[12:-4])
    assert length == len(encoded) - 16
    assert (event.step, event.wall_time) == (step, at)
    assert event.summary.value[0].tag == tag
    decoded = event.summary.value[0].simple_value
    assert decoded == value or (math.isnan(decoded) and math.isnan(value))


def test_a_name_that_cannot_be_encoded_does_not_keep_back_other_points(tmp_path: Path) -> None:
    names: list[Any] = ["first", 0, "\ud800", "last"]
    with closing(EventWriter(tmp_path)) as writer:
        for name in names:
            writer.add_scalar(name, 1.0, 1, 1.0)
    assert list(tensorboard_points(tmp_path)) == ["first", "0", "?", "last"]


def test_the_file_name_and_header_are_as_tensorboard_expects(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path)
    writer.add_scalar("a", 1.0, 0)
    writer.close()
    [file] = tmp_path.iterdir()
    assert re.fullmatch(rf"events\.out\.tfevents\.\d{{10}}\..+\.{os.getpid()}\.0", file.name)
    assert records(tmp_path)[0].file_version == "brain.Event:2"


def test_a_table_is_shown_by_the_text_plugin(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path)
    table = "|param|value|\n|-|-|\n|name|Zürich|" + "\n|x|y|" * 100
    writer.add_text("hyperparameters", table, 0)
    writer.close()
    reader = load_event_file(tmp_path)
    [event] = reader.Tensors("hyperparameters/text_summary")
    assert event.tensor_proto.string_val[0].decode() == table
    assert [dim.size for dim in event.tensor_proto.tensor_shape.dim] == [1]
    assert reader.PluginTagToContent("text").keys() == {"hyperparameters/text_summary"}


def test_a_purge_drops_points_of_an_earlier_file_from_its_step_on(tmp_path: Path) -> None:
    first = EventWriter(tmp_path)
    for step in range(10):
        first.add_scalar("a", step, step, 1.0)
    first.close()
    # The process was killed while writing: the last record is truncated.
    [file] = tmp_path.iterdir()
    os.truncate(file, file.stat().st_size - 3)
    second = EventWriter(tmp_path)
    second.purge_from_step(6)
    for step in range(6, 9):
        second.add_scalar("a", 100 + step, step, 2.0)
    second.close()
    expected = [(step, 1.0, float(step)) for step in range(6)] + [(step, 2.0, 100.0 + step) for step in range(6, 9)]
    assert tensorboard_points(tmp_path) == {"a": expected}


def test_a_purge_is_a_session_start(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path)
    writer.purge_from_step(6)
    writer.close()
    event = records(tmp_path)[1]
    assert (event.step, event.session_log.status) == (6, SessionLog.START)


def test_a_later_file_sorts_last_even_when_the_clock_was_set_back(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.9999999998.host.1.0").touch()
    for _ in range(2):
        writer = EventWriter(tmp_path)
        writer.add_scalar("a", 1.0, 1)
        writer.close()
        assert str(os.getpid()) in max(path.name for path in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("written", [0, 20])
def test_events_that_cannot_be_written_completely_are_written_later_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    write = os.write
    writer = EventWriter(tmp_path)
    writer.add_scalar("a", 1.0, 1, 5.0)
    writer.flush()
    writer.add_scalar("a", 2.0, 2, 5.0)

    def full(file: int, data: bytes) -> int:
        if not written:
            raise OSError(28, "No space left on device")
        return write(file, data[:written])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match=r"space|completely"):
        writer.flush()
    monkeypatch.undo()
    assert tensorboard_points(tmp_path) == {"a": [(1, 5.0, 1.0)]}
    writer.close()
    assert tensorboard_points(tmp_path) == {"a": [(1, 5.0, 1.0), (2, 5.0, 2.0)]}
