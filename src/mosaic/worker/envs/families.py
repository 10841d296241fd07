"""All environment families: those of the catalog, and those that other packages name by entry point."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib.metadata import entry_points

from mosaic.worker.envs.catalog import atari, box2d, classic_control, minigrid, mujoco, others, pettingzoo, toy_text
from mosaic.worker.envs.family import DISTRIBUTION, EnvEntry, EnvFamily, KeyBinding

__all__ = ["DISTRIBUTION", "FAMILIES", "EnvEntry", "EnvFamily", "KeyBinding", "find_entry"]

ENTRY_POINT_GROUP = "mosaic.env_families"
_CATALOG = (
    toy_text.FAMILY,
    classic_control.FAMILY,
    box2d.FAMILY,
    mujoco.FAMILY,
    atari.FAMILY,
    minigrid.FAMILY,
    others.PROCGEN,
    pettingzoo.CLASSIC,
    pettingzoo.MPE,
    pettingzoo.ATARI,
    pettingzoo.BUTTERFLY,
    others.FUNCTIONAL,
    others.DM_CONTROL,
    others.MEMORY_GYM,
)


def _load_families() -> dict[str, EnvFamily]:
    families = {family.name: family for family in _CATALOG}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        try:
            family = entry.load()
            if not isinstance(family, EnvFamily):
                raise TypeError(f"it is {family!r}, which is not an EnvFamily")
        except Exception as error:
            # The others must work; what it registers with Gymnasium itself works, too.
            problem = f"{type(error).__name__}: {error}"
            warnings.warn(
                f"The environment family {entry.name!r} ({entry.value}) cannot be loaded: {problem}", stacklevel=1
            )
            continue
        families.setdefault(family.name, family)
    return families


FAMILIES: Mapping[str, EnvFamily] = _load_families()


def find_entry(family: str, env_id: str) -> EnvEntry | None:
    """Return the description of an environment, by the name of its family."""
    return FAMILIES[family].find_entry(env_id) if family in FAMILIES else None
