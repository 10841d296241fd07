"""The GPUs of the machine: which run gets which, and NVIDIA's MPS for runs of one group that share one.

Without MPS a GPU is time-sliced between processes: eight runs together are no faster than one after the other. With it
their kernels run at the same time. Each group has an MPS server of its own, because a GPU fault of one client ends all
clients of its server. A server outlives the daemon, as runs do; it is ended when no run of its group is active.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import structlog

from mosaic.contracts.states import RunRecord

DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
CONTROL_PROGRAM = "nvidia-cuda-mps-control"
DEFAULT_RUNS_PER_GPU = 8
"""Runs of a group that share a GPU if MPS is installed."""
CONTROL_TIMEOUT_S = 20.0
SHARE_TOLERANCE = 1e-6
"""Sums such as 0.05 + 0.55 + 0.3 + 0.1 are a whole, though they may be rounded up."""

log = structlog.get_logger(__name__)


def visible_devices() -> list[str]:
    """Return the GPUs that the daemon's environment restricts it to; empty if it does not."""
    return [name.strip() for name in os.environ.get(DEVICES_VARIABLE, "").split(",") if name.strip() not in ("", "-1")]


def list_gpus() -> tuple[str, ...]:
    """Return the names of the GPUs that runs may get, by index."""
    if shutil.which("nvidia-smi") is None:
        return ()
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, encoding="utf-8", errors="replace", timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    # `GPU 0: NVIDIA H200 (UUID: GPU-1f…)`
    lines = [line.partition(": ") for line in listed.stdout.splitlines() if line.startswith("GPU ")]
    names = {number.removeprefix("GPU "): name.partition(" (UUID")[0] for number, _, name in lines}
    if DEVICES_VARIABLE not in os.environ:
        return tuple(names.values())
    return tuple(names.get(device, f"device {device}") for device in visible_devices()[: len(names)])


def has_mps() -> bool:
    return shutil.which(CONTROL_PROGRAM) is not None


class GpuPool:
    """The GPUs and the runs that hold them. Pure.

    A GPU is held by one run, by several runs of a group up to `runs_per_gpu`, or by runs whose shares add up to at
    most 1.
    """

    def __init__(self, count: int, running: Iterable[RunRecord]) -> None:
        self._holders: list[list[RunRecord]] = [[] for _ in range(count)]
        for record in running:
            gpus = record.attempts[-1].gpus if record.attempts else self._find(record) or ()
            self._assign(record, (gpu for gpu in gpus if gpu < count))

    def take(self, record: RunRecord) -> tuple[int, ...] | None:
        """Assign GPUs to a run and return their indices; None if too few are free."""
        gpus = self._find(record)
        if gpus is not None:
            self._assign(record, gpus)
        return gpus

    def reserve(self, record: RunRecord) -> None:
        """Assign nothing of what this run waits for to the runs that are asked for after it."""
        for gpu in self._eligible_gpus(record):
            self._holders[gpu].append(record.model_copy(update={"runs_per_gpu": 1}))

    @property
    def busy_count(self) -> int:
        return sum(bool(holders) for holders in self._holders)

    def _assign(self, record: RunRecord, gpus: Iterable[int]) -> None:
        for gpu in gpus:
            self._holders[gpu].append(record)

    def _eligible_gpus(self, record: RunRecord) -> list[int]:
        """Return those that a run may get, first those of its last attempt."""
        if record.gpu is not None:
            return [record.gpu] if record.gpu < len(self._holders) else []
        return sorted(range(len(self._holders)), key=lambda gpu: gpu not in _last_gpus(record))

    def _find(self, record: RunRecord) -> tuple[int, ...] | None:
        gpus = self._eligible_gpus(record)
        free = [gpu for gpu in gpus if not self._holders[gpu]]
        if 0 < record.gpus < 1:
            fitting = [gpu for gpu in gpus if self._holders[gpu] and _fits_beside(self._holders[gpu], record)]
            # The fullest that has room, so that others stay free for runs that need a whole one.
            fullest = sorted(fitting, key=lambda gpu: -_shares(self._holders[gpu]))
            chosen = sorted((*fullest, *free), key=lambda gpu: gpu not in _last_gpus(record))
            return tuple(chosen[:1]) or None
        if len(free) >= record.gpus:
            return tuple(free[: int(record.gpus)])
        shared = [gpu for gpu in gpus if record.gpus == 1 and _has_room(self._holders[gpu], record)]
        return (min(shared, key=lambda gpu: len(self._holders[gpu])),) if shared else None


