"""What logging costs the training thread: our run handle against torch's SummaryWriter.

    .venv/bin/python tests/bench/tensorboard_writer.py

Both log the same points; ours goes to the journal and to analytics.json too. CPU time of the whole process, because
SummaryWriter's own thread holds the interpreter while the training thread wants it. Rounds are interleaved.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from mosaic.contracts.folder import RunFolder
from mosaic.worker.run import Run

ROUNDS = 9
UPDATES = 400
TAGS = [f"losses/loss_{number}" for number in range(10)]
POINT_COUNT = UPDATES * len(TAGS)


def measure_run_handle(folder: Path) -> tuple[float, float]:
    """CPU seconds in scalar() alone, and with everything written."""
    in_calls = 0.0
    run_folder = RunFolder(folder)
    with Run(run_folder, worker="bench", version="1", tensorboard=run_folder.tensorboard) as run:
        run.hello()
        began = time.process_time()
        for step in range(UPDATES):
            mark = time.process_time()
            for tag in TAGS:
                run.scalar(tag, step * 0.1, step)
            in_calls += time.process_time() - mark
            run.update(step)
        run.finish()
    return in_calls, time.process_time() - began


def measure_summary_writer(folder: Path) -> tuple[float, float]:
    in_calls = 0.0
    writer = SummaryWriter(str(folder))
    began = time.process_time()
    for step in range(UPDATES):
        mark = time.process_time()
        for tag in TAGS:
            writer.add_scalar(tag, step * 0.1, step)
        in_calls += time.process_time() - mark
    writer.close()
    return in_calls, time.process_time() - began


def microseconds_per_point(measure: Callable[[Path], tuple[float, float]]) -> tuple[float, float]:
    folder = Path(tempfile.mkdtemp())
    try:
        in_calls, all_in_all = measure(folder)
    finally:
        shutil.rmtree(folder)
    return in_calls / POINT_COUNT * 1e6, all_in_all / POINT_COUNT * 1e6


def main() -> None:
    (
        microseconds_per_point(measure_run_handle),
        microseconds_per_point(measure_summary_writer),
    )  # imports and caches are warm from here on
    rounds = [
        (microseconds_per_point(measure_run_handle), microseconds_per_point(measure_summary_writer))
        for _ in range(ROUNDS)
    ]
    for place, what in enumerate(("in the call", "written out")):
        mine = [a[place] for a, _ in rounds]
        other = [b[place] for _, b in rounds]
        ratios = [b / a for a, b in zip(mine, other, strict=True)]
        print(
            f"{what}: ours {statistics.median(mine):.2f} us a point, SummaryWriter {statistics.median(other):.2f}; "
            f"ratio {statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"
        )


if __name__ == "__main__":
    main()
