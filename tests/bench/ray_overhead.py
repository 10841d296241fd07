"""What a run costs on a Ray cluster, against the local executor: the same short training, in turns.

python -m tests.bench.ray_overhead [--pairs 10] [--steps 50000]

The cluster has three nodes, all on this machine, and the run folder is copied. A time is that from the submission to
the end, as the trainer's record states it; `training` is that from the worker's handshake on.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

from tests.helpers.daemons import LiveDaemon, ended, environment
from tests.helpers.ray_cluster import running_cluster

from mosaic.contracts.folder import Workspace
from mosaic.contracts.views import RunView
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.trainer.executors.ray_cluster import STREAM_VARIABLE


def train(trainer: TrainerClient, executor: str, steps: int) -> RunView:
    config = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": steps, "seed": 1}
    payload = {
        "metadata": {"worker": {"id": "cleanrl", "config": config}},
        "artifacts": {},
        "resources": {"cpus": 1, "executor": executor},
    }
    view = ended(trainer, trainer.submit(payload).run_id, 600)
    assert view.status == "succeeded", view.reason
    return view


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=50_000)
    options = parser.parse_args()
    whole_s, training_s = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    with tempfile.TemporaryDirectory() as place:
        plugins = Path(place) / "plugins"
        with running_cluster(environment(plugins)) as cluster:
            daemon = LiveDaemon(Workspace(f"{place}/var"), plugins, **cluster.variables, **{STREAM_VARIABLE: "1"})
            with daemon.start() as trainer:
                for executor in ("local", "ray"):
                    train(trainer, executor, 1000)  # starts the checker and the bridge
                for pair in range(options.pairs):
                    for executor in ("local", "ray") if pair % 2 else ("ray", "local"):
                        view = train(trainer, executor, options.steps)
                        assert view.finished_at is not None
                        ready_at = next(entry.at for entry in view.history if entry.stage == "running")
                        whole_s[executor].append(view.finished_at - view.submitted_at)
                        training_s[executor].append(view.finished_at - ready_at)
            daemon.end()
    print(f"ppo, CartPole-v1, {options.steps:,} steps, {options.pairs} pairs, load {os.getloadavg()[0]:.1f}")
    print("| | local s (min, median, max) | ray s (min, median, max) | median difference s |\n|---|---|---|---|")
    for name, times in (("submission to end", whole_s), ("training", training_s)):
        cells = [
            f"{min(times[executor]):.2f}, {statistics.median(times[executor]):.2f}, {max(times[executor]):.2f}"
            for executor in ("local", "ray")
        ]
        gap = statistics.median(there - here for there, here in zip(times["ray"], times["local"], strict=True))
        print(f"| {name} | {cells[0]} | {cells[1]} | {gap:.2f} |")


if __name__ == "__main__":
    main()
