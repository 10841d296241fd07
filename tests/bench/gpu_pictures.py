"""Update and acting steps of PPO and DQN for Atari on a GPU: one by one, as CUDA graphs, compiled; do they agree?

    python tests/bench/gpu_pictures.py [--steps N] [--compiled]

Runs on a machine that has torch and nothing else of ours: random pictures stand for games. All rows of the table are
the same code; `eager` launches every kernel by itself.
"""

from __future__ import annotations

import argparse
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

# The package as a plain folder: its own beginning wants what is not installed here.
package = types.ModuleType("cleanrl_worker")
package.__path__ = [str(Path(__file__).resolve().parent.parent.parent / "src" / "cleanrl_worker")]
sys.modules["cleanrl_worker"] = package

from cleanrl_worker.pictures import Shapes, Sizes, begun_orthogonal, layer, trunk  # noqa: E402
from cleanrl_worker.torch_backend import Compute  # noqa: E402
from cleanrl_worker.torch_pictures import PolicyLearner, Window, looked_at  # noqa: E402
from cleanrl_worker.torch_recurrent import RecurrentLearner  # noqa: E402
from cleanrl_worker.torch_replay import Feed, TargetLearner  # noqa: E402

ACTIONS, ENVS, STEPS, SIDE = 4, 8, 128, 84
TOTAL = ENVS * STEPS
SETTINGS = SimpleNamespace(
    learning_rate=2.5e-4, num_envs=ENVS, batch_size=TOTAL, minibatch_size=TOTAL // 4, max_grad_norm=0.5, norm_adv=True,
    clip_coef=0.1, clip_vloss=True, ent_coef=0.01, vf_coef=0.5,
)  # fmt: skip
RNG = np.random.default_rng(1)
ROLLOUT = {
    "actions": RNG.integers(ACTIONS, size=TOTAL),
    "log_probs": np.full(TOTAL, -np.log(ACTIONS), np.float32),
    **{name: RNG.standard_normal(TOTAL, np.float32) for name in ("advantages", "returns", "values")},
}
KEEPS = (RNG.random(TOTAL) > 0.01).astype(np.float32)
Made = tuple[Any, Callable[[int], object], Callable[[], object]]
"""A learner, its update and its acting."""


def begun(seen: int, further: Shapes) -> dict[str, Any]:
    shapes = {**trunk(seen, SIDE, Sizes()), **further}
    return begun_orthogonal(shapes, np.random.default_rng(1), {"actor": 0.01, "critic": 1.0, "lstm": 1.0})


def policy(compute: Compute) -> Made:
    arrays = begun(4, {**layer("actor", ACTIONS, 512), **layer("critic", 1, 512)})
    learner = PolicyLearner(arrays, (4, SIDE, SIDE), SETTINGS, compute)
    pictures = np.random.default_rng(2).integers(0, 256, (TOTAL, 4, SIDE, SIDE), np.uint8)
    learner.begin(2.5e-4, pictures, **ROLLOUT)
    order = np.random.default_rng(3).permutation(TOTAL).reshape(4, -1)
    return learner, lambda index: learner.update(order[index % 4]), lambda: learner.act(pictures[:ENVS])


def recurrent(compute: Compute) -> Made:
    lstm = {"lstm.weight_ih_l0": (512, 512), "lstm.weight_hh_l0": (512, 128)}
    biases = {"lstm.bias_ih_l0": (512,), "lstm.bias_hh_l0": (512,)}
    arrays = begun(1, {**lstm, **biases, **layer("actor", ACTIONS, 128), **layer("critic", 1, 128)})
    learner = RecurrentLearner(arrays, (1, SIDE, SIDE), SETTINGS, compute)
    pictures = np.random.default_rng(2).integers(0, 256, (TOTAL, 1, SIDE, SIDE), np.uint8)
    learner.begin(2.5e-4, pictures, **ROLLOUT, keeps=KEEPS)
    order = np.random.default_rng(3).permutation(ENVS).reshape(4, -1)
    return learner, lambda index: learner.update(order[index % 4]), lambda: learner.act(pictures[:ENVS])


