"""Small scripts, as a user might write them, and the payloads that run them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mosaic.client import TrainerClient
from mosaic.contracts.folder import RunFolder
from mosaic.journal import read_all

OURS = ("MOSAIC_", "PYTHON")
KEPT = ("MOSAIC_TEST_SESSION", "MOSAIC_LANES")
"""By these the tests find what was left behind."""

CARTPOLE = """
    import gymnasium as gym
    env = gym.make("CartPole-v1")
    env.reset(seed=7)
    env.action_space.seed(7)
    ended = 0
    while ended < {episodes}:
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            ended += 1
            env.reset()
    env.close()
"""


def caller_environment(**more: str) -> dict[str, str]:
    """A shell's environment, without what the tests themselves put there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS) or name in KEPT}
    return {**kept, **more}


def written(folder: Path, code: str, name: str = "script.py") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(textwrap.dedent(code))
    return path


def script_payload(argv: list[str], cwd: Path, **config: Any) -> dict[str, Any]:
    return {
        "metadata": {"worker": {"id": "script", "config": {"argv": argv, "cwd": str(cwd), **config}}},
        "artifacts": {},
    }


def start_script(
    trainer: TrainerClient,
    folder: Path,
    code: str,
    *args: str,
    python: str = sys.executable,
    flags: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
    **config: Any,
) -> str:
    """The id of a run of `code`, in a folder of its own."""
    path = written(folder, code)
    argv = [python, *flags, str(path), *args]
    view = trainer.submit(script_payload(argv, folder, **config), environment or caller_environment())
    return str(view["run_id"])


def events(folder: RunFolder, kind: str | None = None) -> list[dict[str, Any]]:
    """Of all journals of a run, in the order of their time."""
    found = [event for path in folder.journals() if path.exists() for event in read_all(path)]
    return sorted((event for event in found if kind in (None, event["kind"])), key=lambda event: event["at"])


def episodes(folder: RunFolder) -> list[list[Any]]:
    return [row for event in events(folder, "episodes") for row in event["rows"]]


def points(folder: RunFolder) -> dict[str, list[list[Any]]]:
    """By tag."""
    found: dict[str, list[list[Any]]] = {}
    for event in events(folder, "metrics"):
        for tag, rows in event["series"].items():
            found.setdefault(tag, []).extend(rows)
    return found


def interpreters() -> Iterator[str]:
    """Every Python from 3.8 on that can be found on this machine, one for each version."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [str(path) for path in sorted(root.glob("3.*/bin/python"))]
    candidates += [f"python3.{minor}" for minor in range(8, 16)]
    seen = set()
    for candidate in candidates:
        try:
            asked = subprocess.run(
                [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                capture_output=True,
                text=True,
                timeout=20,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        version = asked.stdout.strip()
        major, _, minor = version.partition(".")
        if asked.returncode == 0 and major == "3" and int(minor) >= 8 and version not in seen:
            seen.add(version)
            yield candidate
