"""MOSAIC: a workbench for reinforcement learning, and its Python API (docs/guides/python.md).

The API is imported when one of its names is used: the command line and the workers import this package, too.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
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
    from mosaic.features.experiments.api import Experiment
    from mosaic.features.experiments.core_comparison import ComparisonResult
    from mosaic.features.play.api import DuelResult
    from mosaic.features.runs.api import (
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
    from mosaic.features.runs.api_attached import AttachedRun
    from mosaic.features.runs.api_run import Episodes, EvaluationResult, Metrics, MetricSeries, Run, Runs
    from mosaic.features.sweeps.api import SweepResult
    from mosaic.worker.policies import Policy

_MODULES = {
    "mosaic.features.runs.api_attached": ("AttachedRun",),
    "mosaic.features.play.api": ("DuelResult",),
    "mosaic.features.experiments.api": ("Experiment",),
    "mosaic.features.experiments.core_comparison": ("ComparisonResult",),
    "mosaic.features.runs.api_run": (
        "Episodes",
        "MetricSeries",
        "Metrics",
        "EvaluationResult",
        "Run",
        "Runs",
    ),
    "mosaic.worker.policies": ("Policy",),
    "mosaic.features.sweeps.api": ("SweepResult",),
    "mosaic.features.runs.api": (
        "Client",
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
    ),
    "mosaic.contracts.errors": (
        "BadInput",
        "ConfigRefused",
        "MissingExtra",
        "MosaicError",
        "NoDaemon",
        "NotAllowed",
        "RunEnded",
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
