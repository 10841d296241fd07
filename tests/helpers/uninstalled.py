"""Hides installed packages from a process and all of its children."""

from __future__ import annotations

import os
from pathlib import Path

_SITECUSTOMIZE = """
import sys

GONE = {names!r}


class Without:
    \"\"\"A finder that does not find some packages, nor their distributions.\"\"\"

    def __init__(self, finder):
        self._finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in GONE else self._finder.find_spec(name, path, target)

    def find_distributions(self, *args, **kwargs):
        for distribution in getattr(self._finder, "find_distributions", lambda *_, **__: ())(*args, **kwargs):
            if distribution.metadata["Name"].replace("-", "_").lower() not in GONE:
                yield distribution

    def __getattr__(self, name):
        return getattr(self._finder, name)


sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""


def uninstalled(place: Path, *names: str) -> dict[str, str]:
    """Returns the environment variables that do it."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "sitecustomize.py").write_text(_SITECUSTOMIZE.format(names=set(names)))
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(place), os.environ.get("PYTHONPATH"))))}
