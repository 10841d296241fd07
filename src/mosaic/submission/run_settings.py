"""The settings of a payload, as runs are compared by them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mosaic.submission.algorithm_schema import load_algorithms
from mosaic.submission.run_payloads import flatten_settings

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView

Json = dict[str, Any]
FORM_STATE_PREFIX = "metadata.ui."
"""What a form noted for itself; no run is different by it."""
_CONFIG_PREFIX = "metadata.worker.config."
_ATTACHED_PREFIXES = tuple(_CONFIG_PREFIX + name for name in ("argv", "cwd", "attached", "probe."))
"""How an attached run is followed; these are not settings of its program."""


def effective_settings(payload: Json) -> Json:
    """Every setting of a payload, those that were left at their default included. Reads the workers' schemas."""
    config = payload["metadata"]["worker"]["config"]
    algorithm = load_algorithms().get(config.get("algo", ""))
    defaults = {field.name: field.default for field in algorithm.fields} if algorithm else {}
    ignored = (FORM_STATE_PREFIX, *(_ATTACHED_PREFIXES if config.get("attached") is True else ()))
    given = {name: value for name, value in flatten_settings(payload).items() if not name.startswith(ignored)}
    return {**{name: value for name, value in defaults.items() if value is not None}, **given}


def grouping_fields(view: RunView) -> dict[str, Any]:
    """What runs are grouped by besides their settings. A worker's defaults are known only from the run's view."""
    fields = {"algo": view.algo, "env_id": view.env_id, "seed": view.seed, "group": view.group}
    return {name: value for name, value in fields.items() if value is not None}


def comparison_settings(view: RunView | None, payload: Json) -> Json:
    """The settings of a run by the names that people group by."""
    known = {} if view is None else grouping_fields(view)
    return known | {name.removeprefix(_CONFIG_PREFIX): value for name, value in effective_settings(payload).items()}
