"""Makes environments, and refuses in one sentence what cannot be made."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypedDict

from mosaic.contracts.errors import BadInput, MissingExtra, UnknownName, unknown
from mosaic.envs.catalogue import DISTRIBUTION, FAMILIES, Family
from mosaic.envs.quiet import silence_warnings

if TYPE_CHECKING:
    import gymnasium

MODULES_VARIABLE = "MOSAIC_ENV_MODULES"
"""Modules, separated by commas, that an id such as `my_envs:Maze-v0` may import. An id alone never runs code."""
_COMPATIBILITY_LOADERS = ("GymV21Environment", "GymV26Environment")


class Listing(TypedDict):
    id: str
    family: str
    is_installed: bool
    extra: str | None
    max_episode_steps: int | None


def make(env_id: str, *, render_mode: str | None = None, **settings: Any) -> gymnasium.Env[Any, Any]:
    """One environment, without Gymnasium's checking wrapper. `settings` go to the environment itself."""
    library = _gymnasium()
    family = prepare(env_id, has_screen=render_mode == "human", needs_pictures=render_mode is not None)
    if render_mode is not None:
        settings["render_mode"] = render_mode
        name = env_id.rpartition("-v")[0]
        settings = {**(family.render_settings.get(name, {}) if family else {}), **settings}
    env: gymnasium.Env[Any, Any]
    try:
        env = library.make(env_id, disable_env_checker=True, **settings)
    except library.error.DependencyNotInstalled as error:
        raise _missing(env_id, family, str(error)) from None
    except ImportError as error:
        raise _missing(env_id, family, str(error)) from error
    except TypeError as error:
        raise BadInput(f"{env_id!r} does not take these settings ({_keys(settings)}): {error}.") from error
    if render_mode is not None and family is not None and family.before_pictures is not None:
        family.before_pictures(env)
    return env


def prepare(env_id: str, *, has_screen: bool = False, needs_pictures: bool = False) -> Family | None:
    """Makes the id known to Gymnasium, or says why it cannot be; the family it belongs to, if one of ours."""
    gymnasium = _gymnasium()
    silence_warnings()
    _admit_module(env_id)
    plain_id = env_id.rpartition(":")[2]
    for family in FAMILIES.values():
        if family.owns_name(plain_id) and plain_id not in gymnasium.registry:
            _load(family, env_id, has_screen, needs_pictures)
    spec = _find(env_id, plain_id)
    for family in FAMILIES.values():
        if spec is not None and family.owns_entry_point(spec.entry_point):
            _load(family, env_id, has_screen, needs_pictures)
            return family
    return None


def list_environments(family: str | None = None) -> list[Listing]:
    """Every id that is known, of one family or of all; those of families that are not installed too."""
    gymnasium = _gymnasium()
    silence_warnings()
    if family is not None and family not in FAMILIES and family != "other":
        raise unknown("environment family", family, FAMILIES)
    for row in FAMILIES.values():
        if row.registers and row.is_installed and family in (None, row.name):
            _load(row, row.sample)
    found = [listing for listing in _registered(gymnasium.registry) if family in (None, listing["family"])]
    for row in FAMILIES.values():
        if family in (None, row.name) and not row.is_installed:
            found += [Listing(id=i, family=row.name, is_installed=False, extra=row.extra, max_episode_steps=None)
                      for i in row.known_ids]  # fmt: skip
    return found


def _registered(registry: dict[str, Any]) -> Iterator[Listing]:
    is_installed = {name: row.is_installed for name, row in FAMILIES.items()}
    for env_id in sorted(registry):
        spec = registry[env_id]
        row = next((row for row in FAMILIES.values() if row.owns_entry_point(spec.entry_point)), None)
        if spec.name in _COMPATIBILITY_LOADERS or (row is None and callable(spec.entry_point)):
            continue  # not environments, or stubs that only raise
        yield Listing(
            id=env_id,
            family=row.name if row else "other",
            is_installed=is_installed[row.name] if row else True,
            extra=row.extra if row else None,
            max_episode_steps=spec.max_episode_steps,
        )


