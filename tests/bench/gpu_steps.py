"""Update and acting steps of SAC, TD3 and DDPG on a GPU: one by one, as CUDA graphs, compiled; and whether they agree.

    python tests/bench/gpu_steps.py [--steps N]

Runs on a machine that has torch and nothing else of ours: a buffer of random rows stands for the replay buffer. All
rows of the table are the same code; `eager` launches every kernel by itself.
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

from cleanrl_worker.actor_critic import Networks  # noqa: E402
from cleanrl_worker.torch_backend import Compute  # noqa: E402
from cleanrl_worker.torch_control import DeterministicLearner, Learner, SacLearner  # noqa: E402

OBSERVATIONS, ACTIONS, ROWS = 17, 6, 256
SETTINGS = SimpleNamespace(batch_size=ROWS, gamma=0.99, tau=0.005)
LAYOUT = {
    "observation": (0, OBSERVATIONS, "float32"),
    "action": (4 * OBSERVATIONS, ACTIONS, "float32"),
    "reward": (4 * (OBSERVATIONS + ACTIONS), 1, "float32"),
    "terminal": (4 * (OBSERVATIONS + ACTIONS + 1), 1, "float32"),
    "next_observation": (4 * (OBSERVATIONS + ACTIONS + 2), OBSERVATIONS, "float32"),
}


class RandomRows:
    """Answers as a replay buffer does."""

    envs = 1
    window_bytes = 4 * (2 * OBSERVATIONS + ACTIONS + 2)

    def __init__(self) -> None:
        rows = np.random.default_rng(1).standard_normal((10_000, self.window_bytes // 4), np.float32)
        rows[:, OBSERVATIONS + ACTIONS + 1] = rows[:, OBSERVATIONS + ACTIONS + 1] > 2
        self._rows = rows.view(np.uint8)
        self._rng = np.random.default_rng(2)

    def batch(self, rows: int, buffer: Any) -> Any:
        return SimpleNamespace(layout=LAYOUT, buffer=buffer, rows=rows)

    def sample(self, batch: Any) -> None:
        batch.buffer[...] = self._rows[self._rng.integers(len(self._rows), size=batch.rows)]


def made(name: str, compute: Compute) -> Learner:
    heads = ("fc_mean", "fc_logstd") if name == "sac" else ("fc_mu",)
    networks = Networks(OBSERVATIONS, ACTIONS, (256, 256), heads, 1 if name == "ddpg" else 2, name != "sac")
    networks.initialise(np.random.default_rng(1))
    shape = (networks, RandomRows(), SETTINGS, (3e-4, 1e-3), np.ones(ACTIONS), np.zeros(ACTIONS), compute)
    if name == "sac":
        return SacLearner(*shape, policy_steps=2, alpha=0.2, log_alpha=np.zeros(1, np.float32))
    return DeterministicLearner(*shape, policy_noise=0.2 if name == "td3" else 0.0, noise_clip=0.5)


def microseconds(work: Callable[[int], object], steps: int) -> float:
    for index in range(20):
        work(index)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for index in range(steps):
        work(index)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps * 1e6


def compare(name: str, steps: int) -> None:
    kinds = {"eager": (False, False), "CUDA graph": (True, False), "compiled + graph": (True, True)}
    states: dict[str, Any] = {}
    first: dict[str, float] = {}
    for kind, (uses_graphs, is_compiled) in kinds.items():
        compute = Compute.prepared(cuda=True, cuda_graphs=uses_graphs, compiles=is_compiled)
        learner, rows = made(name, compute), RandomRows()
        for index in range(8):
            learner.update(rows, index % 2 == 0, name == "sac" or index % 2 == 0)
        learner.collect()
        states[kind] = learner.networks.state_dict()
        seen = np.zeros((1, OBSERVATIONS), np.float32)
        taken = {
            "update": microseconds(
                lambda index, learner=learner, rows=rows: learner.update(  # type: ignore[misc]
                    rows, index % 2 == 0, name == "sac" or index % 2 == 0
                ),
                steps,
            ),
            "acting": microseconds(lambda _, learner=learner, seen=seen: learner.act(seen), steps),  # type: ignore[misc]
        }
        for what, cost in taken.items():
            ratio = first.setdefault(what, cost) / cost
            print(f"{name:5} {what:7} {kind:18} {cost:9.1f} us  x{ratio:6.2f}", flush=True)
        apart = max(float(np.abs(part - states[kind][key]).max()) for key, part in states["eager"].items())
        print(f"{name:5} after 8 updates the weights differ from the eager ones by at most {apart:.2e}", flush=True)


def check_resuming(name: str) -> None:
    """Eight updates in one go are eight with a save in between, although the second half is captured anew."""
    compute = Compute.prepared(cuda=True)
    straight, rows = made(name, compute), RandomRows()
    for index in range(8):
        straight.update(rows, index % 2 == 0, True)
        if index == 3:
            straight.collect()
            arrays, facts = straight.moments()
            state = straight.networks.state_dict()
            alpha = straight.losses().get("alpha")
    resumed = made(name, Compute.prepared(cuda=True, seed=9))
    resumed.networks.load_state_dict(state)
    again = type(resumed)(
        resumed.networks, rows, SETTINGS, (3e-4, 1e-3), np.ones(ACTIONS), np.zeros(ACTIONS), compute,
        **(
            {"policy_steps": 2, "alpha": 0.2, "log_alpha": np.log(np.full(1, alpha, np.float32))}
            if name == "sac"
            else {"policy_noise": 0.2 if name == "td3" else 0.0, "noise_clip": 0.5}
        ),
    )  # fmt: skip
    again.restore(arrays, facts)
    rows = RandomRows()
    for _ in range(4):
        rows.sample(straight.batch)
    for index in range(4, 8):
        again.update(rows, index % 2 == 0, True)
    for learner in (straight, again):
        learner.collect()
    pairs = zip(straight.networks.state_dict().values(), again.networks.state_dict().values(), strict=True)
    apart = max(float(np.abs(one - other).max()) for one, other in pairs)
    print(f"{name:5} resumed after 4 of 8 updates: weights differ by at most {apart:.2e}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    chosen = parser.parse_args()
    print(torch.__version__, torch.cuda.get_device_name(0), flush=True)
    for name in ("sac", "td3", "ddpg"):
        check_resuming(name)
        compare(name, chosen.steps)


if __name__ == "__main__":
    main()
