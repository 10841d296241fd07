"""How long a replay takes to show a step: `python tests/bench/replay_player.py [ENV…]`, in milliseconds.

Forward: the next step, simulated, rendered and sent. Back: the step before, which is kept. Middle: from the end to the
middle of the episode, simulated from its start.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.helpers.recordings import PlayerProcess, player_process, record_episodes

ENVIRONMENTS = ("CartPole-v1", "Taxi-v4", "LunarLander-v3", "HalfCheetah-v5", "ALE/Breakout-v5")
STEPS = 1000
SHOWN_STEPS = 50


def measure(player: PlayerProcess, steps: list[int]) -> float:
    """Return the median time of these steps, in milliseconds."""
    times = []
    for step in steps:
        started_at = time.perf_counter()
        player.seek(0, step)
        times.append(1000 * (time.perf_counter() - started_at))
    return statistics.median(times)


def main() -> None:
    print(f"{'':20}{'steps':>8}{'forward':>10}{'back':>10}{'middle':>10}")
    for env_id in sys.argv[1:] or ENVIRONMENTS:
        with tempfile.TemporaryDirectory() as folder:
            recording = Path(folder, "recording.bin")
            record_episodes(recording, env_id, (1,), STEPS)
            with player_process(recording) as player:
                player.read()
                length = player.seek(0, 0).steps
                shown = min(length, SHOWN_STEPS)
                forward = measure(player, list(range(1, shown)))
                back = measure(player, list(range(shown - 2, 0, -1)))
                player.seek(0, length)
                middle = measure(player, [length // 2 + 1])
        print(f"{env_id:20}{length:8}{forward:10.1f}{back:10.1f}{middle:10.1f}")


if __name__ == "__main__":
    main()
