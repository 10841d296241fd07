"""Putting together the folder that travels into scripts: only `sitecustomize.py` and `_mosaic_probe/` are in it.

Our own `src` or site-packages must never be on a script's path: they would hide the packages it means.
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
_BORROWED = (
    "contracts/__init__.py",
    "contracts/console.py",
    "contracts/folder.py",
    "contracts/processes.py",
    "journal/__init__.py",
    "journal/follow.py",
    "journal/write.py",
    "fastlane/*.py",
)
"""What the probe uses of other rooms. All of it is standard library (+ numpy for frames) and runs on Python 3.8."""
_OURS = re.compile(r"\bmosaic\.probe\.inside\b")
_THEIRS = re.compile(r"\bmosaic\.(contracts|journal|fastlane)\b")


def built(place: Path) -> Path:
    """The folder for PYTHONPATH, put together under `place` the first time this version is asked for."""
    parts = _parts()
    digest = hashlib.sha256("\0".join(f"{name}\0{text}" for name, text in sorted(parts.items())).encode())
    folder = place / digest.hexdigest()[:16]
    if not (folder / "sitecustomize.py").exists():
        making = place / f".making-{os.getpid()}-{folder.name}"
        shutil.rmtree(making, ignore_errors=True)
        for name, text in parts.items():
            path = making / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        try:
            making.rename(folder)
        except OSError:  # another process was quicker
            shutil.rmtree(making, ignore_errors=True)
    return folder


@cache
def _parts() -> dict[str, str]:
    """By path in the folder: the text of each file, with its imports pointing at the copies."""
    found = {f"_mosaic_probe/{path.name}": path for path in _INSIDE.glob("*.py") if path.name != "sitecustomize.py"}
    for pattern in _BORROWED:
        found.update({f"_mosaic_probe/{path.relative_to(_MOSAIC)}": path for path in _MOSAIC.glob(pattern)})
    found["sitecustomize.py"] = _INSIDE / "sitecustomize.py"
    return {name: _rewritten(path.read_text(encoding="utf-8")) for name, path in found.items()}


def _rewritten(text: str) -> str:
    return _THEIRS.sub(r"_mosaic_probe.\1", _OURS.sub("_mosaic_probe", text))
