"""Builds the folder for the PYTHONPATH of scripts, which contains only `sitecustomize.py` and `_mosaic_probe/`.

Our own `src` or site-packages must never be on a script's path: they would hide the script's own packages.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from functools import cache
from pathlib import Path

_MOSAIC = Path(__file__).resolve().parents[1]
_INSIDE = Path(__file__).resolve().parent / "inside"
_COPIED_FILES = (
    "base/__init__.py",
    "base/console_parser.py",
    "base/fastlane/*.py",
    "base/journal.py",
    "base/packages.py",
    "contracts/__init__.py",
    "contracts/names.py",
)
"""What the probe uses of other packages: standard library only (numpy for frames), Python 3.8 and up."""
_PROBE_IMPORT = re.compile(r"\bmosaic\.probe\.inside\b")
_COPIED_IMPORT = re.compile(r"\bmosaic\.(base|contracts)\b")


def build_probe(cache_folder: Path) -> Path:
    """Return the folder for PYTHONPATH, built under `cache_folder` when this version is first needed."""
    texts = _file_texts()
    digest = hashlib.sha256("\0".join(f"{name}\0{text}" for name, text in sorted(texts.items())).encode())
    folder = cache_folder / digest.hexdigest()[:16]
    if not (folder / "sitecustomize.py").exists():
        draft = cache_folder / f".making-{os.getpid()}-{folder.name}"
        shutil.rmtree(draft, ignore_errors=True)
        for name, text in texts.items():
            path = draft / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        try:
            draft.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(draft, ignore_errors=True)
    return folder


@cache
def _file_texts() -> dict[str, str]:
    """Return by path in the folder the text of each file, with its imports rewritten to the copies."""
    paths = {f"_mosaic_probe/{path.name}": path for path in _INSIDE.glob("*.py") if path.name != "sitecustomize.py"}
    for pattern in _COPIED_FILES:
        paths.update({f"_mosaic_probe/{path.relative_to(_MOSAIC)}": path for path in _MOSAIC.glob(pattern)})
    paths["sitecustomize.py"] = _INSIDE / "sitecustomize.py"
    return {name: _rewrite_imports(path.read_text(encoding="utf-8")) for name, path in paths.items()}


def _rewrite_imports(text: str) -> str:
    return _COPIED_IMPORT.sub(r"_mosaic_probe.\1", _PROBE_IMPORT.sub("_mosaic_probe", text))
