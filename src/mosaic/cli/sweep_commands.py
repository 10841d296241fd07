"""`mosaic sweep` and `mosaic sweeps`: searches for the settings of an algorithm."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mosaic import formatting
from mosaic.api.run_wait import InterruptCounter
from mosaic.cli import output
from mosaic.cli.cli_context import (
    INTERRUPTED_EXIT_CODE,
    YAML_SUFFIXES,
    CliContext,
    command,
    common_options,
    pass_context,
)
from mosaic.contracts.errors import MissingExtra, MosaicError, NotAllowed, RunEnded
from mosaic.submission.user_presets import save_preset

if TYPE_CHECKING:
    from mosaic.api.sweeps.study import Study
    from mosaic.api.sweeps.sweep_folder import SweepFolder
    from mosaic.api.sweeps.sweep_plan import SweepPlan
    from mosaic.api.sweeps.trial_row import TrialRow

DASHBOARD = "optuna-dashboard"
_FILE_TYPE = click.Path(dir_okay=False, path_type=Path)


class _SweepGroup(click.Group):
    """`mosaic sweep FILE.yaml` is short for `mosaic sweep run FILE.yaml`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["run", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=_SweepGroup, params=common_options(), subcommand_metavar="FILE.yaml|COMMAND [ARGS]...")
def sweep() -> None:
    """Searches for the best settings of an algorithm with Optuna. Each trial is a group of runs, one for each seed.

    \b
    mosaic sweep init ppo CartPole-v1 > FILE.yaml   # a file to start from
    mosaic sweep FILE.yaml                          # runs it; again: continues where it was
    mosaic sweep FILE.yaml --cancel                 # cancels the running trials
    """


@command("run")
@click.argument("file", metavar="FILE.yaml", type=_FILE_TYPE)
@click.option(
    "--cancel",
    "is_cancel",
    is_flag=True,
    help="Cancel the running trials instead, and end the process that runs the sweep; the study is kept.",
)
@pass_context
def run(context: CliContext, file: Path, is_cancel: bool) -> int:
    """Runs a sweep, or continues it: running trials are taken over. Ctrl-C detaches: their runs continue.

    At the end, the best settings become a preset with the sweep's name.
    """
    from mosaic.api.sweeps.sweep_config import read_sweep
    from mosaic.api.sweeps.sweep_loop import SweepLoop, check_sweep, end_running_sweep, open_study
    from mosaic.api.sweeps.sweep_result import best_trial
    from mosaic.cli.sweep_output import SweepProgress, print_summary, sweep_json

    data = read_sweep(file)
    if is_cancel:
        end_running_sweep(context.workspace, data)
    else:
        check_sweep(context.call_with_reconnect, context.workspace, data)
    with InterruptCounter() as interrupts, open_study(context.workspace, data) as study:
        context.print_workspace()
        loop = SweepLoop(context.call_with_reconnect, study, lambda: interrupts.count > 0)
        if is_cancel:
            count = loop.cancel()
            message = f"{formatting.count_noun(count, 'running trial')} cancelled. Continue: {_run_command(file)}"
            context.print_result({"name": study.plan.config.name, "cancelled": count}, message)
            return 0
        with SweepProgress(study.plan) as show:
            loop.run(show)
        rows = study.rows()
        is_ended = study.is_exhausted() and not any(str(row.status) == "running" for row in rows)
        result = sweep_json(study.plan, rows)
        best = best_trial(rows)
        if is_ended and best is not None:
            result["preset"] = _try_save_preset(study.plan, best)
        if context.is_json:
            output.print_json(result)
        else:
            print_summary(study.plan, rows)
    if loop.is_cancelled and not is_ended:
        output.print_message(f"Another process has cancelled the sweep. Continue: {_run_command(file)}")
        return RunEnded.exit_code
    if not is_ended:
        output.print_message(
            f"Detached; the runs of running trials continue. Continue: {_run_command(file)}    "
            f"Cancel: {_run_command(file)} --cancel"
        )
        return INTERRUPTED_EXIT_CODE
    return 0 if best is not None else RunEnded.exit_code


@command("status")
@click.argument("sweep_name", metavar="FILE.yaml|NAME")
@pass_context
def status(context: CliContext, sweep_name: str) -> None:
    """Shows how far a sweep is, and its best trials."""
    from mosaic.cli.sweep_output import print_summary, sweep_json

    folder, study = _open_for_reading(context, sweep_name)
    rows = study.rows()
    if context.is_json:
        output.print_json(sweep_json(study.plan, rows) | {"is_running": folder.is_held()})
        return
    print_summary(study.plan, rows)
    if not folder.is_held() and any(str(row.status) == "running" for row in rows):
        output.print_message("No process follows it. Continue it with its file: mosaic sweep FILE.yaml")


@command("init")
@click.argument("algorithm")
@click.argument("env_id", metavar="ENV")
@click.option("--name", metavar="NAME", help="Of the sweep.  [default: ALGORITHM-ENV]")
@pass_context
def init(context: CliContext, algorithm: str, env_id: str, name: str | None) -> None:
    """Prints a commented file with the settings of an algorithm that usually matter and ranges for them."""
    from mosaic.cli.sweep_output import format_initial_file
    from mosaic.contracts.folder import to_file_name
    from mosaic.submission.algorithm_schema import get_algorithm

    found = get_algorithm(algorithm)
    default_name = f"{algorithm.replace(':', '-')}-{to_file_name(env_id)}"
    safe = "".join(char if char.isalnum() or char in "._@+-" else "_" for char in name or default_name)
    output.echo(format_initial_file(found, env_id, safe), has_newline=False)


