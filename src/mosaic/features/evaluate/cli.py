"""`mosaic eval`: a trained policy on fresh seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from mosaic.base import formatting
from mosaic.cli import output
from mosaic.cli.context import CliContext, command, pass_context
from mosaic.cli.following import exit_code, report_end, submit_and_follow
from mosaic.cli.intervals import format_with_interval
from mosaic.cli.parameters import TRUST_HELP, SettingType, find_current_runs, run_argument
from mosaic.contracts.errors import BadInput, RunEnded
from mosaic.contracts.options import OPTIONS
from mosaic.features.evaluate.api import evaluation_payload, is_policy_path
from mosaic.features.experiments.core import environment_label, setting_label
from mosaic.trainer.client.run_lookup import has_policy

if TYPE_CHECKING:
    from mosaic.contracts.views import Evaluation, EvaluationSummary, RunView

# --- `mosaic eval GROUP`: the policies of all runs of a group, one after the other, and a table by setting.


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

    from mosaic.base.curves import mean_with_interval
    from mosaic.base.scores import iqm

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


# --- `mosaic eval`: a trained policy on fresh seeds.


SUMMARY_KEYS = (
    *("episodes", "avg_return", "median_return", "min_return", "max_return", "std_return"),
    *("iqm", "ci95", "returns"),
)
MAX_BINS = 10
HISTOGRAM_WIDTH = 40
_EIGHTH_BLOCKS = " ▏▎▍▌▋▊▉"


def _option(flag: str, name: str, **attributes: Any) -> Callable[[Any], Any]:
    """A flag for an option of the run."""
    option = OPTIONS[name]
    metavar = "|".join((option.constraints or {}).get("choices", ("N",)))
    return click.option(flag, name, metavar=metavar, type=SettingType(option), help=option.help, **attributes)


@command("eval")
@run_argument("policy", "RUN|GROUP|CHECKPOINT")
@_option("--episodes", "eval_batch_size", default=OPTIONS["eval_batch_size"].default, show_default=True)
@click.option("--repeat", "eval_repeat", is_flag=True, help="Batch after batch on further seeds, until Ctrl-C.")
@click.option(
    "--checkpoint", default="last", show_default=True, metavar="best|last|STEP", help="Which of the run's policies."
)
@click.option("--video", "eval_capture_video", is_flag=True, help="Record the first episodes.")
@click.option("--stochastic", "eval_stochastic", is_flag=True, help=OPTIONS["eval_stochastic"].help)
@click.option("--record-episodes", is_flag=True, help=OPTIONS["record_episodes"].help)
@click.option("--record-steps", is_flag=True, help=OPTIONS["record_steps"].help)
@_option("--seed-override", "seed_override")
@click.option("--env-id", metavar="ID", help="Another environment, with the same spaces.")
@click.option("--algo", metavar="NAME", help="The algorithm, where the file does not contain it.")
@_option("--grid", "grid_limit")
@_option("--video-mode", "video_mode")
@click.option("--fastlane-only", is_flag=True, help=OPTIONS["fastlane_only"].help)
@click.option("--trust", "is_trusted", is_flag=True, help=TRUST_HELP)
@pass_context
def evaluate(
    context: CliContext,
    /,
    policy: str,
    checkpoint: str,
    env_id: str | None,
    algo: str | None,
    is_trusted: bool,
    **options: Any,
) -> int:
    """Evaluates a policy on fresh seeds, deterministically. An evaluation is a run.

    RUN is a run that has trained one; of a GROUP, all such runs are evaluated, one after the other. CHECKPOINT is the
    folder of a checkpoint or of a run, a .cleanrl_model, a file with weights only, with --algo and --env-id, or a .zip
    of Stable-Baselines3, with --env-id.
    """
    context.print_workspace()
    if not is_policy_path(policy):
        views = find_current_runs(context, policy, has_policy)
        if len(views) > 1:
            if options["eval_repeat"] or algo is not None:
                raise BadInput("--repeat and --algo are for a single policy, not for a group.")
            return evaluate_group(context, views, checkpoint, env_id, is_trusted, options)
        policy = views[0].run_id
    payload = evaluation_payload(context.trainer(), policy, options, checkpoint, algo, env_id)
    view, evaluation = run_evaluation(context, payload, is_trusted)
    summary = None if evaluation is None else evaluation.summary
    is_done = view.outcome == "succeeded" or (options["eval_repeat"] and summary is not None)
    if not is_done:
        report_end(context, view)
    elif context.is_json:
        output.print_json(None if summary is None else summary_json(view.run_id, summary))
    if evaluation is not None and summary is not None and not context.is_json:
        print_evaluation(evaluation)
        if summary.videos:
            output.echo("\nVideos:")
            for video in summary.videos:
                output.echo(f"  {context.trainer().open_file(view.run_id, video)}")
    return 0 if is_done else exit_code(view)


def run_evaluation(
    context: CliContext, payload: dict[str, Any], is_trusted: bool = False
) -> tuple[RunView, Evaluation | None]:
    """Returns the evaluation's last view and its results; None where no batch was completed."""
    options = payload["evaluation"]
    target_episodes = None if options.get("repeat") else options["episodes"]
    view = submit_and_follow(context, payload, target_episodes, is_trusted=is_trusted)
    if view.outcome not in ("succeeded", "cancelled"):
        return view, None
    evaluation = next(context.trainer().read_evaluations(view.run_id), None)
    if evaluation is None and view.outcome == "succeeded":
        raise RunEnded(
            f"The evaluation ended without a complete batch. Its folder: {context.describe_path(view.run_dir)}"
        )
    return view, evaluation


