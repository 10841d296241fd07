"""The daemon's frame relay and the terminal's renderers, without a daemon or a terminal."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image
from structlog.testing import capture_logs

from mosaic.base.fastlane import NO_REQUEST, FrameHud, LaneWriter, lanes_folder, limit_size
from mosaic.cli import terminal
from mosaic.cli.context import CliContext
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.views import RunView
from mosaic.features.watch.cli import (
    MAX_VIDEO_SIDE_PX,
    FrameSource,
    LocalFrameSource,
    _show_in_terminal,
    select_envs,
    status_lines,
)
from mosaic.trainer.client.frame_sources import FrameRateMeter
from mosaic.trainer.handlers.frames import MAX_IN_FLIGHT, QUEUE_REPORT_S, TICK_S, Throttle, relay_frames


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return lanes_folder(tmp_path)


def publish(lane: LaneWriter, value: int, height: int = 40, width: int = 60) -> None:
    frame = np.full((height, width, 3), value, np.uint8)
    lane.publish(frame, episode=2, step=3, reward=1.0, episodic_return=4.0, render_s=0.0)


DEFAULT_OPTIONS = pb.FramesRequest()


class RelayHarness:
    """A relay whose time passes when it has nothing to send and when its messages are sent."""

    def __init__(self, folder: str, options: pb.FramesRequest = DEFAULT_OPTIONS) -> None:
        self.now = 0.0
        self.is_open = True
        self.ending = ""
        self.seen = 0
        self.messages: Iterator[pb.FrameReply | None] = relay_frames(
            folder,
            options,
            lambda: self.is_open,
            lambda: self.ending,
            lambda: self.seen,
            lambda: self.now,
        )

    def next(self) -> pb.FrameReply:
        while (reply := next(self.messages)) is None:
            self.now += TICK_S
        return reply


def test_a_viewer_is_sent_waiting_until_there_are_frames(folder: str) -> None:
    relay = RelayHarness(folder)
    assert relay.next() == pb.FrameReply(state="waiting", reason="this run publishes no frames yet")
    assert relay.next().state == "waiting"
    assert relay.now >= 2.0
    relay.is_open = False
    assert list(relay.messages) == []


def test_frames_come_as_jpeg_with_their_hud(folder: str) -> None:
    lanes = [LaneWriter(folder, index) for index in range(8)]
    for lane in lanes:
        publish(lane, 200)
    message = RelayHarness(folder).next()
    for lane in lanes:
        lane.close()
    image = np.asarray(Image.open(io.BytesIO(message.image)))
    assert (message.state, image.shape) == ("connected", (80, 240, 3))
    assert abs(int(image[20, 30, 0]) - 200) < 5
    hud = json.loads(message.hud_json)
    assert (hud["rows"], hud["columns"], len(hud["envs"])) == (2, 4, 8)
    last = FrameHud(**hud["envs"][7])
    assert (last.env, last.rate_hz, last.episode, last.step) == (7, 30.0, 2, 3)
    assert (last.reward, last.episodic_return) == (1.0, 4.0)


def test_only_the_newest_frame_is_sent_and_no_larger_than_requested(folder: str) -> None:
    lane = LaneWriter(folder, 0)
    relay = RelayHarness(folder, pb.FramesRequest(envs=[0], max_side=64))
    for value in (10, 100, 250):
        publish(lane, value, 100, 200)
    first = relay.next()
    relay.now += 1
    publish(lane, 30, 100, 200)
    second = relay.next()
    lane.close()
    images = [np.asarray(Image.open(io.BytesIO(message.image))) for message in (first, second)]
    assert [image.shape for image in images] == [(32, 64, 3)] * 2
    assert [round(float(image.mean()), -1) for image in images] == [250, 30]


def test_the_end_of_the_run_ends_the_stream(folder: str) -> None:
    relay = RelayHarness(folder)
    relay.next()
    relay.ending = "the run has ended"
    assert list(relay.messages) == [pb.FrameReply(state="unavailable", reason="the run has ended")]


def test_a_slow_connection_gets_lower_quality_and_a_fast_one_higher() -> None:
    throttle = Throttle()
    best = (throttle.quality, throttle.scale)
    throttle.record_latency(0.001)
    for _ in range(10):
        throttle.record_latency(0.5)
    assert throttle.quality < 40
    assert throttle.scale < 0.5
    for _ in range(200):
        throttle.record_latency(0.001)
    assert (throttle.quality, throttle.scale) == best


def test_constant_latency_does_not_lower_the_quality() -> None:
    throttle = Throttle()
    for _ in range(100):
        throttle.record_latency(0.3)
    assert throttle.quality == 80


def test_a_viewer_that_does_not_read_is_not_sent_old_frames(folder: str) -> None:
    lane = LaneWriter(folder, 0)
    relay = RelayHarness(folder)
    kinds = []
    for value in range(1, 12):
        publish(lane, value)
        kinds.append(bool(relay.next().image))
        relay.now += 1
    relay.seen = MAX_IN_FLIGHT
    publish(lane, 250)
    newest = relay.next()
    lane.close()
    assert kinds == [True] * MAX_IN_FLIGHT + [False] * (11 - MAX_IN_FLIGHT)
    assert np.asarray(Image.open(io.BytesIO(newest.image))).mean() > 240


# --- the terminal


def test_two_rows_of_pixels_are_one_line_of_text() -> None:
    pair = np.array([[[1, 2, 3], [1, 2, 3]], [[4, 5, 6], [4, 5, 6]]], np.uint8)
    assert terminal.encode_half_blocks(pair) == "\x1b[38;2;1;2;3;48;2;4;5;6m▀▀\x1b[0m"


def test_unchanged_lines_are_not_written_again() -> None:
    renderer = terminal.HalfBlockRenderer()
    area = terminal.DrawArea(4, 3)
    image = np.zeros((6, 4, 3), np.uint8)
    assert renderer.render(image, area).count("▀") == 12
    image[3] = 9
    assert renderer.render(image, area).count("▀") == 4
    renderer.reset()
    assert renderer.render(image, area).count("▀") == 12


@pytest.mark.parametrize(
    ("answer", "renderer"),
    [
        ("", terminal.HalfBlockRenderer),
        ("\x1b[?1;2c", terminal.HalfBlockRenderer),
        ("\x1b[?62;4;22c", terminal.SixelRenderer),
        ("\x1b_Gi=31;OK\x1b\\\x1b[?62;4c", terminal.KittyRenderer),
        ("\x1b[?4c", terminal.HalfBlockRenderer),
    ],
)
def test_the_renderer_follows_the_answer_of_the_terminal(answer: str, renderer: type[Any]) -> None:
    assert type(terminal.select_renderer(answer)) is renderer


def test_sixels_contain_size_and_colors_and_are_run_length_encoded() -> None:
    image = np.zeros((6, 10, 3), np.uint8)
    image[:, :, 0] = 255
    assert terminal.encode_sixels(image) == '\x1bP0;1q"1;1;10;6#180;2;100;0;0#180!10~-\x1b\\'


def test_sixels_can_be_read_back() -> None:
    image = np.random.default_rng(1).integers(0, 6, (14, 9, 3), np.uint8) * 51
    body = terminal.encode_sixels(image).partition('"1;1;9;14')[2].removesuffix("\x1b\\")
    decoded = np.zeros((18, 9, 3), np.uint8)
    palette: dict[int, list[int]] = {}
    color, row, column = 0, 0, 0
    for token in re.finditer(r"#(\d+)(?:;2;(\d+);(\d+);(\d+))?|!(\d+)([?-~])|([-$])|([?-~])", body):
        chosen, red, green, blue, times, repeated, move, single = token.groups()
        if chosen and red is not None:
            palette[int(chosen)] = [round(int(part) * 2.55) for part in (red, green, blue)]
        elif chosen:
            color = int(chosen)
        elif move:
            row, column = row + 6 * (move == "-"), 0
        else:
            span, bits = int(times or 1), ord(repeated or single) - 63
            for bit in range(6):
                if bits >> bit & 1:
                    decoded[row + bit, column : column + span] = palette[color]
            column += span
    assert (decoded[:14] == image).all()


def test_kitty_is_sent_in_parts() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (60, 60, 3), np.uint8)
    written = terminal.KittyRenderer().render(noise, terminal.DrawArea(10, 5))
    assert "s=60,v=60,c=10,r=5,m=1;" in written
    assert written.count("\x1b_G") > 2
    assert "\x1b_Gm=0;" in written


def test_keys_change_what_is_shown() -> None:
    assert select_envs("g", 3, (3,)) == ()
    assert select_envs("g", 3, ()) == (3,)
    assert select_envs("\x1b[C", 3, (3,)) == (4,)
    assert select_envs("p", 0, (0,)) is None
    assert select_envs("x", 0, (0,)) is None


def fake_source(state: str, reason: str = "", huds: tuple[FrameHud, ...] = ()) -> FrameSource:
    return cast(FrameSource, SimpleNamespace(state=state, reason=reason, huds=huds))


VIEW = RunView.placeholder("01ABCDEFGHIJKLMNOP").model_copy(update={"env_id": "CartPole-v1"})
HUD = FrameHud(2, 1, 1200, 7, 1.0, 7.0, 0.0, 30.0, 0.015, 0.0123, False)


def test_the_status_lines_show_state_and_hud() -> None:
    assert status_lines(VIEW, fake_source("unavailable", "no image"), 0.0, True)[0] == (
        "CartPole-v1 KLMNOP  unavailable: no image"
    )
    first, second = status_lines(VIEW, fake_source("connected", "", (HUD,)), 29.5, True)
    assert first == "CartPole-v1 KLMNOP  env 2  episode 1,200  step 7  reward 1  return 7"
    assert second.startswith("29.5 frames/s, 1.2 % of the run's time   q quits")
    first, _ = status_lines(VIEW, fake_source("connected", "", (HUD, HUD)), 29.5, False)
    assert first == "CartPole-v1 KLMNOP  returns  7  7"


def test_the_frame_rate_is_measured_over_two_seconds() -> None:
    meter = FrameRateMeter()
    for at in range(100):
        meter.record(at / 10)
    assert meter.rate_hz(9.9) == pytest.approx(10, abs=0.5)
    assert limit_size(2400, 800, MAX_VIDEO_SIDE_PX) == (1280, 426)
    assert limit_size(600, 400, MAX_VIDEO_SIDE_PX) == (600, 400)


class FakeScreen:
    """A terminal in which a person presses g and then q, each after a frame was drawn."""

    def __init__(self, _: int) -> None:
        self.renderer = SimpleNamespace(max_image_size=lambda area: area)
        self.drawn: list[tuple[int, ...]] = []
        self.lines: list[str] = []
        self._keys = ["g", "q"]

    def __enter__(self) -> FakeScreen:
        return self

    def __exit__(self, *_: object) -> None: ...

    def draw_area(self) -> tuple[int, int]:
        return 120, 80

    def draw(self, image: Any, area: tuple[int, int]) -> None:
        self.drawn.append(image.shape)

    def set_text(self, lines: list[str]) -> None:
        self.lines = lines

    def read_keys(self, _: float) -> str:
        return self._keys.pop(0) if len(self.drawn) > 2 - len(self._keys) else ""

    def clear(self) -> None: ...


def test_the_terminal_shows_one_environment_and_then_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = FakeScreen(2)
    monkeypatch.setattr(terminal, "TerminalScreen", lambda _: screen)
    lanes = [LaneWriter(lanes_folder(tmp_path), index) for index in range(2)]
    for lane in lanes:
        publish(lane, 100)
    view = VIEW.model_copy(update={"stage": "running", "run_dir": str(tmp_path)})
    opened: list[tuple[int, ...]] = []

    def open_source(envs: Sequence[int]) -> FrameSource:
        opened.append(tuple(envs))
        return LocalFrameSource(str(tmp_path), envs, NO_REQUEST)

    _show_in_terminal(cast(CliContext, None), view, open_source, (1,))
    assert opened == [(1,), ()]
    assert screen.drawn[0] == (80, 120, 3)
    assert len(screen.drawn) == 2
    assert "returns  4  4" in screen.lines[0]
    for lane in lanes:
        lane.close()


def test_a_viewer_that_does_not_keep_up_is_logged(folder: str) -> None:
    """R6.2: `fastlane_queue_depth` reports, now and then, that frames are on their way and not seen."""
    lane = LaneWriter(folder, 0)
    relay = RelayHarness(folder)
    with capture_logs() as lines:
        for value in range(12):
            publish(lane, value)
            relay.next()
            relay.seen += value >= 6  # from then on, every other frame in time
            relay.now += 0.1
    lane.close()
    depths = [line for line in lines if line["event"] == "fastlane_queue_depth"]
    assert {line["depth"] for line in depths} == {MAX_IN_FLIGHT}
    assert len(depths) <= 1 + relay.now / QUEUE_REPORT_S, "not at every frame"
