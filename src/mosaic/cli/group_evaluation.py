"""`mosaic eval GROUP`: the policies of all runs of a group, one after the other, and a table by setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mosaic import formatting
from mosaic.api.experiment_state import environment_label, setting_label
from mosaic.api.policy_lookup import evaluation_payload
from mosaic.cli import output
from mosaic.cli.cli_context import CliContext
from mosaic.cli.compare_commands import format_with_interval
from mosaic.cli.run_follower import exit_code

if TYPE_CHECKING:
    from mosaic.contracts.views import EvaluationSummary, RunView


@dataclass(frozen=True)
class EvaluatedRun:
    trained: RunView
    evaluation: RunView
    summary: EvaluationSummary | None
    """None where no batch was completed."""


def evaluate_group(
    context: CliContext,
    views: Sequence[RunView],
    checkpoint: str,
    env_id: str | None,
    is_trusted: bool,
    options: dict[str, Any],
) -> int:
    """Evaluates the runs through the queue. One that fails does not end the others; Ctrl-C does."""
    from mosaic.cli.evaluate_command import run_evaluation

    trainer = context.trainer()
    # All payloads first: what is wrong with one is reported before anything runs.
    payloads = [evaluation_payload(trainer, view.run_id, options, checkpoint, env_id=env_id) for view in views]
    evaluated: list[EvaluatedRun] = []
    for number, (view, payload) in enumerate(zip(views, payloads, strict=True), 1):
        run = f"{formatting.short_id(view.run_id)}, {formatting.run_description(view)}"
        output.print_message(f"Evaluation {number} of {len(views)}: run {run}")
        ended, evaluation = run_evaluation(context, payload, is_trusted)
        evaluated.append(EvaluatedRun(view, ended, None if evaluation is None else evaluation.summary))
        if ended.outcome is None or ended.outcome == "cancelled":
            break
        if ended.outcome != "succeeded":
            output.print_message(f"It {ended.status}: {ended.reason}")
    if context.is_json:
        output.print_json([_to_json(one) for one in evaluated])
    else:
        _print_table(evaluated)
    if left := len(views) - len(evaluated):
        output.print_message(
            f"{left} of {formatting.count_noun(len(views), 'run')} {'was' if left == 1 else 'were'} not evaluated."
        )
    return max(exit_code(one.evaluation) for one in evaluated)


def _print_table(evaluated: Sequence[EvaluatedRun]) -> None:
    """Means over runs of their mean returns, by setting and environment, with Student's 95 % interval."""
    import numpy as np

    from mosaic.statistics.curves import mean_with_interval
    from mosaic.statistics.scores import iqm

    rows: dict[tuple[str, str], list[EvaluationSummary]] = {}
    for one in evaluated:
        if one.summary is not None and one.summary.avg_return is not None:
            rows.setdefault((setting_label(one.trained), environment_label(one.trained)), []).append(one.summary)
    columns = ("SETTING", "ENV", "RUNS", "EPISODES", "MEAN OVER RUNS [95 %]", "IQM", "WORST RUN", "BEST RUN")
    right_aligned = tuple(name for name in columns[2:] if "MEAN" not in name)
    table = output.create_table(*columns, right_aligned=right_aligned, truncate=columns[:2])
    for (setting, environment), summaries in rows.items():
        means = np.array([summary.avg_return for summary in summaries], np.float64)
        table.add_row(
            setting,
            environment,
            str(len(summaries)),
            formatting.format_count(sum(summary.episodes for summary in summaries)),
            format_with_interval(mean_with_interval(means)),
            *(formatting.format_number(float(value)) for value in (iqm(means), means.min(), means.max())),
        )
    output.console().print(table)


def _to_json(one: EvaluatedRun) -> dict[str, object]:
    from mosaic.cli.evaluate_command import summary_json

    result: dict[str, object] = {} if one.summary is None else summary_json(one.evaluation.run_id, one.summary)
    return {
        "trained_run_id": one.trained.run_id,
        "setting": setting_label(one.trained),
        "environment": environment_label(one.trained),
        "seed": one.trained.seed,
        "status": one.evaluation.status,
        **result,
        "run_id": one.evaluation.run_id,
    }
