"""Compare our updates with CleanRL's: DQN and C51 are trained on the transitions of CleanRL's own script.

    python -m tests.learning.same_updates --cleanrl CHECKOUT [--python ITS_INTERPRETER] [--steps 60000]

The script is run once, and everything it stored and sampled is recorded. Then our replay buffer gets the same
transitions and our kernel the same initial weights and samples. The samples must be equal bit for bit; the final
weights differ by rounding errors, which grow over thousands of updates.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from tests.bench.contenders import CleanRlContender, Training, run_command

from cleanrl_worker.environments.vector import EpisodeEnd
from cleanrl_worker.registry import load_algorithm
from cleanrl_worker.replay.buffers import Replay

ENV_ID, OBSERVATION_SIZE, ACTION_COUNT = "CartPole-v1", 4, 2
ALGORITHMS = ("dqn", "c51")
MIN_STEPS = 11_000


def record_cleanrl_run(algo: str, cleanrl: CleanRlContender, args: argparse.Namespace) -> dict[str, Any]:
    training = Training(algo, ENV_ID, args.steps)
    recorder = Path(__file__).resolve().with_name("recorder.py")
    with tempfile.TemporaryDirectory(prefix="mosaic-learning-") as folder:
        command = [args.python, str(recorder), cleanrl.script(algo), "lived.npz", "--no-cuda", *training.flags]
        run_command(command, Path(folder), threads=1)
        with np.load(Path(folder) / "lived.npz") as found:
            return dict(found)


def compare_updates(algo: str, recording: dict[str, Any]) -> str:
    module = load_algorithm(algo)
    steps = len(recording["rewards"])
    config = module.Config(env_id=ENV_ID, total_timesteps=steps, backend="numpy")
    agent, target = module.Agent(OBSERVATION_SIZE, ACTION_COUNT), module.Agent(OBSERVATION_SIZE, ACTION_COUNT)
    names = [name for name in agent.state_dict() if name != "atoms"]
    for one in (agent, target):
        one.load_state_dict({name: recording[f"before.{place}"] for place, name in enumerate(names)})
    replay = Replay(config.buffer_size, 1, (OBSERVATION_SIZE, np.float32), (1, np.int64), seed=1)
    batch = replay.allocate_batch(config.batch_size)
    learner = module._learner(config, agent, target)
    draws = dict(zip(recording["drawn_after"].tolist(), recording["drawn"], strict=True))
    observations, following = recording["observations"], recording["next_observations"]
    replay.start(observations[:1])
    strangers = 0
    for step in range(steps):
        shown = observations[step + 1] if step + 1 < steps else following[step]
        is_terminal = bool(recording["terminals"][step])
        has_ended = is_terminal or not np.array_equal(shown, following[step])
        endings = [EpisodeEnd(0, following[step], is_terminal, 0.0, 1)] if has_ended else []
        replay.add(recording["actions"][None, None, step], recording["rewards"][None, step], endings, shown[None])
        if step + 1 in draws:
            # CleanRL's places are those of a ring of so many; the newest transition that lies there is meant.
            newest = draws[step + 1] + step // config.buffer_size * config.buffer_size
            rows = np.where(newest > step, newest - config.buffer_size, newest)
            batch.indices[...] = rows % (config.buffer_size + 1)  # ours has a row more, for the newest observation
            replay.fill(batch)
            strangers += not _is_same_batch(batch, recording, rows)
            learner.update(batch, config.learning_rate)
        if step > config.learning_starts and step % config.target_network_frequency == 0:
            learner.follow(1)
    learner.sync_networks()
    weights = agent.state_dict()
    apart, moved = 0.0, 0.0
    for place, name in enumerate(names):
        theirs = recording[f"behind.{place}"]
        apart = max(apart, float(np.abs(weights[name] - theirs).max()))
        moved = max(moved, float(np.abs(theirs - recording[f"before.{place}"]).max()))
    return (
        f"{algo:4} {len(draws):,} updates, {strangers} of other transitions; "
        f"weights moved by up to {moved:.3f} and are at most {apart:.4f} apart ({apart / moved:.1%})"
    )


def _is_same_batch(batch: Any, recording: dict[str, Any], rows: Any) -> bool:
    goes_on = recording["terminals"][rows] == 0
    pairs = (
        (batch.observations, recording["observations"][rows]),
        (batch.actions[:, 0], recording["actions"][rows]),
        (batch.rewards, recording["rewards"][rows]),
        (batch.terminals, recording["terminals"][rows]),
        (batch.next_observations[goes_on], recording["next_observations"][rows][goes_on]),
    )
    return all(np.array_equal(ours, theirs) for ours, theirs in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cleanrl", metavar="CHECKOUT", required=True, help="a checkout of CleanRL")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has what CleanRL needs")
    parser.add_argument("--steps", type=int, default=60_000, help="environment steps")
    chosen = parser.parse_args()
    if chosen.steps < MIN_STEPS:
        parser.error(f"--steps: at least {MIN_STEPS:,}, because learning starts after 10,000")
    cleanrl = CleanRlContender(Path(chosen.cleanrl).absolute(), chosen.python)
    for algo in ALGORITHMS:
        print(compare_updates(algo, record_cleanrl_run(algo, cleanrl, chosen)), flush=True)


if __name__ == "__main__":
    main()
