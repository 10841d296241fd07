"""What an actor does on its node, without a cluster around it."""

from __future__ import annotations

import asyncio
import io
import json
import queue
import sys
from pathlib import Path

import pytest
from tests.helpers.daemons import wait_for

from mosaic.base.journal import read_all
from mosaic.base.processes import is_alive
from mosaic.base.worker_registry import WorkerDescription
from mosaic.contracts.folder import RunFolder
from mosaic.trainer.executors.ray_cluster import node_actor
from mosaic.trainer.executors.ray_cluster.messages import ClusterUnavailable, decode_from_bridge
from mosaic.trainer.executors.ray_cluster.node_actor import NodeActor, NodeLaunch

SLEEPER = "import time; time.sleep(600)"
LAUNCH = NodeLaunch(
    worker="sleeper",
    config="{}",
    is_resume=False,
    threads=1,
    limits={"seconds": None, "memory_mb": None},
    grace_s={"stop": 1.0, "term": 1.0},
    end_key="",
)


@pytest.fixture(autouse=True)
def _node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_actor.tempfile, "tempdir", str(tmp_path))  # type: ignore[attr-defined]
    worker = WorkerDescription(id="sleeper", title="", version="1", command=(sys.executable, "-c", SLEEPER))
    monkeypatch.setattr(node_actor, "get_worker", lambda _: worker)
    monkeypatch.setenv("RAY_JOB_ID", "1")


def started_worker(folder: RunFolder) -> dict[str, object]:
    found: list[dict[str, object]] = wait_for(
        lambda: [line["process"] for line in read_all(folder.keeper) if line["kind"] == "worker_started"], "the worker"
    )
    return found[0]


def test_an_attempt_on_shared_storage_ends_when_the_record_shows_a_later_one(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "it's a run")
    folder.logs.mkdir(parents=True)
    folder.inbox.touch()
    folder.record.write_text(json.dumps({"attempts": [{"number": 1}]}))
    actor = NodeActor("R", 1)
    actor.prepare(str(folder.path))
    actor.begin(LAUNCH, 0)
    worker = started_worker(folder)
    assert actor.poll({}, 100).listing.files == {}, "nothing of a shared folder is sent"
    folder.record.write_text(json.dumps({"attempts": [{"number": 1}, {"number": 2}]}))
    wait_for(lambda: not is_alive(worker) and not actor.poll({}, 0).is_keeper_alive, "the end of both")  # type: ignore[arg-type]
    assert not [line for line in read_all(folder.keeper) if line["kind"] == "exited"]


def test_a_worker_on_a_node_gets_its_environment_without_the_variables_of_ray(tmp_path: Path) -> None:
    actor = NodeActor("R", 1)
    actor.prepare(None)
    (scratch,) = tmp_path.glob("mosaic-ray-*/R-1-*")
    folder = RunFolder(scratch / "R")
    actor.begin(LAUNCH, 0)
    worker = started_worker(folder)
    variables = Path(f"/proc/{worker['pid']}/environ").read_bytes().split(b"\0")
    assert f"MOSAIC_RUN_DIR={folder.path}".encode() in variables
    assert not [variable for variable in variables if variable.startswith(b"RAY_")]
    assert actor.tell(0, b'{"seq":1,"at":1.0,"kind":"stop"}\n') == actor.tell(0, b"again\n")
    wait_for(lambda: not actor.poll({}, 0).is_keeper_alive, "the end")
    assert read_all(folder.keeper)[-1]["cause"] == "stop"
    actor.clean_up()
    assert not scratch.exists()


def test_a_bridge_whose_cluster_cannot_be_asked_any_more_says_why_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon starts the next one, which connects again."""
    from mosaic.trainer.executors.ray_cluster import bridge

    def fail(address: str) -> None:
        raise ConnectionError(f"{address} is gone")

    monkeypatch.setattr(bridge, "_describe_cluster", fail)
    output = io.BytesIO()
    served = bridge._serve(bridge.Bridge(output, "w", is_streamed=False), "10.0.0.1:6379", queue.SimpleQueue())
    asyncio.run(asyncio.wait_for(served, 60))
    assert decode_from_bridge(output.getvalue()) == ClusterUnavailable(reason="10.0.0.1:6379 is gone")
