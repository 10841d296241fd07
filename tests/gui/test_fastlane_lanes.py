"""What a viewer is told of a run's frames: by shared memory, by the relay, and in which words."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QApplication
from tests.helpers.gui import pump
from tests.helpers.gui_frames import RUN, HandLanes, StillTrainer, changed, hud_of, plain, still_workbench, view_of

from mosaic.base.fastlane.lane_files import lane_path
from mosaic.contracts.errors import NoDaemon
from mosaic.contracts.folder import Workspace
from mosaic.trainer.client.trainer_client import FrameUpdate
from mosaic.window.lanes import STALE_AFTER_S, WAITING_FOR_FRAME, Lanes, LaneSource, split_grid, viewer_status
from mosaic.window.workbench import Workbench

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def source(state: str, reason: str = "") -> LaneSource:
    return cast(LaneSource, SimpleNamespace(state=state, reason=reason, transport="shared memory"))


RUNNING = view_of("/nowhere")


@pytest.mark.parametrize(
    ("view", "video_mode", "lanes", "late_s", "expected"),
    [
        (None, None, None, 0, ("waiting", "the trainer has not reported this run yet")),
        (view_of("/nowhere", stage="queued"), None, None, 0, ("waiting", "the run is queued")),
        (RUNNING, "off", None, 0, ("unavailable", "live frames are off for this run (video_mode is off)")),
        (RUNNING, None, source("connected"), 0, ("connected", "shared memory")),
        (RUNNING, None, source("connected"), STALE_AFTER_S, ("waiting", WAITING_FOR_FRAME)),
        (RUNNING, None, source("waiting", "no frame has come"), 0, ("waiting", "no frame has come")),
        (RUNNING, None, source("unavailable", "this environment cannot be rendered"), 0,
         ("unavailable", "this environment cannot be rendered")),
        (view_of("/nowhere", stage="paused"), None, source("connected"), 0, ("waiting", "the run is paused")),
        (view_of("/nowhere", stage="finished", outcome="succeeded"), None, source("connected"), 0,
         ("unavailable", "the run has ended (succeeded)")),
    ],
)  # fmt: skip
def test_the_state_of_the_run_precedes_that_of_its_lanes(
    view: Any, video_mode: str | None, lanes: LaneSource | None, late_s: float, expected: tuple[str, str]
) -> None:
    assert viewer_status(view, video_mode, lanes, late_s) == expected


# --- a viewer


class Viewed:
    """One run with lanes, and one who looks."""

    def __init__(self, workbench: Workbench, trainer: StillTrainer, run_dir: Path, is_remote: bool = False) -> None:
        self.workbench = workbench
        self.trainer = trainer
        self.run_dir = run_dir
        self.lanes = Lanes(workbench.bridge, workbench.runs, workbench.events, is_remote, workbench)
        self.hands: list[HandLanes] = []

    def written(self, count: int) -> HandLanes:
        self.hands.append(HandLanes(self.run_dir, count))
        return self.hands[-1]

    def look_until(self, is_so: Callable[[], Any], what: str) -> None:
        pump(lambda: (self.lanes.poll(), is_so())[1], what)

    def told(self, kind: str) -> list[str]:
        return [line.text for line in self.workbench.events.lines if line.kind == kind]


@pytest.fixture
def trainer(tmp_path: Path) -> StillTrainer:
    run_dir = tmp_path / "it's a run"
    run_dir.mkdir()
    return StillTrainer(view_of(run_dir))


@pytest.fixture
def viewed(
    qapp: QApplication, workspace: Workspace, settings_path: Path, tmp_path: Path, trainer: StillTrainer
) -> Iterator[Viewed]:
    with still_workbench(workspace, settings_path, trainer) as workbench:
        made = Viewed(workbench, trainer, tmp_path / "it's a run")
        made.lanes.show_run(RUN)
        yield made
        made.lanes.suspend()
        for hand in made.hands:
            hand.close()


def test_frames_have_their_info_and_pixels(viewed: Viewed) -> None:
    hand = viewed.written(2)
    hand.publish(0, plain(RED, channels=4), step=7, episode=3, total=42.0)
    viewed.look_until(lambda: viewed.lanes.status.state == "connected", "the first frame")
    first, second = viewed.lanes.cells
    assert first.hud is not None
    assert (first.env, first.hud.episode, first.hud.step, first.hud.episodic_return) == (0, 3, 7, 42.0)
    assert first.image is not None
    assert first.image.pixelColor(5, 5) == QColor(*RED)
    assert second.image is None
    hand.publish(1, plain(BLUE))
    assert viewed.lanes.poll() == {1}
    assert viewed.lanes.poll() == set()
    image = viewed.lanes.cells[1].image
    assert image is not None
    assert image.pixelColor(5, 5) == QColor(*BLUE)


def test_a_paused_viewer_requests_no_frames(viewed: Viewed) -> None:
    hand = viewed.written(1)
    assert not hand.is_watched(0)
    viewed.lanes.poll()
    assert hand.is_watched(0)
    viewed.lanes.suspend()
    assert viewed.lanes.is_suspended
    viewed.lanes.show_run("another run")
    viewed.lanes.poll()
    assert viewed.lanes.is_suspended


def test_only_the_watched_environment_is_drawn(viewed: Viewed) -> None:
    hand = viewed.written(3)
    viewed.lanes.select_envs((1,))
    viewed.lanes.poll()
    assert [hand.is_watched(env) for env in range(3)] == [False, True, False]


def test_a_change_of_state_is_reported_once(viewed: Viewed) -> None:
    hand = viewed.written(1)
    hand.publish(0, plain(RED))
    viewed.look_until(lambda: viewed.told("fastlane_connected"), "the event")
    viewed.lanes.suspend()
    hand.publish(0, plain(RED))
    viewed.look_until(lambda: viewed.lanes.status.state == "connected", "the frames again")
    viewed.lanes._update_status()
    assert viewed.told("fastlane_connected") == ["1 environment by shared memory"]
    hand.lanes[0].mark_unavailable("this environment cannot be rendered")
    viewed.look_until(lambda: viewed.told("fastlane_unavailable"), "the event")
    assert viewed.told("fastlane_unavailable") == ["this environment cannot be rendered"]
    assert viewed.lanes.status == ("unavailable", "this environment cannot be rendered")


def test_an_invalid_lane_file_is_counted_reported_and_not_shown(viewed: Viewed) -> None:
    hand = viewed.written(1)
    Path(lane_path(hand.folder, 0)).write_bytes(b"nonsense" * 1000)
    viewed.look_until(lambda: viewed.lanes.invalid == 1, "the count")
    assert len(viewed.told("fastlane_header_invalid")) == 1
    assert not any(cell.image for cell in viewed.lanes.cells)


def test_an_ended_run_is_reported_and_keeps_its_last_frame(viewed: Viewed) -> None:
    hand = viewed.written(1)
    hand.publish(0, plain(RED))
    viewed.look_until(lambda: viewed.lanes.status.state == "connected", "the first frame")
    viewed.trainer.views[0] = changed(viewed.trainer.views[0], stage="finished", outcome="succeeded")
    viewed.workbench.runs.update(viewed.trainer.views)
    viewed.look_until(lambda: viewed.lanes.status.state == "unavailable", "the end")
    assert viewed.lanes.status.text == "the run has ended (succeeded)"
    assert viewed.lanes.is_suspended
    assert viewed.lanes.cells[0].image is not None


def test_disabled_frames_are_reported(viewed: Viewed) -> None:
    viewed.trainer.payload = {"artifacts": {"video": {"mode": "off"}}}
    viewed.lanes.show_run("none")
    viewed.lanes.show_run(RUN)
    viewed.look_until(lambda: "video_mode" in viewed.lanes.status.text, "the reason")


# --- from another machine


def jpeg(rows: int, columns: int, colors: list[tuple[int, int, int]]) -> bytes:
    whole = np.zeros((40 * rows, 60 * columns, 3), np.uint8)
    for at, color in enumerate(colors):
        row, column = divmod(at, columns)
        whole[40 * row : 40 * row + 40, 60 * column : 60 * column + 60] = color
    written = io.BytesIO()
    Image.fromarray(whole).save(written, "JPEG", quality=95)
    return written.getvalue()


def update(image: bytes, *envs: int, rows: int = 1, columns: int = 1) -> FrameUpdate:
    return FrameUpdate("connected", "", image, rows, columns, 4, [hud_of(env) for env in envs])


def near(found: QColor, wanted: tuple[int, int, int]) -> bool:
    channels = (found.red(), found.green(), found.blue())
    return all(abs(one - other) < 30 for one, other in zip(channels, wanted, strict=True))


def test_a_grid_that_was_sent_as_one_image_is_split_into_cells() -> None:
    sent = jpeg(2, 2, [RED, GREEN, BLUE])
    cells = split_grid(update(sent, 0, 2, rows=2, columns=2), ())
    assert [cell.env for cell in cells] == [0, 2]
    for cell, color in zip(cells, (RED, BLUE), strict=True):
        assert cell.image is not None
        assert near(cell.image.pixelColor(30, 20), color)
    (alone,) = split_grid(update(jpeg(1, 1, [GREEN]), 5), (5,))
    assert alone.env == 5
    assert alone.image is not None
    assert near(alone.image.pixelColor(30, 20), GREEN)


def test_a_remote_trainer_relays_frames(
    qapp: QApplication, workspace: Workspace, settings_path: Path, tmp_path: Path
) -> None:
    trainer = StillTrainer(view_of(tmp_path))  # the path exists here too, and means nothing
    trainer.sights = [update(jpeg(1, 2, [RED, BLUE]), 0, 1, columns=2)]
    with still_workbench(workspace, settings_path, trainer) as workbench:
        viewed = Viewed(workbench, trainer, tmp_path, is_remote=True)
        viewed.lanes.show_run(RUN)
        viewed.look_until(lambda: len(viewed.lanes.cells) == 2, "frames by the relay")
        viewed.look_until(lambda: viewed.lanes.torn == 4, "the count of torn frames")
        assert viewed.lanes.status == ("connected", "the trainer's relay")
        viewed.lanes.select_envs((1,))
        viewed.look_until(lambda: trainer.asked_frames[-1] == (RUN, (1,)), "one environment")
        viewed.lanes.suspend()


def test_a_lost_relay_is_requested_again(
    qapp: QApplication, workspace: Workspace, settings_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mosaic.window.lanes.RETRY_S", 0.01)
    trainer = StillTrainer(view_of(tmp_path / "not here"))
    asked: list[float] = []

    def frames(run: str, envs: Any = (), **_: Any) -> Iterator[FrameUpdate]:
        asked.append(time.monotonic())
        if len(asked) == 1:
            raise NoDaemon("The connection broke.")
        yield update(jpeg(1, 1, [RED]), 0)

    monkeypatch.setattr(trainer, "frames", frames)
    with still_workbench(workspace, settings_path, trainer) as workbench:
        viewed = Viewed(workbench, trainer, tmp_path)
        viewed.lanes.show_run(RUN)
        viewed.look_until(lambda: viewed.lanes.cells, "frames after all")
        viewed.lanes.suspend()
