from __future__ import annotations

import numpy as np
import pytest
import torch

from cleanrl_worker.replay import Replay
from cleanrl_worker.torch_backend import Adam, Compute, Step, fields_of

CUDA = [
    False,
    pytest.param(True, marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]


def test_threads_and_device_follow_from_the_settings_alone() -> None:
    before = torch.get_num_threads()
    compute = Compute.prepared(cuda=False, threads=2, cuda_graphs=True)
    assert torch.get_num_threads() == 2
    assert compute == Compute(torch.device("cpu"), uses_graphs=False, is_compiled=False)
    torch.set_num_threads(before)


@pytest.mark.parametrize("cuda", CUDA)
def test_a_step_counts_once_for_each_call_and_adam_is_torchs(cuda: bool) -> None:
    compute = Compute.prepared(cuda=cuda)
    ours, theirs = (torch.full((3,), 2.0, device=compute.device, requires_grad=True) for _ in range(2))
    adam, reference = Adam([ours], 0.1, compute), torch.optim.Adam([theirs], lr=0.1)
    drawn = torch.zeros(3, device=compute.device)
    told: list[str] = []

    def work() -> None:
        drawn.copy_(torch.randn(3, device=compute.device))
        adam.step((ours**2).sum())

    step = Step(work, lambda: [*adam.kept(), drawn], compute, before=lambda: told.append("before"))
    draws = []
    for _ in range(4):
        step()
        draws.append(drawn.clone())
        reference.zero_grad()
        (theirs**2).sum().backward()  # type: ignore[no-untyped-call]
        reference.step()
    torch.testing.assert_close(ours, theirs)
    assert adam.count == 4
    assert told[0] == "before"
    torch.manual_seed(1)
    torch.testing.assert_close(draws, [torch.randn(3, device=compute.device) for _ in range(4)])


def test_no_optimizer_is_made_which_would_import_torchs_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim.Optimizer, "__init__")
    parameter = torch.full((3,), 2.0, requires_grad=True)
    Adam([parameter], 0.1, Compute.prepared(cuda=False)).step((parameter**2).sum())
    torch.testing.assert_close(parameter.detach(), torch.full((3,), 1.9))


@pytest.mark.parametrize("cuda", CUDA)
def test_the_random_state_comes_back_and_one_of_another_device_is_left_alone(cuda: bool) -> None:
    compute = Compute.prepared(cuda=cuda)
    state = compute.random_state()
    first = torch.randn(4, device=compute.device)
    compute.restore_random_state(torch.zeros(3, dtype=torch.uint8))
    compute.restore_random_state(state)
    assert torch.equal(torch.randn(4, device=compute.device), first)


def test_packed_rows_are_read_in_place() -> None:
    replay = Replay(10, 1, (5, np.uint8), (2, np.float32), seed=1)
    replay.start(np.arange(5)[None])
    replay.add(np.array([[0.5, -0.5]]), np.array([3.0]), [], np.arange(5, 10)[None])
    host = torch.zeros(4, replay.window_bytes, dtype=torch.uint8)
    batch = replay.batch(4, host.numpy())
    fields = fields_of(host, batch.layout)
    replay.sample(batch)
    assert fields["observation"].tolist() == [[0, 1, 2, 3, 4]] * 4
    assert fields["next_observation"].tolist() == [[5, 6, 7, 8, 9]] * 4
    assert fields["action"].tolist() == [[0.5, -0.5]] * 4
    assert fields["reward"].tolist() == [[3.0]] * 4
    assert fields["terminal"].dtype == torch.float32
