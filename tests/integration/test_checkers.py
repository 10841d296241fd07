"""The checkers of a daemon under many questions at a time, and at its end."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.helpers.daemons import wait_for
from tests.helpers.worker_runs import small

from mosaic.base.processes import identify, is_alive
from mosaic.base.worker_registry import WorkerDescription
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.folder import Workspace
from mosaic.contracts.payload import Payload
from mosaic.trainer import checkers as module
from mosaic.trainer.checkers import Checker, Checkers

HANGING = """
import os, sys, time
sys.stdin.readline()
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
time.sleep(600)
"""


def worker(script: str, *arguments: str) -> WorkerDescription:
    return WorkerDescription("cleanrl", "", "1", (), (sys.executable, "-c", script, *arguments))


def payload(imports: Path | None = None, **changes: object) -> Payload:
    choice = {"id": "cleanrl", "config": small(**changes)}
    if imports is not None:
        choice["imports"] = {"modules": ["mine"], "folders": [str(imports)]}
    return Payload.parse({"metadata": {"worker": choice}, "artifacts": {}})


@pytest.fixture
def _eager_threads() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("_eager_threads")
def test_verdicts_are_shared_by_many_threads(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread drops a verdict at the moment at which another one takes it."""
    monkeypatch.setattr(module, "MAX_CACHED_VERDICTS", 1)
    # Without the time that a process and the hash of a config take, the threads meet there all the time.
    monkeypatch.setattr(Checker, "ask", lambda *_: {"summary": {}})
    monkeypatch.setattr(module, "verdict_key", lambda payload, _: payload.metadata.worker.config["seed"])
    checkers = Checkers({"cleanrl": worker(HANGING)}, workspace)
    configs = [payload(seed=seed) for seed in (1, 2)]

    def check(at: int) -> None:
        for turn in range(8000):
            checkers.check("cleanrl", configs[(at + turn // 4) % 2])

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(check, range(16)))


def test_a_daemon_that_ends_ends_the_checker_of_a_users_modules(workspace: Workspace, tmp_path: Path) -> None:
    """Their import may hang: the thread that waits for it would keep the process alive."""
    started = tmp_path / "started"
    checkers = Checkers({"cleanrl": worker(HANGING, str(started))}, workspace)
    raised: list[Exception] = []

    def check() -> None:
        try:
            checkers.check("cleanrl", payload(tmp_path))
        except MosaicError as error:
            raised.append(error)

    thread = threading.Thread(target=check)
    thread.start()
    process = identify(int(wait_for(lambda: started.exists() and started.read_text(), "the import")))
    checkers.close()
    thread.join(timeout=0.75 * module.CHECKER_TIMEOUT_S)
    is_waiting = thread.is_alive()
    checkers.close()
    thread.join()
    assert not is_waiting
    assert "the daemon is ending" in str(raised[0])
    assert not is_alive(process)
    with pytest.raises(MosaicError, match="The daemon is ending"):
        checkers.check("cleanrl", payload(tmp_path))
