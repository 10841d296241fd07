"""What a daemon adds to every job that it submits to Slurm: `partition=gpu account=lab time=720`."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass, field

from mosaic.contracts.errors import BadInput, similar_names

SETTINGS_VARIABLE = "MOSAIC_SLURM"
"""Environment variable of the daemon: settings, where `--slurm` gives none."""
CLUSTER_VARIABLE = "MOSAIC_SLURM_CLUSTER"
"""Environment variable of the daemon: `local` starts jobs on this machine, by submitit's local executor, for tests."""
CLUSTERS = ("slurm", "local")
DEFAULT_MAX_JOBS = 32
DEFAULT_MINUTES = 24 * 60
GRACE_S = 300.0
"""What a job gets beyond the time limit of its run: for its start, and to save a checkpoint at the end."""

_TEXT = (
    "account", "comment", "constraint", "exclude", "gres", "mail_type", "mail_user", "mem", "mem_per_cpu",
    "mem_per_gpu", "nodelist", "partition", "qos", "wckey",
)  # fmt: skip
_NUMBERS = ("array_parallelism", "signal_delay_s", "time")
_LISTS = ("setup", "srun_args")
_OWN = ("max_jobs",)
KNOWN_KEYS = tuple(sorted((*_TEXT, *_NUMBERS, *_LISTS, *_OWN)))
SBATCH_PREFIX = "sbatch."
"""Begins keys that are passed to sbatch as they are: `sbatch.reservation=course`."""


@dataclass(frozen=True)
class SlurmSettings:
    parameters: dict[str, str | int | list[str]] = field(default_factory=dict)
    """Of submitit, under its names."""
    sbatch: dict[str, str] = field(default_factory=dict)
    """Further options of sbatch, without their dashes."""
    minutes: int | None = None
    """No job asks for more time."""
    max_jobs: int = DEFAULT_MAX_JOBS
    """How many jobs wait or run in Slurm at a time; other runs wait in the daemon's queue."""
    cluster: str = "slurm"

    def job_minutes(self, max_seconds: float | None) -> int:
        """Return the time limit of a job, from that of its run."""
        if max_seconds is None:
            return self.minutes or DEFAULT_MINUTES
        wanted = math.ceil((max_seconds + GRACE_S) / 60)
        return wanted if self.minutes is None else min(wanted, self.minutes)


def parse_settings(text: str, cluster: str = "slurm") -> SlurmSettings:
    """`text`: words KEY=VALUE, quoted as in a shell; `setup` and `srun_args` may be given several times."""
    if cluster not in CLUSTERS:
        raise BadInput(f"{CLUSTER_VARIABLE} is {cluster!r}; expected one of {', '.join(CLUSTERS)}.")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadInput(f"The settings for Slurm cannot be read: {error}: {text!r}.") from None
    parameters: dict[str, str | int | list[str]] = {}
    sbatch: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not value:
            raise BadInput(f"{word!r} is not a setting for Slurm; expected KEY=VALUE, such as partition=gpu.")
        if (key in parameters and key not in _LISTS) or key in sbatch or key in numbers:
            raise BadInput(f"The setting for Slurm {key!r} is given twice.")
        if key in _TEXT:
            parameters[key] = value
        elif key in _LISTS:
            parameters[key] = [*_as_list(parameters.get(key)), value]
        elif key in (*_NUMBERS, *_OWN):
            numbers[key] = _parse_number(key, value)
        elif key.startswith(SBATCH_PREFIX) and len(key) > len(SBATCH_PREFIX):
            sbatch[key.removeprefix(SBATCH_PREFIX)] = value
        else:
            near = similar_names(key, KNOWN_KEYS)
            hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise BadInput(
                f"No setting {key!r} for Slurm.{hint} Known: {', '.join(KNOWN_KEYS)}; other options of sbatch: "
                f"{SBATCH_PREFIX}NAME=VALUE. CPUs, GPUs and memory are those of each run."
            )
    minutes, max_jobs = numbers.pop("time", None), numbers.pop("max_jobs", DEFAULT_MAX_JOBS)
    return SlurmSettings({**parameters, **numbers}, sbatch, minutes, max_jobs, cluster)


def _as_list(value: str | int | list[str] | None) -> list[str]:
    return value if isinstance(value, list) else []


def _parse_number(key: str, value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        unit = {"time": " of minutes", "signal_delay_s": " of seconds"}.get(key, "")
        raise BadInput(f"The setting for Slurm {key} is {value!r}; expected a whole number{unit} above 0.")
    return int(value)
