"""Makes environments, and refuses in one sentence what cannot be made."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypedDict

from mosaic.contracts.errors import BadInput, MissingExtra, UnknownName, unknown_name_error
from mosaic.envs.catalogue import DISTRIBUTION, FAMILIES, EnvFamily
from mosaic.envs.warning_filters import silence_warnings

if TYPE_CHECKING:
    import gymnasium

MODULES_VARIABLE = "MOSAIC_ENV_MODULES"
"""Modules, separated by commas, that an id such as `my_envs:Maze-v0` may import. An id alone never runs code."""
_COMPATIBILITY_LOADERS = ("GymV21Environment", "GymV26Environment")


class EnvListing(TypedDict):
    id: str
    family: str
    is_installed: bool
    extra: str | None
    max_episode_steps: int | None


def make(env_id: str, *, render_mode: str | None = None, **settings: Any) -> gymnasium.Env[Any, Any]:
    """One environment, without Gymnasium's checking wrapper. `settings` go to the environment itself."""
    library = _gymnasium()
    family = ensure_registered(env_id, has_screen=render_mode == "human", needs_rendering=render_mode is not None)
    if render_mode is not None:
        settings["render_mode"] = render_mode
        name = env_id.rpartition("-v")[0]
        settings = {**(family.render_settings.get(name, {}) if family else {}), **settings}
    env: gymnasium.Env[Any, Any]
    try:
        env = library.make(env_id, disable_env_checker=True, **settings)
    except library.error.DependencyNotInstalled as error:
        raise _missing_extra_error(env_id, family, str(error)) from None
    except ImportError as error:
        raise _missing_extra_error(env_id, family, str(error)) from error
    except TypeError as error:
        raise BadInput(f"{env_id!r} does not take these settings ({_format_keys(settings)}): {error}.") from error
    if render_mode is not None and family is not None and family.before_rendering is not None:
        family.before_rendering(env)
    return env


def ensure_registered(env_id: str, *, has_screen: bool = False, needs_rendering: bool = False) -> EnvFamily | None:
    """Makes the id known to Gymnasium, or says why it cannot be; the family it belongs to, if one of ours."""
    gymnasium = _gymnasium()
    silence_warnings()
    _check_module_allowed(env_id)
    plain_id = env_id.rpartition(":")[2]
    for family in FAMILIES.values():
        if family.owns_name(plain_id) and plain_id not in gymnasium.registry:
            _load_family(family, env_id, has_screen, needs_rendering)
    spec = _find_spec(env_id, plain_id)
    for family in FAMILIES.values():
        if spec is not None and family.owns_entry_point(spec.entry_point):
            _load_family(family, env_id, has_screen, needs_rendering)
            return family
    return None


def list_environments(family: str | None = None) -> list[EnvListing]:
    """Every id that is known, of one family or of all; those of families that are not installed too."""
    gymnasium = _gymnasium()
    silence_warnings()
    if family is not None and family not in FAMILIES and family != "other":
        raise unknown_name_error("environment family", family, FAMILIES)
    for row in FAMILIES.values():
        if row.registering_module and row.is_installed and family in (None, row.name):
            _load_family(row, row.sample_env_id)
    found = [listing for listing in _iter_registered(gymnasium.registry) if family in (None, listing["family"])]
    for row in FAMILIES.values():
        if family in (None, row.name) and not row.is_installed:
            found += [EnvListing(id=i, family=row.name, is_installed=False, extra=row.extra, max_episode_steps=None)
                      for i in row.known_ids]  # fmt: skip
    return found


def _iter_registered(registry: dict[str, Any]) -> Iterator[EnvListing]:
    is_installed = {name: row.is_installed for name, row in FAMILIES.items()}
    for env_id in sorted(registry):
        spec = registry[env_id]
        row = next((row for row in FAMILIES.values() if row.owns_entry_point(spec.entry_point)), None)
        if spec.name in _COMPATIBILITY_LOADERS or (row is None and callable(spec.entry_point)):
            continue  # not environments, or stubs that only raise
        yield EnvListing(
            id=env_id,
            family=row.name if row else "other",
            is_installed=is_installed[row.name] if row else True,
            extra=row.extra if row else None,
            max_episode_steps=spec.max_episode_steps,
        )


