"""The `extras` of a worker's config: a flat spelling of the payload's sections, translated where a payload enters.

Nothing but this module reads extras. A reserved extra becomes the field of a section, all others become settings of
the algorithm. No pydantic here: the values are checked by the section that they become a part of.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from mosaic.contracts.errors import ConfigRefused, refuse_key
from mosaic.contracts.options import CONFIG_PATH, OPTIONS, value_at

RESERVED_EXTRAS: dict[str, str] = {
    **{extra: option.path for option in OPTIONS.values() for extra in option.extras},
    **{name: f"{CONFIG_PATH}.{name}" for name in ("algo_params", "cleanrl", "cleanrl_python")},
}
"""By reserved extra: the equivalent path in the payload."""
REQUIRED_SECTIONS = ("metadata.worker", CONFIG_PATH)
REFUSED_KEYS = {
    "use_grpc": "every run registers with the trainer that starts it; leave it out.",
    "grpc_target": "a run registers with the trainer that it is submitted to; leave it out.",
    "fastlane_slot": "each environment of a run has live frames of its own; leave it out.",
}
"""Keys of other trainers' configs that nothing here could obey, each with the reason."""
_SECRET_KEYS = ("api_key", "http_proxy", "https_proxy")


class OnConflict(Enum):
    """What happens where an extra and a section disagree."""

    REFUSE = "refuse"
    """For a payload that is submitted."""
    KEEP = "keep"
    """For a payload that was accepted by an earlier version: the section counts, unless it is unset or off."""
    OVERRIDE = "override"
    """For extras that were given on a command line: they count."""


@dataclass
class TranslatedPayload:
    data: Any
    """The payload without extras; what is not a payload at all is left as it was."""
    written_paths: dict[str, str] = field(default_factory=dict)
    """By path in `data`: the path under which the user wrote that value, for messages."""
    extras_path: str = f"{CONFIG_PATH}.extras"
    """Where the user wrote the extras."""

    def written_path(self, path: str) -> str:
        return self.written_paths.get(path, path)


def translate_extras(
    data: Any, on_conflict: OnConflict = OnConflict.REFUSE, config_path: str = CONFIG_PATH
) -> TranslatedPayload:
    """Moves the extras of the worker's config into the sections of a copy of the payload.

    `config_path` is where the user wrote the worker's config; it is empty for a config without a payload around it.
    """
    translated = TranslatedPayload(copy.deepcopy(data), extras_path=_join(config_path, "extras"))
    config = value_at(translated.data, CONFIG_PATH)
    _refuse_keys(value_at(translated.data, "metadata.worker"), "metadata.worker")
    _refuse_keys(config, config_path)
    if isinstance(config, dict) and "extras" in config:
        apply_extras(translated, config.pop("extras"), on_conflict, translated.extras_path)
    return translated


def apply_extras(translated: TranslatedPayload, extras: Any, on_conflict: OnConflict, written_under: str) -> None:
    """Writes extras into the sections of a payload."""
    if extras is None:
        return
    if not isinstance(extras, dict):
        raise refuse_key(written_under, "expected a JSON object.")
    _refuse_keys(extras, written_under)
    settings = extras.get("algo_params")
    for name, path in RESERVED_EXTRAS.items():
        if extras.get(name) is not None and not (name == "algo_params" and isinstance(settings, dict)):
            _set_value(translated, path.split("."), extras[name], on_conflict, _join(written_under, name))
    parents = RESERVED_EXTRAS["algo_params"].split(".")
    for name, value in settings.items() if isinstance(settings, dict) else ():
        _set_value(translated, [*parents, name], value, on_conflict, _join(written_under, "algo_params", name))
    for name, value in extras.items():
        if name not in RESERVED_EXTRAS:
            _set_value(translated, [*parents, name], value, on_conflict, _join(written_under, name))


def _refuse_keys(section: Any, path: str) -> None:
    for key in REFUSED_KEYS if isinstance(section, dict) else ():
        if key in section:
            raise refuse_key(_join(path, key), REFUSED_KEYS[key])


def _set_value(
    translated: TranslatedPayload, keys: list[str], value: Any, on_conflict: OnConflict, written: str
) -> None:
    *parents, last = keys
    path = ".".join(keys)
    section = translated.data
    if parents and parents[0] == "artifacts" and parents[0] not in section:
        return  # it is required; the payload's model reports that
    for parent in parents:
        if section.get(parent) is None:
            section[parent] = {}
        section = section[parent]
        if not isinstance(section, dict):
            return  # the payload's model refuses that section
    present = section.get(last)
    if present is not None and present != value and on_conflict is not OnConflict.OVERRIDE:
        if on_conflict is OnConflict.REFUSE:
            shown = ("hidden", "hidden") if last in _SECRET_KEYS else (repr(value), repr(present))
            raise ConfigRefused(
                f"LOG705 {written} is {shown[0]}, but {translated.written_path(path)} is {shown[1]}. Give one of them."
            )
        if present:
            return
    section[last] = value
    translated.written_paths[path] = written


def require_sections(data: Any) -> None:
    """Refuses what does not have the sections of a payload, or other things in their place."""
    sections = [path.rpartition(".")[0] for path in RESERVED_EXTRAS.values()]
    for path in (*REQUIRED_SECTIONS, *filter(None, sections)):
        section = data
        for key in path.split("."):
            if not isinstance(section, dict):
                raise refuse_key(path, "expected a JSON object.")
            section = section.get(key, None if path in REQUIRED_SECTIONS else {})
        if not isinstance(section, dict):
            raise refuse_key(path, "expected a JSON object.")


def flatten_sections(data: dict[str, Any]) -> dict[str, Any]:
    """What the sections of a payload set, by the name of the extra that means the same."""
    flat: dict[str, Any] = {}
    seen: set[str] = set()
    for name, path in RESERVED_EXTRAS.items():
        value = value_at(data, path)
        if value is not None and path not in seen and not path.startswith(CONFIG_PATH):
            flat[name] = value
            seen.add(path)
    return flat


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)
