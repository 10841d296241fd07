"""The window's process stays light: it never imports what trains."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import importlib, pkgutil, sys
import mosaic.features, mosaic.window
packages = ((mosaic.window, ""), (mosaic.features, "window"))
names = [
    module.name
    for package, face in packages
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if module.name.rpartition(".")[2].startswith(face)
]
for name in names:
    importlib.import_module(name)
FORBIDDEN = {"torch", "gymnasium", "tensorboard", "wandb", "optuna", "matplotlib"}
heavy = sorted({name.partition(".")[0] for name in sys.modules} & FORBIDDEN)
assert len(names) > 20, names
assert not heavy, heavy
"""


def test_the_window_imports_no_training_libraries() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_the_window_starts_without_the_web_engine() -> None:
    """It costs a second of start; only the tab that shows a web page pays for it."""
    script = "import sys, mosaic.window.app; assert 'PySide6.QtWebEngineCore' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
