"""MOSAIC: a workbench for reinforcement learning, and its Python API (docs/guides/python.md).

The API is imported when one of its names is used: the command line and the workers import this package, too.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mosaic.api.attached_run import AttachedRun
    from mosaic.api.duel_results import DuelResult
    from mosaic.api.experiment import Experiment
    from mosaic.api.group_comparison import ComparisonResult
    from mosaic.api.metric_arrays import Episodes, Metrics, MetricSeries
    from mosaic.api.policy import Policy
    from mosaic.api.submitted_run import EvaluationResult, Run, Runs
    from mosaic.api.sweeps.sweep_result import SweepResult
    from mosaic.api.workspace_client import (
        Client,
        check,
        compare,
        connect,
        duel,
        experiment,
        get_run,
        load_policy,
        play,
        runs,
        start_run,
        submit,
        sweep,
        train,
    )
    from mosaic.contracts.errors import (
        BadInput,
        ConfigRefused,
        MissingExtra,
        MosaicError,
        NoDaemon,
        NotAllowed,
        RunEnded,
        UnknownName,
    )

_MODULES = {
    "mosaic.api.attached_run": ("AttachedRun",),
    "mosaic.api.duel_results": ("DuelResult",),
    "mosaic.api.experiment": ("Experiment",),
    "mosaic.api.group_comparison": ("ComparisonResult",),
    "mosaic.api.metric_arrays": ("Episodes", "MetricSeries", "Metrics"),
    "mosaic.api.policy": ("Policy",),
    "mosaic.api.submitted_run": ("EvaluationResult", "Run", "Runs"),
    "mosaic.api.sweeps.sweep_result": ("SweepResult",),
    "mosaic.api.workspace_client": (
        *("Client", "check", "compare", "connect", "duel", "experiment", "get_run", "load_policy"),
        *("play", "runs", "start_run", "submit", "sweep", "train"),
    ),
    "mosaic.contracts.errors": (
        *("BadInput", "ConfigRefused", "MissingExtra", "MosaicError", "NoDaemon", "NotAllowed", "RunEnded"),
        "UnknownName",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "AttachedRun",
    "BadInput",
    "Client",
    "ComparisonResult",
    "ConfigRefused",
    "DuelResult",
    "Episodes",
    "EvaluationResult",
    "Experiment",
    "MetricSeries",
    "Metrics",
    "MissingExtra",
    "MosaicError",
    "NoDaemon",
    "NotAllowed",
    "Policy",
    "Run",
    "RunEnded",
    "Runs",
    "SweepResult",
    "UnknownName",
    "__version__",
    "check",
    "compare",
    "connect",
    "duel",
    "experiment",
    "get_run",
    "load_policy",
    "play",
    "runs",
    "start_run",
    "submit",
    "sweep",
    "train",
]


if not TYPE_CHECKING:  # a type checker must report names that do not exist

    def __getattr__(name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_MODULE_OF[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
