"""The folder on a script's path contains the probe and nothing else of ours."""

from __future__ import annotations

import ast
from pathlib import Path

from mosaic.contracts.folder import RunFolder
from mosaic.probe.build import build_probe
from mosaic.probe.plugin import describe
from mosaic.probe.script_env import script_environment

PARTS = {"frames": True, "metrics": True, "checkpoints": True, "console": True, "wandb": True, "compat": False}


def test_the_folder_contains_only_the_probe(tmp_path: Path) -> None:
    folder = build_probe(tmp_path)
    assert {path.name for path in folder.iterdir()} == {"sitecustomize.py", "_mosaic_probe"}
    assert build_probe(tmp_path) == folder


def test_every_file_is_python_3_8_and_imports_nothing_of_ours(tmp_path: Path) -> None:
    for path in build_probe(tmp_path).rglob("*.py"):
        tree = ast.parse(path.read_text(), feature_version=(3, 8))
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] in ("mosaic", "pydantic", "cleanrl_worker")], path


def test_the_environment_is_the_callers_with_the_probe_first_on_its_path(tmp_path: Path) -> None:
    caller = {"HOME": "/home/me", "PYTHONPATH": "/mine", "OMP_NUM_THREADS": "3"}
    run = RunFolder(tmp_path / "run")
    environment = script_environment(caller, run, tmp_path / "probe", PARTS, "/mine", total_timesteps=50)
    assert environment["HOME"] == "/home/me"
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["OPENBLAS_NUM_THREADS"] == "1"
    assert environment["PYTHONPATH"] == f"{build_probe(tmp_path / 'probe')}:/mine"
    assert environment["CLEANRL_TENSORBOARD_DIR"] == str(run.tensorboard)
    assert environment["WANDB_MODE"] == "offline"
    assert "total_timesteps=50" in environment["MOSAIC_PROBE"].split()


def test_without_the_probe_the_path_is_unchanged(tmp_path: Path) -> None:
    off = dict.fromkeys(PARTS, False)
    environment = script_environment({"PYTHONPATH": "/mine"}, RunFolder(tmp_path), tmp_path / "probe", off, "/mine")
    assert environment["PYTHONPATH"] == "/mine"
    assert "MOSAIC_PROBE" not in environment
    assert "WANDB_MODE" not in environment


def test_the_worker_for_scripts_has_the_command_of_its_caller() -> None:
    description = describe()
    assert description.has_own_command
    assert description.programs == ("argv",)
