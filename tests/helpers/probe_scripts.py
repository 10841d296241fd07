"""Small scripts, as a user might write them, and the payloads that run them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.helpers.daemons import wait_for

from mosaic.base.fastlane import Frame, LaneReader, lanes_folder
from mosaic.base.journal import read_all
from mosaic.contracts.folder import RunFolder
from mosaic.trainer.client.trainer_client import TrainerClient

MOSAIC_PREFIXES = ("MOSAIC_", "PYTHON")
KEPT_VARIABLES = ("MOSAIC_TEST_SESSION", "MOSAIC_LANES")
"""Needed by the tests to detect leftovers."""

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

SKIP = """
    import gymnasium as gym
    class Skip(gym.Wrapper):
        def step(self, action):
            for _ in range(4):
                result = self.env.step(action)
                if result[2] or result[3]:
                    break
            return result
"""
"""A script's wrapper that skips frames."""


def caller_environment(**more: str) -> dict[str, str]:
    """Return a shell's environment, without what the tests themselves add."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(MOSAIC_PREFIXES) or name in KEPT_VARIABLES
    }
    return {**inherited, **more}


def write_script(folder: Path, code: str, name: str = "script.py") -> Path:
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
    """Run `code` in a folder and return the id of the run."""
    path = write_script(folder, code)
    argv = [python, *flags, str(path), *args]
    view = trainer.submit(script_payload(argv, folder, **config), environment or caller_environment())
    return str(view.run_id)


def events(folder: RunFolder, kind: str | None = None) -> list[dict[str, Any]]:
    """Return the events of all journals of a run, ordered by time."""
    all_events = [event for path in folder.journals() if path.exists() for event in read_all(path)]
    return sorted((event for event in all_events if kind in (None, event["kind"])), key=lambda event: event["at"])


def episodes(folder: RunFolder) -> list[list[Any]]:
    return [row for event in events(folder, "episodes") for row in event["rows"]]


def points(folder: RunFolder) -> dict[str, list[list[Any]]]:
    """Return the points by tag."""
    by_tag: dict[str, list[list[Any]]] = {}
    for event in events(folder, "metrics"):
        for tag, rows in event["series"].items():
            by_tag.setdefault(tag, []).extend(rows)
    return by_tag


def wait_for_frame(run_dir: str) -> Frame:
    """Watch the first environment of a run until there is a frame."""
    lanes = lanes_folder(run_dir)
    wait_for(lambda: os.path.isdir(lanes) and any(name.endswith(".lane") for name in os.listdir(lanes)), "a lane")
    reader = LaneReader(lanes, 0)
    frame: Frame = wait_for(reader.read_newest, "a frame")
    reader.close()
    return frame


def interpreters() -> Iterator[str]:
    """Yield the Pythons on this machine from 3.8 on, one per version."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [str(path) for path in sorted(root.glob("3.*/bin/python"))]
    candidates += [f"python3.{minor}" for minor in range(8, 16)]
    seen = set()
    for candidate in candidates:
        try:
            result = subprocess.run(
                [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                capture_output=True,
                text=True,
                timeout=90,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        version = result.stdout.strip()
        major, _, minor = version.partition(".")
        if result.returncode == 0 and major == "3" and int(minor) >= 8 and version not in seen:
            seen.add(version)
            yield candidate
