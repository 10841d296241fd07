"""`mosaic doctor`: what this machine has, and what to do about what it lacks."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distributions, metadata, requires, version
from pathlib import Path
from typing import NamedTuple

from mosaic.base.formatting import describe_executor
from mosaic.cli import output
from mosaic.cli.context import CliContext, command, pass_context
from mosaic.contracts.errors import MosaicError
from mosaic.features.machines.cli import slot_rows

DISTRIBUTION = "mosaic-rl"
DEFAULT_PORT = 50055
MIN_FREE_DISK_MB = 1000
MIN_SHARED_MEMORY_MB = 128
_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}
_REQUIREMENT = re.compile(r"""([\w.-]+)[^;]*(?:;.*\bextra\s*==\s*['"]([\w-]+))?""")
_EXTRA_DISTRIBUTIONS = {"mujoco": ["mujoco"], "box2d": ["box2d"]}
"""Extras that are extras of gymnasium: what shows whether they are installed."""


class DoctorCheck(NamedTuple):
    name: str
    state: str
    """ok, warn (something optional is missing) or fail (something required)."""
    found: str
    todo: str = ""


@command()
@pass_context
def doctor(context: CliContext) -> int:
    """Checks this machine and shows how to fix each problem. Exit code 1: a required check failed."""
    context.use_local()
    context.print_workspace()
    checks = [check for function in CHECKS for check in function(context)]
    has_failed = any(check.state == "fail" for check in checks)
    if context.is_json:
        output.print_json({"ok": not has_failed, "checks": [check._asdict() for check in checks]})
    else:
        _print_checks(checks)
    return 1 if has_failed else 0


def _print_checks(checks: list[DoctorCheck]) -> None:
    from rich.text import Text

    table = output.create_table("CHECK", "STATE", "FOUND, AND WHAT TO DO", wrap=("FOUND, AND WHAT TO DO",))
    for check in checks:
        style = _STYLES[check.state]
        words = Text(check.found)
        if check.todo:
            words.append(("\n" if check.found else "") + check.todo, style=style)
        table.add_row(check.name, Text(check.state, style=style), words)
    output.console().print(table)


# --- the interpreter and its packages


def _check_python(_: CliContext) -> Iterator[DoctorCheck]:
    is_new_enough = sys.version_info >= (3, 11)
    words = f"{sys.version.split()[0]} at {sys.executable}"
    yield DoctorCheck("Python", *(("ok", words) if is_new_enough else ("fail", words, "Use Python 3.11 or newer.")))


def required_distributions(lines: list[str], extra: str = "") -> list[str]:
    """The distributions that these requirement lines name, without an extra or for one."""
    matches = [match for line in lines if (match := _REQUIREMENT.match(line))]
    return [match[1] for match in matches if (match[2] or "") == extra]


def missing_distributions(names: list[str]) -> list[str]:
    """Those that are not installed; nothing is imported."""
    missing = []
    for name in names:
        try:
            version(name)
        except PackageNotFoundError:
            missing.append(name)
    return missing


def _check_packages(_: CliContext) -> Iterator[DoctorCheck]:
    try:
        lines = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        yield DoctorCheck("packages", "fail", "MOSAIC is not installed as a package.", "In its folder: make setup")
        return
    missing = missing_distributions(required_distributions(lines))
    if missing:
        yield DoctorCheck("packages", "fail", "missing: " + ", ".join(missing), f"pip install {' '.join(missing)}")
    else:
        yield DoctorCheck("packages", "ok", f"{DISTRIBUTION} {version(DISTRIBUTION)} and all it needs")
    yield from _check_extras(lines)


def split_extras(
    required: Mapping[str, list[str]], missing: Mapping[str, list[str]], needed_by_others: Collection[str] = ()
) -> tuple[list[str], list[str], list[str]]:
    """Return the extras that are installed, incomplete and absent, by their distributions and those that are missing.

    What an installed extra or another package requires, too, does not show that an extra was asked for.
    """
    installed = [name for name in required if not missing[name]]
    shared = {one for name in installed for one in required[name]}.union(needed_by_others)
    begun = [name for name in required if missing[name] and set(required[name]) - set(missing[name]) - shared]
    return installed, begun, [name for name in required if name not in installed and name not in begun]


def _check_extras(lines: list[str]) -> Iterator[DoctorCheck]:
    required = {
        name: _EXTRA_DISTRIBUTIONS.get(name) or required_distributions(lines, name)
        for name in metadata(DISTRIBUTION).get_all("Provides-Extra") or ()
        if name not in ("desktop", "dev", "docs")
    }
    missing = {name: missing_distributions(names) for name, names in required.items()}
    others = [each.requires or [] for each in distributions() if each.name != DISTRIBUTION]
    needed = {match[1] for lines in others for line in lines if (match := _REQUIREMENT.match(line))}
    installed, begun, absent = split_extras(required, missing, needed)
    for name in begun:
        words = f"{name} is incomplete: {', '.join(missing[name])} missing"
        yield DoctorCheck(f"extra: {name}", "warn", words, _install_hint(name))
    yield DoctorCheck("extras", "ok", f"installed: {', '.join(installed) or 'none'}")
    if absent:
        words = f"not installed: {', '.join(absent)}; get one with {_install_hint(absent[0])}"
        yield DoctorCheck("other extras", "ok", words)
    if "train" in absent:
        yield DoctorCheck("extra: train", "warn", "Nothing can be trained without it.", _install_hint("train"))
    elif "torch" in absent:
        words = "numpy trains; other algorithms, networks and activations, images and GPUs need torch."
        state = "ok" if shutil.which("nvidia-smi") is None else "warn"
        yield DoctorCheck("extra: torch", state, words, _install_hint("torch"))


def _install_hint(extra: str) -> str:
    return f"pip install '{DISTRIBUTION}[{extra}]'"


# --- the machine


def _check_display(_: CliContext) -> Iterator[DoctorCheck]:
    display = os.environ.get("WAYLAND_DISPLAY") or os.environ.get("DISPLAY")
    if sys.platform == "darwin":
        display = display or "macOS"
    yield DoctorCheck("display", "ok", display or "none; training, evaluation and videos need none")


def _check_gpu(_: CliContext) -> Iterator[DoctorCheck]:
    if shutil.which("nvidia-smi") is None:
        yield DoctorCheck("GPU", "ok", "no NVIDIA driver; runs use the CPU")
        return
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        result = subprocess.run(query, capture_output=True, encoding="utf-8", errors="replace", timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield DoctorCheck("GPU", "warn", f"nvidia-smi does not answer ({error})", "Check the NVIDIA driver.")
        return
    names = [line.strip() for line in result.stdout.splitlines() if line.strip()]
    if result.returncode == 0 and names:
        yield DoctorCheck("GPU", "ok", "; ".join(names))
    else:
        last = (result.stderr or result.stdout or "no output").strip().splitlines()[-1]
        yield DoctorCheck("GPU", "warn", f"nvidia-smi fails: {last}", "Check the NVIDIA driver.")


def _check_workspace(context: CliContext) -> Iterator[DoctorCheck]:
    root = context.workspace.root
    folder = next(folder for folder in (root, *root.parents) if folder.is_dir())
    free_mb = shutil.disk_usage(folder).free / 1e6
    is_full = free_mb < MIN_FREE_DISK_MB
    words = f"{free_mb / 1000:,.1f} GB free at {folder}"
    todo = "Free some space, or choose another workspace with --var." if is_full else ""
    yield DoctorCheck("disk", "warn" if is_full else "ok", words, todo)
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        words = f"{folder} cannot be written ({error.strerror})"
        yield DoctorCheck("workspace", "fail", words, "Choose another with --var DIR or MOSAIC_VAR.")
        return
    yield DoctorCheck("workspace", "ok", f"{root}{'' if folder == root else ' (created when needed)'}")


def _check_shared_memory(_: CliContext) -> Iterator[DoctorCheck]:
    shm = Path("/dev/shm")
    if not shm.is_dir():
        yield DoctorCheck("shared memory", "warn", "no /dev/shm", "Live frames need it; training does not.")
        return
    free_mb = shutil.disk_usage(shm).free / 1e6
    is_small = free_mb < MIN_SHARED_MEMORY_MB
    todo = "Live frames need it. In a container: docker run --shm-size=1g" if is_small else ""
    yield DoctorCheck("shared memory", "warn" if is_small else "ok", f"{free_mb:,.0f} MB free in /dev/shm", todo)


def _check_port(context: CliContext) -> Iterator[DoctorCheck]:
    try:
        address = context.daemon_address()
    except MosaicError:
        address = None
    if address is not None:
        yield DoctorCheck("port", "ok", f"{address.address} is our daemon's")
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", DEFAULT_PORT))
            words = "is free"
        except OSError:
            words = "is taken by another program; the daemon uses the next free one"
    yield DoctorCheck("port", "ok", f"{DEFAULT_PORT} {words}")


# --- the daemon, and through it the worker's own environments


def _check_daemon(context: CliContext) -> Iterator[DoctorCheck]:
    log = context.workspace.daemon_log
    try:
        status = context.trainer().get_status()
    except MosaicError as error:
        yield DoctorCheck("daemon", "fail", str(error), f"Its log: {log}")
        return
    yield DoctorCheck("daemon", "ok", f"pid {status.pid} at {status.address}; its log: {log}")
    words = "\n".join(f"{name} {value}" for name, value in slot_rows(status.slots))
    yield DoctorCheck("slots", "ok", words)
    for executor in status.executors:
        state = "warn" if executor.problem else "ok"
        yield DoctorCheck(f"executor: {executor.name}", state, describe_executor(executor))


def _check_rendering(context: CliContext) -> Iterator[DoctorCheck]:
    """Renders a frame, off screen, of each family that is installed."""
    try:
        environments = context.trainer().environments("cleanrl")
    except MosaicError as error:
        yield DoctorCheck("environments", "fail", str(error), f"The logs are in {context.workspace.logs}")
        return
    for family in dict.fromkeys(env.family for env in environments if env.is_installed):
        try:
            answer = context.trainer().ask_worker("cleanrl", {"ask": "probe", "family": family})
        except MosaicError as error:
            answer = {"message": str(error)}
        if "shape" in answer:
            height, width = answer["shape"][:2]
            yield DoctorCheck(f"frame: {family}", "ok", f"{width}×{height} in {answer['seconds']:.2f} s")
        else:
            problem = str(answer.get("message") or answer.get("error") or "")
            yield DoctorCheck(f"frame: {family}", "warn", "no frame", problem)


CHECKS = (
    *(_check_python, _check_packages, _check_display, _check_gpu, _check_workspace, _check_shared_memory),
    *(_check_port, _check_daemon, _check_rendering),
)