class RandomPictures:
    """Answers as a replay buffer does, the first few times with new pictures: it is not what is measured."""

    envs, stack = 1, 4
    shape: tuple[int, ...] = (SIDE, SIDE)

    def __init__(self) -> None:
        self._rng = np.random.default_rng(2)
        self._new = 8

    def batch(self, rows: int, buffer: Any = None) -> Any:
        return SimpleNamespace(frames=buffer, rows=rows)

    def sample(self, batch: Any) -> None:
        if self._new == 0:
            return
        self._new -= 1
        batch.frames[...] = self._rng.integers(0, 256, batch.frames.shape, np.uint8)
        batch.actions = self._rng.integers(ACTIONS, size=batch.rows)
        batch.rewards = self._rng.standard_normal(batch.rows, np.float32)
        batch.terminals = np.zeros(batch.rows, np.float32)


def values_of(weights: Any, pictures: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(
        looked_at(weights, pictures), weights["network.9.weight"], weights["network.9.bias"]
    )


def td_loss(weights: Any, target: Any, rows: Any) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        wanted = rows.rewards + 0.99 * values_of(target, rows.next_observations).amax(1) * (1 - rows.terminals)
    values = values_of(weights, rows.observations).gather(1, rows.actions[:, None])[:, 0]
    error = torch.nn.functional.mse_loss(values, wanted)
    return error, torch.stack([error, values.mean()]).detach()


def values(compute: Compute) -> Made:
    arrays, replay = begun(4, layer("network.9", ACTIONS, 512)), RandomPictures()
    settings = SimpleNamespace(learning_rate=1e-4, batch_size=32)
    feed = Feed(replay, 32, 5, compute)
    learner = TargetLearner(arrays, arrays, td_loss, feed, settings, 1e-8, ("td_loss", "q_values"), compute)
    acting = Window((1, 4, SIDE, SIDE), ACTIONS, lambda pictures: values_of(learner.weights, pictures), compute)
    seen = np.zeros((1, 4, SIDE, SIDE), np.uint8)
    return learner, lambda _: learner.update(replay), lambda: acting(seen)


def microseconds(work: Callable[[int], object], steps: int) -> float:
    for index in range(10):
        work(index)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for index in range(steps):
        work(index)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps * 1e6


def compare(name: str, make: Callable[[Compute], Made], steps: int, is_compiled_too: bool) -> None:
    kinds = {"eager": (False, False), "CUDA graph": (True, False)}
    if is_compiled_too:
        kinds["compiled + graph"] = (True, True)
    states: dict[str, Any] = {}
    first: dict[str, float] = {}
    for kind, (uses_graphs, is_compiled) in kinds.items():
        compute = Compute.prepared(cuda=True, cuda_graphs=uses_graphs, compiles=is_compiled)
        learner, update, act = make(compute)
        for index in range(8):
            update(index)
        states[kind] = learner.arrays()
        taken = {"update": microseconds(update, steps), "acting": microseconds(lambda _, act=act: act(), steps)}  # type: ignore[misc]
        for what, cost in taken.items():
            ratio = first.setdefault(what, cost) / cost
            print(f"{name:15} {what:7} {kind:18} {cost:9.1f} us  x{ratio:6.2f}", flush=True)
        apart = max(float(np.abs(part - states[kind][key]).max()) for key, part in states["eager"].items())
        print(f"{name:15} after 8 updates the weights differ from the eager ones by at most {apart:.2e}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--compiled", action="store_true")
    chosen = parser.parse_args()
    print(torch.__version__, torch.cuda.get_device_name(0), flush=True)
    for name, make in (("ppo_atari", policy), ("dqn_atari", values), ("ppo_atari_lstm", recurrent)):
        # Compiling unrolls the memory's steps, for minutes.
        compare(name, make, chosen.steps, chosen.compiled and make is not recurrent)


if __name__ == "__main__":
    main()
