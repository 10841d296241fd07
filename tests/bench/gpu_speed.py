"""Steps per second of whole trainings on a GPU by `mosaic train`, against CleanRL's own scripts in the same run.

    python -m tests.bench.gpu_speed [--cleanrl CHECKOUT] [--python ITS_INTERPRETER] [--pairs 2] [--only TEXT]

contenders.py says what each side is. Both have equal settings, but CleanRL's trainings are shorter: what is compared is
the speed between the first and the last report of learning, start-up excluded. A pair is run one after the other, and
who goes first alternates; a ratio is taken within a pair.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from .contenders import CleanRlContender, Contender, MosaicContender, Training, TrainingFailed

HALF_CHEETAH, BREAKOUT = "HalfCheetah-v5", "BreakoutNoFrameskip-v4"
SHORT_WARMUP = {"learning_starts": "2000"}


@dataclass(frozen=True)
class GpuWorkload:
    training: Training
    cleanrl_steps: int
    """The number of steps of CleanRL's training; 0 without one."""
    label: str = ""

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.training.algo, self.training.env_id, self.label)))


def _sac(label: str = "", **settings: str) -> GpuWorkload:
    return GpuWorkload(Training("sac_continuous_action", HALF_CHEETAH, 20_000, settings=SHORT_WARMUP | settings),
                       0 if label else 3_500, label)  # fmt: skip


def _td3(label: str = "", **settings: str) -> GpuWorkload:
    return GpuWorkload(Training("td3_continuous_action", HALF_CHEETAH, 32_000, settings=SHORT_WARMUP | settings),
                       0 if label else 4_500, label)  # fmt: skip


WORKLOADS = (
    _sac(),
    _td3(),
    GpuWorkload(Training("dqn", "CartPole-v1", 100_000, settings=SHORT_WARMUP), 20_000),
    GpuWorkload(Training("ppo_continuous_action", HALF_CHEETAH, 81_920), 8_192),
    GpuWorkload(Training("ppo_atari", BREAKOUT, 163_840, settings={"num_envs": "64"}), 0, "64 games"),
    _sac("--compile", compile="true"),
    _td3("--compile", compile="true"),
)


def measure(workload: GpuWorkload, ours: Contender, theirs: Contender | None, pairs: int) -> str:
    """Return one row of the table."""
    speeds: dict[str, list[float]] = {}
    for number in range(pairs):
        sides = [(ours, workload.training)]
        if theirs is not None and workload.cleanrl_steps:
            sides.append((theirs, replace(workload.training, steps=workload.cleanrl_steps)))
        for side, training in reversed(sides) if number % 2 else sides:
            result = side.train(replace(training, seed=number + 1))
            speeds.setdefault(side.name, []).append(result.training_sps)
            print(f"  {side.name} {training.algo}: {result.training_sps:,.0f} steps/s, {result.wall_s:.0f} s in all")
            sys.stdout.flush()
    own, other = speeds[ours.name], speeds.get("CleanRL")
    cells = [f"{statistics.median(own):,.0f}", "", ""]
    if other:
        ratios = sorted(one / two for one, two in zip(own, other, strict=True))
        cells[1:] = [
            f"{statistics.median(other):,.0f}",
            f"{statistics.median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f})",
        ]
    return f"| {workload.name} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cleanrl", metavar="CHECKOUT", help="a CleanRL checkout")
    parser.add_argument("--python", default=sys.executable, help="the interpreter with CleanRL's dependencies")
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--only", metavar="TEXT", action="append", help="only rows whose name contains this")
    parser.add_argument("--compile", action="store_true", help="the rows with compiled updates instead of the others")
    chosen = parser.parse_args()
    theirs = None
    if chosen.cleanrl:
        theirs = CleanRlContender(Path(chosen.cleanrl).absolute(), chosen.python, threads=None, uses_cuda=True)
    ours = MosaicContender(threads=None)
    rows = ["| | MOSAIC, steps/s | CleanRL, steps/s | ratio |", "|---|---|---|---|"]
    try:
        for workload in WORKLOADS:
            if ("compile" in workload.training.settings) != chosen.compile:
                continue
            if not chosen.only or any(text in workload.name for text in chosen.only):
                try:
                    rows.append(measure(workload, ours, theirs, chosen.pairs))
                except TrainingFailed as error:
                    print(error, flush=True)
    finally:
        ours.close()
    print("\n".join(rows))


if __name__ == "__main__":
    main()