@command("save-preset")
@click.argument("sweep_name", metavar="NAME")
@click.option("--as", "preset", metavar="PRESET", help="The name of the preset; one with this name is replaced.")
@pass_context
def save_best(context: CliContext, sweep_name: str, preset: str | None) -> None:
    """Saves the best settings as a preset, for mosaic train and the train form."""
    from mosaic.api.sweeps.sweep_result import best_trial

    _, study = _open_for_reading(context, sweep_name)
    best = best_trial(study.rows())
    if best is None:
        raise NotAllowed(f"No trial of the sweep {sweep_name!r} is done yet, so there are no best settings.")
    name = preset or study.plan.config.name
    save_preset(name, study.plan.build_preset(best.params))
    context.print_result(
        {"preset": name, "trial": best.number},
        f"Saved the settings of trial {best.number} as preset {name!r}. Train with it: "
        f"{_train_command(study.plan, name)}",
    )


@command("plot")
@click.argument("sweep_name", metavar="NAME")
@click.option("--out", required=True, metavar="FILE", type=_FILE_TYPE, help="Where to write it: .pdf, .svg or .png.")
@pass_context
def plot(context: CliContext, sweep_name: str, out: Path) -> None:
    """Draws a sweep: the best score over trials, all trials by setting, and which settings matter.

    The importance is PED-ANOVA's: how much a setting decides whether a trial is among the best quarter. It is not the
    share of a setting in the variance of all scores.
    """
    from mosaic.api.sweeps.sweep_figure import save_sweep_figure

    _, study = _open_for_reading(context, sweep_name)
    save_sweep_figure(study.plan, study.rows(), study.importances(), out)
    path = out.absolute()
    context.print_result({"file": str(path)}, f"Wrote {path} ({formatting.format_size(path.stat().st_size)})")


@command("dashboard")
@click.argument("sweep_name", metavar="NAME")
@click.option("--port", type=click.IntRange(1, 65535), default=8080, show_default=True)
@pass_context
def dashboard(context: CliContext, sweep_name: str, port: int) -> None:
    """Opens a sweep in optuna-dashboard, on this machine only, until Ctrl-C. Do not change anything in it."""
    from mosaic.api.sweeps.sweep_folder import find_sweep

    folder = find_sweep(context.existing_workspace(), sweep_name)
    beside = Path(sys.executable).with_name(DASHBOARD)
    program = str(beside) if beside.is_file() else shutil.which(DASHBOARD)
    if program is None:
        raise MissingExtra(f"The dashboard is a package of its own: pip install {DASHBOARD}")
    output.print_message(f"http://127.0.0.1:{port}/    Stop it: Ctrl-C")
    arguments = [program, str(folder.journal), "--host", "127.0.0.1", "--port", str(port)]
    sys.stderr.flush()
    os.execv(program, arguments)  # so that signals reach it


for each in (run, status, init, save_best, plot, dashboard):
    sweep.add_command(each)


@command()
@pass_context
def sweeps(context: CliContext) -> None:
    """Lists the sweeps of this workspace, the one changed last first."""
    from mosaic.api.sweeps.sweep_folder import SweepFolder, sweep_names
    from mosaic.api.sweeps.sweep_loop import read_study
    from mosaic.api.sweeps.sweep_result import best_trial, format_params, format_trial_counts
    from mosaic.cli.sweep_output import sweep_json

    names = [] if context.is_unused else sweep_names(context.existing_workspace())
    if not names and not context.is_json:
        output.print_message(f"No sweeps yet in {context.place}. Start one: mosaic sweep init ALGO ENV > FILE.yaml")
        return
    table = output.create_table("SWEEP", "TRIALS", "BEST", "SETTINGS", truncate=("SWEEP", "SETTINGS"))
    listed: list[dict[str, Any]] = []
    for name in names:
        study = read_study(SweepFolder(context.workspace.sweeps / name))
        rows = study.rows()
        best = best_trial(rows)
        listed.append({key: value for key, value in sweep_json(study.plan, rows).items() if key != "trials"})
        table.add_row(
            name,
            format_trial_counts(study.plan, rows),
            formatting.PLACEHOLDER if best is None else formatting.format_number(best.score),
            "" if best is None else format_params(best),
        )
    if context.is_json:
        output.print_json(listed)
    else:
        output.console().print(table)


def _run_command(file: Path) -> str:
    return f"mosaic sweep {shlex.quote(str(file))}"


def _open_for_reading(context: CliContext, name: str) -> tuple[SweepFolder, Study]:
    """`name` is that of a sweep, or its file."""
    from mosaic.api.sweeps.sweep_config import parse_sweep, read_sweep
    from mosaic.api.sweeps.sweep_folder import find_sweep
    from mosaic.api.sweeps.sweep_loop import read_study

    path = Path(name)
    if path.suffix in YAML_SUFFIXES:
        name = parse_sweep(read_sweep(path)).name
    folder = find_sweep(context.existing_workspace(), name)
    return folder, read_study(folder)


def _try_save_preset(plan: SweepPlan, best: TrialRow) -> str | None:
    """The results of a sweep are shown whether or not its preset can be saved."""
    name = plan.config.name
    try:
        save_preset(name, plan.build_preset(best.params))
    except MosaicError as error:
        output.print_message(f"The best settings were not saved as a preset: {error}")
        return None
    output.print_message(f"The best settings are the preset {name!r}. Train with it: {_train_command(plan, name)}")
    return name


def _train_command(plan: SweepPlan, preset: str) -> str:
    return shlex.join(["mosaic", "train", plan.config.algorithm.name, "--preset", preset])