def print_evaluation(evaluation: Evaluation) -> None:
    from rich.text import Text

    note = formatting.describe_unfinished_training(evaluation)
    output.print_fields([*summary_rows(evaluation), ("note", note or None)])
    rows = histogram_rows(evaluation.summary.returns)
    if not rows:
        return
    table = output.create_table("RETURN", "EPISODES", "", right_aligned=("RETURN", "EPISODES"))
    for span, bar, count in rows:
        table.add_row(span, str(count), Text(bar, style="cyan"))
    screen = output.console()
    screen.print()
    screen.print(table)


def histogram_rows(values: Sequence[float | None], width: int = HISTOGRAM_WIDTH) -> list[tuple[str, str, int]]:
    """For each bin: its range, a bar and its count. Equal values share one bin."""
    import numpy as np

    finite = np.array([value for value in values if value is not None and math.isfinite(value)])
    if not len(finite):
        return []
    if np.ptp(finite) == 0:
        return [(formatting.format_number(finite[0]), format_bar(1.0, width), len(finite))]
    counts, edges = np.histogram(finite, min(MAX_BINS, max(3, math.ceil(math.sqrt(len(finite))))))
    numbers = [formatting.format_number(edge) for edge in edges]
    return [
        (f"{low} to {high}", format_bar(count / max(counts), width), int(count))
        for (low, high), count in zip(itertools.pairwise(numbers), counts, strict=True)
    ]


def format_bar(fraction: float, width: int) -> str:
    """A bar with a resolution of an eighth of a character."""
    eighths = math.ceil(fraction * width * 8)
    return ("█" * (eighths // 8) + _EIGHTH_BLOCKS[eighths % 8]).rstrip()


def summary_rows(evaluation: Evaluation) -> list[tuple[str, str]]:
    number, summary = formatting.format_number, evaluation.summary
    hint = "; --stochastic samples" if summary.deterministic else ""
    interval = "no interval: it needs at least two episodes"
    if summary.ci95 is not None:
        interval = f"Student's 95 % interval: {number(summary.ci95[0])} to {number(summary.ci95[1])}"
    return [
        ("episodes", number(summary.episodes)),
        ("mean return", f"{number(summary.avg_return)} ({interval})"),
        ("acted", f"{formatting.describe_acting(evaluation)}{hint}"),
        ("deviation", number(summary.std_return)),
        ("median", number(summary.median_return)),
        ("worst, best", f"{number(summary.min_return)}, {number(summary.max_return)}"),
        ("middle half", f"{number(summary.iqm)} on average (IQM)"),
        ("run", evaluation.run_id),
    ]


def summary_json(run_id: str, summary: EvaluationSummary) -> dict[str, object]:
    return {**summary.model_dump(mode="json", include=set(SUMMARY_KEYS)), "run_id": run_id}
