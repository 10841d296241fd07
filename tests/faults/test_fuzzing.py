"""F41: no input from outside raises what its reader does not expect. MOSAIC_FULL_SWEEP=1 tries many more of them."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.helpers.daemons import LiveDaemon, ended, scripted, wait_for
from tests.helpers.fuzzing import NUMBERS, TEXTS, VALUES, changed, damaged

from mosaic.base import checkpoint_files
from mosaic.base.console_parser import ConsoleParser
from mosaic.base.handshake import TOKEN_KEY
from mosaic.base.store import Index
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import BadInput, CheckpointDamaged, NoDaemon
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.process_identity import ProcessIdentity
from mosaic.contracts.states import Attempt, RunRecord, Stage
from mosaic.features.train.daemon import check_run
from mosaic.trainer.checkers import Checkers
from mosaic.trainer.client.connect import connect, read_daemon_address
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.trainer.executors.local import LocalExecutor
from mosaic.trainer.gpus import MpsServers
from mosaic.trainer.records import Records
from mosaic.trainer.recovery import recover
from mosaic.trainer.run_import import import_run
from mosaic.trainer.scheduler import Slots
from mosaic.trainer.services import Services
from mosaic.trainer.supervisor import Supervisor
from mosaic.trainer.trash import move_to_trash
from mosaic.worker.checkpoints import last_good_checkpoint, load_checkpoint
from mosaic.worker.run import Inbox, Run

FACTOR = int(os.environ.get("MOSAIC_FULL_SWEEP") or 0) * 50 or 1
pytestmark = pytest.mark.timeout(120 if FACTOR == 1 else 0)


def tries(count: int) -> settings:
    return settings(
        max_examples=count * FACTOR,
        derandomize=FACTOR == 1,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


def to_json(value: Any) -> str:
    return json.dumps(value)  # lone surrogates are escaped, and NaN is written as such


# --- what is submitted

PAYLOAD = {
    "run_name": "name",
    "kind": "train",
    "metadata": {
        "worker": {"id": "cleanrl", "config": {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "extras": {"a": 1}}},
        "tags": ["a"],
        "notes": "n",
        "group": "g",
        "ui": {},
    },
    "resources": {"cpus": 1, "memory_mb": 100, "gpus": {"requested": 0, "mandatory": False}},
    "artifacts": {"tensorboard": {"enabled": True}, "video": {"mode": "grid", "grid_limit": 4}, "keep_checkpoints": 3},
    "schedule": {"priority": 1, "max_duration_seconds": 10},
    "evaluation": {},
}


class Trainer(NamedTuple):
    """The parts of a daemon without its processes."""

    workspace: Workspace
    records: Records
    services: Services
    supervisor: Supervisor


@pytest.fixture
def parts(workspace: Workspace) -> Iterator[Trainer]:
    workspace.runs.mkdir(parents=True)
    slots = Slots(runs=2, cpus=2, gpus=0)
    with closing(Index(workspace.index)) as index:
        records = Records(workspace, index)
        local = LocalExecutor("", "", 0o077, slots, MpsServers(workspace.root))
        supervisor = Supervisor(records, {local.name: local})
        checkers = Checkers({}, workspace)
        unused: Any = None
        services = Services(records, checkers, unused, unused, unused, {local.name: local}, local.name, lambda: None)
        yield Trainer(workspace, records, services, supervisor)


def test_a_payload_is_accepted_or_refused(parts: Trainer) -> None:
    """F27: a refusal is an error for the user, and the payload leaves nothing behind."""

    @tries(100)
    @given(changed(PAYLOAD).map(to_json) | st.text(max_size=50) | VALUES.map(to_json))
    def check(text: str) -> None:
        with suppress(BadInput):
            check_run(parts.services, pb.PayloadRequest(payload_json=text, environment={"PATH": ""}))

    check()
    assert list(parts.workspace.runs.iterdir()) == []


# --- what is in the files of a run

LINES: list[dict[str, Any]] = [
    {"kind": "hello", "worker": "w", "version": "1", "pid": 3, "capabilities": ["pause"], "attempt": 1},
    {"kind": "progress", "global_step": 3, "total_timesteps": 10, "sps": 2.0},
    {"kind": "metrics", "series": {"a": [[1, 1.0, 2.0], [2, 1.0, None]]}},
    {"kind": "episodes", "rows": [[1, 0, 5, 1.0, 2.0, 5]]},
    {"kind": "checkpoint", "step": 3, "path": "checkpoints/3", "is_best": True, "score": 1.0},
    {"kind": "environment", "env": 0, "env_id": "E", "seed": 3},
    {"kind": "paused", "global_step": 3},
    {"kind": "resumed", "global_step": 3},
    {"kind": "finished", "outcome": "succeeded", "reason": None, "global_step": 3},
    {"kind": "keeper_started", "process": {"pid": 3, "start": "1", "boot_id": "b"}},
    {"kind": "worker_started", "process": {"pid": 3, "start": "1", "boot_id": "b"}},
    {"kind": "sample", "cpu_percent": 1.0, "rss_mb": 2.0, "processes": 1, "gpus": [{"util_percent": 1.0}]},
    {"kind": "exited", "code": 0, "duration_s": 1.0, "peak_rss_mb": 3.0},
    {"kind": "worker_not_started", "reason": "r"},
]
KEEPER: ProcessIdentity = {"pid": 3, "start": "1", "boot_id": "of another boot"}


def some_line() -> st.SearchStrategy[bytes]:
    numbered = [{"seq": number, "at": 1.0, **line} for number, line in enumerate(LINES, 1)]
    valid = st.sampled_from(numbered).flatmap(changed).map(to_json).map(str.encode)
    cut = st.sampled_from(numbered).map(lambda line: to_json(line).encode()).flatmap(damaged)
    return valid | cut | st.binary(max_size=60) | VALUES.map(lambda value: to_json(value).encode())


def make_run(records: Records, stage: Stage = Stage.STARTING) -> RunFolder:
    """A run that was started before the machine was."""
    attempt = Attempt(number=1, slot=1, started_at=1.0, keeper=KEEPER, worker=KEEPER)
    record = RunRecord(
        run_id=records.new_id(), worker="cleanrl", stage=stage, submitted_at=1.0, queued_at=1.0, attempts=(attempt,)
    )
    folder = records.folder(record.run_id)
    folder.path.mkdir()
    records.put(record)
    return folder


def test_a_line_of_a_journal_is_stored_or_skipped(parts: Trainer) -> None:
    """F41: in a worker's journal, a process's and the keeper's; the run can be listed afterwards."""
    records = parts.records

    @tries(100)
    @given(
        st.lists(some_line(), min_size=1, max_size=6), st.sampled_from(["journal", "journal.7", "keeper", "sidecar"])
    )
    def check(lines: list[bytes], name: str) -> None:
        folder = make_run(records)
        (folder.path / f"{name}.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        while parts.supervisor._follow_next(folder.run_id):
            pass
        view = records.view(folder.run_id)
        assert view.problem is None
        assert json.loads(view.model_dump_json())["run_id"] == folder.run_id
        for event in records.index.events_after(0, folder.run_id, (), 100):
            assert event.body is not None or event.json_text is None or json.loads(event.json_text)
        list(records.index.episodes(folder.run_id))
        with records.index.read_metrics(folder.run_id) as (_, series):
            pb.MetricsReply(
                series=[pb.MetricSeries(tag=one.tag, steps=one.steps, at=one.at, values=one.values) for one in series]
            )
        records.active.clear()

    check()


@pytest.mark.may_log("record_unreadable", "record_restored", "run_folder_of_another_run", "run_folder_unreadable")
def test_a_record_is_read_or_replaced_and_others_are_listed(parts: Trainer) -> None:
    """F42: whatever is in a record.json, the daemon starts, lists all other runs, and takes its steps."""
    good = make_run(parts.records, Stage.FINISHED)
    folder = make_run(parts.records)
    valid = folder.record.read_bytes()
    parts.supervisor.is_draining = True

    @tries(60)
    @given(changed(json.loads(valid)).map(lambda value: to_json(value).encode()) | damaged(valid), st.booleans())
    @example(to_json({**json.loads(valid), "attempts": []}).encode(), False)
    @example(to_json({**json.loads(valid), "stage": "finished", "submitted_at": float("nan")}).encode(), False)
    def check(content: bytes, is_indexed: bool) -> None:
        folder.record.write_bytes(content)
        if not is_indexed:
            with suppress(LookupError):
                parts.records.index.delete_run(folder.run_id)
        parts.records.active.clear()
        recover(parts.records)
        for step in (
            parts.supervisor.follow_runs,
            parts.supervisor.apply_executor_changes,
            parts.supervisor.start_runs,
        ):
            step()
        rows = list(parts.records.index.list_runs(include_archived=True))
        assert good.run_id in [record.run_id for record, _ in rows]
        for record, progress in rows:
            parts.records.to_view(record, progress, parts.records.queue_positions()).model_dump_json()

    check()


def test_a_line_of_an_inbox_is_obeyed_or_skipped(tmp_path: Path) -> None:
    """F41: the worker and the keeper read what anybody may write there."""
    commands = [{"kind": kind, "at": 1e12, "by_signal": False} for kind in ("stop", "checkpoint", "resume")]

    @tries(40)
    @given(st.lists(st.sampled_from(commands).flatmap(changed).map(to_json) | st.text(), max_size=5))
    def check(lines: list[str]) -> None:
        folder = RunFolder(tmp_path / "run")
        with Run(folder, worker="w", version="1", handles_signals=False) as run:
            run._inbox = Inbox(folder)
            folder.inbox.write_bytes("\n".join(lines).encode(errors="surrogatepass") + b"\n")
            run.handle_commands()
        folder.inbox.unlink()

    check()


@tries(150)
@given(
    st.lists(
        st.text()
        | st.builds("{}={}, {}={}".format, TEXTS, NUMBERS, st.sampled_from(["global_step", "episodic_return"]), NUMBERS)
        | st.builds("| {} | {} |\n-----\n".format, TEXTS, NUMBERS | TEXTS)
    )
)
def test_what_a_script_prints_is_read_or_skipped(lines: list[str]) -> None:
    """F41: numbers of any size, tables, and lines cut anywhere."""
    parser = ConsoleParser()
    for line in lines:
        for reading in parser.feed(line) + parser.feed("\n"):
            assert reading.step is None or abs(reading.step) <= 1 << 63


# --- checkpoints


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    with Run(RunFolder(tmp_path / "run"), worker="w", version="1") as run:
        run.hello()
        path = run.save_checkpoint(5, weights={"w": np.ones(3)}, arrays={"a": np.ones(3)}, facts={"algorithm": "x"})
    assert path is not None
    return path


def sign(manifest: Any, path: Path) -> None:
    """Give a changed checkpoint a manifest whose digests are right, as its author could."""
    for name, entry in manifest["files"].items() if isinstance(manifest.get("files"), dict) else ():
        if isinstance(entry, dict) and name in (checkpoint_files.WEIGHTS, checkpoint_files.STATE):
            entry["size_bytes"], entry["sha256"] = checkpoint_files.fingerprint(path / name)
    manifest["sha256"] = checkpoint_files.manifest_digest(manifest)
    (path / checkpoint_files.MANIFEST).write_text(checkpoint_files.manifest_text(manifest))


@pytest.mark.parametrize("name", [checkpoint_files.MANIFEST, checkpoint_files.WEIGHTS, checkpoint_files.STATE])
@pytest.mark.parametrize("is_signed", [False, True], ids=["damaged", "signed"])
def test_a_checkpoint_is_loaded_or_reported_as_damaged(checkpoint: Path, name: str, is_signed: bool) -> None:
    """F11: also one whose author made its digests agree."""
    folder = RunFolder(checkpoint.parents[1])
    manifest = json.loads((checkpoint / checkpoint_files.MANIFEST).read_text())
    files = {name: (checkpoint / name).read_bytes() for name in manifest["files"] | {checkpoint_files.MANIFEST: None}}

    @tries(25)
    @given(damaged(files[name]), changed(manifest))
    def check(content: bytes, changed_manifest: Any) -> None:
        for other, valid in files.items():
            (checkpoint / other).write_bytes(valid)
        if name != checkpoint_files.MANIFEST or not is_signed:
            (checkpoint / name).write_bytes(content)
        if is_signed:
            is_manifest = name == checkpoint_files.MANIFEST and isinstance(changed_manifest, dict)
            sign(changed_manifest if is_manifest else manifest, checkpoint)
        with suppress(CheckpointDamaged):
            load_checkpoint(checkpoint)
        resumed = last_good_checkpoint(folder)
        if resumed is not None:
            with Run(folder, worker="w", version="1", handles_signals=False) as run:
                run._restore(resumed)

    check()


# --- what is imported


def test_a_zip_is_imported_or_refused(parts: Trainer, tmp_path: Path) -> None:
    """F45: damaged anywhere, or with any record and config inside."""
    folder = make_run(parts.records, Stage.FINISHED)
    record, config = json.loads(folder.record.read_bytes()), {**PAYLOAD, "metadata": {**PAYLOAD["metadata"]}}  # type: ignore[dict-item]
    path = tmp_path / "run.zip"

    def pack(record: Any, config: Any, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w", compression) as archive:
            archive.writestr("R/record.json", to_json(record))
            archive.writestr("R/config.json", to_json(config))
            archive.writestr("R/journal.jsonl", "{}\n" * 50)
        return data.getvalue()

    @tries(80)
    @given(
        changed(record).map(lambda record: pack(record, config))
        | changed(config).map(lambda config: pack(record, config))
        | st.sampled_from([zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_STORED]).flatmap(
            lambda compression: damaged(pack(record, config, compression))
        )
    )
    def check(content: bytes) -> None:
        path.write_bytes(content)
        before = set(os.listdir(parts.workspace.runs))
        with suppress(BadInput):
            view = import_run(parts.records, str(path))
            assert set(os.listdir(parts.workspace.runs)) == before | {view.run_id}
            move_to_trash(parts.records, view.run_id)
        assert set(os.listdir(parts.workspace.runs)) == before

    check()


# --- where the daemon is


def test_a_daemon_file_is_read_or_reported(workspace: Workspace) -> None:
    """F17: a damaged daemon.json is one sentence."""
    workspace.trainer.mkdir(parents=True)
    process = {"pid": 2**22 + 7, "start": "1", "boot_id": "b"}
    valid = {"address": "127.0.0.1:1", "token": "t", "process": process, "started_at": 1.0, "version": "1"}

    @tries(60)
    @given(changed(valid).map(lambda value: to_json(value).encode()) | damaged(to_json(valid).encode()))
    def check(content: bytes) -> None:
        workspace.daemon_file.write_bytes(content)
        with suppress(NoDaemon):
            assert read_daemon_address(workspace) is None

    check()
    workspace.daemon_file.unlink()


# --- calls

SERVICE = pb.DESCRIPTOR.services_by_name["Trainer"]
STOP: MethodDescriptor = SERVICE.methods_by_name["StopDaemon"]
METHODS: list[MethodDescriptor] = [
    method for method in SERVICE.methods if method is not STOP and method.name != "TrustWorkspace"
]
"""Without those that would leave no daemon, or one that changes nothing."""
JSON_TEXTS = VALUES.map(to_json) | changed({"ask": "check", "config": PAYLOAD}).map(to_json) | TEXTS


def field_values(field: FieldDescriptor, run_id: str) -> st.SearchStrategy[Any]:
    if field.name == "run":
        return st.sampled_from([run_id, run_id[-6:], "last", "", "0", "nothing"]) | text_values()
    if field.name == "payload_json":
        return changed(PAYLOAD).map(to_json) | text_values()
    if field.name == "worker":
        return st.sampled_from(["scripted", "script", "none"]) | text_values()
    if field.name.endswith("_json"):
        return JSON_TEXTS.filter(is_text)
    kinds = {
        field.TYPE_STRING: text_values(),
        field.TYPE_BOOL: st.booleans(),
        field.TYPE_INT64: st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3),
        field.TYPE_INT32: st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3),
        field.TYPE_DOUBLE: st.floats(),
    }
    return kinds[field.type]


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def is_text(text: str) -> bool:
    with suppress(UnicodeEncodeError):
        return bool(text.encode()) or True
    return False


