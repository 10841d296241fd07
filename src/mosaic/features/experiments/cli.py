"""`mosaic experiment check|run|status` and `mosaic experiments`."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mosaic.base import formatting
from mosaic.cli import output
from mosaic.cli.context import INTERRUPTED_EXIT_CODE, YAML_SUFFIXES, CliContext, command, common_options, pass_context
from mosaic.contracts.errors import RunEnded, unknown_name_error
from mosaic.trainer.client.run_wait import InterruptCounter

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView
    from mosaic.features.experiments.core import ExperimentPlan, ExperimentRun, SettingRow

_FILE_TYPE = click.Path(dir_okay=False, path_type=Path)


@click.group(params=common_options())
def experiment() -> None:
    """Runs algorithms × environments × seeds from a YAML file, as one group of runs.

    \b
    mosaic experiment check FILE.yaml     # what would run; nothing is submitted
    mosaic experiment run FILE.yaml       # submits what is missing, and follows
    mosaic compare NAME                   # and plot, eval, export, cancel, delete …
    """


@command("check")
@click.argument("file", metavar="FILE.yaml", type=_FILE_TYPE)
@pass_context
def check(context: CliContext, file: Path) -> None:
    """Checks an experiment and lists its runs; nothing is submitted. Every combination goes through the dry run."""
    from mosaic.features.experiments.api import check_cells, read_runs

    plan = _read_plan(file)
    verdicts = check_cells(context.call_with_reconnect, plan.cells, plan.seeds[0])
    runs = read_runs(context.call_with_reconnect, plan)
    if context.is_json:
        output.print_json({**_plan_json(plan), "runs": [_run_json(run) for run in runs]})
        return
    for warning in dict.fromkeys(warning for verdict in verdicts for warning in verdict.summary.warnings):
        output.print_message(f"Warning: {warning}")
    print_plan(plan, runs)


@command("run")
@click.argument("file", metavar="FILE.yaml", type=_FILE_TYPE)
@click.option("--detach", "is_detached", is_flag=True, help="Do not wait; the runs continue in the background.")
@click.option("--retry", "is_retry", is_flag=True, help="Submit failed, cancelled and lost runs again, too.")
@pass_context
def run(context: CliContext, file: Path, is_detached: bool, is_retry: bool) -> int:
    """Submits the runs of an experiment that are missing, and follows all of them. Ctrl-C detaches: runs continue.

    Given again, it submits only what was not submitted before, and runs whose settings were changed in the file.
    """
    from mosaic.base.progress_line import ProgressLine
    from mosaic.features.experiments.api import follow_runs, submit_missing

    plan = _read_plan(file)
    context.print_workspace()
    call = context.call_with_reconnect
    with InterruptCounter() as interrupts:

        def is_interrupted() -> bool:
            return interrupts.count > 0

        with closing(ProgressLine()) as show:
            report = submit_missing(
                call, plan, is_retry, is_interrupted, show if sys.stderr.isatty() else lambda line: None
            )
        output.print_warnings(*report.submitted)
        if report.left:
            output.print_message(
                f"Interrupted: {report.left} runs were not submitted. "
                f"Submit them: mosaic experiment run {shlex.quote(str(file))}"
            )
            return INTERRUPTED_EXIT_CODE
        if report.submitted:
            output.print_message(
                f"{formatting.count_noun(len(report.submitted), 'run')} submitted to group {plan.name}."
            )
        else:
            output.print_message(f"All runs of group {plan.name} were submitted before.")
        runs = report.runs
        if not is_detached:
            with closing(ProgressLine()) as show:
                runs = follow_runs(call, plan, show, is_interrupted)
    _print_runs(context, plan.name, runs)
    if is_detached:
        return 0
    if any(one.view is not None and one.view.is_active for one in runs):
        output.print_message(
            f"Detached; the runs continue. Attach again: mosaic experiment run {shlex.quote(str(file))}    "
            f"Cancel them: mosaic cancel {plan.name}"
        )
        return INTERRUPTED_EXIT_CODE
    if any(one.is_unsuccessful for one in runs):
        output.print_message(
            f"Submit those that did not succeed again: mosaic experiment run {shlex.quote(str(file))} --retry"
        )
        return RunEnded.exit_code
    return 0


@command("status")
@click.argument("experiment_name", metavar="NAME|FILE.yaml")
@pass_context
def status(context: CliContext, experiment_name: str) -> None:
    """Shows how far an experiment is, by setting and environment. Runs that are missing are known from its file."""
    from mosaic.features.experiments.api import read_runs

    path = Path(experiment_name)
    if path.suffix in YAML_SUFFIXES or path.is_file():
        plan = _read_plan(path)
        _print_runs(context, plan.name, read_runs(context.call_with_reconnect, plan))
        return
    from mosaic.features.experiments.core import format_counts, rows_by_setting
    from mosaic.trainer.client.run_lookup import split_superseded

    views = context.trainer().runs(group=experiment_name, include_archived=True)
    if not views:
        known = {view.group for view in context.trainer().runs(include_archived=True) if view.group}
        raise unknown_name_error("experiment", experiment_name, known, context.place)
    current, superseded = split_superseded(views)
    if context.is_json:
        output.print_json({"name": experiment_name, "runs": [view.run_id for view in current]} | _counts_json(current))
        return
    _print_table(rows_by_setting(current))
    output.echo(f"\n{experiment_name}: {format_counts([view.status for view in current])}")
    if superseded:
        output.print_message(
            f"{formatting.count_noun(len(superseded), 'run')} with earlier settings or attempts are not counted."
        )


@command()
@click.option("--archived", is_flag=True, help="Archived runs, too.")
@pass_context
def experiments(context: CliContext, archived: bool) -> None:
    """Lists the groups of runs with the number of runs by status, newest first."""
    groups: dict[str, list[RunView]] = {}
    for view in context.runs(include_archived=archived):
        if view.group:
            groups.setdefault(view.group, []).append(view)
    if context.is_json:
        output.print_json([{"name": name} | _counts_json(views) for name, views in groups.items()])
        return
    if not groups:
        output.print_message(f"No groups yet in {context.place}. Make one: mosaic experiment run FILE.yaml")
        return
    from mosaic.features.experiments.core import COUNTED, MISSING, count_statuses

    counted = [name for name in COUNTED if name != MISSING]
    columns = ("GROUP", "RUNS", *map(str.upper, counted), "AGE")
    table = output.create_table(*columns, right_aligned=columns[1:], truncate=("GROUP",))
    for name, views in groups.items():
        counts = count_statuses([view.status for view in views])
        cells = (_count_cell(column, counts[column]) for column in counted)
        table.add_row(name, str(len(views)), *cells, formatting.format_age(views[0].submitted_at))
    output.console().print(table)


for each in (check, run, status):
    experiment.add_command(each)


def _read_plan(file: Path) -> ExperimentPlan:
    from mosaic.features.experiments.api import read_experiment
    from mosaic.features.experiments.core import plan_experiment

    return plan_experiment(read_experiment(file))


# --- output


def print_plan(plan: ExperimentPlan, runs: Sequence[ExperimentRun]) -> None:
    columns = ("SETTING", "ENV", "SEEDS", "STEPS EACH", "STEPS", "TO SUBMIT")
    table = output.create_table(*columns, right_aligned=columns[3:], truncate=columns[:3])
    missing = Counter(run.planned.cell.settings_key for run in runs if run.view is None)
    seeds = formatting.format_ranges(plan.seeds)
    for cell in plan.cells:
        steps = cell.total_timesteps
        table.add_row(
            cell.setting,
            cell.environment,
            seeds,
            formatting.format_count(steps),
            formatting.format_count(None if steps is None else steps * len(plan.seeds)),
            str(missing[cell.settings_key]),
        )
    output.console().print(table)
    steps_text = f" with {plan.total_steps:,} steps in total" if plan.total_steps else ""
    submitted = f"{missing.total()} would be submitted" if missing else "all of them are submitted already"
    output.echo(f"\n{formatting.count_noun(len(runs), 'run')} in group {plan.name}{steps_text}; {submitted}.")


def _print_runs(context: CliContext, name: str, runs: Sequence[ExperimentRun]) -> None:
    from mosaic.features.experiments.core import format_counts

    statuses = [run.status for run in runs]
    if context.is_json:
        counts = dict(Counter(statuses))
        output.print_json({"name": name, "counts": counts, "runs": [_run_json(run) for run in runs]})
        return
    print_cells(runs)
    output.echo(f"\n{name}: {format_counts(statuses)}")


def print_cells(runs: Sequence[ExperimentRun]) -> None:
    """One row for each setting and environment."""
    from mosaic.features.experiments.core import SettingRow

    cells: dict[str, list[ExperimentRun]] = {}
    for run in runs:
        cells.setdefault(run.planned.cell.settings_key, []).append(run)
    _print_table(
        [
            SettingRow(
                members[0].planned.cell.setting,
                members[0].planned.cell.environment,
                [run.view for run in members if run.view is not None],
                [run.status for run in members],
            )
            for members in cells.values()
        ]
    )


def _print_table(rows: Sequence[SettingRow]) -> None:
    from mosaic.features.experiments.core import COUNTED

    shown = [name for name in COUNTED if name == "done" or any(row.counts[name] for row in rows)]
    columns = ("SETTING", "ENV", "RUNS", *map(str.upper, shown), "STEPS", "RETURN")
    table = output.create_table(*columns, right_aligned=columns[2:], truncate=("SETTING", "ENV"))
    for row in rows:
        counts = row.counts
        table.add_row(
            row.setting,
            row.environment,
            str(len(row.statuses)),
            *(_count_cell(name, counts[name]) for name in shown),
            formatting.format_count(row.total_steps) if row.total_steps else "",
            formatting.format_number(row.mean_return),
        )
    output.console().print(table)


def _count_cell(column: str, count: int) -> str:
    return str(count) if count or column == "done" else ""


def _counts_json(views: Sequence[RunView]) -> dict[str, Any]:
    return {"counts": dict(Counter(view.status for view in views))}


def _plan_json(plan: ExperimentPlan) -> dict[str, Any]:
    return {"name": plan.name, "total_steps": plan.total_steps, "seeds": list(plan.seeds)}


def _run_json(run: ExperimentRun) -> dict[str, Any]:
    cell = run.planned.cell
    return {
        "setting": cell.setting,
        "environment": cell.environment,
        "algo": cell.algo,
        "env_id": cell.env_id,
        "seed": run.planned.seed,
        "total_timesteps": cell.total_timesteps,
        "key": run.planned.key,
        "status": run.status,
        "run_id": None if run.view is None else run.view.run_id,
        "attempt": run.view.experiment.attempt if run.view is not None and run.view.experiment is not None else None,
    }
