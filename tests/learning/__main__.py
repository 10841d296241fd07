"""Train what is missing in the learning table, and write the table.

    python -m tests.learning [--cleanrl CHECKOUT] [--python ITS_INTERPRETER] [--jobs 2] [--only TEXT] [--long] [--show]

A finished run is a line in results.jsonl and is not repeated: it can be stopped at any time and continues with what is
missing. Rows that take hours are not run without `--long`. learning_table.py says what is compared and how.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.bench.contenders import CleanRlContender, Contender, MosaicContender, Training, TrainingFailed
from tests.learning.learning_cases import LEARNING_CASES
from tests.learning.learning_table import Results, format_table, result_key

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.jsonl"
TABLE = HERE / "README.md"
WORKSPACE = HERE.parents[1] / "build" / "learning"


def missing_trainings(
    results: Results, contenders: dict[str, Contender], args: argparse.Namespace
) -> Iterator[tuple[Contender, Training]]:
    for case in LEARNING_CASES:
        is_left_out = case.is_long and not args.long
        if is_left_out or (args.only and not any(text in case.name for text in args.only)):
            continue
        for name, contender in contenders.items():
            for training in case.trainings(name):
                if result_key(name, training) not in results:
                    yield contender, training


def run_training(contender: Contender, training: Training, results: Results) -> str:
    result = contender.train(training)
    results.add(contender.name, training, result)
    return f"{result.mean_return:.1f} in {result.wall_s:.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cleanrl", metavar="CHECKOUT", help="a CleanRL checkout, for the rows that need it")
    parser.add_argument("--python", default=sys.executable, help="the interpreter with CleanRL's dependencies")
    parser.add_argument("--jobs", type=int, default=2, help="number of concurrent trainings, one thread each")
    parser.add_argument("--only", metavar="TEXT", action="append", help="only rows whose name contains this")
    parser.add_argument("--long", action="store_true", help="also the rows that take hours")
    parser.add_argument("--workspace", type=Path, default=WORKSPACE, help="where MOSAIC's runs are stored")
    parser.add_argument("--show", action="store_true", help="write the table without training")
    chosen = parser.parse_args()
    results = Results(RESULTS)
    failed = 0
    if not chosen.show:
        ours = MosaicContender(chosen.workspace)
        sides: dict[str, Contender] = {ours.name: ours}
        if chosen.cleanrl:
            sides["CleanRL"] = CleanRlContender(Path(chosen.cleanrl).absolute(), chosen.python)
        try:
            todo = list(missing_trainings(results, sides, chosen))
            with ThreadPoolExecutor(chosen.jobs) as pool:
                waiting = {
                    pool.submit(run_training, side, training, results): (side, training) for side, training in todo
                }
                for number, done in enumerate(as_completed(waiting), 1):
                    side, training = waiting[done]
                    try:
                        result = done.result()
                    except TrainingFailed as error:
                        failed, result = failed + 1, f"FAILED: {error}"
                    name = f"{side.name} {training.algo} {training.env_id} seed {training.seed}"
                    print(f"[{number}/{len(todo)}] {name}: {result}", flush=True)
                    TABLE.write_text(format_table(results))
        finally:
            ours.close()
    TABLE.write_text(format_table(results))
    print(format_table(results))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
