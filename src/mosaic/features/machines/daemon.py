"""The daemon itself, its queue, and the checkers of its workers."""

from __future__ import annotations

import json

import structlog

from mosaic import __version__
from mosaic.base.handshake import CERTIFICATE_KEY, NONCE_KEY
from mosaic.base.limited_json import decode_limited
from mosaic.base.worker_registry import get_worker
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import BadInput
from mosaic.contracts.trainer_pb2_handlers import Handlers
from mosaic.contracts.views import DaemonStatus
from mosaic.trainer.server import Context
from mosaic.trainer.services import Services

log = structlog.get_logger("mosaic.features.machines.daemon")


async def identify(services: Services, request: pb.IdentifyRequest, context: Context) -> pb.IdentifyReply:
    given = dict(context.invocation_metadata() or ())  # as the caller has proved it
    proof = services.daemon.credentials.prove("server", str(given[NONCE_KEY]), str(given.get(CERTIFICATE_KEY, "")))
    return pb.IdentifyReply(proof=proof or "", version=__version__)


def get_status(services: Services, request: pb.StatusRequest) -> DaemonStatus:
    return services.daemon.status()


def set_cap(services: Services, request: pb.CapRequest) -> DaemonStatus:
    services.daemon.set_cap(request.runs)
    return services.daemon.status()


def continue_queue(services: Services, request: pb.StatusRequest) -> DaemonStatus:
    services.daemon.supervisor.continue_queue()
    return services.daemon.status()


def trust_workspace(services: Services, request: pb.TrustRequest) -> DaemonStatus:
    services.daemon.set_trusted(request.is_trusted)
    return services.daemon.status()


def stop_daemon(services: Services, request: pb.StopRequest) -> DaemonStatus:
    services.daemon.shut_down(request.cancel_runs, request.drain)
    try:
        return services.daemon.status()
    except Exception:  # It ends nevertheless.
        log.exception("status_failed")
        return DaemonStatus(pid=0, address="", version=__version__, workspace="")


def ask_worker(services: Services, request: pb.AskRequest) -> pb.JsonReply:
    question = decode_limited(request.question_json, "The question")
    if not isinstance(question, dict):
        raise BadInput('The question is not a JSON object such as {"ask": "environments"}.')
    return pb.JsonReply(json=json.dumps(services.checkers.ask(get_worker(request.worker).id, question)))


HANDLERS: Handlers = {
    "AskWorker": ask_worker,
    "ContinueQueue": continue_queue,
    "GetStatus": get_status,
    "Identify": identify,
    "SetCap": set_cap,
    "StopDaemon": stop_daemon,
    "TrustWorkspace": trust_workspace,
}