class GpuCount:
    """The GPUs of a cluster that assigns them itself: only their number is planned with. Pure."""

    def __init__(self, count: int, running: Iterable[RunRecord]) -> None:
        self._count = count
        self._free = count - sum(record.gpus for record in running)

    def take(self, record: RunRecord) -> tuple[int, ...] | None:
        """Count the GPUs of a run as taken; None if too few are free."""
        if record.gpus > self._free + SHARE_TOLERANCE:
            return None
        self._free -= record.gpus
        return ()

    def reserve(self, record: RunRecord) -> None:
        """Leave what is free to this run: those that are asked for after it get none."""
        self._free = 0

    @property
    def busy_count(self) -> int:
        return self._count - int(max(0, self._free))


def _last_gpus(record: RunRecord) -> tuple[int, ...]:
    return record.attempts[-1].gpus if record.attempts else ()


def _shares(holders: Iterable[RunRecord]) -> float:
    return sum(record.gpus for record in holders)


def _fits_beside(holders: list[RunRecord], record: RunRecord) -> bool:
    """Whether enough is left of the GPU; of one that a run holds as a whole, nothing is."""
    return _shares(holders) + record.gpus <= 1 + SHARE_TOLERANCE


def _has_room(holders: list[RunRecord], record: RunRecord) -> bool:
    """Whether all of these hold the whole GPU, are of the run's group, and fewer than each of them allows."""
    limit = min(other.runs_per_gpu for other in (*holders, record))
    is_one_group = record.group is not None and all(other.group == record.group for other in holders)
    return is_one_group and all(other.gpus == 1 for other in holders) and len(holders) < limit


class MpsServers:
    """The MPS servers of a workspace, one for each group that shares a GPU.

    Their folders are in the system's temporary folder, because the path of a socket may have 107 characters only.
    """

    def __init__(self, workspace: Path) -> None:
        self._folder = Path(tempfile.gettempdir()) / f"mosaic-mps-{os.getuid()}-{_digest(str(workspace.resolve()))}"

    def start(self, group: str) -> dict[str, str]:
        """Start the server of a group unless it runs; return the variables of its clients, none without MPS."""
        if not has_mps():
            return {}
        folder = self._folder / _digest(group)
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            if self._folder.stat().st_uid != os.getuid():
                raise PermissionError(f"{self._folder} belongs to another user")
            folder.mkdir(mode=0o700, exist_ok=True)
            if not self._is_up(folder):
                _control(folder, "-d")
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("mps_not_started", group=group, error=str(error))
            return {}
        return _client_variables(folder)

    def stop_unused(self, groups: Iterable[str]) -> None:
        """End the servers of all groups but these."""
        if not self._folder.is_dir():
            return
        used = {_digest(group) for group in groups}
        for folder in self._folder.iterdir():
            if folder.name not in used:
                if self._is_up(folder):
                    _control(folder, command="quit")
                shutil.rmtree(folder, ignore_errors=True)
        if not used:
            self._folder.rmdir()

    @staticmethod
    def _is_up(folder: Path) -> bool:
        """Whether a server answers; its files may also be left from before a restart of the machine."""
        try:
            _control(folder, command="get_server_list")
        except (OSError, subprocess.SubprocessError):
            return False
        return True


def _client_variables(folder: Path) -> dict[str, str]:
    return {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}


def _control(folder: Path, *arguments: str, command: str = "") -> None:
    """Run NVIDIA's program: with `-d` it starts a server and returns, without arguments it sends a command to it."""
    # A server sees all GPUs: with some of them, its clients would count from the first of these.
    environment = {name: value for name, value in os.environ.items() if name != DEVICES_VARIABLE}
    subprocess.run(
        [CONTROL_PROGRAM, *arguments],
        input=f"{command}\n",
        stdout=subprocess.DEVNULL,  # not a pipe: the server would hold it open
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        errors="replace",
        env={**environment, **_client_variables(folder)},
        timeout=CONTROL_TIMEOUT_S,
        check=True,
        start_new_session=True,
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
