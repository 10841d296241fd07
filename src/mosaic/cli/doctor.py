"""`mosaic doctor`: what this machine has, and what to do about what it lacks."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import Any

from mosaic.cli import output
from mosaic.cli.door import Door, command, pass_door
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.folder import Workspace

Json = dict[str, Any]
DISTRIBUTION = "mosaic-rl"
DEFAULT_PORT = 50055
LEAST_DISK_MB = 1000
LEAST_SHARED_MB = 128
_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}
_WORKER_OF_FAMILIES = "cleanrl"
_TELLTALES = {"mujoco": "mujoco", "box2d": "box2d"}
"""Extras that go through an extra of gymnasium: the distribution that tells whether they are there."""


@dataclass(frozen=True)
class Check:
    name: str
    state: str
    """ok, warn (something is missing that you may want) or fail (something that MOSAIC needs)."""
    found: str
    todo: str = ""


@command()
@pass_door
def doctor(door: Door) -> int:
    """Checks this machine and says what to do about each problem. Exit code 1: something that MOSAIC needs fails."""
    door.announce()
    found: list[Check] = []
    for check in _checks(door):
        found.extend(check())
    is_well = all(one.state != "fail" for one in found)
    if door.is_json:
        output.print_json({"ok": is_well, "checks": [asdict(one) for one in found]})
    else:
        _print(found)
    return 0 if is_well else 1


def _print(found: list[Check]) -> None:
    from rich.text import Text

    table = output.table("CHECK", "STATE", "FOUND, AND WHAT TO DO", fold=("FOUND, AND WHAT TO DO",))
    for one in found:
        words = Text(one.found)
        if one.todo:
            words.append(("\n" if one.found else "") + one.todo, style=_STYLES[one.state])
        table.add_row(one.name, Text(one.state, style=_STYLES[one.state]), words)
    output.console().print(table)


def _checks(door: Door) -> list[Callable[[], Iterator[Check]]]:
    workspace = door.workspace
    return [
        _python,
        _packages,
        _extras,
        _display,
        _gpu,
        lambda: _disk(workspace),
        lambda: _workspace(workspace),
        _shared_memory,
        lambda: _port(door),
        lambda: _daemon(door),
        lambda: _pictures(door),
    ]


# --- the interpreter and its packages


def _python() -> Iterator[Check]:
    words = f"{sys.version.split()[0]} at {sys.executable}"
    is_good = sys.version_info >= (3, 11)
    yield Check("Python", "ok" if is_good else "fail", words, "" if is_good else "Use Python 3.11 or newer.")


def requirements(lines: list[str], extra: str = "") -> list[str]:
    """The distributions that these requirement lines ask for, plainly or for an extra."""
    names = []
    for line in lines:
        spec, _, marker = line.partition(";")
        is_meant = f"extra == '{extra}'" in marker.replace('"', "'") if extra else "extra ==" not in marker
        if is_meant:
            end = next((at for at, char in enumerate(spec) if not (char.isalnum() or char in "._-")), len(spec))
            names.append(spec[:end])
    return names


def missing(names: list[str]) -> list[str]:
    """Those that are not installed; nothing is imported."""
    absent = []
    for name in names:
        try:
            version(name)
        except PackageNotFoundError:
            absent.append(name)
    return absent


def _packages() -> Iterator[Check]:
    try:
        absent = missing(requirements(requires(DISTRIBUTION) or []))
    except PackageNotFoundError:
        yield Check("packages", "fail", "MOSAIC is not installed as a package.", "In its folder: make setup")
        return
    if absent:
        yield Check("packages", "fail", "missing: " + ", ".join(absent), f"pip install {' '.join(absent)}")
    else:
        yield Check("packages", "ok", f"{DISTRIBUTION} {version(DISTRIBUTION)} and all it needs")


def _extras() -> Iterator[Check]:
    try:
        lines = requires(DISTRIBUTION) or []
        names = [name for name in metadata(DISTRIBUTION).get_all("Provides-Extra") or () if name != "dev"]
    except PackageNotFoundError:
        return
    here, absent = [], []
    for name in names:
        wanted = requirements(lines, name) + ([_TELLTALES[name]] if name in _TELLTALES else [])
        lacking = missing(wanted)
        if not lacking:
            here.append(name)
        elif len(lacking) == len(wanted) or _TELLTALES.get(name) in lacking:
            absent.append(name)
        else:
            words = f"{name} is incomplete: {', '.join(lacking)} missing"
            yield Check(f"extra: {name}", "warn", words, f"pip install '{DISTRIBUTION}[{name}]'")
    yield Check("extras", "ok", f"installed: {', '.join(here) or 'none'}")
    if absent:
        words = f"not installed: {', '.join(absent)}; get one with pip install '{DISTRIBUTION}[{absent[0]}]'"
        yield Check("other extras", "ok", words)
    if "train" in absent:
        yield Check(
            "extra: train", "warn", "Nothing can be trained without it.", f"pip install '{DISTRIBUTION}[train]'"
        )


# --- the machine


def _display() -> Iterator[Check]:
    display = os.environ.get("WAYLAND_DISPLAY") or os.environ.get("DISPLAY")
    if sys.platform == "darwin":
        display = display or "macOS"
    yield Check("display", "ok", display or "none; training, evaluation and videos need none")


def _gpu() -> Iterator[Check]:
    if shutil.which("nvidia-smi") is None:
        yield Check("GPU", "ok", "no NVIDIA driver; runs use the CPU")
        return
    asked = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Check("GPU", "warn", f"nvidia-smi does not answer ({error})", "Check the NVIDIA driver.")
        return
    names = [line.strip() for line in said.stdout.splitlines() if line.strip()]
    if said.returncode == 0 and names:
        yield Check("GPU", "ok", "; ".join(names))
    else:
        last = (said.stderr or said.stdout or "it said nothing").strip().splitlines()[-1]
        yield Check("GPU", "warn", f"nvidia-smi fails: {last}", "Check the NVIDIA driver.")


def _disk(workspace: Workspace) -> Iterator[Check]:
    at = _nearest_folder(workspace.root)
    free_mb = shutil.disk_usage(at).free / 1e6
    words = f"{free_mb / 1000:,.1f} GB free at {at}"
    if free_mb < LEAST_DISK_MB:
        yield Check("disk", "warn", words, "Free some space, or choose another workspace with --var.")
    else:
        yield Check("disk", "ok", words)


def _nearest_folder(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _workspace(workspace: Workspace) -> Iterator[Check]:
    at = _nearest_folder(workspace.root)
    try:
        with tempfile.TemporaryFile(dir=at):
            pass
    except OSError as error:
        words = f"{at} cannot be written ({error.strerror})"
        yield Check("workspace", "fail", words, "Choose another with --var DIR or MOSAIC_VAR.")
        return
    yield Check("workspace", "ok", str(workspace.root) + ("" if at == workspace.root else " (made when needed)"))


def _shared_memory() -> Iterator[Check]:
    shm = Path("/dev/shm")
    if not shm.is_dir():
        yield Check("shared memory", "warn", "no /dev/shm", "Live frames need it; training does not.")
        return
    free_mb = shutil.disk_usage(shm).free / 1e6
    words = f"{free_mb:,.0f} MB free in /dev/shm"
    if free_mb < LEAST_SHARED_MB:
        yield Check("shared memory", "warn", words, "Live frames need it. In a container: docker run --shm-size=1g")
    else:
        yield Check("shared memory", "ok", words)


def _port(door: Door) -> Iterator[Check]:
    try:
        address = door.address()
    except MosaicError:
        address = None
    if address is not None:
        yield Check("port", "ok", f"{address.address} is our daemon's")
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", DEFAULT_PORT))
            words = f"{DEFAULT_PORT} is free"
        except OSError:
            words = f"{DEFAULT_PORT} is taken by another program; the daemon uses the next free one"
    yield Check("port", "ok", words)


# --- the daemon, and through it the worker's own environments


def _daemon(door: Door) -> Iterator[Check]:
    log = door.workspace.daemon_log
    try:
        status = door.trainer().status()
    except MosaicError as error:
        yield Check("daemon", "fail", str(error), f"Its log: {log}")
        return
    yield Check("daemon", "ok", f"pid {status['pid']} at {status['address']}; its log: {log}")


def _pictures(door: Door) -> Iterator[Check]:
    """A real frame, drawn off screen, from each family that is installed."""
    try:
        found = door.trainer().ask_worker(_WORKER_OF_FAMILIES, {"ask": "environments"})["environments"]
    except MosaicError as error:
        yield Check("environments", "fail", str(error), f"The logs are in {door.workspace.logs}")
        return
    for family in dict.fromkeys(env["family"] for env in found if env["is_installed"]):
        yield _picture(door, family)


def _picture(door: Door, family: str) -> Check:
    name = f"frame: {family}"
    try:
        said = door.trainer().ask_worker(_WORKER_OF_FAMILIES, {"ask": "probe", "family": family})
    except MosaicError as error:
        return Check(name, "warn", "no picture", str(error))
    if "shape" not in said:
        return Check(name, "warn", "no picture", str(said.get("message") or said.get("error") or ""))
    height, width = said["shape"][:2]
    return Check(name, "ok", f"{width}×{height} in {said['seconds']:.2f} s")
