"""Which modules a worker's config imports by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def named_modules(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the modules that a worker's config names as `module:Name`, each with the setting that names it.

    What cannot be the name of a module is left out; the worker refuses it as a value of its setting.
    """
    settings = config.get("algo_params")
    settings = settings if isinstance(settings, Mapping) else {}
    wrappers = settings.get("wrappers") or config.get("wrappers")
    wrappers = wrappers if isinstance(wrappers, list | tuple) else ()
    named = [("env_id", config.get("env_id")), ("env_id", settings.get("env_id")), ("network", settings.get("network"))]
    named += [("wrappers", wrapper.partition("(")[0]) for wrapper in wrappers if isinstance(wrapper, str)]
    return {
        module: f"{setting}: {value}"
        for setting, value in named
        if isinstance(value, str) and is_module_name(module := value.rpartition(":")[0])
    }


def is_module_name(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))
