"""The text of the daemon's metrics, and which requests get it."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mosaic.contracts.errors import MissingExtra, MosaicError
from mosaic.contracts.views import DaemonStatus, GpuSample, SlotHolder, SlotUsage
from mosaic.trainer import metrics_server
from mosaic.trainer.metrics_server import MAX_RUNS, MetricsServer, MetricsSnapshot, is_own_host

HOLDERS = (SlotHolder(run_id="A", cpus=2, gpus=(1,)), SlotHolder(run_id="B", gpus=(1,), algo="secret-algo"))
GPUS = (None, GpuSample(util_percent=75.0, memory_used_mb=500.0))
SLOTS = SlotUsage(runs=4, busy=2, queued=3, cpus=8, gpus=2, gpu_samples=GPUS, holders=HOLDERS)
STATUS = DaemonStatus(
    pid=1, address="a", version="9.9", workspace="/secret/place", runs={"running": 2, "failed": 5}, slots=SLOTS
)


class Snapshots:
    def __init__(self) -> None:
        self.count = 0
        self.speeds = {f"R{number:03}": 1.5 for number in range(MAX_RUNS + 10)}

    def __call__(self) -> MetricsSnapshot:
        self.count += 1
        started = {"R000": time.time() - 90.0}
        ends = {("failed", "memory_limit"): 3, ("lost", "lost"): 1}
        return MetricsSnapshot(STATUS, self.speeds, started, ends, (1000, 250))


@pytest.fixture
def snapshots() -> Snapshots:
    return Snapshots()


@pytest.fixture
def server(snapshots: Snapshots) -> Iterator[MetricsServer]:
    server = MetricsServer(0, snapshots)
    yield server
    server.close()


def get(server: MetricsServer, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(server.address, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


def test_the_answer_has_runs_slots_speeds_and_the_process(server: MetricsServer) -> None:
    code, text = get(server)
    assert code == 200
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["mosaic_runs", "running"] == 2
    assert samples["mosaic_runs", "failed"] == 5
    assert samples[("mosaic_queue_length",)] == 3
    assert [samples["mosaic_slots", kind] for kind in ("runs", "cpus", "gpus")] == [4, 8, 2]
    assert [samples["mosaic_slots_used", kind] for kind in ("runs", "cpus", "gpus")] == [2, 3, 1]
    assert samples["mosaic_run_steps_per_second", "R000"] == 1.5
    assert samples[("mosaic_steps_per_second",)] == 1.5 * (MAX_RUNS + 10)
    assert samples[("process_resident_memory_bytes",)] > 1e6
    assert ("process_cpu_seconds_total",) in samples
    assert samples["mosaic_run_seconds", "R000"] >= 90.0
    assert samples["mosaic_runs_unsuccessful_total", "memory_limit", "failed"] == 3
    assert samples["mosaic_runs_unsuccessful_total", "lost", "lost"] == 1
    assert (samples[("mosaic_disk_bytes",)], samples[("mosaic_disk_free_bytes",)]) == (1000, 250)
    assert (samples["mosaic_gpu_utilization", "1"], samples["mosaic_gpu_memory_used_bytes", "1"]) == (0.75, 5e8)
    assert ("mosaic_gpu_utilization", "0") not in samples, "it could not be read"
    assert "secret" not in text


def test_the_number_of_series_is_bounded(server: MetricsServer) -> None:
    assert get(server)[1].count("mosaic_run_steps_per_second{") == MAX_RUNS


def test_frequent_requests_are_answered_from_memory(server: MetricsServer, snapshots: Snapshots) -> None:
    for _ in range(5):
        assert get(server)[0] == 200
    assert snapshots.count < 5


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9090", "127.0.0.1.evil.example", "", "localhost:x"])
def test_another_host_name_is_refused(server: MetricsServer, host: str) -> None:
    code, text = get(server, Host=host)
    assert (code, "mosaic_" in text) == (403, False)


def test_only_one_path_and_one_method_are_served(server: MetricsServer) -> None:
    assert get(server, "/")[0] == 404
    assert get(server, "/metrics/../x")[0] == 404
    assert get(server, method="POST")[0] == 501
    assert is_own_host("LOCALHOST:9090")


def test_a_port_in_use_is_reported(server: MetricsServer, snapshots: Snapshots) -> None:
    port = int(server.address.rpartition(":")[2])
    with pytest.raises(MosaicError, match=f"127.0.0.1:{port}.*in use.*--metrics-port"):
        MetricsServer(port, snapshots)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, snapshots: Snapshots) -> None:
    monkeypatch.setattr(metrics_server, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"mosaic-rl\[metrics\]"):
        MetricsServer(0, snapshots)
