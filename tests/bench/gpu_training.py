"""Whole trainings on a GPU: do they run, how fast, do they learn, and does a resumed one reach the same result?

    python -m tests.bench.gpu_training [--cpu] [--no-cuda-graphs] [--steps-share 1.0]

One short training of each algorithm that needs no further package, twice with the same seed: without interruption, and
stopped halfway and resumed from its checkpoint. Besides torch and numpy it needs gymnasium, pydantic, safetensors and
what they need, and for Atari games ale-py and OpenCV; the imported packages are printed at the end.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import numpy as np  # noqa: E402
from tests.helpers.algorithm_cases import latest_checkpoint, open_run  # noqa: E402

from cleanrl_worker.registry import load_algorithm  # noqa: E402

SMALL_REPLAY = {"learning_starts": 500, "buffer_size": 5_000}
SMALL_FRAMES = {"learning_starts": 400, "buffer_size": 1_000}
BREAKOUT = "BreakoutNoFrameskip-v4"
TRAININGS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "ppo": ("CartPole-v1", 24_576, {}),
    "dqn": ("CartPole-v1", 8_000, SMALL_REPLAY),
    "c51": ("CartPole-v1", 4_000, SMALL_REPLAY),
    "qrdqn": ("CartPole-v1", 4_000, SMALL_REPLAY),
    "pqn": ("CartPole-v1", 8_192, {}),
    "a2c": ("CartPole-v1", 8_192, {}),
    "ppo_lstm": ("CartPole-v1", 8_192, {}),
    "ppo_trxl": ("CartPole-v1", 8_192, {"num_envs": 8, "num_steps": 128}),
    "ppo_continuous_action": ("Pendulum-v1", 8_192, {}),
    "rpo_continuous_action": ("Pendulum-v1", 8_192, {}),
    "sac_continuous_action": ("Pendulum-v1", 4_000, SMALL_REPLAY),
    "td3_continuous_action": ("Pendulum-v1", 4_000, SMALL_REPLAY),
    "ddpg_continuous_action": ("Pendulum-v1", 4_000, SMALL_REPLAY),
    "tqc": ("Pendulum-v1", 4_000, SMALL_REPLAY),
    "ppo_atari": (BREAKOUT, 4_096, {}),
    "ppo_atari_lstm": (BREAKOUT, 4_096, {}),
    "dqn_atari": (BREAKOUT, 1_536, SMALL_FRAMES),
    "c51_atari": (BREAKOUT, 1_536, SMALL_FRAMES),
    "rainbow_atari": (BREAKOUT, 1_536, SMALL_FRAMES),
    "sac_atari": (BREAKOUT, 1_536, SMALL_FRAMES),
}


def run_training(path: Path, name: str, config: Any, stop_at: int | None = None, is_resumed: bool = False) -> Any:
    """Return the run and its duration."""
    resume = latest_checkpoint(path) if is_resumed else None
    with open_run(path, config, resume) as run:
        run.stop_at = stop_at
        began = time.perf_counter()
        load_algorithm(name).train(config, run, resume)
        return run, time.perf_counter() - began


def run_and_format(name: str, settings: dict[str, Any], steps_fraction: float, folder: Path) -> str:
    env_id, steps, own = TRAININGS[name]
    total = max(2, int(steps * steps_fraction) // 512) * 512
    config = load_algorithm(name).Config(
        env_id=env_id, total_timesteps=total, seed=1, backend="torch", **own, **settings
    )
    run, taken = run_training(folder / f"{name} whole", name, config)
    run_training(folder / f"{name} halves", name, config, stop_at=total // 2)
    half = latest_checkpoint(folder / f"{name} halves").step
    run_training(folder / f"{name} halves", name, config, is_resumed=True)
    one, other = latest_checkpoint(folder / f"{name} whole"), latest_checkpoint(folder / f"{name} halves")
    apart = max(float(np.abs(part - other.weights[key]).max()) for key, part in one.weights.items())
    verdict = "equal" if apart == 0 and one.step == other.step else f"DIFFER by {apart:.1e}"
    returns = [episode[2] for episode in run.episodes]
    began, ended = (statistics.mean(part) if part else float("nan") for part in (returns[:10], returns[-10:]))
    return (
        f"{name:22} {env_id:12} {total:6} steps at {total / taken:7.0f}/s; mean return of the first ten episodes "
        f"{began:8.1f}, of the last {ended:8.1f}; resumed at {half}: weights {verdict}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="on the CPU instead")
    parser.add_argument("--no-cuda-graphs", action="store_true")
    parser.add_argument("--only", metavar="NAME", action="append", help="only this algorithm")
    parser.add_argument("--steps-share", type=float, default=1.0, help="how much of each training")
    chosen = parser.parse_args()
    import torch

    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() and not chosen.cpu else "CPU"
    print(f"torch {torch.__version__}, {device}", flush=True)
    settings = {"cuda": not chosen.cpu, "cuda_graphs": not chosen.no_cuda_graphs}
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.only or TRAININGS:
            try:
                print(run_and_format(name, settings, chosen.steps_share, Path(folder)), flush=True)
            except Exception:
                print(f"{name:22} FAILED", flush=True)
                traceback.print_exc()
    imported = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
    ours = {"cleanrl_worker", "mosaic", "tests", "__main__", "__mp_main__"}
    print("imported:", ", ".join(sorted(name for name in imported - ours if not name.startswith("_"))))


if __name__ == "__main__":
    main()
