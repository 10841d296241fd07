"""Steps per second of `mosaic train` against CleanRL's own scripts and Stable-Baselines3: one table.

    python -m tests.bench.speed --cleanrl CHECKOUT [--python ITS_INTERPRETER] [--threads default] [--sb3]

contenders.py says what each side is. All have equal settings. A pair is one seed, run by all sides one after the other,
so that what else the machine does falls on all; who goes first alternates. A ratio is taken within a pair; its median
is what counts. It means little while the machine has other work.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .contenders import CleanRlContender, Contender, MosaicContender, Result, Sb3Contender, Training

SLOW_SPS = 500
PAIRS, SLOW_PAIRS = 5, 3
SHORT_WARMUP = {"learning_starts": "2000"}
SMALL_BUFFER = {"buffer_size": "10000"}
"""The default of the pictures' buffer, a million, would not fit into memory on CleanRL's side."""
BREAKOUT = "BreakoutNoFrameskip-v4"
SB3_ALGORITHMS = ("ppo", "ppo_continuous_action", "dqn", "sac_continuous_action", "td3_continuous_action",
                    "ddpg_continuous_action")  # fmt: skip
"""What Stable-Baselines3 has too."""


@dataclass(frozen=True)
class Workload:
    training: Training
    target_ratio: float

    @property
    def name(self) -> str:
        return f"{self.training.algo} {self.training.env_id}"

    def shorten(self, fraction: float) -> Workload:
        """Less of it; what is played before learning starts stays."""
        start = self.training.learning_starts
        steps = start + int((self.training.steps - start) * fraction)
        return replace(self, training=replace(self.training, steps=steps))


WORKLOADS = (
    Workload(Training("ppo", "CartPole-v1", 50_000), 8),
    Workload(Training("ppo_continuous_action", "HalfCheetah-v5", 20_480), 7),
    Workload(Training("ppo_continuous_action", "Pendulum-v1", 20_480), 9),
    Workload(Training("dqn", "CartPole-v1", 30_000, settings=SHORT_WARMUP), 4),
    Workload(Training("c51", "CartPole-v1", 20_000, settings=SHORT_WARMUP), 3),
    Workload(Training("pqn", "CartPole-v1", 50_000), 3),
    Workload(Training("sac_continuous_action", "HalfCheetah-v5", 4500, settings=SHORT_WARMUP), 1.4),
    Workload(Training("td3_continuous_action", "HalfCheetah-v5", 5000, settings=SHORT_WARMUP), 1.4),
    Workload(Training("ddpg_continuous_action", "HalfCheetah-v5", 5000, settings=SHORT_WARMUP), 1.4),
    Workload(Training("ppo_atari", BREAKOUT, 5120), 1.4),
    Workload(Training("ppo_atari_lstm", BREAKOUT, 5120), 1.4),
    Workload(Training("dqn_atari", BREAKOUT, 5000, settings={**SHORT_WARMUP, **SMALL_BUFFER}), 1.4),
)


@dataclass(frozen=True)
class SpeedRow:
    workload: Workload
    results: dict[str, list[Result]]

    def speed(self, side: str) -> str:
        return (
            _format_spread([result.training_sps for result in self.results[side]], ",.0f")
            if self._has_results(side)
            else ""
        )

    def ratios(self, other: str) -> list[float]:
        pairs = zip(self.results["MOSAIC"], self.results[other], strict=True)
        return [mine.training_sps / theirs.training_sps for mine, theirs in pairs]

    def ratio(self, other: str) -> str:
        return _format_spread(self.ratios(other), ".2f") if self._has_results(other) else ""

    def total_time_ratio(self, other: str) -> str:
        pairs = zip(self.results["MOSAIC"], self.results[other], strict=True)
        return f"{statistics.median(mine.overall_sps / theirs.overall_sps for mine, theirs in pairs):.2f}"

    def _has_results(self, side: str) -> bool:
        return bool(self.results.get(side))


def _format_spread(values: Sequence[float], number_format: str) -> str:
    return (
        f"{statistics.median(values):{number_format}} ({min(values):{number_format}} to {max(values):{number_format}})"
    )


def compare(workload: Workload, contenders: Sequence[Contender], pairs: int | None) -> SpeedRow:
    """All sides by turns; as many pairs as its speed asks for."""
    print(f"\n{workload.name}, {workload.training.steps:,} steps", flush=True)
    results: dict[str, list[Result]] = {side.name: [] for side in contenders}
    seed, wanted = 1, pairs or PAIRS
    while seed <= wanted:
        for side in contenders if seed % 2 else contenders[::-1]:
            result = side.train(replace(workload.training, seed=seed))
            results[side.name].append(result)
            print(
                f"  seed {seed}  {side.name:8} {result.training_sps:9,.0f} steps/s   with start-up "
                f"{result.overall_sps:9,.0f}   return {result.mean_return:9.1f}",
                flush=True,
            )
        if pairs is None and min(column[0].training_sps for column in results.values()) < SLOW_SPS:
            wanted = SLOW_PAIRS
        seed += 1
    return SpeedRow(workload, results)


def format_table(rows: Sequence[SpeedRow], others: Sequence[str]) -> str:
    titles = ["workload", "MOSAIC, steps/s"]
    for other in others:
        titles += [f"{other}, steps/s", f"÷ {other}"]
    titles += ["with start-up", "wanted"]
    lines = [titles, ["---"] * len(titles)]
    for row in rows:
        cells = [row.workload.name, row.speed("MOSAIC")]
        for other in others:
            cells += [row.speed(other), row.ratio(other)]
        is_reached = statistics.median(row.ratios(others[0])) >= row.workload.target_ratio
        cells += [
            row.total_time_ratio(others[0]),
            f"{row.workload.target_ratio:g}{'' if is_reached else ': NOT reached'}",
        ]
        lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cleanrl", metavar="CHECKOUT", required=True, help="a checkout of CleanRL")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has what the others need")
    parser.add_argument(
        "--threads", default="1", help="of every side: a number, or default (what each takes by itself)"
    )
    parser.add_argument("--only", metavar="TEXT", action="append", help="workloads with this in their name")
    parser.add_argument("--pairs", type=int, help=f"how many seeds ({PAIRS}; {SLOW_PAIRS} below {SLOW_SPS} steps/s)")
    parser.add_argument("--share", type=float, default=1.0, help="how much of each workload's steps behind the start")
    parser.add_argument("--sb3", action="store_true", help="Stable-Baselines3 too, where it has the algorithm")
    chosen = parser.parse_args()
    threads = None if chosen.threads == "default" else int(chosen.threads)
    cleanrl = CleanRlContender(Path(chosen.cleanrl).absolute(), chosen.python, threads)
    baselines = Sb3Contender(chosen.python, threads)
    ours = MosaicContender(threads=threads)
    rows = []
    try:
        for work in WORKLOADS:
            if chosen.only and not any(text in work.name for text in chosen.only):
                continue
            sides: list[Contender] = [cleanrl, ours]
            if chosen.sb3 and work.training.algo in SB3_ALGORITHMS:
                sides.insert(1, baselines)
            rows.append(compare(work.shorten(chosen.share), sides, chosen.pairs))
        shortest = _format_spread([ours.measure_startup_s() for _ in range(PAIRS)], ".2f")
    finally:
        ours.close()
    print(f"\nThreads: {chosen.threads}. Medians of pairs, with the lowest and the highest.\n")
    print(format_table(rows, ["CleanRL", *(["SB3"] if chosen.sb3 else [])]))
    print(f"\nmosaic train ppo, 1,000 steps, daemon up: {shortest} s")


if __name__ == "__main__":
    main()
