"""`python -m mosaic.trainer.executors.ray_cluster.bridge`: the daemon's connection to a Ray cluster.

A process of its own: Ray replaces signal handlers, starts threads and needs 100 MB. It ends with its stdin. Actors are
detached, so that they outlive it, and are found again by their names.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import queue
import secrets
import shutil
import socket
import sys
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import ray
import structlog
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayError, RayTaskError

from mosaic.contracts.errors import MosaicError
from mosaic.contracts.model import Contract
from mosaic.trainer.executors.ray_cluster import STREAM_VARIABLE
from mosaic.trainer.executors.ray_cluster.attempt import AttemptBridge, NodeGone, StartRefused
from mosaic.trainer.executors.ray_cluster.messages import (
    ActiveAttempts,
    AttemptLost,
    ClusterNode,
    ClusterReport,
    ClusterUnavailable,
    DaemonMessage,
    FollowAttempt,
    StartAttempt,
    decode_from_daemon,
    encode_message,
)
from mosaic.trainer.executors.ray_cluster.node_actor import NodeActor

log = structlog.get_logger("mosaic.trainer.executors.ray_cluster")

NAMESPACE = "mosaic"
LOOPBACK = "127.0.0.2"
"""Of a cluster on this machine alone; Ray replaces 127.0.0.1 by the address of a network interface."""
AUTO_ADDRESS = "auto"
"""Ray's word for the cluster that runs on this machine."""
CONNECT_TIMEOUT_S = 10.0
REPORT_S = 2.0
RETRY_S = 1.0
CREATE_ATTEMPTS = 30
METHOD_THREADS = 4
"""Of an actor: a large file that is being read delays neither frames nor commands."""


class RayNode:
    """An actor of the cluster. Implements `attempt.Node`."""

    def __init__(self, actor: Any, name: str) -> None:
        self._actor = actor
        self._name = name
        self._address = ""

    async def call(self, method: str, *arguments: Any) -> Any:
        while True:
            try:
                answer = await getattr(self._actor, method).remote(*arguments)
                if method == "describe":
                    self._address = answer.address
                return answer
            except RayTaskError as error:
                raise StartRefused(_last_line(error)) from None
            except ActorUnavailableError:
                await asyncio.sleep(RETRY_S)
            except RayActorError as error:
                if isinstance(error, ActorDiedError) and getattr(error, "actor_init_failed", False):
                    raise StartRefused(f"The actor could not be created: {_last_line(error)}") from None
                raise NodeGone(await asyncio.to_thread(self._describe_loss)) from None

    def _describe_loss(self) -> str:
        if not self._address:
            return "Its actor was lost"
        alive = {node["NodeManagerAddress"] for node in _list_nodes() if node["Alive"]}
        return (
            f"Its actor on node {self._address} was lost"
            if self._address in alive
            else f"Node {self._address} was lost"
        )

    def kill(self) -> None:
        with suppress(RayError, ValueError):
            ray.kill(self._actor, no_restart=True)


def _last_line(error: Exception) -> str:
    cause = getattr(error, "cause", None)
    text = str(cause if isinstance(cause, (MosaicError, OSError)) else error).strip()
    return text.splitlines()[-1] if text else type(error).__name__


class Bridge:
    def __init__(self, output: BinaryIO, workspace_id: str, is_streamed: bool) -> None:
        self._output = output
        self._output_lock = threading.Lock()
        self._workspace_id = workspace_id
        self._is_streamed = is_streamed
        self._current: dict[str, int] = {}
        """By run: the number of its last attempt."""
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}

    def send(self, message: Contract) -> None:
        with self._output_lock:
            self._output.write(encode_message(message))
            self._output.flush()

    def handle(self, message: DaemonMessage) -> None:
        """Start or follow an attempt, which ends what belongs to an earlier one."""
        if isinstance(message, ActiveAttempts):
            self._run_task(("", 0), self._end_others(message))
            return
        key = (message.run_id, message.attempt)
        if key in self._tasks or message.attempt < self._current.get(message.run_id, 0):
            return
        self._current[message.run_id] = message.attempt
        self._run_task(key, self._run_attempt(message))

    def _run_task(self, key: tuple[str, int], work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[key] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    def _actor_name(self, run_id: str, attempt: int) -> str:
        return f"mosaic-{self._workspace_id}-{run_id}-{attempt}"

    async def _end_others(self, active: ActiveAttempts) -> None:
        """End the actors of this workspace that belong to no active attempt."""
        for name in await asyncio.to_thread(ray.util.list_named_actors):
            known = {self._actor_name(*attempt) for attempt in (*active.attempts, *self._current.items())}
            if name.startswith(f"mosaic-{self._workspace_id}-") and name not in known:
                log.info("actor_left_over", name=name)
                with suppress(NodeGone, StartRefused):
                    node = await self._find(name)
                    await node.call("clean_up")
                    node.kill()

    async def _run_attempt(self, message: StartAttempt | FollowAttempt) -> None:
        run_id, attempt = message.run_id, message.attempt
        name = self._actor_name(run_id, attempt)
        try:
            node = await (self._create(name, message) if isinstance(message, StartAttempt) else self._find(name))
            bridge = AttemptBridge(
                run_id,
                attempt,
                Path(message.folder),
                node,
                self.send,
                lambda: self._current.get(run_id) == attempt,
                self._is_streamed,
            )
            await bridge.run(message if isinstance(message, StartAttempt) else None)
        except NodeGone as gone:
            self.send(AttemptLost(run_id=run_id, attempt=attempt, reason=str(gone)))
        except Exception as error:
            log.exception("attempt_not_followed", run_id=run_id, attempt=attempt)
            reason = f"The trainer could not follow it on the cluster ({type(error).__name__}: {error})"
            self.send(AttemptLost(run_id=run_id, attempt=attempt, reason=reason[:500]))

    async def _create(self, name: str, start: StartAttempt) -> RayNode:
        """Create an actor; one that an earlier bridge created for the same attempt, and did not use, is ended."""
        options = ray.remote(NodeActor).options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=start.cpus,
            num_gpus=start.gpus,
            max_restarts=0,
            max_concurrency=METHOD_THREADS,
        )
        for _ in range(CREATE_ATTEMPTS):
            try:
                return RayNode(await asyncio.to_thread(options.remote, start.run_id, start.attempt), name)
            except ValueError:  # the name is taken
                with suppress(ValueError):
                    ray.kill(await asyncio.to_thread(ray.get_actor, name, NAMESPACE))
                await asyncio.sleep(RETRY_S)
        raise NodeGone(f"The name {name} is taken in the cluster")

    async def _find(self, name: str) -> RayNode:
        try:
            return RayNode(await asyncio.to_thread(ray.get_actor, name, NAMESPACE), name)
        except ValueError:
            raise NodeGone("Its actor is no longer in the cluster") from None

    async def report_cluster(self, address: str) -> None:
        """Return when the cluster cannot be asked any more."""
        while True:
            try:
                report = await asyncio.to_thread(_describe_cluster, address)
            except Exception as error:  # whatever Ray raises where the connection is lost
                self.send(ClusterUnavailable(reason=_last_line(error)))
                return
            self.send(report)
            await asyncio.sleep(REPORT_S)


