"""The daemon's metrics for Prometheus, on request: an HTTP server on the loopback address.

It has no token, so its answers hold numbers, ids of runs and the version: no names, paths or settings. Requests for
another host name are refused, as a web page could otherwise read the answers by DNS rebinding.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from typing import NamedTuple

import structlog

from mosaic.contracts.errors import MissingExtra, MosaicError
from mosaic.contracts.views import DaemonStatus

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


def require_metrics_extra() -> None:
    if find_spec("prometheus_client") is None:
        raise MissingExtra(
            "--metrics-port needs prometheus-client, which is not installed: pip install 'mosaic-rl[metrics]'"
        )


class MetricsServer:
    """Answers one request at a time, in a thread of its own."""

    def __init__(self, port: int, take_snapshot: Callable[[], MetricsSnapshot]) -> None:
        require_metrics_extra()
        self._format = _MetricsText(take_snapshot)
        try:
            self._server = HTTPServer((HOST, port), self._make_handler())
        except OSError as error:
            raise MosaicError(
                f"Metrics cannot be served on {HOST}:{port} ({error.strerror}). Name another port: --metrics-port PORT"
            ) from None
        self.address = f"{HOST}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        format_text = self._format

        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_TIMEOUT_S
            server_version = "mosaic"
            sys_version = ""

            def do_GET(self) -> None:
                if not is_own_host(self.headers.get("Host", "")):
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
        from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

        status, speeds = self._take_snapshot()
        slots = status.slots
        busy_gpus = {gpu for holder in slots.holders for gpu in holder.gpus}
        yield InfoMetricFamily("mosaic_build", "The version of the daemon.", {"version": status.version})
        runs = GaugeMetricFamily("mosaic_runs", "Runs by stage or outcome.", labels=["status"])
        for name, count in status.runs.items():
            runs.add_metric([name], count)
        yield runs
        yield GaugeMetricFamily("mosaic_queue_length", "Runs that wait to be started.", slots.queued)
        totals = {"runs": slots.runs, "cpus": slots.cpus, "gpus": slots.gpus}
        used = {"runs": slots.busy, "cpus": slots.busy_cpus, "gpus": len(busy_gpus)}
        for metric, words, values in (("slots", "Slots of each kind.", totals), ("slots_used", "Slots in use.", used)):
            family = GaugeMetricFamily(f"mosaic_{metric}", words, labels=["kind"])
            for kind, value in values.items():
                family.add_metric([kind], value)
            yield family
        speed = GaugeMetricFamily("mosaic_run_steps_per_second", "Steps per second of active runs.", labels=["run"])
        for run_id, steps in sorted(speeds.items())[:MAX_RUNS]:
            speed.add_metric([run_id], steps)
        yield speed
        yield GaugeMetricFamily("mosaic_steps_per_second", "Steps per second of all runs.", sum(speeds.values()))