def text_values() -> st.SearchStrategy[str]:
    """Texts that a message can hold, except paths of folders whose import would take long."""
    return TEXTS.filter(lambda text: is_text(text) and not os.path.isdir(text))


@st.composite
def requests(draw: st.DrawFn, method: MethodDescriptor, run_id: str) -> bytes:
    """A message of the method's type with some fields set, or something that is not one."""
    if draw(st.integers(0, 5)) == 0:
        return draw(st.binary(max_size=60))
    message = getattr(pb, method.input_type.name)()
    for field in method.input_type.fields:
        if draw(st.integers(0, 3)) == 0 or (field.message_type is not None and not is_map(field)):
            continue
        if is_map(field):
            getattr(message, field.name).update(draw(st.dictionaries(text_values(), text_values(), max_size=2)))
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(field_values(field, run_id), max_size=3)))
        else:
            setattr(message, field.name, draw(field_values(field, run_id)))
    return bytes(message.SerializeToString())


def call(channel: grpc.Channel, method: MethodDescriptor, token: str, request: bytes) -> grpc.StatusCode | None:
    """Make a call with raw bytes; return the status of an error."""
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    invoke = getattr(channel, kind)(f"/mosaic.v1.Trainer/{method.name}")
    given = iter([request]) if method.client_streaming else request
    endless = method.name in ("WatchRuns", "StreamTelemetry", "StreamFrames", "ReadLog")
    try:
        reply = invoke(given, metadata=((TOKEN_KEY, token),), timeout=0.3 if endless else 20.0)
        if method.server_streaming:
            for _ in reply:
                pass
    except grpc.RpcError as error:
        status: grpc.StatusCode = error.code()
        print(method.name, request, status, error.details())
        return None if endless and status is grpc.StatusCode.DEADLINE_EXCEEDED else status
    return None