def describe_env(env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """What a person wants to know of an environment before using it."""
    from mosaic.envs.spaces import describe_space

    return {
        "id": env.spec.id if env.spec else None,
        "family": family_of(env),
        "observation_space": describe_space(env.observation_space),
        "action_space": describe_space(env.action_space),
        "max_episode_steps": env.spec.max_episode_steps if env.spec else None,
    }


def family_of(env: gymnasium.Env[Any, Any]) -> str:
    """The name of its family; `other` where it is none of ours."""
    entry_point = env.spec.entry_point if env.spec else None
    return next((row.name for row in FAMILIES.values() if row.owns_entry_point(entry_point)), "other")


def render_help(env_id: str) -> str:
    """What to do where no picture comes of an environment; empty where nothing is known."""
    try:
        family = ensure_registered(env_id)
    except BadInput:  # not one of Gymnasium's: an algorithm may have its own
        return ""
    return family.render_help if family else ""


def _gymnasium() -> Any:
    try:
        return importlib.import_module("gymnasium")
    except ModuleNotFoundError:
        raise MissingExtra(f"Environments need the train extra: pip install '{DISTRIBUTION}[train]'.") from None


def _check_module_allowed(env_id: str) -> None:
    module, colon, _ = env_id.rpartition(":")
    if not colon:
        return
    allowed = {row.registering_module for row in FAMILIES.values() if row.registering_module}
    allowed |= {name.strip() for name in os.environ.get(MODULES_VARIABLE, "").split(",")}
    if module not in allowed:
        raise BadInput(
            f"env_id: {env_id!r} would import the module {module!r}, which is not allowed. "
            f"If it is yours, set {MODULES_VARIABLE}={module}."
        )


def _load_family(family: EnvFamily, env_id: str, has_screen: bool = False, needs_rendering: bool = False) -> None:
    if family.is_unsupported:
        raise MissingExtra(f"{env_id!r} belongs to {family.title}, which this version of MOSAIC cannot make yet.")
    if not family.is_installed:
        raise _missing_extra_error(env_id, family)
    for variable, value in family.environment_variables.items():
        if not (has_screen and variable == "SDL_VIDEODRIVER"):
            os.environ.setdefault(variable, value)
    try:
        _import_family(family)
    except (ImportError, RuntimeError, AttributeError) as error:
        if needs_rendering or not family.no_rendering_variables:
            raise BadInput(f"{env_id!r} cannot be made: {error}. {family.render_help}") from error
        os.environ.update(family.no_rendering_variables)
        for name in [name for name in sys.modules if name.partition(".")[0] in family.packages[1:]]:
            del sys.modules[name]  # half of it may have been imported
        _import_family(family)


def _import_family(family: EnvFamily) -> None:
    if family.registering_module:
        importlib.import_module(family.registering_module)
    if family.after_import is not None:
        family.after_import()


def _missing_extra_error(env_id: str, family: EnvFamily | None, reason: str = "") -> MissingExtra:
    if family is None:
        return MissingExtra(f"{env_id!r} needs a package that is not installed: {reason}")
    what = f"the {family.title} extra" if family.extra else f"the package {family.packages[-1]!r}"
    # A package that is there but broken has more to say than its name.
    why = f" ({reason})" if reason and family.is_installed else ""
    return MissingExtra(f"{env_id!r} needs {what}{why}: {family.install_command}.")


def _find_spec(env_id: str, plain_id: str) -> Any:
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
        (known.version for known in registry.values() if _base_name(known) == form["name"] and not _is_stub(known)),
        key=lambda version: -1 if version is None else version,
    )
    if not versions:
        names = [known for known, record in registry.items() if not _is_stub(record)]
        raise unknown_name_error("environment", plain_id, names)
    newest = form["name"] if versions[-1] is None else f"{form['name']}-v{versions[-1]}"
    if form["version"] is None:
        return registry[newest]
    kind = "too old" if versions[-1] is not None and int(form["version"]) < versions[-1] else "not there yet"
    raise UnknownName(f"No environment {plain_id!r}: that version is {kind}. Did you mean {newest!r}?")


def _base_name(spec: Any) -> str:
    return f"{spec.namespace}/{spec.name}" if spec.namespace else str(spec.name)


def _is_stub(spec: Any) -> bool:
    """Gymnasium keeps some retired ids whose entry point is a function that only raises."""
    return callable(spec.entry_point) and getattr(spec.entry_point, "__module__", "") == "gymnasium.envs"


def _format_keys(settings: dict[str, Any]) -> str:
    return ", ".join(sorted(settings)) or "none"
