"""A trainer that other machines reach by TLS, on a loopback address: who is let in, and what is said to the others."""

from __future__ import annotations

import json
import os
import pty
import pwd
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
from tests.helpers.commands import MOSAIC, CommandResult, mosaic
from tests.helpers.daemons import LiveDaemon, ended, running_daemon, scripted, wait_for
from tests.helpers.free_ports import free_ports
from tests.helpers.lossy_relay import lossy_relay
from tests.helpers.relay import Relay
from tests.helpers.wandb_server import KEY, WandbServer, files_with

from mosaic import connect as connect_api
from mosaic.base.certificates import compute_fingerprint
from mosaic.base.files import config_folder
from mosaic.base.handshake import REMOTE_RETRY_S
from mosaic.base.trainer_profiles import profiles_path
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import BadInput, IdentityFailed, VersionMismatch
from mosaic.contracts.folder import Workspace
from mosaic.contracts.trainer_pb2_grpc import TrainerStub
from mosaic.trainer.client.connect import ReconnectingClient
from mosaic.trainer.client.remote_trainer import RemoteTrainer, connect_remote, fetch_trainer_certificate
from mosaic.trainer.client.trainer_client import TrainerClient, submit_once
from mosaic.trainer.tls_identity import load_or_create_identity

pytest.importorskip("cryptography", reason="makes the certificate: pip install 'mosaic-rl[remote]'")


class Far(NamedTuple):
    """A trainer, and a user elsewhere who knows its address and its token."""

    daemon: LiveDaemon
    trainer: TrainerClient
    address: str
    workspace: Workspace
    elsewhere: Workspace

    def run(self, *arguments: str, **variables: str) -> CommandResult:
        return mosaic(self.elsewhere, *arguments, **variables)

    def add(self, *arguments: str, token_file: Path | None = None) -> CommandResult:
        token = ("--token-file", str(token_file or self.workspace.remote_token))
        return self.run("trainer", "add", "gpu", self.address, *token, *arguments)


@pytest.fixture
def far(workspace: Workspace, plugins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Far]:
    for name in ("MOSAIC_TOKEN", "MOSAIC_TRAINER"):
        monkeypatch.delenv(name, raising=False)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with running_daemon(workspace, plugins, "--listen", address) as (daemon, trainer):
        yield Far(daemon, trainer, address, workspace, Workspace(tmp_path / "elsewhere"))


def test_a_trainer_is_added_used_and_removed(far: Far) -> None:
    """R10.3: by its certificate and its token."""
    run_id = ended(far.trainer, far.trainer.submit(scripted(steps=2)).run_id).run_id
    fingerprint = far.trainer.get_status().fingerprint
    assert fingerprint is not None
    assert fingerprint in (far.workspace.root / "daemon.out").read_text()
    added = far.add()
    assert (added.code, fingerprint in added.err) == (0, True), added.err
    assert stat.S_IMODE(profiles_path().stat().st_mode) == 0o600
    assert far.workspace.remote_token.read_text().strip() not in profiles_path().read_text()
    for arguments, variables in (
        (("runs", "--trainer", "gpu"), {}),
        (("runs", "--trainer", far.address), {}),
        (("runs",), {"MOSAIC_TRAINER": "gpu"}),
    ):
        assert [view["run_id"] for view in far.run(*arguments, "--json", **variables).json] == [run_id]
    assert far.run("trainer", "use", "gpu").code == 0
    assert far.run("daemon", "status", "--json").json["fingerprint"] == fingerprint
    assert far.run("trainer", "list", "--json").json == [
        {"name": "gpu", "address": far.address, "fingerprint": fingerprint, "is_default": True}
    ]
    assert far.run("trainer", "show", "gpu", "--json").json["state"] == "reachable"
    shown = far.run("show", "last", "--trainer", "gpu")
    assert f"Files in gpu:{far.workspace.runs / run_id}" in shown.out
    program = far.run("run", "--", "true")
    assert (program.code, "is not sent to another machine" in program.err) == (2, True)
    for command in (("import", "x.zip"), ("push", "last", "--repo", "a/b")):
        refused = far.run(*command)
        assert (refused.code, refused.err.splitlines()[-1].endswith("Add: --trainer local")) == (2, True)
    assert far.run("daemon", "stop").out == "No daemon runs.\n", "it is about this machine, whatever the default"
    assert far.run("runs", "--trainer", "local", "--var", str(far.workspace.root), "--json").json
    assert far.run("trainer", "use", "local").code == 0
    assert far.run("trainer", "remove", "gpu").code == 0
    assert "is not known" in far.run("runs", "--trainer", "gpu").err
    assert not far.elsewhere.root.exists()


