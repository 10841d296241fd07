"""The daemon's metrics for Prometheus, on request: an HTTP server on the loopback address, or by TLS for others.

On the loopback address it has no token, so its answers hold numbers, ids of runs and the version: no names, paths or
settings. Requests for another host name are refused, as a web page could otherwise read the answers by DNS rebinding.
For other machines it has the daemon's certificate, and a token that allows nothing else.
"""

from __future__ import annotations

import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from typing import Any, NamedTuple

import structlog

from mosaic.base.certificates import join_address
from mosaic.base.handshake import constant_time_equals
from mosaic.contracts.errors import MissingExtra, MosaicError
from mosaic.contracts.views import DaemonStatus
from mosaic.trainer.tls_identity import TlsIdentity

log = structlog.get_logger("mosaic.trainer.metrics_server")

HOST = "127.0.0.1"
HOST_NAMES = (HOST, "localhost")
PATH = "/metrics"
MAX_RUNS = 50
"""Active runs with a series of their own; of further ones only the sum is given."""
CACHE_S = 1.0
"""An answer is given again for this time, so that frequent requests cost the daemon nothing."""
REQUEST_TIMEOUT_S = 2.0


class MetricsSnapshot(NamedTuple):
    status: DaemonStatus
    steps_per_second: dict[str, float]
    """By active run."""
    started_at: Mapping[str, float]
    """By active run."""
    ends: Mapping[tuple[str, str], int]
    """By outcome and cause: how many runs have ended without success since the daemon was started."""
    disk: tuple[int, int]
    """The bytes of the workspace's disk, and those that are free."""


def require_metrics_extra() -> None:
    if find_spec("prometheus_client") is None:
        raise MissingExtra(
            "The metrics need prometheus-client, which is not installed: pip install 'mosaic-rl[metrics]'"
        )


class MetricsServer:
    """Answers one request at a time, in a thread of its own."""

    def __init__(
        self,
        port: int,
        take_snapshot: Callable[[], MetricsSnapshot],
        host: str = HOST,
        identity: TlsIdentity | None = None,
    ) -> None:
        """`identity`: the address is for other machines, which need its certificate and token."""
        require_metrics_extra()
        self._format = _MetricsText(take_snapshot)
        self._token = None if identity is None else identity.token
        try:
            self._server = _Server(join_address(host, port), (host, port), self._make_handler())
        except OSError as error:
            flag = "--metrics-port PORT" if identity is None else "--metrics-listen HOST:PORT"
            raise MosaicError(
                f"Metrics cannot be served on {host}:{port} ({error.strerror}). Name another port: {flag}"
            ) from None
        self.address = join_address(host, self._server.server_port)
        if identity is not None:
            self.address = f"https://{self.address}"
            self._server.socket = _server_context(identity).wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        format_text, token = self._format, self._token

        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_TIMEOUT_S
            server_version = "mosaic"
            sys_version = ""

            def do_GET(self) -> None:
                if token is not None and not _knows_token(self.headers.get("Authorization", ""), token):
                    self._reply(401, b"The token is missing or wrong. It is in trainer/metrics_token.\n")
                elif token is None and not is_own_host(self.headers.get("Host", "")):
                    self._reply(403, b"This address answers to 127.0.0.1 and localhost only.\n")
                elif self.path != PATH:
                    self._reply(404, b"The metrics are at /metrics.\n")
                else:
                    try:
                        text = format_text()
                    except Exception:
                        log.exception("metrics_failed")
                        self._reply(500, b"The metrics could not be read; the daemon's log says why.\n")
                    else:
                        self._reply(200, text, "text/plain; version=0.0.4; charset=utf-8")

            def _reply(self, code: int, body: bytes, content_type: str = "text/plain; charset=utf-8") -> None:
                self.send_response(code)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("X-Content-Type-Options", "nosniff")
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Nothing is logged for each request."""

        return Handler


class _Server(HTTPServer):
    """One whose address may be of IPv6, and that says nothing of connections that fail."""

    def __init__(self, address: str, *arguments: Any) -> None:
        self.address_family = socket.AF_INET6 if address.startswith("[") else socket.AF_INET
        super().__init__(*arguments)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that speaks no TLS, or that leaves."""


