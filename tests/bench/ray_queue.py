"""Drains a long queue of tiny runs on a Ray cluster of three nodes, and counts what became of each.

python -m tests.bench.ray_queue [--runs 1000] [--kill-node]

With --kill-node, a node is killed when a third of the runs has ended, and started again when two thirds have.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.helpers.daemons import LiveDaemon, environment, scripted
from tests.helpers.ray_cluster import running_cluster

from mosaic.base.journal import read_all
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.trainer.executors.ray_cluster import STREAM_VARIABLE

NODE = "127.0.0.4"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--kill-node", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        plugins, workspace = Path(place) / "plugins", Workspace(f"{place}/var")
        with running_cluster(environment(plugins)) as cluster:
            daemon = LiveDaemon(workspace, plugins, **cluster.variables, **{STREAM_VARIABLE: "1"})
            with daemon.start() as trainer:
                began = time.monotonic()
                payload = {**scripted(steps=3), "resources": {"executor": "ray"}}
                run_ids = [trainer.submit(payload).run_id for _ in range(options.runs)]
                submitted_s = time.monotonic() - began
                shown, events = 0, [("kill", options.runs // 3), ("add", 2 * options.runs // 3)]
                while (done := sum(trainer.get_status().runs.get(word, 0) for word in WORDS)) < options.runs:
                    if done >= shown + 50:
                        shown = done
                        print(f"{done} ended after {time.monotonic() - began:.0f} s", flush=True)
                    if options.kill_node and events and done >= events[0][1]:
                        word, _ = events.pop(0)
                        (cluster.kill_node if word == "kill" else cluster.add_node)(NODE)
                        print(f"node {NODE}: {word}", flush=True)
                    time.sleep(1)
                drained_s = time.monotonic() - began
                views = [trainer.get_run(run_id) for run_id in run_ids]
            daemon.end()
            broken = 0
            for view in views:
                steps = [
                    line["global_step"]
                    for line in read_all(RunFolder(view.run_dir).journal)
                    if line["kind"] == "progress"
                ]
                broken += steps[-3:] != [1, 2, 3]
    nodes = Counter(view.attempts[-1].node for view in views if view.attempts)
    print(f"{len(views)} runs submitted in {submitted_s:.1f} s, drained in {drained_s:.0f} s")
    print(f"outcomes: {dict(Counter(view.status for view in views))}; journals that are not complete: {broken}")
    print(f"attempts: {dict(Counter(len(view.attempts) for view in views))}; nodes: {dict(nodes)}")


WORDS = ("succeeded", "failed", "cancelled", "rejected", "lost")


if __name__ == "__main__":
    main()