def test_a_run_is_tracked_as_the_shell_on_the_other_machine_says(far: Far) -> None:
    """R4.6, R10.3: without paths and proxies of that machine; the key is in no file of the workspace."""
    pytest.importorskip("wandb", reason="the wandb extra is not installed")
    assert far.add().code == 0
    with WandbServer() as server:
        shell = {"BASE_URL": server.url, "API_KEY": KEY, "NAME": "mine", "DIR": "/here", "HTTP_PROXY": "http://p:1"}
        variables = {f"WANDB_{name}": value for name, value in shell.items()}
        command = ("train", "ppo", "--env-id", "CartPole-v1", "--total-timesteps", "2048", "--track", "--json")
        run_id = far.run(*command, "--trainer", "gpu", **variables).json["run_id"]
        wait_for(lambda: [state.state for state in far.trainer.read_wandb(run_id)] == ["synced"], "the upload", 120)
        assert server.runs[run_id]["displayName"] == "mine"
    (kept,) = (config_folder() / "tracking").glob("*.json")
    assert json.loads(kept.read_text())["variables"].keys() == {"WANDB_BASE_URL", "WANDB_API_KEY", "WANDB_NAME"}
    assert files_with(far.workspace.root, KEY) == []


def test_a_token_alone_is_enough_to_reach_a_trainer_that_was_never_added(far: Far) -> None:
    """It proves who answers, so the address need not be known; addresses of this machine are taken for tunnels."""
    remote = RemoteTrainer(
        far.address, far.workspace.remote_token.read_text().strip(), fetch_trainer_certificate(far.address)
    )
    with connect_remote(remote) as client:
        assert client.get_status().listen == far.address
    refused = far.run("runs", "--trainer", far.address, "--token-file", str(far.workspace.remote_token))
    assert refused.code == 4
    assert f"speaks TLS. Add it first: mosaic trainer add NAME {far.address}" in refused.err


def test_the_port_for_other_machines_refuses_what_is_not_encrypted(far: Far) -> None:
    with closing(grpc.insecure_channel(far.address)) as channel, pytest.raises(grpc.RpcError) as refused:
        TrainerStub(channel).Identify(pb.IdentifyRequest(nonce="x"), timeout=10)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    content = json.loads(far.workspace.daemon_file.read_text())
    assert content["token"] != content["remote_token"], "workers get the first, which does not outlive the daemon"
    assert content["address"].startswith("127.0.0.1:")


