from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.unit.test_replay import FLOATS, FakeSteps

from cleanrl_worker.learners import torch_feeds
from cleanrl_worker.learners.torch_backend import TorchContext
from cleanrl_worker.learners.torch_feeds import DeviceFeed, HostFeed
from cleanrl_worker.replay.buffers import Replay
from cleanrl_worker.replay.hindsight import HindsightReplay

COMPUTE = TorchContext.set_up(cuda=False)


def make_replay(envs: int) -> Replay:
    return Replay(10 * envs, envs, FLOATS, (1, np.int64), seed=1)


@pytest.mark.parametrize("envs", [1, 3])
def test_both_feeds_give_the_same_samples(envs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffer wraps around, is left alone for a while, sampled twice without a new step, and started again."""
    monkeypatch.setattr(torch_feeds, "UPLOAD_ROWS", 4)
    buffers = [make_replay(envs), make_replay(envs)]
    lives = [FakeSteps(envs), FakeSteps(envs)]
    host, device = HostFeed(buffers[0], 32, COMPUTE), DeviceFeed(buffers[1], 32, COMPUTE)

    def add_step() -> None:
        for buffer, life in zip(buffers, lives, strict=True):
            buffer.add(*life.step())

    def check_samples() -> None:
        for feed, buffer in ((host, buffers[0]), (device, buffers[1])):
            feed.prepare(buffer)
            feed.load()
            feed.record_launch()
        for name, values in host.fields.items():
            assert torch.equal(values, device.fields[name]), name

    for _ in range(2):
        for buffer, life in zip(buffers, lives, strict=True):
            buffer.start(life.now)
        for _ in range(3):
            add_step()
        for _ in range(40):
            add_step()
            check_samples()
        check_samples()
        for _ in range(7):
            add_step()
        check_samples()


def test_relabeled_samples_stay_on_the_host() -> None:
    cuda = TorchContext(torch.device("cuda"), uses_graphs=True, is_compiled=False)
    assert not DeviceFeed.fits(make_replay(1), COMPUTE)
    assert HindsightReplay.relabels_samples
    relabeling = make_replay(1)
    relabeling.relabels_samples = True
    assert not DeviceFeed.fits(relabeling, cuda)


def test_a_buffer_larger_than_the_memory_of_the_device_stays_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = TorchContext(torch.device("cuda"), uses_graphs=True, is_compiled=False)
    replay = make_replay(1)
    size_bytes = replay.index_count * replay.window_bytes
    for free_bytes, fits in ((4 * size_bytes - 4, False), (4 * size_bytes, True)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free_bytes: (free, 10**9))
        assert DeviceFeed.fits(replay, cuda) is fits
