"""Runs on a Ray cluster, without one: what is planned, reported and dropped."""

from __future__ import annotations

import asyncio
import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mosaic import __version__
from mosaic.contracts.errors import MissingExtra
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.payload import Payload
from mosaic.contracts.states import Attempt, Outcome, RunRecord, Stage
from mosaic.trainer import lifecycle as life
from mosaic.trainer.executors import HeldRun
from mosaic.trainer.executors.ray_cluster import attempt
from mosaic.trainer.executors.ray_cluster.attempt import AttemptBridge, StartRefused
from mosaic.trainer.executors.ray_cluster.executor import RayExecutor, describe_unfit, to_event
from mosaic.trainer.executors.ray_cluster.folder_sync import Listing, list_folder
from mosaic.trainer.executors.ray_cluster.messages import (
    AttemptEnded,
    AttemptLost,
    AttemptNotStarted,
    AttemptPlaced,
    AttemptRefused,
    AttemptReport,
    ClusterNode,
    ClusterReport,
    ClusterUnavailable,
    StartAttempt,
    decode_from_bridge,
    decode_from_daemon,
    encode_message,
)
from mosaic.trainer.executors.ray_cluster.node_actor import NodeFacts, NodeReport
from mosaic.trainer.scheduler import Slots, choose

CLUSTER = ClusterReport(
    address="10.0.0.1:6379",
    nodes=(ClusterNode(address="10.0.0.1", cpus=4, gpus=0), ClusterNode(address="10.0.0.2", cpus=8, gpus=2)),
    free_cpus=12,
    free_gpus=2,
)
KEY: dict[str, Any] = {"run_id": "R", "attempt": 1}
START = StartAttempt(
    **KEY, folder="/it's/R", worker="w", config={"a": [1]}, is_resume=True, cpus=2, gpus=0.5,
    max_seconds=None, memory_mb=100, inbox_offset=0, end_key="k",
)  # fmt: skip


def record(run_id: str = "R", **facts: Any) -> RunRecord:
    return RunRecord(
        **{"run_id": run_id, "worker": "w", "executor": "ray", "submitted_at": 1.0, "queued_at": 1.0, **facts}
    )


def held(folder: Path, **facts: Any) -> HeldRun:
    started = Attempt(number=1, slot=1, started_at=2.0, executor="ray", **facts)
    return HeldRun(record(stage=Stage.RUNNING, attempts=(started,)), RunFolder(folder))


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"cpus": 8, "gpus": 2}, None),
        ({"cpus": 9}, "waits for 9 CPUs; the largest node has 8"),
        ({"gpus": 4}, "waits for 1 CPU and 4 GPUs; the largest node has 8 CPUs and 2 GPUs"),
    ],
)
def test_a_run_that_fits_no_node_says_what_the_largest_one_has(facts: dict[str, Any], reason: str | None) -> None:
    assert describe_unfit(record(**facts), CLUSTER) == reason


def test_the_gpus_of_a_cluster_are_counted_and_not_assigned() -> None:
    slots = Slots(runs=100, cpus=12, gpus=2, are_gpus_numbered=False)
    queued = [record(name, gpus=1, queued_at=at) for at, name in enumerate("ABC", 1)]
    assert choose(queued, [], slots) == ["A", "B"]
    assert choose(queued, [record("X", gpus=1.5, stage=Stage.RUNNING)], slots) == []
    assert choose([record("D", cpus=12)], [], slots) == ["D"]


def test_messages_survive_the_way_to_the_other_process() -> None:
    assert decode_from_daemon(encode_message(START)) == START
    lost = AttemptLost(**KEY, reason="Node 10.0.0.2 was lost")
    assert decode_from_bridge(encode_message(lost)) == lost
    with pytest.raises(ValueError, match="kind"):
        decode_from_bridge(b'{"kind":"dance"}')


def test_reports_of_a_cluster_become_events_of_the_run(tmp_path: Path) -> None:
    run = held(tmp_path)
    for step in (40, 100):
        run.folder.checkpoint(step).mkdir(parents=True)
    expected: dict[AttemptReport, type[life.LifecycleEvent]] = {
        AttemptPlaced(**KEY, node="10.0.0.2"): life.Placed,
        AttemptRefused(**KEY, reason="no"): life.StartFailed,
        AttemptNotStarted(**KEY): life.NeverStarted,
        AttemptEnded(**KEY): life.KeeperLost,
    }
    for report, kind in expected.items():
        assert isinstance(to_event(run, report), kind)
    assert to_event(held(tmp_path, node="10.0.0.2"), AttemptPlaced(**KEY, node="10.0.0.2")) is None
    assert to_event(run, None) is None
    lost = to_event(run, AttemptLost(**KEY, reason="Node 10.0.0.2 was lost"))
    assert isinstance(lost, life.NodeLost)
    assert lost.checkpoint_step == 100


def lose(run: RunRecord, step: int | None = 100) -> RunRecord:
    return life.advance(run, life.NodeLost(at=5.0, reason="Node 10.0.0.2 was lost", checkpoint_step=step))


