"""The packages that a Python interpreter can import. Python 3.8 and up, and nothing that takes long to import."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

MAX_PACKAGES = 1000
TORCH_COMMAND = "pip install 'mosaic-rl[torch]'"
_SUFFIXES = (".dist-info", ".egg-info")


def python_version() -> str:
    return ".".join(map(str, sys.version_info[:3]))


def has_torch() -> bool:
    """Return whether torch can be imported, without importing it."""
    return find_spec("torch") is not None


def installed_packages(path: list[str] | None = None) -> dict[str, str]:
    """By name, the version of each package on `sys.path`, as the names of its folders state it.

    That takes some milliseconds; reading the metadata of each takes a hundred.
    """
    found: dict[str, str] = {}
    for folder in sys.path if path is None else path:
        try:
            names = os.listdir(folder or os.curdir)
        except OSError:
            continue
        for name in names:
            if name.endswith(_SUFFIXES):
                package, _, version = name.rpartition(".")[0].partition("-")
                if _is_plain(package) and _is_plain(version):  # the first on the path is the one that is imported
                    found.setdefault(package.replace("_", "-").lower(), version)
    return dict(sorted(found.items())[:MAX_PACKAGES])


def _is_plain(text: str) -> bool:
    """Whether it needs no escaping, whatever file it goes to."""
    return text.isascii() and text.replace("_", "").replace(".", "").replace("+", "").replace("!", "").isalnum()