def _server_context(identity: TlsIdentity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:  # its mode is 0600; ssl reads files only
        file.write(identity.key + identity.certificate)
        file.flush()
        context.load_cert_chain(file.name)
    return context


def _knows_token(header: str, token: str) -> bool:
    return constant_time_equals(header.removeprefix("Bearer "), token)


def is_own_host(header: str) -> bool:
    """Whether a Host header names this machine's loopback address, with or without a port."""
    name, _, port = header.strip().lower().partition(":")
    return name in HOST_NAMES and (not port or port.isdecimal())


class _MetricsText:
    """The answer as text; one that is not old is given again."""

    def __init__(self, take_snapshot: Callable[[], MetricsSnapshot]) -> None:
        from prometheus_client import CollectorRegistry, ProcessCollector

        self._take_snapshot = take_snapshot
        self._registry = CollectorRegistry()
        self._registry.register(self)  # type: ignore[arg-type]  # what has `collect` is one
        ProcessCollector(registry=self._registry)  # memory and CPU time of the daemon, from /proc
        self._text = b""
        self._made_at = -CACHE_S

    def __call__(self) -> bytes:
        from prometheus_client import generate_latest

        if time.monotonic() - self._made_at >= CACHE_S:
            self._text = generate_latest(self._registry)
            self._made_at = time.monotonic()
        return self._text

    def describe(self) -> Iterable[object]:
        """Nothing is collected when it is registered."""
        return ()

    def collect(self) -> Iterator[object]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        snapshot = self._take_snapshot()
        status, speeds, slots = snapshot.status, snapshot.steps_per_second, snapshot.status.slots
        busy_gpus = {gpu for holder in slots.holders for gpu in holder.gpus}
        yield InfoMetricFamily("mosaic_build", "The version of the daemon.", {"version": status.version})
        runs = GaugeMetricFamily("mosaic_runs", "Runs by stage or outcome.", labels=["status"])
        for name, count in status.runs.items():
            runs.add_metric([name], count)
        yield runs
        yield GaugeMetricFamily("mosaic_queue_length", "Runs that wait to be started.", slots.queued)
        totals: dict[str, float] = {"runs": slots.runs, "cpus": slots.cpus, "gpus": slots.gpus}
        used: dict[str, float] = {"runs": slots.busy, "cpus": slots.busy_cpus, "gpus": len(busy_gpus)}
        for metric, words, values in (("slots", "Slots of each kind.", totals), ("slots_used", "Slots in use.", used)):
            family = GaugeMetricFamily(f"mosaic_{metric}", words, labels=["kind"])
            for kind, value in values.items():
                family.add_metric([kind], value)
            yield family
        ages = {run_id: max(0.0, time.time() - at) for run_id, at in snapshot.started_at.items()}
        for metric, words, values in (
            ("steps_per_second", "Steps per second of active runs.", speeds),
            ("seconds", "Seconds since active runs were started.", ages),
        ):
            family = GaugeMetricFamily(f"mosaic_run_{metric}", words, labels=["run"])
            for run_id, value in sorted(values.items())[:MAX_RUNS]:
                family.add_metric([run_id], value)
            yield family
        yield GaugeMetricFamily("mosaic_steps_per_second", "Steps per second of all runs.", sum(speeds.values()))
        words = "Runs that have ended without success since the daemon was started."
        ends = CounterMetricFamily("mosaic_runs_unsuccessful", words, labels=["outcome", "cause"])
        for labels, count in sorted(snapshot.ends.items()):
            ends.add_metric(labels, count)
        yield ends
        total_bytes, free_bytes = snapshot.disk
        yield GaugeMetricFamily("mosaic_disk_bytes", "Size of the workspace's disk.", total_bytes)
        yield GaugeMetricFamily("mosaic_disk_free_bytes", "Free bytes of the workspace's disk.", free_bytes)
        used_share = GaugeMetricFamily("mosaic_gpu_utilization", "How busy a GPU is, from 0 to 1.", labels=["gpu"])
        memory = GaugeMetricFamily("mosaic_gpu_memory_used_bytes", "Memory of a GPU in use.", labels=["gpu"])
        for number, sample in enumerate(slots.gpu_samples):
            if sample is not None:
                used_share.add_metric([str(number)], sample.util_percent / 100)
                memory.add_metric([str(number)], sample.memory_used_mb * 1e6)
        yield from (used_share, memory)