def test_a_run_whose_node_is_lost_waits_again_and_gives_up_after_several_losses() -> None:
    run = held(Path("/R")).record
    assert lose(run).history[-1].message == "Node 10.0.0.2 was lost; it continues from step 100."
    again = lose(run, None)
    assert (again.stage, again.is_resume, again.attempts[0].ended_at) == (Stage.QUEUED, False, 5.0)
    assert again.history[-1].message == "Node 10.0.0.2 was lost; it starts again."
    for _ in range(life.MAX_NODE_LOSSES):
        run = lose(run.model_copy(update={"stage": Stage.RUNNING}))
    assert (run.stage, run.outcome) == (Stage.FINISHED, Outcome.LOST)
    assert life.advance(run, life.Requeued(at=6.0, total_timesteps=None)).node_losses == 0
    stopping = run.model_copy(update={"stage": Stage.STOPPING})
    assert lose(stopping).outcome is Outcome.CANCELLED


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    payload = Payload.parse({"metadata": {"worker": {"id": "cleanrl", "config": {}}}, "artifacts": {}})
    with pytest.raises(MissingExtra, match=r"pip install 'mosaic-rl\[ray\]'"):
        RayExecutor(Workspace(tmp_path), None, lambda: None).check(payload)


def test_a_node_with_another_version_is_refused() -> None:
    facts = NodeFacts("10.0.0.2", "b", python="3.9", mosaic=__version__, sees_folder=False)
    assert f"Node 10.0.0.2 has MOSAIC {__version__} with Python 3.9, the trainer has" in (facts.refuse() or "")


class SupersededNode:
    """Answers for an attempt after the next one has begun."""

    def __init__(self, attempt: int) -> None:
        self.calls: list[str] = []
        self._attempt = attempt

    async def call(self, method: str, *arguments: Any) -> Any:
        self.calls.append(method)
        if method == "describe":
            return NodeFacts("10.0.0.2", "b", "3.11", __version__, sees_folder=False)
        listing = Listing()
        return NodeReport(self._attempt, True, True, True, 0, (), listing, {"journal.jsonl": b"late\n"})

    def kill(self) -> None:
        self.calls.append("kill")


@pytest.mark.parametrize("is_superseded", [True, False])
def test_what_a_superseded_attempt_still_sends_is_dropped(tmp_path: Path, is_superseded: bool) -> None:
    """Also an answer that carries another number than the attempt's."""
    node = SupersededNode(attempt=1 if is_superseded else 2)
    reports: list[AttemptReport] = []
    bridge = AttemptBridge("R", 1, tmp_path, node, reports.append, lambda: not is_superseded, is_streamed=True)
    asyncio.run(asyncio.wait_for(bridge.run(None), 10))
    assert not (tmp_path / "journal.jsonl").exists()
    assert node.calls[-1] == "kill"
    assert [type(report) for report in reports] == ([] if is_superseded else [AttemptPlaced])


class BrokenNode(SupersededNode):
    """Runs an attempt on shared storage, and fails when it is asked about it."""

    async def call(self, method: str, *arguments: Any) -> Any:
        report: NodeReport | NodeFacts = await super().call(method)
        if isinstance(report, NodeFacts):
            return report
        if self.calls.count("poll") > 1:
            raise StartRefused("It cannot read the inbox")
        return replace(report, is_copied=False)


def test_an_attempt_that_cannot_be_followed_leaves_a_shared_folder_before_the_next_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, slept = BrokenNode(attempt=1), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    bridge = AttemptBridge("R", 1, tmp_path, node, lambda _: None, lambda: True, is_streamed=False)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(StartRefused):
        asyncio.run(bridge.run(None))
    assert node.calls[-1] == "kill"
    assert slept[-1] == attempt.SHARED_GRACE_S


class PendingNode:
    """An actor that the cluster has no place for."""

    is_killed = False

    async def call(self, method: str, *arguments: Any) -> Any:
        await asyncio.Event().wait()

    def kill(self) -> None:
        self.is_killed = True


def test_a_run_can_be_cancelled_while_it_waits_for_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt, "POLL_S", 0.001)
    folder, node = RunFolder(tmp_path), PendingNode()
    folder.inbox.write_text('{"seq":1,"at":1.0,"kind":"stop"}\n')
    reports: list[AttemptReport] = []
    bridge = AttemptBridge("R", 1, tmp_path, node, reports.append, lambda: True, is_streamed=True)
    asyncio.run(asyncio.wait_for(bridge.run(START), 10))
    assert reports == [AttemptNotStarted(**KEY)]
    assert node.is_killed
    assert list_folder(tmp_path) == Listing(), "the file by which shared storage is found is deleted"


def test_a_run_can_be_cancelled_while_its_cluster_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = RayExecutor(Workspace(tmp_path), None, lambda: None)
    monkeypatch.setattr(executor, "_ensure_started", lambda: None)
    run = held(tmp_path)
    stopping = run._replace(record=life.advance(run.record, life.StopRequested(at=1.0)))
    assert executor.find_changes([stopping]) == [], "it has not answered yet"
    executor._store(ClusterUnavailable(reason="nothing answers there"))
    assert executor.find_changes([run]) == []
    (change,) = executor.find_changes([stopping])
    ended = life.advance(stopping.record, change.event)
    assert (ended.outcome, ended.reason) == (
        Outcome.CANCELLED,
        "Cancelled on request. The Ray cluster could not be reached before it had stopped.",
    )


def test_a_bridge_is_not_started_before_it_is_needed(tmp_path: Path) -> None:
    executor = RayExecutor(Workspace(tmp_path), None, lambda: None)
    assert executor.status() is None
    assert executor.find_changes([]) == []
    assert executor.capacity().runs == 0
    executor.close()
