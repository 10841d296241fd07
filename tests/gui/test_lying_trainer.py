"""F56: the window with a trainer that lies, through its bridge: a sentence, no file, and no traceback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtWidgets import QApplication
from tests.helpers.gui import close, finish_calls, pump, settle
from tests.helpers.hostile_trainer import (
    CONFIG,
    JPEG,
    RUN,
    TOKEN,
    HostileTrainer,
    json_reply,
    list_reply,
    run_reply,
    running_hostile_trainer,
    view,
)

from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.folder import Workspace
from mosaic.trainer.client.remote_trainer import RemoteTrainer
from mosaic.window.app import Application
from mosaic.window.panels import RUN_TABS

DEEP = "[" * 100_000 + "]" * 100_000
Open = Callable[[HostileTrainer], Application]


def json_lie(data: Any) -> Callable[[Any], Any]:
    return lambda _: json_reply(data)


def stream_lie(*replies: Any) -> Callable[[Any], Any]:
    return lambda _: iter(replies)


LIES: dict[str, dict[str, Any]] = {
    "files": {"ListFiles": lambda _: pb.FilesReply(files=[pb.RunFile(name="../../../escaped.mp4", size_bytes=4)])},
    "event files": {"GetConfig": json_lie({**CONFIG, "artifacts": {"tensorboard": {"directory": "../../../escaped"}}})},
    "configs": {"GetConfig": json_lie(DEEP)},
    "settings": {"ReadSettings": json_lie('{"settings": 5}')},
    "sections": {"GetConfig": json_lie({**CONFIG, "artifacts": [1]})},
    "wandb": {
        "ListRuns": lambda _: list_reply(view(has_wandb=True)),
        "GetRun": lambda _: run_reply(has_wandb=True),
        "ReadWandb": stream_lie(json_reply(DEEP)),
    },
    "metrics": {
        "ReadMetrics": stream_lie(pb.MetricsReply(series=[pb.MetricSeries(tag="a", steps=[1], values=[1, 2])]))
    },
    "logs": {"ReadLog": stream_lie(*[pb.LogReply(data=b"x" * 100, offset=-(1 << 62))] * 3)},
    "videos": {"ReadFile": stream_lie(pb.FileReply(data=b'{"timestamp": "x", "episode_return": {}}'))},
    "evaluations": {
        "ListRuns": lambda _: list_reply(view(kind="policy_eval")),
        "ReadEvaluations": stream_lie(json_reply(DEEP)),
    },
    "frames": {
        "ListRuns": lambda _: list_reply(view(stage="running", outcome=None, finished_at=None)),
        "GetRun": lambda _: run_reply(stage="running", outcome=None, finished_at=None),
        "StreamFrames": stream_lie(pb.FrameReply(state="connected", image=JPEG, hud_json='{"rows": 0, "columns": -5}')),
    },
}


@pytest.fixture
def open_window(
    qapp: QApplication, tmp_path: Path, settings_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Open]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    opened: list[Application] = []

    def open_with(trainer: HostileTrainer) -> Application:
        remote = RemoteTrainer(trainer.address, TOKEN)
        opened.append(Application(qapp, Workspace(tmp_path / "elsewhere"), settings_path, remote))
        opened[-1].start()
        return opened[-1]

    yield open_with
    for program in opened:
        close(program)


@pytest.mark.parametrize("bad", [view(run_id="/tmp/x"), view(priority=10**30), view(submitted_at=1e300), DEEP])
def test_the_banner_says_that_runs_cannot_be_listed(open_window: Open, bad: Any) -> None:
    """F56: the bridge tries again, as after any failure."""
    with running_hostile_trainer() as trainer:
        trainer.lies = {"ListRuns": lambda _: list_reply(bad), "WatchRuns": stream_lie(pb.EventBatch(cursor=1))}
        program = open_window(trainer)
        problems: list[str] = []
        program.bridge.connection_lost.connect(problems.append)
        pump(lambda: any("sent a reply that cannot be used" in problem for problem in problems), "the reason")
        assert program.window.banner.isVisible()
        trainer.lies = {"WatchRuns": stream_lie(pb.EventBatch(cursor=1))}
        pump(lambda: program.workbench.runs.get(RUN), "the run, when the trainer says the truth")
        program.bridge.stop()


@pytest.mark.parametrize("lie", LIES)
def test_every_tab_survives_every_lie(open_window: Open, tmp_path: Path, lie: str) -> None:
    """F56: nothing is written outside of the cache."""
    with running_hostile_trainer() as trainer:
        trainer.lies = {"WatchRuns": stream_lie(pb.EventBatch(cursor=1)), **LIES[lie]}
        program = open_window(trainer)
        pump(lambda: program.workbench.runs.get(RUN), "the run")
        for tab in RUN_TABS:
            program.workbench.select(RUN, tab.id)
            settle()
            if tab.id != "fastlane":  # its frames occupy a thread
                finish_calls(program.bridge)
        program.bridge.stop()
    assert LIES[lie].keys() <= set(trainer.calls), "each lie was heard"
    assert [path for path in tmp_path.rglob("*") if "escaped" in path.name] == []
