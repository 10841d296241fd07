from __future__ import annotations

import numpy as np
import pytest
import torch

from cleanrl_worker.learners.torch_backend import (
    GraphedStep,
    InferenceStep,
    StepMetrics,
    TorchAdam,
    TorchContext,
    TorchRAdam,
    unpack_fields,
)
from cleanrl_worker.replay.buffers import Replay

CUDA = [
    False,
    pytest.param(True, marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]


def test_threads_and_device_follow_from_the_settings_alone() -> None:
    previous = torch.get_num_threads()
    compute = TorchContext.set_up(cuda=False, threads=2, cuda_graphs=True)
    assert torch.get_num_threads() == 2
    assert compute == TorchContext(torch.device("cpu"), uses_graphs=False, is_compiled=False)
    torch.set_num_threads(previous)


@pytest.mark.parametrize(("rows", "threads"), [(1, 1), (8, 2)])
def test_a_single_observation_is_run_on_one_thread(rows: int, threads: int) -> None:
    previous, seen = torch.get_num_threads(), []
    compute = TorchContext.set_up(cuda=False, threads=2)

    def work(observations: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return observations

    InferenceStep((rows, 4), torch.float32, 4, work, compute)(np.zeros((rows, 4)))
    assert (seen, torch.get_num_threads()) == ([threads], 2)
    torch.set_num_threads(previous)


@pytest.mark.parametrize("cuda", CUDA)
def test_a_step_counts_once_for_each_call_and_adam_is_torchs(cuda: bool) -> None:
    compute = TorchContext.set_up(cuda=cuda)
    ours, theirs = (torch.full((3,), 2.0, device=compute.device, requires_grad=True) for _ in range(2))
    adam, reference = TorchAdam([ours], 0.1, compute), torch.optim.Adam([theirs], lr=0.1)
    drawn = torch.zeros(3, device=compute.device)
    calls: list[str] = []

    def work() -> None:
        drawn.copy_(torch.randn(3, device=compute.device))
        adam.step((ours**2).sum())

    step = GraphedStep(work, lambda: [*adam.state_tensors(), drawn], compute, before=lambda: calls.append("before"))
    draws = []
    for _ in range(4):
        step()
        draws.append(drawn.clone())
        reference.zero_grad()
        (theirs**2).sum().backward()  # type: ignore[no-untyped-call]
        reference.step()
    torch.testing.assert_close(ours, theirs)
    assert adam.count == 4
    assert calls[0] == "before"
    torch.manual_seed(1)
    torch.testing.assert_close(draws, [torch.randn(3, device=compute.device) for _ in range(4)])


def test_no_optimizer_is_made_which_would_import_torchs_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim.Optimizer, "__init__")
    parameter = torch.full((3,), 2.0, requires_grad=True)
    TorchAdam([parameter], 0.1, TorchContext.set_up(cuda=False)).step((parameter**2).sum())
    torch.testing.assert_close(parameter.detach(), torch.full((3,), 1.9))


@pytest.mark.parametrize("cuda", CUDA)
def test_the_random_state_is_restored_only_on_its_device(cuda: bool) -> None:
    compute = TorchContext.set_up(cuda=cuda)
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
    batch = replay.allocate_batch(4, host.numpy())
    fields = unpack_fields(host, batch.layout)
    replay.sample(batch)
    assert fields["observation"].tolist() == [[0, 1, 2, 3, 4]] * 4
    assert fields["next_observation"].tolist() == [[5, 6, 7, 8, 9]] * 4
    assert fields["action"].tolist() == [[0.5, -0.5]] * 4
    assert fields["reward"].tolist() == [[3.0]] * 4
    assert fields["terminal"].dtype == torch.float32


@pytest.mark.parametrize("cuda", CUDA)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_metrics_report_the_step_and_the_names_that_were_first_not_finite(cuda: bool, bad: float) -> None:
    compute = TorchContext.set_up(cuda=cuda)
    metrics = StepMetrics(("loss", "norm", "value"), compute)
    step = GraphedStep(lambda: None, metrics.state_tensors, compute, after=metrics.check)
    for number in range(7):
        compute.copy_to_device(metrics.values, [1.0, bad if number in (3, 4) else 1.0, bad if number >= 5 else 0.0])
        step()
        metrics.count_step()
        if number < 3:
            assert metrics.first_non_finite() is None
    assert metrics.first_non_finite() == (3, ["norm"])


@pytest.mark.parametrize("cuda", CUDA)
def test_inference_uses_the_latest_weights_and_extra_inputs(cuda: bool) -> None:
    compute = TorchContext.set_up(cuda=cuda)
    weight = torch.ones(2, 3, device=compute.device)
    host = compute.host_buffer(4, dtype=torch.float32)
    extra = compute.device_buffer(host)
    calls = torch.zeros((), device=compute.device)

    def work(seen: torch.Tensor) -> torch.Tensor:
        calls.add_(1)
        return seen.float() @ weight + extra[:, None]

    acting = InferenceStep((4, 2), torch.uint8, 3, work, compute, lambda: (calls,), [(extra, host)])
    assert acting(np.full((4, 2), 3)).tolist() == [[6.0] * 3] * 4
    weight.mul_(2)
    host.numpy()[...] = [0, 1, 2, 3]
    assert acting(np.ones((4, 2)))[:, 0].tolist() == [4.0, 5.0, 6.0, 7.0]
    assert calls.item() == 2


@pytest.mark.parametrize("cuda", CUDA)
def test_arrays_may_be_reused_after_sending(cuda: bool) -> None:
    compute = TorchContext.set_up(cuda=cuda)
    target, source = torch.zeros(1000, device=compute.device), np.arange(1000)
    compute.copy_to_device(target, source)
    source[...] = 0
    assert target.sum().item() == 999 * 500


@pytest.mark.parametrize("cuda", CUDA)
def test_the_learning_rate_can_change_after_a_step_and_a_loaded_state_can_be_continued(cuda: bool) -> None:
    compute = TorchContext.set_up(cuda=cuda)
    for kind, theirs in ((TorchAdam, torch.optim.Adam), (TorchRAdam, torch.optim.RAdam)):
        ours, reference = (torch.full((3,), 2.0, device=compute.device, requires_grad=True) for _ in range(2))
        adam, optimizer = kind([ours], 0.1, compute), theirs([reference], lr=0.1)
        step = GraphedStep(lambda adam=adam, ours=ours: adam.step((ours**2).sum()), adam.state_tensors, compute)  # type: ignore[misc]
        for number in range(12):
            rate = 0.1 / (number + 1)
            adam.set_learning_rate(rate)
            optimizer.param_groups[0]["lr"] = rate
            if number == 8:
                saved = [part.detach().clone() for part in adam.state_tensors()]
                step()
                with torch.no_grad():
                    for part, value in zip(adam.state_tensors(), saved, strict=True):
                        part.copy_(value)
            step()
            optimizer.zero_grad()
            (reference**2).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        torch.testing.assert_close(ours, reference)
