"""The other processes of a training in several: the worker itself is the first, and starts and watches the rest.

They end with the worker, also if it is killed: each waits for the end of its standard input.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cleanrl_worker.registry import load_algorithm
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.model import Contract
from mosaic.contracts.payload import Imports
from mosaic.worker.envs.user_modules import allow_imports, allowed_imports

END_PATIENCE_S = 10.0
"""For the other processes to end by themselves, and for the first to notice that one has ended."""
_WORKER_IS_GONE = 3


class RankOrder(Contract):
    """What a process is told on its standard input."""

    algorithm: str
    config: dict[str, Any]
    rank: int
    rendezvous: str
    checkpoint: str | None
    """The checkpoint to resume from."""
    imports: Imports
    """What the worker may import: a network of the user's own."""


@contextlib.contextmanager
def other_ranks(algorithm: str, config: Any, size: int, checkpoint: Path | None) -> Iterator[Path]:
    """Run the processes of ranks 1 and up; yield the file by which all find each other. Raise if one of them dies."""
    folder = Path(tempfile.mkdtemp(prefix="mosaic-ranks-"))
    rendezvous = folder / "rendezvous"
    processes: dict[int, subprocess.Popen[bytes]] = {}
    is_over = threading.Event()
    try:
        for rank in range(1, size):
            order = RankOrder(
                algorithm=algorithm,
                config=config.model_dump(mode="json"),
                rank=rank,
                rendezvous=str(rendezvous),
                checkpoint=None if checkpoint is None else str(checkpoint),
                imports=allowed_imports(),
            )
            process = subprocess.Popen([sys.executable, "-P", "-m", __name__], stdin=subprocess.PIPE)
            processes[rank] = process
            assert process.stdin is not None
            process.stdin.write(order.model_dump_json().encode() + b"\n")
            process.stdin.flush()
        threading.Thread(target=_end_if_stuck, args=(processes, is_over), daemon=True).start()
        yield rendezvous
        for process in processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_PATIENCE_S)
    except (RuntimeError, OSError) as error:  # what torch raises when another process is gone
        problem = _find_dead(processes, END_PATIENCE_S)
        if problem is None:
            raise
        raise MosaicError(problem) from error
    finally:
        is_over.set()
        for process in processes.values():
            if process.stdin is not None:
                process.stdin.close()
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _find_dead(processes: dict[int, subprocess.Popen[bytes]], patience_s: float = 0.0) -> str | None:
    """Return a sentence about a process that has failed, at most `patience_s` from now; None if there is none."""
    deadline = time.monotonic() + patience_s
    while True:
        for rank, process in processes.items():
            if process.poll():
                code = process.returncode
                how = f"exit code {code}" if code > 0 else f"signal {-code}"
                return (
                    f"Process {rank} of {len(processes) + 1} ended with {how}, so the training cannot continue. Its "
                    "output is in the log; resume the run from its last checkpoint when the cause is fixed."
                )
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.05)


def _end_if_stuck(processes: dict[int, subprocess.Popen[bytes]], is_over: threading.Event) -> None:
    """End this process if another one is dead and torch does not notice: some backends wait for it forever."""
    while not is_over.wait(1.0):
        problem = _find_dead(processes)
        if problem is not None and not is_over.wait(2 * END_PATIENCE_S):
            print(problem, file=sys.stderr, flush=True)
            os._exit(1)


def main() -> None:
    order = RankOrder.model_validate_json(sys.stdin.readline())
    watcher = threading.Thread(target=_end_with_worker, daemon=True)
    watcher.start()
    allow_imports(order.imports)
    module = load_algorithm(order.algorithm)
    checkpoint = None
    if order.checkpoint is not None:
        from mosaic.worker.checkpoints import load_checkpoint

        checkpoint = load_checkpoint(order.checkpoint)
    config = module.Config.model_validate(order.config)
    try:
        module.train_rank(config, None, checkpoint, order.rank, Path(order.rendezvous))
    except RuntimeError:
        # Usually because the worker has ended, and then its own error is what matters.
        watcher.join(END_PATIENCE_S)
        raise


def _end_with_worker() -> None:
    sys.stdin.read()
    os._exit(_WORKER_IS_GONE)


if __name__ == "__main__":
    main()
