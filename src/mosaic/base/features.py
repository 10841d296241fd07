"""Finds the features, which are the folders of `mosaic.features`. The window, the command line and the daemon
loop over them and name none.

A folder states its commands in its `__init__`, which imports nothing heavy. What it adds to the window and to
the daemon are tables in its modules `window` and `daemon`, which are imported when they are needed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import NamedTuple

PACKAGE = "mosaic.features"


class Command(NamedTuple):
    """A command of the command line."""

    name: str
    section: str
    """The heading below which `mosaic --help` lists it."""
    position: int
    """Its place there."""
    function: str
    """The module in the feature's folder and the function, such as `cli:train`; imported when it is used."""
    summary: str


class Feature(NamedTuple):
    commands: tuple[Command, ...] = ()


@cache
def features() -> dict[str, Feature]:
    """The features by the names of their folders."""
    folder = importlib.import_module(PACKAGE).__path__[0]
    names = sorted(name for name in os.listdir(folder) if os.path.exists(os.path.join(folder, name, "__init__.py")))
    return {name: importlib.import_module(f"{PACKAGE}.{name}").FEATURE for name in names}


def feature_modules(face: str) -> Iterator[ModuleType]:
    """The modules of this name, such as `window`, of all features that have one."""
    folder = importlib.import_module(PACKAGE).__path__[0]
    for name in features():
        if os.path.exists(os.path.join(folder, name, f"{face}.py")):
            yield importlib.import_module(f"{PACKAGE}.{name}.{face}")
