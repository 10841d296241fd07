"""A trainer on one machine and its user on another: two network namespaces, joined by a cable that can be cut."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.helpers.commands import MOSAIC, PATIENCE_S, CommandResult
from tests.helpers.daemons import environment, wait_for
from tests.helpers.network import TRAINER_HOST, TwoMachines, two_machines, why_impossible

from mosaic.base.fastlane.lane_files import LANES_VARIABLE
from mosaic.contracts.folder import Workspace

pytest.importorskip("cryptography", reason="makes the certificate: pip install 'mosaic-rl[remote]'")
REASON = why_impossible()
pytestmark = [pytest.mark.skipif(bool(REASON), reason=REASON), pytest.mark.timeout(300)]

TINY = ("ppo", "--env-id", "CartPole-v1", "--num-envs", "2", "--num-steps", "32")
NOTICE_S = 15.0
"""Keepalive takes 8 s; the rest is for a machine that is busy."""


class Pair(NamedTuple):
    machines: TwoMachines
    daemon: subprocess.Popen[bytes]
    workspace: Workspace
    """On the trainer's machine."""
    home: Path
    """On the client's, which shares no folder with it."""

    @property
    def variables(self) -> dict[str, str]:
        names = ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "MOSAIC_VAR", "MOSAIC_LANES")
        return {**os.environ, **{name: str(self.home / name.lower()) for name in names}, "COLUMNS": "100"}

    def run(self, *arguments: str) -> CommandResult:
        done = subprocess.run(
            self.machines.on_client(MOSAIC, *arguments),
            env=self.variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)

    @contextmanager
    def start(self, name: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        """A command whose output goes to a file."""
        path = self.home / name
        with open(path, "wb") as output:
            command = self.machines.on_client(MOSAIC, *arguments)
            process = subprocess.Popen(
                command, env=self.variables, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            yield process, path
        finally:
            process.kill()
            process.wait()

    def start_daemon(self) -> Pair:
        return self._replace(daemon=_start_daemon(self.machines, self.workspace, self.home))


def _start_daemon(machines: TwoMachines, workspace: Workspace, home: Path) -> subprocess.Popen[bytes]:
    """As its user would, there."""
    workspace.root.mkdir(parents=True, exist_ok=True)
    printed = workspace.root / "printed"
    with open(printed, "wb") as output:
        daemon = subprocess.Popen(
            machines.on_trainer(MOSAIC, "daemon", "run", "--listen", "0.0.0.0", "--var", str(workspace.root)),
            env=environment(home / "plugins"),
            stdout=output,
            stderr=output,
        )
    wait_for(lambda: "Fingerprint" in printed.read_text() or daemon.poll() is not None, "the daemon")
    assert daemon.poll() is None, printed.read_text()
    return daemon


@pytest.fixture
def pair(workspace: Workspace, tmp_path: Path) -> Iterator[Pair]:
    with two_machines() as machines:
        made = Pair(machines, _start_daemon(machines, workspace, tmp_path), workspace, tmp_path / "client")
        made.home.mkdir()
        token = made.home / "token"
        token.write_text(workspace.remote_token.read_text())
        try:
            added = made.run("trainer", "add", "gpu", TRAINER_HOST, "--token-file", str(token))
            assert added.code == 0, added.err
            assert made.run("trainer", "use", "gpu").code == 0
            yield made
        finally:
            stop = machines.on_trainer(MOSAIC, "daemon", "stop", "--runs", "--var", str(workspace.root))
            subprocess.run(stop, capture_output=True, timeout=PATIENCE_S)
            made.daemon.kill()
            made.daemon.wait()


def last_viewed_at() -> float:
    """When a viewer's heartbeat last reached a worker on the trainer's machine."""
    return max((path.stat().st_mtime for path in Path(os.environ[LANES_VARIABLE]).rglob("*.beat")), default=0.0)


def test_a_run_is_trained_read_evaluated_watched_and_cancelled_from_another_machine(pair: Pair) -> None:
    """R10.3 and R5.4: a trainer on another host, from the command line; frames too."""
    trained = pair.run("train", *TINY, "--total-timesteps", "1280")
    assert (trained.code, "Succeeded" in trained.out) == (0, True), trained.err
    assert "gpu:/" in trained.out, "its folder is on the trainer's machine"
    assert "global_step=" in pair.run("logs", "last").out
    assert "charts/SPS" in pair.run("metrics", "last").out
    assert pair.run("show", "last").out.startswith("Succeeded  ppo on CartPole-v1")
    assert json.loads(pair.run("config", "last").out)["metadata"]["worker"]["config"]["algo"] == "ppo"
    evaluated = pair.run("eval", "last", "--episodes", "2", "--video")
    assert evaluated.code == 0, evaluated.err
    videos = re.findall(r"^  (/.*\.mp4)$", evaluated.out, re.MULTILINE)
    assert videos
    assert all(Path(video).is_relative_to(pair.home) and Path(video).stat().st_size for video in videos)
    assert pair.run("export", "last", "--zip", str(pair.home / "run.zip")).code == 0
    detached = pair.run("train", *TINY, "--total-timesteps", "500000000", "--detach", "--json")
    run_id = detached.json["run_id"]
    wait_for(lambda: pair.run("show", run_id, "--json").json["stage"] == "running", "the run")
    watched = pair.run("watch", run_id, "--save", str(pair.home / "one.mp4"), "--seconds", "0.1", "--json")
    assert watched.code == 0, watched.err
    assert watched.json["frames"] >= 1
    for command, stage in (("pause", "paused"), ("resume", "running")):
        done = pair.run(command, run_id)
        assert done.code == 0, done.err
        wait_for(lambda stage=stage: pair.run("show", run_id, "--json").json["stage"] == stage, stage)  # type: ignore[misc]
    step = pair.run("show", run_id, "--json").json["global_step"]
    wait_for(lambda: pair.run("show", run_id, "--json").json["global_step"] > step, "further steps")
    cancelled = pair.run("cancel", run_id)
    assert cancelled.code == 0, cancelled.err
    assert pair.run("show", run_id, "--json").json["outcome"] == "cancelled"
    assert not (pair.home / "mosaic_var").exists(), "nothing was started or stored on the client's machine"
    assert not (pair.home / "mosaic_lanes").exists()


def test_a_cable_that_is_cut_is_noticed_and_everything_continues_where_it_was(pair: Pair) -> None:
    """R10.3: a cut connection ends nothing; Ctrl-C during it detaches."""
    detached = pair.run("train", *TINY, "--total-timesteps", "500000000", "--detach", "--json")
    run_id = detached.json["run_id"]
    wait_for(lambda: pair.run("logs", run_id).out, "its log")
    log = next((pair.workspace.runs / run_id / "logs").glob("*.stdout.log"))
    video = pair.home / "cut.mp4"
    with (
        pair.start("follow.out", "show", "-f", run_id) as (follow, followed),
        pair.start("logs.out", "logs", "-f", run_id) as (logs, logged),
        pair.start("watch.out", "watch", run_id, "--save", str(video), "--seconds", "25", "--rate", "5") as (
            watch,
            watched,
        ),
        pair.start("train.out", "train", *TINY, "--total-timesteps", "500000000") as (train, trained),
    ):
        wait_for(lambda: "running" in followed.read_text() and logged.stat().st_size, "both to follow")
        wait_for(lambda: list(pair.home.glob(".cut*")), "the first frame")
        wait_for(lambda: " running, " in trained.read_text(), "the run of train")
        pair.machines.cut()
        train.send_signal(signal.SIGINT)
        wait_for(lambda: "Stopping when the trainer can be reached again" in trained.read_text(), "the first Ctrl-C")
        train.send_signal(signal.SIGINT)
        assert train.wait(timeout=PATIENCE_S) == 130, "it detaches, though the cable is still cut"
        assert "so nothing was stopped: what it runs continues." in trained.read_text()
        for path in (followed, logged):
            wait_for(lambda path=path: "broke. What it runs continues" in path.read_text(), path.name, NOTICE_S)  # type: ignore[misc]
        pair.machines.join()
        joined_at = time.time()
        for path in (followed, logged):
            wait_for(lambda path=path: "Connected again." in path.read_text(), f"{path.name} to continue")  # type: ignore[misc]
        wait_for(lambda: last_viewed_at() > joined_at, "frames to be asked for again")
        left = re.search(r"Detached; run (\w+) continues\. Attach again: mosaic show -f (\w+)", trained.read_text())
        assert left is not None, trained.read_text()
        assert pair.run("show", left[1], "--json").json["stage"] == "running"
        assert watch.wait(timeout=PATIENCE_S) == 0, watched.read_text()
        assert video.stat().st_size
        assert pair.run("cancel", run_id).code == 0
        assert follow.wait(timeout=PATIENCE_S) == 0, "the exit code of show"
        assert logs.wait(timeout=PATIENCE_S) == 0
    assert "Cancelled" in followed.read_text()
    ours = (b"The connection to the trainer", b"Connected again.")
    lines = [line for line in logged.read_bytes().splitlines(keepends=True) if not line.startswith(ours)]
    assert b"".join(lines) == log.read_bytes(), "every byte once"


@pytest.mark.may_log("call_refused")
def test_another_certificate_and_another_token_are_refused_across_the_network(pair: Pair) -> None:
    pair.daemon.terminate()
    pair.daemon.wait()
    stopped = pair.run("runs")
    assert (stopped.code, f"Nobody listens on {TRAINER_HOST}:50055" in stopped.err) == (4, True)
    pair.workspace.tls_identity.unlink()
    token = pair.workspace.remote_token.read_text()
    pair.workspace.remote_token.write_text("f" * 64)
    again = pair.start_daemon()
    try:
        changed = pair.run("runs")
        assert (changed.code, "has changed. Nothing was sent to it." in changed.err) == (4, True)
        command = f"mosaic trainer add gpu {TRAINER_HOST}:50055 --replace"
        assert command in changed.err
        refused = pair.run(*command.split()[1:])
        assert (refused.code, "refuses the token" in refused.err) == (2, True), "the stored token is not its own"
        again.daemon.terminate()
        again.daemon.wait()
        pair.workspace.remote_token.write_text(token)
        again = pair.start_daemon()
        assert pair.run(*command.split()[1:]).code == 0
        assert pair.run("runs").code == 0
    finally:
        again.daemon.terminate()
        again.daemon.wait()


def test_an_unreachable_machine_is_described(pair: Pair) -> None:
    pair.machines.cut()
    unreachable = pair.run("runs")
    assert (unreachable.code, f"{TRAINER_HOST}:50055" in unreachable.err) == (4, True)
    assert "Check the network" in unreachable.err
    unknown = pair.run("trainer", "add", "other", "no-such-host.invalid", "--token-file", str(pair.home / "token"))
    assert (unknown.code, "There is no host 'no-such-host.invalid'" in unknown.err) == (4, True)
    pair.machines.join()
    assert wait_for(lambda: pair.run("runs").code == 0, "the cable")
