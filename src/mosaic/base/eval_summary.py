"""The one reader of `eval_summary.json`."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from mosaic.contracts.model import format_validation_error
from mosaic.contracts.views import EvaluationSummary


class EvalSummaryInvalid(ValueError):
    """The file exists but is not a valid summary with at least one complete batch."""


def read_eval_summary(path: Path) -> EvaluationSummary | None:
    """None where the file does not exist."""
    try:
        summary = EvaluationSummary.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise EvalSummaryInvalid(
            f"{path} is not a valid evaluation summary: {format_validation_error(error)}"
        ) from None
    except OSError as error:
        raise EvalSummaryInvalid(f"{path} cannot be read: {error.strerror}.") from None
    if not summary.batches or not all(batch.returns for batch in summary.batches):
        raise EvalSummaryInvalid(f"{path} is not a valid evaluation summary: it has no complete batch.")
    return summary
