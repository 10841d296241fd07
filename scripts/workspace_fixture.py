"""Writes tests/data/workspace-VERSION: a small workspace of the installed version, which later versions must open.

    .venv/bin/python scripts/workspace_fixture.py

It is written once for a release, and never again. Everything in it comes from the real program: trainings with
checkpoints, an evaluation, a script, a group, an archived and a deleted run. What a daemon writes for itself (index,
logs, configs for inspection) is left out; paths and names of this machine are replaced.
"""

from __future__ import annotations

import getpass
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import mosaic

TARGET = Path(__file__).parents[1] / "tests" / "data" / f"workspace-{mosaic.__version__}"
CONTENTS = "contents.json"
MAX_BYTES = 300_000
SMALL = (
    *("--env-id", "CartPole-v1", "--total-timesteps", "512", "--num-envs", "2", "--num-steps", "64"),
    *("--hidden-sizes", "8,8", "--checkpoint-every", "256"),
)
SMALL_DQN = (
    *("--env-id", "CartPole-v1", "--total-timesteps", "300", "--learning-starts", "100", "--hidden-sizes", "8"),
    *("--buffer-size", "300"),
)
SCRIPT = """
import gymnasium

env = gymnasium.make("CartPole-v1")
env.action_space.seed(1)
env.reset(seed=1)
for _ in range(200):
    *_, terminated, truncated, _ = env.step(env.action_space.sample())
    if terminated or truncated:
        env.reset()
"""


def write_workspace(var: Path, home: Path) -> dict[str, str]:
    """Use a workspace; return the ids of its runs by what they are."""
    program = Path(sys.executable).with_name("mosaic")

    def run(*arguments: str) -> Any:
        variables = {"PATH": os.environ["PATH"], "HOME": str(home), "USER": "user", "MOSAIC_VAR": str(var)}
        done = subprocess.run(
            [str(program), *arguments],
            env=variables,
            cwd=home,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            check=True,
        )
        return json.loads(done.stdout) if "--json" in arguments else None

    script = home / "random_agent.py"
    script.write_text(SCRIPT, encoding="utf-8")
    pair = run("train", "ppo", *SMALL, "--seeds", "1-2", "--group", "pair", "--json")
    ids = {"first_seed": pair[0]["run_id"], "second_seed": pair[1]["run_id"]}
    run("tag", ids["first_seed"], "good")
    run("note", ids["first_seed"], "The first seed of the pair.")
    ids["evaluation"] = run("eval", ids["first_seed"], "--episodes", "5", "--json")["run_id"]
    ids["script"] = run("run", "--json", "--", sys.executable, str(script))["run_id"]
    ids["archived"] = run("train", "dqn", *SMALL_DQN, "--json")["run_id"]
    run("archive", ids["archived"])
    ids["deleted"] = run("train", "ppo", *SMALL, "--seed", "3", "--json")["run_id"]
    run("delete", ids["deleted"], "--yes")
    run("daemon", "stop")
    return ids


def copy_runs(var: Path, into: Path, replacements: dict[str, str]) -> None:
    """Copy the folders of the runs, with these texts replaced in names and in text files."""
    for folder in ("runs", "trash"):
        shutil.copytree(var / "trainer" / folder, into / "trainer" / folder, symlinks=True)
    for path in sorted(into.rglob("*"), reverse=True):
        if path.suffix in (".json", ".jsonl", ".log") and not path.is_symlink():
            text = path.read_text(encoding="utf-8")
            for old, new in replacements.items():
                text = text.replace(old, new)
            path.write_text(text, encoding="utf-8")
        name = path.name
        for old, new in replacements.items():
            name = name.replace(old, new)
        path.rename(path.with_name(name))


def check(folder: Path, names: list[str]) -> None:
    """Raise if the fixture is large or holds a name of this machine."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    total = sum(path.stat().st_size for path in files)
    if total > MAX_BYTES:
        sys.exit(f"{folder} has {total:,} bytes; at most {MAX_BYTES:,} were expected.")
    for path in files:
        found = [name for name in names if name.encode() in path.read_bytes() or name in str(path.relative_to(folder))]
        if found:
            sys.exit(f"{path} names this machine: {', '.join(found)}.")
    print(f"{folder}: {len(files)} files, {total:,} bytes")


def main() -> None:
    if TARGET.exists():
        sys.exit(f"{TARGET} exists. It is what {mosaic.__version__} wrote, and must stay as it is.")
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        ids = write_workspace(home / "var", home)
        replacements = {
            temporary: "/home/user",
            str(Path(sys.prefix)): "/home/user/.venv",
            str(Path(sys.base_prefix)): "/usr",
            str(Path(mosaic.__file__).parents[2]): "/home/user/mosaic",
            platform.node(): "workstation",
            f'"{getpass.getuser()}"': '"user"',
        }
        draft = home / "draft"
        copy_runs(home / "var", draft, replacements)
        (draft / CONTENTS).write_text(
            json.dumps({"version": mosaic.__version__, "runs": ids}, indent=1) + "\n", encoding="utf-8"
        )
        check(draft, list(replacements))
        shutil.copytree(draft, TARGET, symlinks=True)


if __name__ == "__main__":
    main()
