"""Runs on a Ray cluster of three nodes, without shared storage: everything behaves as on one machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import LANES, MARK_VARIABLE, logged_problems
from tests.helpers import slow_cart
from tests.helpers.daemons import LiveDaemon, ended, environment, wait_for
from tests.helpers.ray_cluster import HEAD, RayCluster, running_cluster
from tests.helpers.wandb_server import KEY, WandbServer, files_with
from tests.helpers.worker_runs import events, small

from mosaic.base.fastlane import LaneView, lanes_folder
from mosaic.base.fastlane.lane_files import LANES_VARIABLE
from mosaic.base.journal import read_all
from mosaic.contracts.errors import BadInput, NotAllowed
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.views import RunView
from mosaic.trainer.client.connect import connect
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.trainer.executors.ray_cluster import STREAM_VARIABLE

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: extra 'ray'.")

LONG = 1_000_000_000
SCRATCH = Path(tempfile.gettempdir()) / f"mosaic-ray-{os.getuid()}"
NODE_LANES = f"{LANES}-of-nodes"


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ray") / "plug ins"
    folder.mkdir()
    shutil.copy(slow_cart.__file__, folder)
    return folder


@pytest.fixture(scope="module")
def cluster(plugins: Path) -> Iterator[RayCluster]:
    """Its processes start and end others when they like: they are not marked as the session's, which counts its own."""
    variables = environment(plugins)
    variables.pop(MARK_VARIABLE)
    with running_cluster({**variables, LANES_VARIABLE: NODE_LANES}) as running:
        yield running
    shutil.rmtree(NODE_LANES, ignore_errors=True)


@pytest.fixture(scope="module")
def abandoned() -> Iterator[list[Path]]:
    """Folders, on a node that was lost, of attempts whose keepers have to notice that and to end their workers."""
    folders: list[Path] = []
    yield folders
    for folder in folders:
        keeper = RunFolder(next(folder.glob("01*"))).keeper
        exited = wait_for(lambda: [line for line in read_all(keeper) if line["kind"] == "exited"], "its end", 90)  # noqa: B023
        assert exited[0]["cause"] == "lifeline_lost"
        shutil.rmtree(folder)


def start_daemon(place: Workspace, plugins: Path, cluster: RayCluster, **variables: str) -> LiveDaemon:
    variables = {**cluster.variables, MARK_VARIABLE: "", "XDG_CONFIG_HOME": str(plugins), **variables}
    return LiveDaemon(place, plugins, "--executor", "ray", **variables)


@pytest.fixture(scope="module")
def live(cluster: RayCluster, plugins: Path) -> Iterator[LiveDaemon]:
    place = Workspace(plugins.with_name("it's a place") / "var")
    daemon = start_daemon(place, plugins, cluster, **{STREAM_VARIABLE: "1"})
    daemon.start().close()
    yield daemon
    daemon.end()
    assert not (problems := logged_problems(place.daemon_log)), problems


@pytest.fixture
def trainer(live: LiveDaemon, abandoned: list[Path]) -> Iterator[TrainerClient]:
    with connect(live.workspace, may_start=False) as connection:
        yield connection
        for view in connection.runs():
            with suppress(NotAllowed):  # it has ended
                connection.cancel_run(view.run_id)
        for view in connection.runs():
            ended(connection, view.run_id)
            remains = f"{view.run_id}-*"
            wait_for(lambda name=remains: not set(SCRATCH.glob(name)) - set(abandoned), "the end of its folder there")  # type: ignore[misc]


def ppo(executor: str | None = None, cpus: int = 1, **changes: Any) -> dict[str, Any]:
    config = small(**changes)
    resources: dict[str, Any] = {"cpus": cpus, **({} if executor is None else {"executor": executor})}
    return {"metadata": {"worker": {"id": "cleanrl", "config": config}}, "artifacts": {}, "resources": resources}


def points(trainer: TrainerClient, run_id: str) -> dict[str, list[tuple[int, float]]]:
    """What does not depend on the clock, by tag."""
    found: dict[str, list[tuple[int, float]]] = {}
    for series in trainer.metrics(run_id):
        if not any(word in series.tag.lower() for word in ("sps", "time", "seconds", "latency")):
            found.setdefault(series.tag, []).extend(zip(series.steps, series.values, strict=True))
    return found


def file_names(view: RunView) -> set[str]:
    """Without the parts of names that are times and process ids."""
    paths = (path.relative_to(view.run_dir) for path in Path(view.run_dir).rglob("*") if path.is_file())
    return {"/".join(part.split(".17")[0].split("__17")[0] for part in path.parts) for path in paths}


