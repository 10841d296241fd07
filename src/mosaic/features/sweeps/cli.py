"""`mosaic sweep` and `mosaic sweeps`: searches for the settings of an algorithm."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mosaic.base import formatting
from mosaic.base.user_presets import save_preset
from mosaic.cli import output
from mosaic.cli.context import INTERRUPTED_EXIT_CODE, YAML_SUFFIXES, CliContext, command, common_options, pass_context
from mosaic.cli.intervals import format_interval
from mosaic.contracts.errors import MissingExtra, MosaicError, NotAllowed, RunEnded
from mosaic.features.sweeps.api import best_trial, describe_score, format_param, format_params, format_trial_counts
from mosaic.features.sweeps.core import default_entries, score_interval
from mosaic.trainer.client.run_wait import InterruptCounter

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from mosaic.base.algorithm_schema import Algorithm
    from mosaic.features.sweeps.core import SweepPlan, TrialRow
    from mosaic.features.sweeps.core_folder import SweepFolder
    from mosaic.features.sweeps.core_study import Study

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
    from mosaic.features.sweeps.api import best_trial
    from mosaic.features.sweeps.core import read_sweep
    from mosaic.features.sweeps.core_loop import SweepLoop, check_sweep, end_running_sweep, open_study

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
    from mosaic.base.algorithm_schema import get_algorithm
    from mosaic.contracts.folder import to_file_name

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
    from mosaic.features.sweeps.api import best_trial

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
    from mosaic.features.sweeps.core_figure import save_sweep_figure

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
    from mosaic.features.sweeps.core_folder import find_sweep

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
    from mosaic.features.sweeps.api import best_trial, format_params, format_trial_counts
    from mosaic.features.sweeps.core_folder import SweepFolder, sweep_names
    from mosaic.features.sweeps.core_loop import read_study

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
    from mosaic.features.sweeps.core import parse_sweep, read_sweep
    from mosaic.features.sweeps.core_folder import find_sweep
    from mosaic.features.sweeps.core_loop import read_study

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


# --- Output of sweeps: the progress block, the table of the best trials, JSON, and the file that `init` writes.


BEST_SHOWN = 10


def describe_best(row: TrialRow | None) -> str:
    if row is None:
        return "no trial is done yet"
    return f"best {formatting.format_number(row.score)} (trial {row.number}): {format_params(row)}"


class SweepProgress:
    """A block that is rewritten in a terminal; elsewhere, two lines each time that a trial ends."""

    def __init__(self, plan: SweepPlan) -> None:
        self._plan = plan
        self._live: Live | None = None
        self._last = ""

    def __enter__(self) -> SweepProgress:
        if sys.stderr.isatty():
            from rich.live import Live

            self._live = Live(console=output.console(is_stderr=True), auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, rows: Sequence[TrialRow]) -> None:
        counts, best = format_trial_counts(self._plan, rows), describe_best(best_trial(rows))
        block = f"{self._plan.config.name}: {counts}\n  {best}"
        if self._live is not None:
            from rich.text import Text

            self._live.update(Text(block), refresh=True)
        elif (ended := counts.partition(";")[0]) != self._last:
            output.print_message(block)
            self._last = ended


def print_best_trials(plan: SweepPlan, rows: Sequence[TrialRow]) -> None:
    done = sorted((row for row in rows if row.score is not None), key=lambda row: (-(row.score or 0.0), row.number))
    if not done:
        output.print_message("No trial is done.")
        return
    screen = output.console()
    table = _trials_table(plan, done[:BEST_SHOWN], [dimension.name for dimension in plan.dimensions])
    if not output.fits_width(screen, table):
        table = _trials_table(plan, done[:BEST_SHOWN])
    screen.print(table)


def _trials_table(plan: SweepPlan, rows: Sequence[TrialRow], settings: Sequence[str] = ()) -> Table:
    """One row for each trial, with a column for each of these settings; without any, with one column for all."""
    has_intervals = plan.config.seeds_per_trial > 1
    columns = ("TRIAL", "SCORE", *(("MEAN OVER SEEDS 95 %",) if has_intervals else ()))
    table = output.create_table(
        *columns, *(map(str.upper, settings) if settings else ("SETTINGS",)),
        right_aligned=columns[:2], wrap=() if settings else ("SETTINGS",),
    )  # fmt: skip
    for row in rows:
        interval = (format_interval(score_interval(row.seed_scores)),) if has_intervals else ()
        cells = [format_param(row.params[name]) for name in settings] or [format_params(row)]
        table.add_row(str(row.number), formatting.format_number(row.score), *interval, *cells)
    return table


def sweep_json(plan: SweepPlan, rows: Sequence[TrialRow]) -> dict[str, Any]:
    best = best_trial(rows)
    return {
        "name": plan.config.name,
        "trial_count": plan.trial_count,
        "counts": dict(Counter(str(row.status) for row in rows)),
        "best": None if best is None else trial_json(best),
        "trials": [trial_json(row) for row in rows],
    }


def trial_json(row: TrialRow) -> dict[str, Any]:
    return {
        "number": row.number,
        "status": str(row.status),
        "score": row.score,
        "seed_scores": list(row.seed_scores),
        "last_score": row.last_score,
        "params": row.params,
        "problem": row.problem or None,
    }


def print_summary(plan: SweepPlan, rows: Sequence[TrialRow]) -> None:
    print_best_trials(plan, rows)
    output.echo(f"\n{plan.config.name}: {format_trial_counts(plan, rows)}. The score is {describe_score(plan)}.")
    for row in [row for row in rows if str(row.status) == "failed"][-1:]:
        output.print_message(f"Trial {row.number} failed: {row.problem}")


def format_initial_file(algorithm: Algorithm, env_id: str, name: str) -> str:
    """Return a commented file with the default search of an algorithm."""
    steps = algorithm.default("total_timesteps")
    lines = [
        f"# Searches settings of {algorithm.name} on {env_id}:",
        "#   mosaic sweep FILE.yaml            # again: continues",
        f"#   mosaic sweep status {name}",
        f"name: {name}",
        f"algorithm: {algorithm.name}",
        f"environments: [{json.dumps(env_id)}]",
        "settings:                             # fixed in all trials",
        *([f"  total_timesteps: {steps}"] if steps is not None else []),
        "search:                               # remove what you do not want to search; or: search: default",
    ]
    entries = default_entries(algorithm)
    shown = {
        setting: f"  {setting}: {_format_entry(entry.model_dump(exclude_unset=True))}"
        for setting, entry in entries.items()
    }
    width = max(map(len, shown.values()), default=0)
    lines += [
        f"{text:<{width}}  # default {format_param(algorithm.default(setting))}" for setting, text in shown.items()
    ]
    lines += [
        "sampler: tpe                          # or random, grid (with choices or values only)",
        "trials: 20",
        "seeds_per_trial: 2                    # each trial trains with the seeds 1 to 2",
        "metric: last_fifth                    # of the training return; area: over all steps (sample efficiency)",
        "score: mean                           # over seeds; lower: the lower end of its 95 % interval",
        "pruning: {method: asha, min_reports: 2, reduction_factor: 3}   # or median, none",
        "parallel: 2                           # trials at a time",
    ]
    return "\n".join(lines) + "\n"


def _format_entry(entry: dict[str, Any]) -> str:
    shown = {key: json.dumps(list(value) if isinstance(value, tuple) else value) for key, value in entry.items()}
    if entry.get("log") is False:
        del shown["log"]
    return "{" + ", ".join(f"{key}: {value}" for key, value in shown.items()) + "}"
