"""Trains what the learning table still lacks, and writes the table.

    python -m tests.learning [--cleanrl CHECKOUT] [--python ITS_INTERPRETER] [--jobs 2] [--only TEXT] [--long] [--show]

A run that is finished is a line in results.jsonl and is not repeated: stop it at any time, call it again and it goes
on with what is missing. The number is the mean return of the last 100 episodes of training, its deviation that over
seeds, as in CleanRL's documentation. Rows that take hours stay empty until `--long`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tests.bench.contenders import CleanRlContender, Contender, MosaicContender, Training, TrainingFailed
from tests.learning.learning_cases import LEARNING_CASES, LearningCase

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.jsonl"
TABLE = HERE / "README.md"
WORKSPACE = HERE.parents[1] / "build" / "learning"
TABLE_HEADER = """# Do they learn?

Written by `make learning`, which trains what is missing here and can be stopped and called again at any time:

```sh
make learning                                                # ours, against CleanRL's published figures
make learning CLEANRL=/path/to/cleanrl                       # and CleanRL's own scripts where none were published
make learning CLEANRL=/path/to/cleanrl ARGS="--long --only ppo_atari"   # the rows that take hours
```

`python -m tests.learning.same_updates --cleanrl /path/to/cleanrl` lets our DQN and C51 learn from what CleanRL's own
script lived through: after 999 updates the weights are the same to four digits, after 4,999 within 1 % of the way they
went.

The figure is the mean return of the last 100 episodes of training (of all of them where there were fewer, as in 30,000
steps of HalfCheetah): its mean over seeds, ± its deviation over seeds, and the seeds one by one. `published` is
CleanRL's documentation at the same number of steps; where there is none, CleanRL's own script was run beside ours on
the same machine, with the same settings and seeds. Where seeds differ so much that the three behind a published figure
decide little, both sides have ten, and CleanRL's script itself is held against ours too. An empty cell has not been
run.

"""

Key = tuple[str, str, str, int, int]


def result_key(contender: str, training: Training) -> Key:
    return contender, training.algo, training.env_id, training.steps, training.seed


class Results:
    """The finished runs, on disk as soon as they are known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        lines = path.read_text().splitlines() if path.exists() else []
        self._entries = {_entry_key(entry): entry for entry in map(json.loads, lines)}

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def returns(self, contender: str, case: LearningCase) -> list[float]:
        keys = (result_key(contender, training) for training in case.trainings())
        return [self._entries[wanted]["mean_return"] for wanted in keys if wanted in self._entries]

    def add(self, key: Key, **facts: Any) -> None:
        names = ("side", "algo", "env_id", "steps", "seed")
        entry = {**dict(zip(names, key, strict=True)), **facts, "on": time.strftime("%Y-%m-%d")}
        with self._lock:
            self._entries[key] = entry
            with self._path.open("a") as file:
                print(json.dumps(entry), file=file)


def _entry_key(entry: dict[str, Any]) -> Key:
    return entry["side"], entry["algo"], entry["env_id"], entry["steps"], entry["seed"]


def format_verdict(case: LearningCase, ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Whether ours is as good: within the published deviation or better; within that of CleanRL's own runs or better,
    where they were made for that; in a range that overlaps theirs, where nothing was published."""
    if any(len(returns) < case.seeds for returns in (ours, theirs)[: len(case.contenders)]):
        return ""
    if case.published is None:
        return _yes_or_no(max(ours) >= min(theirs))
    mine = statistics.fmean(ours)
    said = _yes_or_no(mine >= case.published[0] - case.published[1])
    if case.has_cleanrl_runs:
        lowest = statistics.fmean(theirs) - statistics.pstdev(theirs)
        said += f"; beside it {_yes_or_no(mine >= lowest)}"
    return said


def _yes_or_no(is_good: bool) -> str:
    return "yes" if is_good else "**no**"


def _format_returns(returns: Sequence[float]) -> str:
    if not returns:
        return ""
    deviation = f" ± {statistics.pstdev(returns):.1f}" if len(returns) > 1 else ""
    return f"{statistics.fmean(returns):.1f}{deviation} ({', '.join(f'{value:.0f}' for value in returns)})"


def format_table(results: Results) -> str:
    lines = ["| algorithm | environment | steps | MOSAIC | published | CleanRL beside it | as good |", "|---" * 7 + "|"]
    for row in LEARNING_CASES:
        ours, theirs = results.returns("MOSAIC", row), results.returns("CleanRL", row)
        published = f"{row.published[0]:.1f} ± {row.published[1]:.1f}" if row.published else ""
        cells = [
            f"`{row.algo}`",
            row.env_id,
            f"{row.steps:,}",
            _format_returns(ours),
            published,
            _format_returns(theirs),
        ]
        lines.append(f"| {' | '.join([*cells, format_verdict(row, ours, theirs)])} |")
    commands = [f"{row.trainings()[0].command}   # seeds 1 to {row.seeds}" for row in LEARNING_CASES]
    return TABLE_HEADER + "\n".join(lines) + "\n\nEach run by itself:\n\n```sh\n" + "\n".join(commands) + "\n```\n"


def missing_trainings(
    results: Results, contenders: dict[str, Contender], args: argparse.Namespace
) -> Iterator[tuple[Contender, Training]]:
    for row in LEARNING_CASES:
        is_left_out = row.is_long and not args.long
        if is_left_out or (args.only and not any(text in row.name for text in args.only)):
            continue
        for training in row.trainings():
            for name in row.contenders:
                if name in contenders and result_key(name, training) not in results:
                    yield contenders[name], training


def run_training(contender: Contender, training: Training, results: Results) -> str:
    result = contender.train(training)
    results.add(
        result_key(contender.name, training),
        mean_return=round(result.mean_return, 2),
        episodes=result.episodes,
        wall_s=round(result.wall_s, 1),
        settings=training.settings,
    )
    return f"{result.mean_return:.1f} in {result.wall_s:.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cleanrl", metavar="CHECKOUT", help="a checkout of CleanRL, for the rows that need it")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has what CleanRL needs")
    parser.add_argument("--jobs", type=int, default=2, help="how many trainings at a time, one thread each")
    parser.add_argument("--only", metavar="TEXT", action="append", help="rows with this in their name")
    parser.add_argument("--long", action="store_true", help="the rows that take hours too")
    parser.add_argument("--show", action="store_true", help="write the table of what there is, and train nothing")
    chosen = parser.parse_args()
    results = Results(RESULTS)
    failed = 0
    if not chosen.show:
        ours = MosaicContender(WORKSPACE)
        sides: dict[str, Contender] = {ours.name: ours}
        if chosen.cleanrl:
            sides["CleanRL"] = CleanRlContender(Path(chosen.cleanrl).absolute(), chosen.python)
        try:
            todo = list(missing_trainings(results, sides, chosen))
            with ThreadPoolExecutor(chosen.jobs) as pool:
                waiting = {pool.submit(run_training, side, one, results): (side, one) for side, one in todo}
                for number, done in enumerate(as_completed(waiting), 1):
                    side, one = waiting[done]
                    try:
                        said = done.result()
                    except TrainingFailed as error:
                        failed, said = failed + 1, f"FAILED: {error}"
                    print(
                        f"[{number}/{len(todo)}] {side.name} {one.algo} {one.env_id} seed {one.seed}: {said}",
                        flush=True,
                    )
                    TABLE.write_text(format_table(results))
        finally:
            ours.close()
    TABLE.write_text(format_table(results))
    print(format_table(results))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
