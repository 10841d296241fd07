"""Creates environments, with a clear error for those that cannot be created."""

from __future__ import annotations

import importlib
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from mosaic.contracts.errors import (
    BadInput,
    FieldProblem,
    MissingExtra,
    UnknownName,
    similar_environments,
    unknown_name_error,
)
from mosaic.worker.envs.env_settings import check_env_settings
from mosaic.worker.envs.families import DISTRIBUTION, FAMILIES, EnvFamily
from mosaic.worker.envs.user_modules import import_user_module

if TYPE_CHECKING:
    import gymnasium

_COMPATIBILITY_LOADERS = ("GymV21Environment", "GymV26Environment")
_SHOWN_CHARACTERS = 500
_HARMLESS_WARNINGS = (
    r".*The environment \S+ is out of date",  # an older version was requested by name
    r".*Using the latest versioned environment",
    r".*Overriding environment \S+ already in registry",
    r".*Box (low|high)'s precision lowered",
    r".*builtin type \w+ has no __module__ attribute",  # Box2D's bindings
    r".*pkg_resources is deprecated",  # pygame
    r".*system is avx2 capable but pygame",
)


class EnvListing(TypedDict):
    id: str
    family: str
    is_installed: bool
    extra: str | None
    max_episode_steps: int | None
    package: NotRequired[str]
    """What pip installs it by, where no extra does."""


def make(
    env_id: str, *, render_mode: str | None = None, wrappers: Sequence[str] = (), **settings: Any
) -> gymnasium.Env[Any, Any]:
    """Create an environment without Gymnasium's checking wrapper. `settings` are passed to the environment.

    `wrappers` are put around it in this order; see `mosaic.worker.envs.wrappers`.
    """
    library = _gymnasium()
    family = ensure_registered(env_id, needs_rendering=render_mode is not None)
    entry = None if family is None else family.find_entry(env_id)
    if settings:
        check_env_settings(env_id, settings, entry, library.registry.get(env_id.rpartition(":")[2]))
    from mosaic.worker.envs.reproducible import make_reproducible, seeded_construction

    for field in () if entry is None else entry.settings:
        if field.type == "int" and isinstance(settings.get(field.name), list):
            settings[field.name] = tuple(settings[field.name])  # a range, in JSON
    if render_mode is not None:
        settings["render_mode"] = render_mode
    try:
        with seeded_construction(env_id):
            env: gymnasium.Env[Any, Any] = library.make(env_id, disable_env_checker=True, **settings)
    except library.error.DependencyNotInstalled as error:
        raise _missing_extra_error(env_id, family, str(error)) from None
    except ImportError as error:
        raise _missing_extra_error(env_id, family, str(error)) from error
    except Exception as error:
        if not settings.keys() - {"render_mode"}:
            raise  # not because of a value that the user gave
        raise refused_settings_error(env_id, settings, error) from error
    env = make_reproducible(env)
    if not wrappers:
        return env
    from mosaic.worker.envs.wrappers import wrap

    return wrap(env, wrappers)


def refused_settings_error(env_id: str, settings: Mapping[str, Any], error: Exception) -> BadInput:
    """Return the error for settings with which an environment cannot be created; its constructor raises anything."""
    names = ", ".join(sorted(settings))
    cause = error if isinstance(error, TypeError) else f"{type(error).__name__}: {error}"
    message = f"{env_id!r} does not accept these settings ({names}): {str(cause)[:_SHOWN_CHARACTERS]}."
    return BadInput(message, [FieldProblem("env_kwargs", message)])


def ensure_registered(env_id: str, *, needs_rendering: bool = False) -> EnvFamily | None:
    """Register the id with Gymnasium, or raise why that fails; return its family if it is in the catalog."""
    gymnasium = _gymnasium()
    _silence_warnings()
    if ":" in env_id:
        import_user_module(env_id, "env_id", filter(None, (row.registering_module for row in FAMILIES.values())))
    plain_id = env_id.rpartition(":")[2]
    for family in FAMILIES.values():
        if family.owns_name(plain_id) and plain_id not in gymnasium.registry:
            _load_family(family, env_id, needs_rendering)
    spec = _find_spec(plain_id)
    for family in FAMILIES.values():
        if family.owns(plain_id, spec.entry_point):
            _load_family(family, env_id, needs_rendering)
            return family
    return None


def list_environments(family: str | None = None) -> list[EnvListing]:
    """Return every known id of one family or of all, including families that are not installed."""
    gymnasium = _gymnasium()
    _silence_warnings()
    if family is not None and family not in FAMILIES and family != "other":
        raise unknown_name_error("environment family", family, FAMILIES)
    for row in FAMILIES.values():
        if row.registering_module and row.is_installed and family in (None, row.name):
            _load_family(row, row.sample_env_id)
    listings = [listing for listing in _iter_registered(gymnasium.registry) if family in (None, listing["family"])]
    for row in FAMILIES.values():
        if family in (None, row.name) and not row.is_installed and not row.has_several_agents:
            listings += [EnvListing(id=i, family=row.name, is_installed=False, extra=row.extra, max_episode_steps=None)
                      for i in row.known_ids]  # fmt: skip
    return listings


def _iter_registered(registry: dict[str, Any]) -> Iterator[EnvListing]:
    is_installed = {name: row.is_installed for name, row in FAMILIES.items()}
    for env_id in sorted(registry):
        spec = registry[env_id]
        row = next((row for row in FAMILIES.values() if row.owns(env_id, spec.entry_point)), None)
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
    """Return the description of an environment shown to users."""
    from mosaic.worker.envs.spaces import describe_space

    return {
        "id": env.spec.id if env.spec else None,
        "family": family_of(env),
        "observation_space": describe_space(env.observation_space),
        "action_space": describe_space(env.action_space),
        "max_episode_steps": env.spec.max_episode_steps if env.spec else None,
    }


