"""The settings of a payload, as runs are compared by them."""

from __future__ import annotations

from typing import Any

from mosaic.plugins.payloads import flattened
from mosaic.plugins.schema import algorithms

Json = dict[str, Any]
FORMS_OWN = "metadata.ui."
"""What a form noted for itself; no run is different by it."""
_CONFIG = "metadata.worker.config."


def settings_of(payload: Json) -> Json:
    """Every setting of a payload, those that were left at their default included. Reads the workers' schemas."""
    algorithm = algorithms().get(payload["metadata"]["worker"]["config"].get("algo", ""))
    defaults = {field.name: field.default for field in algorithm.fields} if algorithm else {}
    given = {name: value for name, value in flattened(payload).items() if not name.startswith(FORMS_OWN)}
    return {**{name: value for name, value in defaults.items() if value is not None}, **given}


def compared_settings(view: Json, payload: Json) -> Json:
    """The settings of a run by the names that people group by. A worker's defaults are known only by the run's view."""
    known = {key: view[key] for key in ("algo", "env_id", "seed", "group") if view.get(key) is not None}
    return known | {name.removeprefix(_CONFIG): value for name, value in settings_of(payload).items()}
