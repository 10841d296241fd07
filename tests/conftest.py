"""What every test may ask for, and what every test must leave behind: no process, no thread, no shared-memory file."""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.helpers.command_server import SERVERS
from tests.helpers.daemons import LiveDaemon, running_daemon
from tests.helpers.fault_table import SEED_VARIABLE

from mosaic.base.fastlane.lane_files import LANES_VARIABLE, reap_all
from mosaic.base.processes import identify, is_alive
from mosaic.contracts.folder import WORKSPACE_VARIABLE, Workspace
from mosaic.trainer.client.trainer_client import TrainerClient

PATIENCE_S = 60.0
"""How long what is on its way out may take. Only a test that leaks waits so long."""
MARK_VARIABLE = "MOSAIC_TEST_SESSION"
MARK = uuid.uuid4().hex
"""In the environment of every process that descends from this session, even of those that left our process group."""
SHARED_MEMORY = Path("/dev/shm")
LANES = SHARED_MEMORY / f"mosaic-test-{MARK[:12]}"
"""Frames of this session's runs, apart from those of everybody else on this machine."""
os.environ[MARK_VARIABLE] = MARK
if SHARED_MEMORY.is_dir():
    os.environ[LANES_VARIABLE] = str(LANES)
# As a run's worker has it. With several tests at a time, more threads would only wait for each other.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.pop("COLUMNS", None)  # of whoever runs the tests: here, lines are as long as they need to be
# The keys of whoever runs the tests are neither used nor overwritten.
os.environ["PYTHON_KEYRING_BACKEND"] = "keyring.backends.fail.Keyring"
for _name in ("WANDB_API_KEY", "HF_TOKEN", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
    os.environ.pop(_name, None)
# What an example costs says something of this machine and of what else it does, and nothing of the code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def _own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "con fig"))


@pytest.fixture
def workspace(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """An empty workspace with a space and a quote in its path. Its daemon is ended, and its log read, afterwards."""
    monkeypatch.delenv(WORKSPACE_VARIABLE, raising=False)
    place = Workspace(tmp_path / "it's a place" / "var")
    yield place
    end_daemon(place)
    allowed = {name for marker in request.node.iter_markers("may_log") for name in marker.args}
    surprises = [line for line in logged_problems(place.daemon_log) if line.get("event") not in allowed]
    assert not surprises, f"The daemon logged what no test expected (mark with may_log where it is right): {surprises}"


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    return tmp_path / "plug ins"


@pytest.fixture
def live(workspace: Workspace, plugins: Path) -> Iterator[tuple[LiveDaemon, TrainerClient]]:
    with running_daemon(workspace, plugins, "--max-runs", "4") as both:
        yield both


@pytest.fixture
def daemon(live: tuple[LiveDaemon, TrainerClient]) -> LiveDaemon:
    return live[0]


@pytest.fixture
def trainer(live: tuple[LiveDaemon, TrainerClient]) -> TrainerClient:
    return live[1]


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Random times and places that a seed repeats; the output of a test that fails shows the seed."""
    seed = os.environ.setdefault(SEED_VARIABLE, str(secrets.randbelow(1_000_000)))
    print(f"{SEED_VARIABLE}={seed}")
    return random.Random(f"{seed} {request.node.name}")


def end_daemon(place: Workspace) -> None:
    """Its runs, if any are left, are not touched: the leak check tells of them."""
    try:
        process = json.loads(place.daemon_file.read_text())["process"]
    except (OSError, ValueError, KeyError):
        return
    if is_alive(process):
        os.kill(process["pid"], signal.SIGTERM)
        wait_until(lambda: not is_alive(process))


def logged_problems(log: Path) -> list[dict[str, object]]:
    """The lines of a JSON log that are warnings or worse."""
    problems = []
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
        with contextlib.suppress(ValueError):
            said = json.loads(line)
            if isinstance(said, dict) and str(said.get("level")).lower() in ("warning", "error", "critical"):
                problems.append(said)
    return problems


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    before = our_processes(), set(threading.enumerate()), shared_memory_files()
    yield
    processes, threads, files = before
    left: list[str] = []
    if not wait_until(lambda: not our_processes() - processes):
        leaked = our_processes() - processes
        left += [f"process {pid}: {command_line(pid)}" for pid in leaked]
        end(leaked)
    if not wait_until(lambda: not lasting_threads() - threads):
        left += [f"thread {thread.name}" for thread in lasting_threads() - threads]
    reap_all()  # as the next daemon would; what is left then belongs to a process that lives, or is no lane
    if not wait_until(lambda: not shared_memory_files() - files):
        left += [f"shared memory {name}" for name in shared_memory_files() - files]
    assert not left, "Left behind: " + "; ".join(left)


def our_processes() -> set[int]:
    """Everything alive that descends from this session, except what lasts as long as the session."""
    mark = f"{MARK_VARIABLE}={MARK}".encode()
    found = set()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit() and int(name) not in (os.getpid(), *SERVERS):
            # Of other users' processes the environment cannot be read; a zombie has none.
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as environment:
                if mark in environment.read():
                    found.add(int(name))
    return found


def end(pids: set[int]) -> None:
    """So that one test's leak is not the next one's."""
    identities = [identify(pid) for pid in pids]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(is_alive(identity) for identity in identities))


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "ended meanwhile"


def lasting_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.daemon}


def shared_memory_files() -> set[str]:
    return {str(path) for path in (LANES, *LANES.rglob("*")) if path.exists()}


def wait_until(is_done: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not is_done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