def wait_running(trainer: TrainerClient, run_id: str, attempt: int = 1) -> RunView:
    def view() -> RunView | None:
        seen = trainer.get_run(run_id)
        assert seen.stage != "finished", seen.reason
        return seen if seen.stage == "running" and len(seen.attempts) == attempt and seen.attempts[-1].node else None

    found: RunView = wait_for(view, "the start on a node", 100)
    return found


def wait_checkpoint(view: RunView) -> int:
    folder = RunFolder(view.run_dir)
    step: int = wait_for(
        lambda: folder.last_checkpoint.exists() and int(folder.last_checkpoint.resolve().name), "a checkpoint", 100
    )
    return step


def test_a_run_on_a_node_leaves_what_a_local_run_leaves(trainer: TrainerClient) -> None:
    """R10.1: curves, logs, checkpoints and model are equal, and its policy is evaluated on this machine."""
    there = ended(trainer, trainer.submit(ppo(total_timesteps=2048)).run_id)
    here = ended(trainer, trainer.submit(ppo("local", total_timesteps=2048)).run_id)
    assert (there.status, there.executor, here.executor) == ("succeeded", "ray", "local")
    assert there.attempts[0].node.startswith("127.0.0.")
    assert (here.attempts[0].node, there.pid) == ("", None)
    assert points(trainer, there.run_id) == points(trainer, here.run_id)
    assert file_names(there) == file_names(here)
    weights = [RunFolder(view.run_dir).checkpoint(2048) / "weights.safetensors" for view in (there, here)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    logs = [b"".join(chunk.data for chunk in trainer.log(view.run_id)).splitlines() for view in (there, here)]
    assert logs[0][0] == logs[1][0]
    assert logs[0][-1] == logs[1][-1], "lines between the first and the last are printed when some time has passed"
    evaluation = {
        "kind": "policy_eval",
        "metadata": {"worker": {"id": "cleanrl", "config": {"env_id": "CartPole-v1"}}},
        "artifacts": {},
        "evaluation": {"policy_path": there.run_dir, "episodes": 2},
    }
    evaluated = ended(trainer, trainer.submit(evaluation).run_id)
    assert (evaluated.status, evaluated.executor) == ("succeeded", "local")


def test_a_run_on_a_node_is_tracked_when_it_has_ended(
    trainer: TrainerClient, live: LiveDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4.6, R10.1: as the shell says that submits it; the key goes to no node and to no file of the workspace."""
    pytest.importorskip("wandb", reason="the wandb extra is not installed")
    with WandbServer() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        run_id = trainer.submit({**ppo(total_timesteps=512), "artifacts": {"wandb": {"enabled": True}}}).run_id
        view = ended(trainer, run_id)
        assert (view.outcome, bool(view.attempts[0].node)) == ("succeeded", True)
        wait_for(lambda: [state.state for state in trainer.read_wandb(run_id)] == ["synced"], "the upload", 120)
        assert max(row["global_step"] for row in server.history(run_id)) == 512
    assert files_with(live.workspace.root, KEY) == files_with(SCRATCH, KEY) == []


def test_a_run_on_a_node_is_watched_paused_cancelled_and_resumed(trainer: TrainerClient) -> None:
    """R10.1: frames and commands work as on one machine."""
    run_id = trainer.submit(ppo(total_timesteps=LONG)).run_id
    view = wait_running(trainer, run_id)
    with closing(LaneView(lanes_folder(view.run_dir))) as lanes:
        seen: set[int] = set()

        def has_frames() -> bool:
            if lanes.poll():
                seen.update(frame.number for frame in lanes.frames.values() if frame is not None)
            return len(seen) >= 3

        wait_for(has_frames, "frames from the node")
    trainer.pause_run(run_id)
    wait_for(lambda: trainer.get_run(run_id).stage == "paused", "the pause")
    trainer.resume(run_id)
    wait_for(lambda: trainer.get_run(run_id).stage == "running", "the end of the pause")
    trainer.cancel_run(run_id)
    view = ended(trainer, run_id)
    assert view.status == "cancelled"
    step = wait_checkpoint(view)
    assert step == view.global_step
    trainer.resume(run_id)
    view = wait_running(trainer, run_id, attempt=2)
    assert events(RunFolder(view.run_dir), "hello")[-1]["resumed_from"] == step
    trainer.cancel_run(run_id)
    assert ended(trainer, run_id).status == "cancelled"
    assert [line["seq"] for line in read_all(RunFolder(view.run_dir).journal)] == list(
        range(1, len(read_all(RunFolder(view.run_dir).journal)) + 1)
    )


def test_a_run_whose_node_dies_continues_on_another(
    trainer: TrainerClient, cluster: RayCluster, abandoned: list[Path]
) -> None:
    """R10.1: with one curve; a run on another node does not notice."""
    saved = {"checkpoint_every": 200, "num_envs": 1}
    long = ppo(cpus=2, env_id="slow_cart:SlowCart-v0", total_timesteps=LONG, extras=saved)
    run_ids = [trainer.submit(long).run_id for _ in range(2)]
    views = [wait_running(trainer, run_id) for run_id in run_ids]
    lost, other = sorted(views, key=lambda view: view.attempts[0].node == HEAD)
    node = lost.attempts[0].node
    wait_checkpoint(lost)
    cluster.kill_node(node)
    try:
        view = wait_running(trainer, lost.run_id, attempt=2)
        assert view.attempts[1].node not in (node, "")
        assert (view.attempts[1].is_resume, view.node_losses) == (True, 1)
        resumed_from = events(RunFolder(view.run_dir), "hello")[-1]["resumed_from"]
        assert resumed_from >= 200
        message = f"Node {node} was lost; it continues from step {resumed_from:,}."
        assert message in [entry.message for entry in view.history]
        wait_for(lambda: (trainer.get_run(lost.run_id).checkpoint_step or 0) > resumed_from, "a further checkpoint")
        assert [len(trainer.get_run(other.run_id).attempts), trainer.get_run(other.run_id).stage] == [1, "running"]
        for run_id in run_ids:
            trainer.cancel_run(run_id)
        assert [ended(trainer, run_id).status for run_id in run_ids] == ["cancelled", "cancelled"]
        for tag, series in points(trainer, lost.run_id).items():
            steps = [step for step, _ in series]
            assert steps == sorted(set(steps)), tag
    finally:
        abandoned.extend(SCRATCH.glob(f"{lost.run_id}-1-*"))
        cluster.add_node(node)
    assert len(abandoned) == 1


def test_what_cannot_run_on_the_cluster_is_refused_or_says_why_it_waits(trainer: TrainerClient) -> None:
    run_id = trainer.submit(ppo(cpus=64)).run_id
    wait_for(lambda: "64 CPUs" in (trainer.get_run(run_id).wait_reason or ""), "the reason")
    assert trainer.get_run(run_id).wait_reason == "waits for 64 CPUs; the largest node has 2"
    trainer.cancel_run(run_id)
    choice = {"id": "script", "config": {"argv": ["true"], "cwd": "/"}}
    script = {"metadata": {"worker": choice}, "artifacts": {}, "resources": {"executor": "ray"}}
    with pytest.raises(BadInput, match="a program of yours runs on the trainer's machine only"):
        trainer.submit(script, {"PATH": os.environ["PATH"]})
    with pytest.raises(BadInput, match=r"resources\.executor: input should be 'local', 'ray' or 'slurm'"):
        trainer.submit(ppo("slurmm"))
    # A node that an earlier test has started again may be reported a little later.
    status = wait_for(lambda: [one for one in trainer.get_status().executors if len(one.nodes) == 3], "the nodes")[0]
    assert (status.name, status.problem, status.cpus) == ("ray", None, 6)


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_daemon_that_is_killed_finds_its_runs_on_the_cluster_again(
    tmp_path: Path, plugins: Path, cluster: RayCluster, is_streamed: bool
) -> None:
    """R10.1: also where node and daemon have the same storage, and nothing is copied."""
    place = Workspace(tmp_path / "it's another place" / "var")
    daemon = start_daemon(place, plugins, cluster, **({STREAM_VARIABLE: "1"} if is_streamed else {}))
    payload = {
        "metadata": {"worker": {"id": "scripted", "config": {"steps": 60, "dt": 0.05}}},
        "artifacts": {},
        "resources": {"executor": "ray"},
    }
    with daemon.start() as trainer:
        run_id = trainer.submit(payload).run_id
        wait_for(lambda: (trainer.get_run(run_id).global_step or 0) > 3, "some steps")
        assert bool(list(SCRATCH.glob(f"{run_id}-*/{run_id}"))) is is_streamed
    daemon.kill()
    with daemon.start() as trainer:
        view = ended(trainer, run_id)
        assert (view.status, view.global_step, len(view.attempts)) == ("succeeded", 60, 1)
        assert points(trainer, run_id)["scripted/step"] == [(step, float(step)) for step in range(1, 61)]
    wait_for(lambda: not list(SCRATCH.glob(f"{run_id}-*")), "the end of what is left on the node")
    daemon.end()
