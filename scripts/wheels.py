"""Builds the wheel and installs it into empty environments: for each Python found, without an extra and with each.

    make wheels                                             # all extras
    make wheels ARGS="--extras minimal,train"               # some
    make wheels ARGS="--python /path/to/python3.13"         # one interpreter; repeat it for several
    make wheels ARGS="--wheel F.whl"                        # one that is built already

In each environment, the packages of the extra are imported and `mosaic doctor` is run; with `train`, an agent is
trained and evaluated. Prints a table of sizes and times; fails if one of these fails or `train` takes 300 MB or more.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13")
MINIMAL = "minimal"
NOT_FOR_USERS = ("dev", "docs")
MAX_TRAIN_MB = 300
MINUTE_S = 60.0
TRAINING = "train ppo --env-id CartPole-v1 --total-timesteps 2048 --num-envs 2 --num-steps 128 --json"
EVALUATION = "eval last --episodes 3 --json"
_IMPORTS = """
import importlib, importlib.metadata as metadata, sys
wanted = set(sys.argv[1:])
for module, names in sorted(metadata.packages_distributions().items()):
    if module.isidentifier() and not module.startswith("_") and wanted & {name.lower() for name in names}:
        importlib.import_module(module)
"""
"""Imports the modules of these distributions."""


class Installation(NamedTuple):
    python: str
    extra: str
    size_mb: float
    install_s: float
    problem: str
    """Why it does not work; empty where it does."""


def build(into: Path, uv: Path) -> Path:
    """Build sdist and wheel with the packages of this environment; return the wheel."""
    command = [str(uv), "build", "--quiet", "--no-build-isolation", "--python", sys.executable, "-o", str(into)]
    subprocess.run([*command, str(ROOT)], check=True)
    (wheel,) = into.glob("*.whl")
    return wheel


def read_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def required_by_extra(lines: list[str], extra: str) -> list[str]:
    """Return the distributions that requirement lines name for one extra, on this platform."""
    needed = [line for line in lines if re.search(rf"extra == ['\"]{extra}['\"]", line)]
    return [re.split(r"[\[<>=!~ ;]", line)[0].lower() for line in needed if "sys_platform" not in line]


def install(wheel: Path, extras: str, venv: Path, python: str, uv: Path, *options: str) -> float:
    """Install the wheel into a new environment as a user would; return the seconds that it took."""
    subprocess.run([str(uv), "venv", "--quiet", "--clear", "--python", python, str(venv)], check=True)
    name = f"mosaic-rl[{extras}] @ {wheel.as_uri()}" if extras else str(wheel)
    command = [str(uv), "pip", "install", "--quiet", "--compile-bytecode", "--python", str(venv / "bin" / "python")]
    started_at = time.monotonic()
    subprocess.run([*command, *options, name], check=True, capture_output=True, encoding="utf-8", errors="replace")
    return time.monotonic() - started_at


def size_mb(folder: Path) -> float:
    """Return what the files of a folder take on the disk."""
    files = (Path(place) / name for place, _, names in os.walk(folder) for name in names)
    return sum(file.lstat().st_blocks * 512 for file in files) / 1e6


def run_mosaic(venv: Path, var: Path, arguments: str) -> str:
    """Run the command that is installed there, without anything of this environment; return its output."""
    done = subprocess.run(
        [str(venv / "bin" / "mosaic"), *arguments.split()],
        env={"PATH": f"{venv / 'bin'}:{os.defpath}", "HOME": str(var), "MOSAIC_VAR": str(var), "COLUMNS": "200"},
        cwd=var,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=5 * MINUTE_S,
    )
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, f"mosaic {arguments}", done.stdout, done.stderr)
    return done.stdout


def find_problem(venv: Path, extra: str, lines: list[str]) -> str:
    """Use what is installed; return what fails."""
    with tempfile.TemporaryDirectory() as folder:
        var = Path(folder)
        try:
            imports = [str(venv / "bin" / "python"), "-c", _IMPORTS, *required_by_extra(lines, extra)]
            subprocess.run(
                imports, check=True, capture_output=True, encoding="utf-8", errors="replace", timeout=5 * MINUTE_S
            )
            run_mosaic(venv, var, "--version")
            if extra == "train":
                run_mosaic(venv, var, TRAINING)
                run_mosaic(venv, var, EVALUATION)
            # Without `train` there are no environments, which doctor reports as a failure.
            report = json.loads(_doctor(venv, var))
            failed = [f"{one['name']}: {one['found']}" for one in report["checks"] if one["state"] == "fail"]
            if extra != MINIMAL and f"extra: {extra}" in (one["name"] for one in report["checks"]):
                failed.append(f"{extra} is incomplete")
            is_expected = all("mosaic-rl[train]" in text for text in failed) and extra != "train"
            return "" if is_expected else "; ".join(failed)
        except subprocess.CalledProcessError as error:
            return last_line(error)
        finally:
            subprocess.run([str(venv / "bin" / "mosaic"), "--var", folder, "daemon", "stop"], capture_output=True)


def _doctor(venv: Path, var: Path) -> str:
    try:
        return run_mosaic(venv, var, "doctor --json")
    except subprocess.CalledProcessError as error:
        if not error.stdout:
            raise
        return str(error.stdout)


def last_line(error: subprocess.CalledProcessError) -> str:
    words = (error.stderr or error.stdout or str(error)).strip().splitlines()
    return words[-1] if words else str(error)


def python_version(python: str) -> str:
    """Return the version of an interpreter; empty if it does not run, such as a version manager's placeholder."""
    code = "import platform; print(platform.python_version())"
    return subprocess.run([python, "-c", code], capture_output=True, encoding="utf-8", errors="replace").stdout.strip()


