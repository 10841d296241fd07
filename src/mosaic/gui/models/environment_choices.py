"""Environments as a person chooses among them. No widget here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

_TITLES = {"box2d": "Box2D", "mujoco": "MuJoCo", "minigrid": "MiniGrid", "pettingzoo": "PettingZoo"}
ALL_FAMILIES = "All families"


@dataclass(frozen=True)
class EnvironmentChoice:
    id: str
    family: str
    is_installed: bool
    hint: str
    """What to do before it can be chosen; empty where nothing is in the way."""


def parse_choices(rows: Iterable[Json]) -> list[EnvironmentChoice]:
    """What can be chosen first, each family together."""
    found = [
        EnvironmentChoice(str(one["id"]), str(one["family"]), bool(one["is_installed"]), _install_hint(one))
        for one in rows
    ]
    return sorted(found, key=lambda one: (not one.is_installed, one.family, one.id.lower()))


def _install_hint(row: Json) -> str:
    if row["is_installed"]:
        return ""
    return f"pip install 'mosaic-rl[{row['extra']}]'" if row.get("extra") else "not in this version"


def family_title(name: str) -> str:
    if name in _TITLES:
        return _TITLES[name]
    words = name.replace("_", " ")
    return words[:1].upper() + words[1:]


def families(choices: Iterable[EnvironmentChoice]) -> list[tuple[str, bool]]:
    """Names, and whether anything of the family can be chosen; those that can come first."""
    usable: dict[str, bool] = {}
    for one in choices:
        usable[one.family] = usable.get(one.family, False) or one.is_installed
    return sorted(usable.items(), key=lambda item: (not item[1], family_title(item[0]).lower()))


def environment_problem(env_id: str, choices: Iterable[EnvironmentChoice]) -> str:
    """Return why a listed environment cannot be used; one that is not listed is checked by the worker."""
    for one in choices:
        if one.id == env_id and not one.is_installed:
            is_later = not one.hint.startswith("pip")
            return f"Is {one.hint}." if is_later else f"Is not installed: {one.hint}"
    return ""