REFUSALS = {
    None,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNAUTHENTICATED,
}


@pytest.mark.may_log("files_unusable", "run_not_started", "queue_paused", "call_refused")
def test_every_call_is_answered_or_refused(daemon: LiveDaemon, trainer: TrainerClient, workspace: Workspace) -> None:
    """F27: with messages of any content and with bytes that are no message; the daemon answers afterwards."""
    run_id = ended(trainer, trainer.submit(scripted(steps=2)).run_id).run_id
    trainer.set_cap(1)
    address = read_daemon_address(workspace)
    assert address is not None
    with grpc.insecure_channel(address.address) as channel:

        @tries(150)
        @given(st.sampled_from(METHODS).flatmap(lambda method: st.tuples(st.just(method), requests(method, run_id))))
        def check(case: tuple[MethodDescriptor, bytes]) -> None:
            assert call(channel, case[0], address.token, case[1]) in REFUSALS

        check()
    assert trainer.get_status().pid == address.process["pid"]


def is_stop_request(request: bytes) -> bool:
    with suppress(DecodeError):
        pb.StopRequest.FromString(request)
        return True
    return False


@pytest.mark.may_log("call_refused")
def test_only_a_stop_request_with_the_token_stops_a_daemon(trainer: TrainerClient, workspace: Workspace) -> None:
    """F27, F28: neither bytes that are no message nor a message with another token."""
    address = read_daemon_address(workspace)
    assert address is not None
    no_message = st.binary(min_size=1, max_size=60).filter(lambda request: not is_stop_request(request))
    no_token = st.sampled_from(["", address.token[:-1], address.token.upper(), "0" * 64])
    with grpc.insecure_channel(address.address) as channel:

        @tries(40)
        @given(st.tuples(st.just(address.token), no_message) | st.tuples(no_token, requests(STOP, "")))
        def check(case: tuple[str, bytes]) -> None:
            has_token = case[0] == address.token
            refusal = grpc.StatusCode.INVALID_ARGUMENT if has_token else grpc.StatusCode.UNAUTHENTICATED
            assert call(channel, STOP, *case) is refusal

        check()
    assert trainer.get_status().pid == address.process["pid"]


