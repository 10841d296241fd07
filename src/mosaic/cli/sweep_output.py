"""Output of sweeps: the progress block, the table of the best trials, JSON, and the file that `init` writes."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mosaic import formatting
from mosaic.api.sweeps.search_space import default_entries
from mosaic.api.sweeps.sweep_result import best_trial, describe_score, format_param, format_params, format_trial_counts
from mosaic.api.sweeps.trial_scores import score_interval
from mosaic.cli import output
from mosaic.cli.compare_commands import format_interval

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from mosaic.api.sweeps.sweep_plan import SweepPlan
    from mosaic.api.sweeps.trial_row import TrialRow
    from mosaic.submission.algorithm_schema import Algorithm

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
