"""The public names of `import mosaic`: which there are, and that importing the package alone costs nothing."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import mosaic
from mosaic import _MODULE_OF
from mosaic.contracts.errors import MosaicError

PUBLIC_NAMES = {
    *("BadInput", "ConfigRefused", "MissingExtra", "MosaicError", "NoDaemon", "NotAllowed", "RunEnded", "UnknownName"),
    *(
        "AttachedRun",
        "Client",
        "ComparisonResult",
        "DuelResult",
        "Episodes",
        "EvaluationResult",
        "Experiment",
        "MetricSeries",
        "Metrics",
        "Policy",
        "Run",
        "Runs",
    ),
    *("check", "compare", "connect", "duel", "experiment", "get_run", "load_policy", "play", "runs", "start_run"),
    *("SweepResult", "submit", "sweep", "train"),
    "__version__",
}


def test_the_public_names_are_these_and_no_others() -> None:
    assert set(mosaic.__all__) == PUBLIC_NAMES
    assert set(_MODULE_OF) == PUBLIC_NAMES - {"__version__"}
    assert set(dir(mosaic)) >= PUBLIC_NAMES


def test_every_public_name_is_documented_and_has_a_typed_signature() -> None:
    for name in PUBLIC_NAMES - {"__version__"}:
        value = getattr(mosaic, name)
        if inspect.isclass(value) and issubclass(value, MosaicError):
            continue
        assert inspect.getdoc(value), name
        if inspect.isfunction(value):
            signature = inspect.signature(value)
            assert "self" not in signature.parameters
            assert signature.return_annotation is not inspect.Signature.empty
            assert all(one.annotation is not one.empty for one in signature.parameters.values()), name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        mosaic.trian  # type: ignore[attr-defined]  # noqa: B018


def test_importing_the_package_alone_imports_no_libraries() -> None:
    code = "import mosaic, sys; print(*{'grpc', 'numpy', 'pydantic', 'rich', 'mosaic.features'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""


def test_the_api_loads_neither_torch_nor_gymnasium_nor_qt() -> None:
    code = (
        "import mosaic, sys; [getattr(mosaic, name) for name in mosaic.__all__];"
        "print(*{'torch', 'gymnasium', 'PySide6', 'pandas', 'mosaic.worker.run'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""