def test_a_stop_request_stops_the_daemon_and_the_runs_that_it_names(daemon: LiveDaemon, workspace: Workspace) -> None:
    """F2, F27: whatever else is in the message; a run continues, is cancelled, or ends before the daemon."""

    @tries(1)
    @given(requests(STOP, "").filter(is_stop_request))
    @example(b"")
    @example(pb.StopRequest(cancel_runs=True).SerializeToString())
    @example(pb.StopRequest(drain=True).SerializeToString() + b"\x98\x06\x01")  # and a field of a later version
    def check(request: bytes) -> None:
        message = pb.StopRequest.FromString(request)
        address = read_daemon_address(workspace)
        assert address is not None
        with connect(workspace, may_start=False) as trainer, grpc.insecure_channel(address.address) as channel:
            run_id = trainer.submit(scripted(steps=1_000_000, dt=0.01)).run_id
            wait_for(lambda: trainer.get_run(run_id).stage == "running", "the run to start")
            assert call(channel, STOP, address.token, request) is None
            if message.drain:
                assert trainer.get_status().is_draining
                trainer.cancel_run(run_id)
        assert daemon.process is not None
        assert daemon.process.wait(60) == 0
        with daemon.start() as trainer:
            if not message.drain and not message.cancel_runs:
                assert trainer.get_run(run_id).stage == "running"
                trainer.cancel_run(run_id)
            assert ended(trainer, run_id).outcome == "cancelled"

    check()