def test_the_token_is_asked_for_in_a_terminal_and_not_shown(far: Far) -> None:
    token = far.workspace.remote_token.read_text().strip()
    ours, theirs = pty.openpty()
    asked = subprocess.Popen(
        [MOSAIC, "trainer", "add", "gpu", far.address],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    with open(ours, "r+b", buffering=0) as terminal:
        while b"Token, from trainer/remote_token there:" not in shown:
            shown += terminal.read(1000)
        terminal.write(token.encode() + b"\n")
        with suppress(OSError):  # the end of a terminal's other side
            while part := terminal.read(1000):
                shown += part
    assert asked.wait(timeout=60) == 0, shown
    assert token.encode() not in shown
    with connect_api(trainer="gpu") as client:
        assert client.status.listen == far.address


@pytest.mark.may_log("call_refused")
def test_a_changed_certificate_is_refused_with_both_fingerprints_and_accepted_on_request(far: Far) -> None:
    assert far.add().code == 0
    pinned = far.trainer.get_status().fingerprint
    far.daemon.stop()
    far.workspace.tls_identity.unlink()
    with far.daemon.start() as trainer:
        shown = trainer.get_status().fingerprint
    refused = far.run("runs", "--trainer", "gpu")
    assert refused.code == 4
    assert f"  pinned: {pinned}\n  shown:  {shown}\n" in refused.err
    assert f"mosaic trainer add gpu {far.address} --replace" in refused.err
    again = far.add()
    assert (again.code, "To replace it, add --replace" in again.err) == (2, True)
    assert far.run("trainer", "add", "gpu", far.address, "--replace").code == 0, "its stored token proves who it is"
    assert far.run("runs", "--trainer", "gpu").code == 0


@pytest.mark.may_log("call_refused")
def test_a_wrong_or_missing_token_is_named(far: Far, tmp_path: Path) -> None:
    """R10.3: who does not know the token is refused."""
    wrong = tmp_path / "wrong"
    wrong.write_text("0" * 64)
    refused = far.add(token_file=wrong)
    assert (refused.code, "refuses the token" in refused.err) == (2, True)
    assert "trainer/remote_token" in refused.err
    assert not profiles_path().exists(), "nothing is stored of a trainer that was not reached"
    missing = far.run("trainer", "add", "gpu", far.address)
    assert (missing.code, "needs its token" in missing.err) == (2, True)
    assert far.add().code == 0
    far.daemon.stop()
    far.workspace.remote_token.unlink()
    far.daemon.start().close()
    outdated = far.run("runs", "--trainer", "gpu")
    assert (outdated.code, f"mosaic trainer add gpu {far.address} --replace" in outdated.err) == (2, True)


@pytest.mark.may_log("call_refused")
def test_somebody_who_relays_the_first_contact_is_found_out(far: Far, tmp_path: Path) -> None:
    """Both sides prove the token together with the certificate, and the relay's is not the trainer's."""
    other = Workspace(tmp_path / "other")
    other.create_private()
    load_or_create_identity(other)
    host, _, port = far.address.partition(":")
    with closing(Relay(other.tls_identity, (host, int(port)))) as relay:
        token = far.workspace.remote_token.read_text().strip()
        certificate = fetch_trainer_certificate(relay.address)
        assert compute_fingerprint(certificate) != far.trainer.get_status().fingerprint
        with pytest.raises(IdentityFailed, match="somebody in between relays the connection"):
            connect_remote(RemoteTrainer(relay.address, token, certificate))
        assert relay.relayed_bytes > 0, "it did relay"


def test_who_does_not_answer_is_described(far: Far) -> None:
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    token = ("--token-file", str(far.workspace.remote_token))
    plain = far.trainer.get_status().address
    for address, words in (
        (nobody, f"Nobody listens on {nobody}. On that machine, start: mosaic daemon run --listen"),
        ("no..host", "There is no host 'no..host'"),
        (plain, f"What listens on {plain} does not speak TLS"),
    ):
        refused = far.run("trainer", "add", "gpu", address, *token)
        assert (refused.code, words in refused.err) == (4, True), refused.err
    assert far.add().code == 0
    far.daemon.stop()
    gone = far.run("runs", "--trainer", "gpu")
    assert (gone.code, f"Nobody listens on {far.address}" in gone.err) == (4, True)
    shown = far.run("trainer", "show", "gpu")
    assert (shown.code, "Nobody listens" in shown.out) == (0, True)


def test_a_trainer_of_another_version_says_which_side_to_upgrade(far: Far) -> None:
    assert far.add().code == 0
    for version, words in (
        ("99.1.0", r"Upgrade this machine: pip install --upgrade 'mosaic-rl==99\.1\.\*'"),
        ("0.0.3", "Upgrade the trainer's machine"),
    ):
        far.daemon.stop()
        change = f"import mosaic, sys; mosaic.__version__ = {version!r}"
        far.daemon.command = [
            sys.executable, "-c", f"{change}; from mosaic.trainer.__main__ import main; sys.exit(main())"
        ]  # fmt: skip
        far.daemon.start().close()
        remote = RemoteTrainer(
            far.address, far.workspace.remote_token.read_text().strip(), fetch_trainer_certificate(far.address), "gpu"
        )
        with pytest.raises(VersionMismatch, match=words):
            connect_remote(remote)
        assert far.run("runs", "--trainer", "gpu").code == 1


def test_a_port_that_is_taken_and_an_address_of_another_machine_are_refused(far: Far, tmp_path: Path) -> None:
    second = Workspace(tmp_path / "second")
    for address in (far.address, "203.0.113.1:50055"):
        refused = mosaic(second, "daemon", "run", "--listen", address, "--port", "0")
        assert (refused.code, f"--listen {address}: this machine has no such address, or" in refused.err) == (2, True)
    assert not second.daemon_file.exists()


def test_files_of_a_trainer_elsewhere_are_copied_for_their_owner_only(
    far: Far, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert far.add().code == 0
    run_id = ended(far.trainer, far.trainer.submit(scripted(steps=2)).run_id).run_id
    remote = RemoteTrainer(
        far.address, far.workspace.remote_token.read_text().strip(), fetch_trainer_certificate(far.address)
    )
    umask = os.umask(0o022)
    try:
        with connect_remote(remote) as client:
            copy = client.open_file(run_id, "journal.jsonl")
    finally:
        os.umask(umask)
    assert copy.read_bytes() == (far.workspace.runs / run_id / "journal.jsonl").read_bytes()
    assert copy.is_relative_to(cache)
    assert stat.S_IMODE((cache / "mosaic" / "files").stat().st_mode) == 0o700
    packed = far.run("export", run_id, "--zip", str(tmp_path / "run.zip"), "--trainer", "gpu")
    assert packed.code == 0, packed.err
    imported = mosaic(Workspace(tmp_path / "here"), "import", str(tmp_path / "run.zip"), "--json")
    assert imported.json["run_id"] == run_id
    assert mosaic(Workspace(tmp_path / "here"), "daemon", "stop").code == 0


def test_a_submission_whose_answer_is_lost_is_repeated_and_creates_one_run(far: Far) -> None:
    """R10.3: an answer that is lost on the way creates no second run."""
    token = far.workspace.remote_token.read_text().strip()
    with lossy_relay(far.address) as relay, ThreadPoolExecutor(1) as pool:
        remote = RemoteTrainer(relay.address, token, fetch_trainer_certificate(far.address), "gpu")
        connection = ReconnectingClient(lambda: connect_remote(remote), lambda: None, REMOTE_RETRY_S)
        connection.trainer()
        relay.loses_answers = True
        submitted = pool.submit(submit_once, connection.call, scripted(steps=2))
        wait_for(far.trainer.runs, "the request to arrive")
        relay.cut()
        view = submitted.result(timeout=100)
        connection.close()
    assert [run.run_id for run in far.trainer.runs()] == [view.run_id]
    ended(far.trainer, view.run_id)
    again = submit_once(lambda call: call(far.trainer), scripted(steps=2))
    assert again.run_id != view.run_id, "the same config, submitted again, is another run"
    ended(far.trainer, again.run_id)


@pytest.mark.may_log("index_rebuilt")
def test_the_same_request_returns_its_run_after_a_restart_and_at_the_same_time(far: Far) -> None:
    key, payload = "0123456789abcdef" * 2, scripted(steps=2)
    with ThreadPoolExecutor(4) as pool:
        views = list(pool.map(lambda _: far.trainer.submit(payload, key=key), range(4)))
    assert len({view.run_id for view in views}) == 1
    ended(far.trainer, views[0].run_id)
    far.daemon.stop()
    far.workspace.index.unlink()
    with far.daemon.start() as trainer:
        assert trainer.submit(payload, key=key).run_id == views[0].run_id, "it is in the run's record"
        with pytest.raises(BadInput, match="submission_key: 'mine' is not valid; expected 32 hexadecimal digits"):
            trainer.submit(payload, key="mine")
        assert len(trainer.runs()) == 1


def test_a_run_knows_who_submitted_it_and_from_which_machine(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    user = pwd.getpwuid(os.getuid()).pw_name
    near = far.trainer.submit(scripted(steps=2))
    token = far.workspace.remote_token.read_text().strip()
    with connect_remote(RemoteTrainer(far.address, token, fetch_trainer_certificate(far.address))) as client:
        distant = client.submit(scripted(steps=2))
    assert (near.submitted_by, distant.submitted_by) == (user, f"{user}@{socket.gethostname()}")
    for view in (near, distant):
        ended(far.trainer, view.run_id)
    monkeypatch.setattr("mosaic.trainer.client.trainer_client.submitter", lambda is_local: "two words")
    with pytest.raises(BadInput, match="submitted_by: 'two words' is not valid; expected a login name"):
        far.trainer.submit(scripted(steps=2))
    assert len(far.trainer.runs()) == 2
