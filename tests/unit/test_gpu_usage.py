from __future__ import annotations

import threading

import pytest

from mosaic.keeper.gpus import Read
from mosaic.trainer import gpu_usage
from mosaic.trainer.gpu_usage import GpuUsage, device_numbers

BUSY = {"util_percent": 40.0, "memory_used_mb": 10.0, "memory_total_mb": 100.0}


def test_a_machine_without_gpus_or_without_their_driver_is_not_measured() -> None:
    def refuse() -> Read | None:
        raise AssertionError("nothing is opened")

    assert GpuUsage(0, refuse).newest() == ()
    assert GpuUsage(1, lambda: None).newest() == ()
    assert GpuUsage(1, lambda: list).newest() == ()


def test_measurements_end_when_nobody_asks_and_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_usage, "PERIOD_S", 0.0)
    monkeypatch.setattr(gpu_usage, "UNUSED_S", 0.0)
    threads: list[threading.Thread] = []

    def read() -> list[dict[str, float]]:
        threads.append(threading.current_thread())
        return [BUSY]

    usage = GpuUsage(1, lambda: read)
    for _ in range(2):
        assert [sample and sample.util_percent for sample in usage.newest()] == [40.0]
        threads[-1].join()
    assert threads[0] is not threads[-1]


def test_a_driver_that_hangs_delays_one_request_and_old_samples_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_usage, "FIRST_SAMPLE_TIMEOUT_S", 0.01)
    hanging, calls = threading.Event(), 0

    def read() -> list[dict[str, float]]:
        nonlocal calls
        calls += 1
        hanging.wait()
        return []

    usage = GpuUsage(1, lambda: read)
    assert usage.newest() == usage.newest() == ()
    hanging.set()
    assert calls == 1
    usage._samples = (None,)  # from before it hung
    assert usage.newest() == ()


def test_numbers_of_devices_are_those_that_the_daemon_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert device_numbers(2) == [0, 1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-1f,7")
    assert device_numbers(2) == [5, None]