def _list_nodes() -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return nodes


def _describe_cluster(address: str) -> ClusterReport:
    nodes = tuple(
        ClusterNode(
            address=node["NodeManagerAddress"],
            cpus=node["Resources"].get("CPU", 0.0),
            gpus=node["Resources"].get("GPU", 0.0),
        )
        for node in _list_nodes()
        if node["Alive"]
    )
    free = ray.available_resources()  # type: ignore[no-untyped-call]
    return ClusterReport(address=address, nodes=nodes, free_cpus=free.get("CPU", 0.0), free_gpus=free.get("GPU", 0.0))


def check_address(address: str) -> None:
    """Raise OSError if nothing listens at HOST:PORT: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address and address != AUTO_ADDRESS:
        if not (host and port.isdecimal()):
            raise OSError(f"{address!r} is not an address; expected HOST:PORT")
        try:
            socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S).close()
        except OSError as error:
            raise OSError(f"nothing answers there ({error.strerror or error})") from None


def connect(address: str, temp_dir: Path) -> str:
    """Connect to a cluster, or start one on this machine where no address is given; return its address."""
    common: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "configure_logging": False}
    host = address.rpartition(":")[0]
    if not address:
        temp_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Not one that Ray would write to the home folder, and not on an address that others reach.
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        own: dict[str, Any] = {"_node_ip_address": LOOPBACK} if sys.platform == "linux" else {}
        context: Any = ray.init(_temp_dir=str(temp_dir), include_dashboard=False, **own, **common)
        return str(context.address_info["address"])
    # Ray takes the address of a network interface for its own; on loopback it has to be told which node is this one.
    own = {"_node_ip_address": host} if host.startswith("127.") else {}
    ray.init(address=address, **own, **common)
    return address


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", default="", help="of the cluster; without it, one is started on this machine")
    parser.add_argument("--workspace-id", required=True)
    parser.add_argument("--lock", type=Path, required=True, help="a file that one bridge of a workspace holds")
    parser.add_argument("--temp-dir", type=Path, required=True, help="for a cluster that is started here")
    options = parser.parse_args()
    # Ray and its children print to stdout; the daemon reads messages there.
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    bridge = Bridge(output, options.workspace_id, bool(os.environ.get(STREAM_VARIABLE)))
    lock = open(options.lock, "ab")  # noqa: SIM115 - held until this process ends
    fcntl.flock(lock, fcntl.LOCK_EX)
    lines, is_connected = queue.SimpleQueue[bytes](), threading.Event()
    threading.Thread(target=_read_lines, args=(lines, is_connected), daemon=True).start()
    try:
        check_address(options.address)
        address = connect(options.address, options.temp_dir)
    except Exception as error:  # whatever Ray raises, its user has to know
        bridge.send(ClusterUnavailable(reason=_last_line(error)))
        return 1
    is_connected.set()
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(bridge, address, lines))
    if not options.address:
        ray.shutdown()
        shutil.rmtree(options.temp_dir, ignore_errors=True)
    output.close()
    os._exit(0)  # threads of Ray may not end


async def _serve(bridge: Bridge, address: str, lines: queue.SimpleQueue[bytes]) -> None:
    """Until the daemon closes stdin or is gone, or the cluster is: the next bridge connects again."""
    reporting = asyncio.create_task(bridge.report_cluster(address))
    reporting.add_done_callback(lambda _: lines.put(b""))
    while line := await asyncio.to_thread(lines.get):
        try:
            bridge.handle(decode_from_daemon(line))
        except ValueError as error:
            log.error("message_malformed", error=str(error)[:500])
    reporting.cancel()


def _read_lines(lines: queue.SimpleQueue[bytes], is_connected: threading.Event) -> None:
    """Until the end of stdin, which is an empty line; before there is a connection, it ends the process at once."""
    for line in sys.stdin.buffer:
        lines.put(line)
    if not is_connected.is_set():
        os._exit(0)
    lines.put(b"")


if __name__ == "__main__":
    sys.exit(main())