def find_family(env_id: str) -> EnvFamily | None:
    """Return the family of an id, without importing it; None for ids that are not in the catalog."""
    plain_id = env_id.rpartition(":")[2]
    spec = _gymnasium().registry.get(plain_id)
    return next((row for row in FAMILIES.values() if row.owns(env_id, spec and spec.entry_point)), None)


def family_of(env: gymnasium.Env[Any, Any]) -> str:
    """Return the name of its family; `other` if it is not in the catalog."""
    env_id, entry_point = (env.spec.id, env.spec.entry_point) if env.spec else ("", None)
    return next((row.name for row in FAMILIES.values() if row.owns(env_id, entry_point)), "other")


def render_help(env_id: str) -> str:
    """Return advice for when an environment cannot be rendered; empty if there is none."""
    try:
        family = ensure_registered(env_id)
    except BadInput:  # not registered: an algorithm may create its own
        return ""
    return family.render_help if family else ""


def _silence_warnings() -> None:
    """Suppress warnings of libraries that are harmless and would look like errors in a log."""
    for message in _HARMLESS_WARNINGS:
        warnings.filterwarnings("ignore", message=message)


def _gymnasium() -> Any:
    try:
        return importlib.import_module("gymnasium")
    except ModuleNotFoundError:
        raise MissingExtra(f"Environments need the train extra: pip install '{DISTRIBUTION}[train]'.") from None


def _load_family(family: EnvFamily, env_id: str, needs_rendering: bool = False) -> None:
    if family.is_unsupported:
        raise MissingExtra(f"{env_id!r} belongs to {family.title}, which this version of MOSAIC does not support yet.")
    if family.has_several_agents:
        training = "nothing is trained on it" if family.has_turns else "ppo_pettingzoo trains on it"
        raise BadInput(f"{env_id!r} has several agents: actors play it (mosaic play {env_id}), and {training}.")
    if not family.is_installed:
        raise _missing_extra_error(env_id, family)
    for variable, value in family.environment_variables.items():
        os.environ.setdefault(variable, value)
    try:
        _import_family(family)
    except (ImportError, RuntimeError, AttributeError) as error:
        if needs_rendering or not family.no_rendering_variables:
            raise BadInput(f"{env_id!r} cannot be created: {error}. {family.render_help}") from error
        os.environ.update(family.no_rendering_variables)
        for name in [name for name in sys.modules if name.partition(".")[0] in family.packages[1:]]:
            del sys.modules[name]  # it may be partly imported
        _import_family(family)


def _import_family(family: EnvFamily) -> None:
    if family.registering_module:
        importlib.import_module(family.registering_module)
    if family.after_import is not None:
        family.after_import()


def _missing_extra_error(env_id: str, family: EnvFamily | None, reason: str = "") -> MissingExtra:
    if family is None:
        return MissingExtra(f"{env_id!r} needs a package that is not installed: {reason}.")
    requirement = f"the {family.title} extra" if family.extra else f"the package {family.packages[-1]!r}"
    # For a package that is installed but broken, the reason matters more than its name.
    detail = f" ({reason})" if reason and family.is_installed else ""
    return MissingExtra(f"{env_id!r} needs {requirement}{detail}: {family.install_command}.")


def _find_spec(plain_id: str) -> Any:
    """Return Gymnasium's spec of an id, whose module has been imported."""
    registry = _gymnasium().registry
    spec = registry.get(plain_id)
    if spec is not None and not _is_stub(spec):
        return spec
    match = re.fullmatch(r"(?P<name>.+?)(-v(?P<version>\d+))?", plain_id)
    assert match is not None
    versions = sorted(
        (known.version for known in registry.values() if _base_name(known) == match["name"] and not _is_stub(known)),
        key=lambda version: -1 if version is None else version,
    )
    listed = [known for family in FAMILIES.values() for known in family.known_ids]
    ids = {known for known in (*registry, *listed) if known.endswith(f"/{plain_id}")}
    if match["version"] is None:
        ids |= {known for known in listed if re.fullmatch(rf".*/{re.escape(plain_id)}-v\d+", known)}
    if ids or not versions:
        # Once Atari's games are registered, so are those of the time before they had a namespace: nobody means these.
        old = {re.sub(r"-v\d+$", "", known).rpartition("/")[2] for known in listed}
        ids = ids or {known for known, record in registry.items() if not _is_stub(record) and record.name not in old}
        near = similar_environments(plain_id, {*ids, *listed})
        raise unknown_name_error("environment", plain_id, () if near else ids, near=near)
    newest = match["name"] if versions[-1] is None else f"{match['name']}-v{versions[-1]}"
    if match["version"] is None:
        return registry[newest]
    kind = "too old" if versions[-1] is not None and int(match["version"]) < versions[-1] else "not available yet"
    raise UnknownName(f"No environment {plain_id!r}: that version is {kind}. Did you mean {newest!r}?")


def _base_name(spec: Any) -> str:
    return f"{spec.namespace}/{spec.name}" if spec.namespace else str(spec.name)


def _is_stub(spec: Any) -> bool:
    """Return whether an id is retired: Gymnasium keeps some with an entry point that only raises."""
    return callable(spec.entry_point) and getattr(spec.entry_point, "__module__", "") == "gymnasium.envs"