def find_pythons() -> list[str]:
    """Return the interpreters on the path, or this one if there is none of these versions."""
    paths = [shutil.which(f"python{version}") for version in VERSIONS]
    return [path for path in paths if path is not None and python_version(path)] or [sys.executable]


def try_extra(wheel: Path, extra: str, python: str, uv: Path, options: list[str]) -> Installation:
    label = python_version(python)
    lines = read_metadata(wheel).get_all("Requires-Dist") or []
    with tempfile.TemporaryDirectory() as folder:
        venv = Path(folder) / "venv"
        try:
            took_s = install(wheel, "" if extra == MINIMAL else extra, venv, python, uv, *options)
        except subprocess.CalledProcessError as error:
            return Installation(label, extra, 0.0, 0.0, f"not installed: {last_line(error)}")
        size = size_mb(venv)
        problem = find_problem(venv, extra, lines)
        if extra == "train" and size >= MAX_TRAIN_MB and not problem:
            problem = f"larger than {MAX_TRAIN_MB} MB"
        return Installation(label, extra, size, took_s, problem)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extras", help="some of them, separated by commas; 'minimal' is none  [default: all]")
    parser.add_argument("--python", action="append", help="an interpreter  [default: python3.11 to python3.13]")
    parser.add_argument("--wheel", type=Path, help="a wheel that is built already")
    parser.add_argument("--option", action="append", default=[], help="a further argument of uv pip install")
    args = parser.parse_args()
    found = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    pythons = args.python or find_pythons()
    if found is None:
        parser.error("uv was not found. It is part of the environment that make setup creates.")
    with tempfile.TemporaryDirectory() as folder:
        wheel = args.wheel.absolute() if args.wheel else build(Path(folder), Path(found))
        known = [extra for extra in read_metadata(wheel).get_all("Provides-Extra") or () if extra not in NOT_FOR_USERS]
        extras = args.extras.split(",") if args.extras else [MINIMAL, *known]
        if unknown := sorted({*extras} - {MINIMAL, *known}):
            parser.error(f"unknown extras: {', '.join(unknown)}. Known: {', '.join([MINIMAL, *known])}.")
        has_failed = False
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB\n\n| Python | extra | MB | installed in s | works |")
        print("|---|---|---:|---:|---|")
        for python in pythons:
            for extra in extras:
                one = try_extra(wheel, extra, python, Path(found), args.option)
                has_failed |= bool(one.problem)
                figures = f"{one.size_mb:,.0f} | {one.install_s:.1f}"
                print(f"| {one.python} | {one.extra} | {figures} | {one.problem or 'yes'} |", flush=True)
    return 1 if has_failed else 0


if __name__ == "__main__":
    sys.exit(main())
