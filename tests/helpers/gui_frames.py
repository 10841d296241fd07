"""Frames without a trainer: a stand-in for the daemon, and lanes that a test writes by hand."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np

from mosaic.base.fastlane import FrameHud, LaneWriter, lanes_folder
from mosaic.contracts.folder import Workspace
from mosaic.contracts.views import DaemonStatus, MetricsCursor, RunView, SlotUsage
from mosaic.trainer.client.trainer_client import FrameUpdate, MetricsUpdate, RunFile, TrainerClient, WatchBatch
from mosaic.window.bridge import Bridge
from mosaic.window.settings import GuiSettings
from mosaic.window.workbench import Workbench

Json = dict[str, Any]
RUN = "01TESTRUN00000000000000001"


def hud_of(env: int, **fields: Any) -> FrameHud:
    defaults = {"number": 1, "episode": 1, "step": 2, "reward": 1.0, "episodic_return": 3.0}
    pace = {"rate_hz": 30.0, "budget": 0.05, "cost": 0.018, "is_limited": False}
    return FrameHud(env, **{**defaults, "rendered_at": 0.0, **pace, **fields})


class StillTrainer:
    """A daemon that says what it was told to say, and nothing by itself."""

    def __init__(self, *views: RunView) -> None:
        self.views = list(views)
        self.payload: Json = {}
        self.sights: list[FrameUpdate] = []
        self.asked_frames: list[tuple[str, tuple[int, ...]]] = []
        self._over = threading.Event()

    def get_status(self) -> DaemonStatus:
        slots = SlotUsage(busy=1, runs=2)
        return DaemonStatus(address="nowhere", pid=1, version="0", workspace="/nowhere", slots=slots)

    def watch(self, after: int = 0, run: str = "", kinds: Sequence[str] = ()) -> Iterator[WatchBatch]:
        yield WatchBatch(0, [], 0)
        self._over.wait()

    def runs(self, **_: Any) -> list[RunView]:
        return list(self.views)

    def config(self, run: str) -> Json:
        return self.payload

    def frames(self, run: str, envs: Sequence[int] = (), **_: Any) -> Iterator[FrameUpdate]:
        self.asked_frames.append((run, tuple(envs)))
        yield from self.sights
        while not self._over.wait(0.02):
            yield FrameUpdate("connected", "", b"")

    def files(self, run: str, pattern: str = "*") -> list[RunFile]:
        return []

    def metrics_after(self, run: str, cursor: MetricsCursor, tags: Sequence[str] = ()) -> MetricsUpdate:
        return MetricsUpdate(MetricsCursor(1, 0), cursor.generation != 1, [])

    def close(self) -> None:
        self._over.set()


def view_of(run_dir: Path | str, **changes: Any) -> RunView:
    fields = {
        "run_id": RUN,
        "run_dir": str(run_dir),
        "stage": "running",
        "env_id": "CartPole-v1",
        "algo": "ppo",
        "worker": "cleanrl",
        "seed": 1,
        "submitted_at": 1.0,
        "queued_at": 1.0,
    }
    return RunView.model_validate({**fields, **changes})


def changed(view: RunView, **fields: Any) -> RunView:
    return RunView.model_validate({**view.model_dump(), **fields})


@contextmanager
def still_workbench(workspace: Workspace, settings_path: Path, trainer: StillTrainer) -> Iterator[Workbench]:
    bridge = Bridge(workspace, lambda: cast(TrainerClient, trainer))
    workbench = Workbench(workspace, bridge, GuiSettings(workspace, settings_path))
    workbench.runs.update(trainer.views)
    bridge.start()
    try:
        yield workbench
    finally:
        workbench.closing.emit()
        bridge.stop()
        workbench.deleteLater()
        bridge.deleteLater()


class HandLanes:
    """Lanes whose frames a test publishes when it likes."""

    def __init__(self, run_dir: Path | str, count: int) -> None:
        self.folder = lanes_folder(run_dir)
        self.lanes = [LaneWriter(self.folder, index, lane_count=count) for index in range(count)]

    def publish(self, env: int, picture: Any, step: int = 1, episode: int = 1, total: float = 1.0) -> None:
        self.lanes[env].publish(picture, episode=episode, step=step, reward=1.0, episodic_return=total, render_s=0.0001)

    def is_watched(self, env: int) -> bool:
        """Whether a reader has been seen in the last seconds; looks at once."""
        lane = self.lanes[env]
        lane._next_check_at = lane._next_poll_at = lane._next_frame_at = 0.0
        return lane.is_due()

    def close(self) -> None:
        for lane in self.lanes:
            lane.close()


def plain(color: tuple[int, int, int], width: int = 60, height: int = 40, channels: int = 3) -> Any:
    """A picture of one color (red, green, blue), RGB or BGRX."""
    picture = np.zeros((height, width, channels), np.uint8)
    picture[:, :, :3] = color if channels == 3 else color[::-1]
    return picture
