from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cleanrl_worker.algorithms import td3_continuous_action
from cleanrl_worker.learners import devices
from cleanrl_worker.learners.architecture import Architecture
from mosaic.contracts.folder import RunFolder
from mosaic.trainer.executors.worker_environment import worker_environment


@pytest.mark.parametrize(
    ("backend", "cuda", "before", "is_gpu_there", "chosen"),
    [
        ("auto", True, None, False, "numpy"),
        ("auto", True, None, True, "torch"),
        ("auto", False, None, True, "numpy"),
        ("auto", True, "numpy", True, "numpy"),
        ("auto", True, "torch", False, "torch"),
        ("numpy", True, "torch", True, "numpy"),
        ("torch", False, "numpy", False, "torch"),
    ],
)
def test_the_backend_depends_on_settings_machine_and_checkpoint(
    backend: devices.Backend, cuda: bool, before: str, is_gpu_there: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "has_gpu", lambda: is_gpu_there)
    config: Any = SimpleNamespace(
        backend=backend, cuda=cuda, architecture=Architecture((64, 64)), has_kernels=True, kernel_units=64
    )
    assert devices.choose_backend(config, before) == chosen


@pytest.mark.parametrize(
    ("settings", "backend"),
    [
        ({}, "numpy"),
        ({"hidden_sizes": (64, 257)}, "torch"),
        ({"hidden_sizes": (64,), "activation": "tanh"}, "numpy"),
        ({"hidden_sizes": (64,), "activation": "elu"}, "torch"),
        ({"hidden_sizes": (512,), "backend": "numpy"}, "numpy"),
    ],
)
def test_wide_networks_are_computed_by_torch(settings: dict[str, Any], backend: str) -> None:
    config = td3_continuous_action.Config(**settings, cuda=False)
    assert devices.choose_backend(config) == backend
    assert devices.choose_backend(config, "numpy") == "numpy" if config.backend == "auto" else True


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_hidden_gpu_is_not_used(hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert not devices.has_gpu()


@pytest.mark.parametrize(("value", "count"), [("1", 1), ("4", 4), ("", 1), ("0", 1), ("2,1", 1), (None, 1)])
def test_threads_are_those_that_the_run_was_given(
    value: str | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert devices.thread_count() == count


@pytest.mark.parametrize(("threads", "load", "policy"), [(2, 8.0, "passive"), (2, 7.9, None), (1, 40.0, None)])
def test_the_threads_of_a_run_sleep_at_barriers_where_the_machine_has_twice_as_much_work_as_cores(
    threads: int, load: float, policy: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    run = (RunFolder(tmp_path), tmp_path / "config.json", threads)
    assert worker_environment({}, *run).get("OMP_WAIT_POLICY") == policy
    assert worker_environment({"OMP_WAIT_POLICY": "active"}, *run)["OMP_WAIT_POLICY"] == "active"