def described(env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """What a person wants to know of an environment before using it."""
    from mosaic.envs.spaces import in_words

    return {
        "id": env.spec.id if env.spec else None,
        "family": family_of(env),
        "observation_space": in_words(env.observation_space),
        "action_space": in_words(env.action_space),
        "max_episode_steps": env.spec.max_episode_steps if env.spec else None,
    }


def family_of(env: gymnasium.Env[Any, Any]) -> str:
    """The name of its family; `other` where it is none of ours."""
    entry_point = env.spec.entry_point if env.spec else None
    return next((row.name for row in FAMILIES.values() if row.owns_entry_point(entry_point)), "other")


def render_help(env_id: str) -> str:
    """What to do where no picture comes of an environment; empty where nothing is known."""
    try:
        family = prepare(env_id)
    except BadInput:  # not one of Gymnasium's: an algorithm may have its own
        return ""
    return family.render_help if family else ""


def _gymnasium() -> Any:
    try:
        return importlib.import_module("gymnasium")
    except ModuleNotFoundError:
        raise MissingExtra(f"Environments need the train extra: pip install '{DISTRIBUTION}[train]'.") from None


def _admit_module(env_id: str) -> None:
    module, colon, _ = env_id.rpartition(":")
    if not colon:
        return
    allowed = {row.registers for row in FAMILIES.values() if row.registers}
    allowed |= {name.strip() for name in os.environ.get(MODULES_VARIABLE, "").split(",")}
    if module not in allowed:
        raise BadInput(
            f"env_id: {env_id!r} would import the module {module!r}, which is not allowed. "
            f"If it is yours, set {MODULES_VARIABLE}={module}."
        )


def _load(family: Family, env_id: str, has_screen: bool = False, needs_pictures: bool = False) -> None:
    if family.is_later:
        raise MissingExtra(f"{env_id!r} belongs to {family.title}, which this version of MOSAIC cannot make yet.")
    if not family.is_installed:
        raise _missing(env_id, family)
    for variable, value in family.variables.items():
        if not (has_screen and variable == "SDL_VIDEODRIVER"):
            os.environ.setdefault(variable, value)
    try:
        _import(family)
    except (ImportError, RuntimeError, AttributeError) as error:
        if needs_pictures or not family.without_pictures:
            raise BadInput(f"{env_id!r} cannot be made: {error}. {family.render_help}") from error
        os.environ.update(family.without_pictures)
        for name in [name for name in sys.modules if name.partition(".")[0] in family.packages[1:]]:
            del sys.modules[name]  # half of it may have been imported
        _import(family)


def _import(family: Family) -> None:
    if family.registers:
        importlib.import_module(family.registers)
    if family.after_import is not None:
        family.after_import()


def _missing(env_id: str, family: Family | None, said: str = "") -> MissingExtra:
    if family is None:
        return MissingExtra(f"{env_id!r} needs a package that is not installed: {said}")
    what = f"the {family.title} extra" if family.extra else f"the package {family.packages[-1]!r}"
    # A package that is there but broken has more to say than its name.
    why = f" ({said})" if said and family.is_installed else ""
    return MissingExtra(f"{env_id!r} needs {what}{why}: {family.install}.")


def _find(env_id: str, plain_id: str) -> Any:
    """Gymnasium's record of an id; None where a module that is still to be imported will bring it."""
    registry = _gymnasium().registry
    spec = registry.get(plain_id)
    if spec is not None and not _is_stub(spec):
        return spec
    if env_id != plain_id:
        return None
    form = re.fullmatch(r"(?P<name>.+?)(-v(?P<version>\d+))?", plain_id)
    assert form is not None
    versions = sorted(
        (known.version for known in registry.values() if _base(known) == form["name"] and not _is_stub(known)),
        key=lambda version: -1 if version is None else version,
    )
    if not versions:
        names = [known for known, record in registry.items() if not _is_stub(record)]
        raise unknown("environment", plain_id, names)
    newest = form["name"] if versions[-1] is None else f"{form['name']}-v{versions[-1]}"
    if form["version"] is None:
        return registry[newest]
    kind = "too old" if versions[-1] is not None and int(form["version"]) < versions[-1] else "not there yet"
    raise UnknownName(f"No environment {plain_id!r}: that version is {kind}. Did you mean {newest!r}?")


def _base(spec: Any) -> str:
    return f"{spec.namespace}/{spec.name}" if spec.namespace else str(spec.name)


def _is_stub(spec: Any) -> bool:
    """Gymnasium keeps some retired ids whose entry point is a function that only raises."""
    return callable(spec.entry_point) and getattr(spec.entry_point, "__module__", "") == "gymnasium.envs"


def _keys(settings: dict[str, Any]) -> str:
    return ", ".join(sorted(settings)) or "none"
