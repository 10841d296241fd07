from __future__ import annotations

import pytest

from mosaic.keeper.gpus import GpuMonitor, can_see_gpus


@pytest.mark.parametrize(
    ("env", "can_see"),
    [
        ({}, True),
        ({"CUDA_VISIBLE_DEVICES": "0"}, True),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, True),
        ({"CUDA_VISIBLE_DEVICES": ""}, False),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, False),
    ],
)
def test_gpus_are_sampled_only_for_a_run_that_can_see_them(env: dict[str, str], can_see: bool) -> None:
    assert can_see_gpus(env) is can_see


def test_a_machine_without_the_library_has_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mosaic.keeper.gpus._LIBRARY", "libno-such-library.so.1")
    gpus = GpuMonitor()
    gpus.start()
    assert gpus.newest == []
