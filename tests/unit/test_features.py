"""Who may import whom inside `mosaic.features`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import mosaic

SOURCE = Path(mosaic.__file__).parent
FACES = ("core", "api", "cli", "window", "daemon", "worker")
"""What a module of a feature is for; its name begins with it."""
OTHERS = ("__init__", "plugin", "sidecar", "script_examples")
NOT_YET = (
    ("features/disk/daemon", "mosaic.features.evaluate.daemon"),
    ("features/evaluate/window", "mosaic.features.train.window_model"),
    ("features/experiments/window_compare", "mosaic.features.replay.window_pair"),
    ("features/experiments/window_compare", "mosaic.features.runs.window_videos"),
    ("features/machines/cli", "mosaic.trainer.__main__"),
    ("features/machines/cli", "mosaic.trainer.listeners"),
    ("features/machines/cli", "mosaic.trainer.metrics_server"),
    ("features/play/window", "mosaic.features.replay.window"),
    ("features/runs/window_model", "mosaic.features.train.window_model"),
    ("features/runs/window_page", "mosaic.features.evaluate.window_results"),
    ("features/train/cli_catalogue", "mosaic.features.evaluate.cli"),
    ("features/train/cli_catalogue", "mosaic.features.runs.cli"),
    ("features/train/cli_catalogue", "mosaic.features.runs.cli_files"),
    ("features/train/daemon", "mosaic.features.tracking.sidecar.sidecar_spec"),
    ("features/train/window", "mosaic.features.evaluate.window_model"),
    ("trainer/executors/local", "mosaic.features.tracking.sidecar.sidecar_spec"),
    ("trainer/supervisor", "mosaic.features.tracking.sidecar.sidecar_spec"),
    ("trainer/trash", "mosaic.features.tracking.sidecar.sync_state"),
    ("window/actions", "mosaic.features.disk.window"),
    ("window/form_rows", "mosaic.features.train.window_model"),
    ("window/run_actions", "mosaic.features.experiments.api"),
    ("window/run_actions", "mosaic.features.runs.window_model"),
    ("window/run_actions", "mosaic.features.train.window_parts"),
    ("window/settings_page", "mosaic.features.play.window_actors"),
    ("window/settings_page", "mosaic.features.tracking.window"),
    ("window/workbench", "mosaic.features.disk.window_model"),
    ("window/workbench", "mosaic.features.train.window_model"),
)
"""Imports that the rules below forbid and that are still there; the list may only become shorter."""
LIBRARIES = {"PySide6": "window", "click": "cli"}


def _imports(path: Path) -> Iterator[str]:
    """What a module imports, without what is still allowed to it."""
    name = path.relative_to(SOURCE).with_suffix("").as_posix()
    known = tuple(imported for module, imported in NOT_YET if module == name)
    for imported in _all_imports(path):
        if not imported.startswith(known):
            yield imported


def _all_imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _modules() -> Iterator[tuple[str, str, str, Path]]:
    """Feature, face and module name of each file of a feature."""
    for path in sorted((SOURCE / "features").rglob("*.py")):
        feature, *rest = path.relative_to(SOURCE / "features").parts
        if rest:
            yield feature, rest[0].removesuffix(".py").split("_")[0] or "__init__", "/".join((feature, *rest)), path


def test_each_module_of_a_feature_is_named_by_its_face() -> None:
    odd = [
        name
        for _, face, name, _ in _modules()
        if face not in FACES and name.split("/")[1].removesuffix(".py") not in OTHERS
    ]
    assert odd == []


def test_only_windows_import_qt_and_only_commands_click() -> None:
    odd = [
        f"{name} imports {imported}"
        for _, face, name, path in _modules()
        for imported in _imports(path)
        if LIBRARIES.get(imported.split(".")[0], face) != face
    ]
    assert odd == []


def test_a_feature_uses_the_core_and_the_api_of_another_and_nothing_else_of_it() -> None:
    odd = []
    for feature, face, name, path in _modules():
        for imported in _imports(path):
            parts = imported.split(".")
            if parts[:2] != ["mosaic", "features"] or len(parts) < 4:
                continue
            other, used = parts[2], parts[3].split("_")[0]
            if other != feature and used not in ("core", "api"):
                odd.append(f"{name} imports {imported}")
            if other == feature and face in ("core", "api") and used in ("cli", "window", "daemon"):
                odd.append(f"{name} imports {imported}")
    assert odd == []


def test_nothing_below_names_a_feature() -> None:
    odd = [
        f"{path.relative_to(SOURCE)} imports {imported}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] not in ("features", "__init__.py")
        for imported in _imports(path)
        if imported.startswith("mosaic.features.")
    ]
    assert odd == []
