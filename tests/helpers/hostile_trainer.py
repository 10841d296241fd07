"""A trainer that knows the token and answers every call, with lies where a test wants them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from mosaic import __version__
from mosaic.base.handshake import NONCE_KEY, compute_proof
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.trainer_pb2_grpc import TrainerServicer, add_TrainerServicer_to_server

TOKEN = "token-of-the-tests"
RUN = "01M7EV1L000000000000000005"
JPEG = b"\xff\xd8\xff\xe0"
Answer = Callable[[Any], Any]


def view(**changes: Any) -> dict[str, Any]:
    """A run that has ended, as a trainer describes it."""
    times = {"submitted_at": 1.7e9, "queued_at": 1.7e9, "started_at": 1.7e9, "finished_at": 1.7e9 + 60}
    names = {"worker": "cleanrl", "algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "run_dir": f"/far/{RUN}"}
    history = [{"at": 1.7e9, "stage": "finished", "message": "It has ended."}]
    return {"run_id": RUN, "stage": "finished", "outcome": "succeeded", "history": history, **names, **times, **changes}


def to_json(data: Any) -> str:
    return data if isinstance(data, str) else json.dumps(data)


def run_reply(**changes: Any) -> pb.RunReply:
    return pb.RunReply(view_json=to_json(view(**changes)))


def list_reply(*views: Any) -> pb.ListReply:
    return pb.ListReply(views_json=[to_json(one) for one in views])


def json_reply(data: Any) -> pb.JsonReply:
    return pb.JsonReply(json=to_json(data))


def fnmatching(request: Any, *files: pb.RunFile) -> pb.FilesReply:
    """Only what was asked for, as an honest trainer answers."""
    from fnmatch import fnmatchcase

    return pb.FilesReply(files=[file for file in files if fnmatchcase(file.name, request.pattern or "*")])


CONFIG = {
    "metadata": {"worker": {"id": "cleanrl", "config": {"algo": "ppo", "env_id": "CartPole-v1"}}},
    "artifacts": {},
}
STATUS = {"pid": 1, "address": "127.0.0.1:1", "version": __version__, "workspace": "/far"}


@dataclass
class HostileTrainer:
    port: int = 0
    lies: dict[str, Answer] = field(default_factory=dict)
    """By verb: what is answered instead; a generator where the verb streams. May call `context.abort`."""
    calls: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def answer(self, verb: str, request: Any, context: grpc.ServicerContext) -> Any:
        self.calls.append(verb)
        lie = self.lies.get(verb)
        return _honest(verb, request) if lie is None else lie(request)


def _honest(verb: str, request: Any) -> Any:
    if verb == "ListRuns":
        return list_reply(*([] if request.before else [view()]))
    if verb == "ListFiles":
        return fnmatching(request, pb.RunFile(name="videos/0.mp4", size_bytes=4, modified_at=1.7e9))
    if verb in STREAMS:
        replies: dict[str, Any] = {"ReadFile": pb.FileReply(data=b"film"), "ReadMetrics": pb.MetricsReply(generation=1)}
        return iter([replies[verb]] if verb in replies else [])
    answers: dict[str, Any] = {
        "GetConfig": CONFIG,
        "GetStatus": STATUS,
        "ReadSettings": {},
        "CheckRun": {},
        "AskWorker": {},
    }
    return json_reply(answers[verb]) if verb in answers else run_reply()


STREAMS = frozenset(
    ("ListTrash", "ReadDiskUsage", "PruneRuns", "WatchRuns", "ReadMetrics", "ReadEpisodes", "ReadEvaluations",
     "ReadWandb", "ReadLog", "SearchLog", "ReadFile", "StreamTelemetry", "StreamFrames")
)  # fmt: skip


def _servicer(trainer: HostileTrainer) -> TrainerServicer:
    def identify(self: Any, request: pb.IdentifyRequest, context: Any) -> pb.IdentifyReply:
        nonce = str(dict(context.invocation_metadata())[NONCE_KEY])
        return pb.IdentifyReply(proof=compute_proof(TOKEN, "server", nonce), version=__version__)

    def method(verb: str) -> Callable[..., Any]:
        def call(self: Any, request: Any, context: Any) -> Any:
            return trainer.answer(verb, request, context)

        def stream(self: Any, request: Any, context: Any) -> Iterator[Any]:
            yield from trainer.answer(verb, request, context)

        return stream if verb in STREAMS else call

    verbs = [name for name in vars(TrainerServicer) if not name.startswith("_")]
    liar: type[TrainerServicer] = type("Liar", (TrainerServicer,), dict(zip(verbs, map(method, verbs), strict=True)))
    liar.Identify = identify  # type: ignore[method-assign]
    return liar()


@contextmanager
def running_hostile_trainer() -> Iterator[HostileTrainer]:
    """Without TLS: its clients believe that a tunnel ends there."""
    trainer = HostileTrainer()
    with ThreadPoolExecutor(8) as pool:
        limits = [("grpc.max_send_message_length", 64 << 20), ("grpc.so_reuseport", 0)]
        server = grpc.server(pool, options=limits)
        add_TrainerServicer_to_server(_servicer(trainer), server)
        trainer.port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield trainer
        finally:
            server.stop(grace=None).wait()
