"""Checks the settings that an environment is created with: by the catalog, else by its constructor's signature."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from mosaic.contracts.errors import BadInput, FieldProblem, unknown_name_error
from mosaic.contracts.setting_field import SettingField
from mosaic.worker.envs.family import EnvEntry

PATH = "env_kwargs"
"""Where a config has these settings."""
_OF_EVERY_ENVIRONMENT = {
    "max_episode_steps": SettingField("max_episode_steps", "int", None, "The time limit.", {"ge": 1}, is_optional=True)
}
"""What Gymnasium accepts for all of them."""
_SIMPLE_TYPES = {"bool": "bool", "int": "int", "float": "float", "str": "str"}


def check_env_settings(env_id: str, settings: Mapping[str, Any], entry: EnvEntry | None, spec: Any = None) -> None:
    """Raise BadInput for a name that the environment does not know, or a value of the wrong type.

    `spec` is Gymnasium's; without one, names that are not in the catalog are left to the constructor.
    """
    try:
        known = {field.name: field for field in (() if entry is None else entry.settings)} | _OF_EVERY_ENVIRONMENT
        for name, value in settings.items():
            if name not in known and spec is not None:
                known |= _signature_fields(env_id, name, spec, known)
            if name in known:
                _check_value(known[name], value)
    except BadInput as error:
        raise type(error)(str(error), [FieldProblem(PATH, str(error).removeprefix(f"{PATH}: "))]) from None


def _check_value(field: SettingField, value: Any) -> None:
    if not field.accepts(value):
        raise BadInput(f"{PATH}: {field.name} must be {field.expected_values}, not {value!r}.")


def _signature_fields(env_id: str, name: str, spec: Any, known: Mapping[str, SettingField]) -> dict[str, SettingField]:
    """Return the arguments of the constructor whose types are simple; raise if `name` is not among its arguments."""
    from gymnasium.envs.registration import load_env_creator

    creator = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    try:
        parameters = inspect.signature(creator).parameters
    except (TypeError, ValueError):  # written in C
        return {}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return {}
    if name not in parameters:
        names = {*known, *parameters} - {"render_mode"}
        raise unknown_name_error("setting", name, names, env_id)
    fields = {}
    for parameter in parameters.values():
        text = getattr(parameter.annotation, "__name__", parameter.annotation)
        if parameter.name not in known and text in _SIMPLE_TYPES:
            fields[parameter.name] = SettingField(parameter.name, _SIMPLE_TYPES[text])
    return fields
