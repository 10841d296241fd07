"""`mosaic eval`: a trained policy on fresh seeds."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from mosaic.cli import output
from mosaic.cli.arguments import run_argument
from mosaic.cli.door import Door, command, pass_door
from mosaic.cli.following import exit_code, follow, report_end
from mosaic.cli.payloads import eval_payload
from mosaic.contracts.errors import BadInput, NotAllowed, RunEnded
from mosaic.contracts.folder import RunFolder

Json = dict[str, Any]
RESAMPLES = 2000


@command("eval")
@run_argument()
@click.option("--episodes", type=click.IntRange(1), default=20, show_default=True, help="How many to play.")
@click.option(
    "--checkpoint", default="last", show_default=True, metavar="best|last|STEP", help="Which of its policies."
)
@click.option("--video", is_flag=True, help="Record the first episodes.")
@click.option("--seed-override", type=click.IntRange(0), help="First seed, instead of seeds that training never uses.")
@pass_door
def evaluate(door: Door, run: str, episodes: int, checkpoint: str, video: bool, seed_override: int | None) -> int:
    """Evaluates a run's policy: deterministic actions on fresh seeds. It is a run of its own."""
    door.announce()
    view, summary = evaluated(door, run, episodes, checkpoint, video, seed_override)
    if summary is None:
        report_end(door, view)
        return exit_code(view)
    if door.is_json:
        output.print_json(summary)
    else:
        output.console().print(output.facts(summary_rows(summary)))
    return 0


def evaluated(
    door: Door, run: str, episodes: int, checkpoint: str, has_video: bool, seed_override: int | None
) -> tuple[Json, Json | None]:
    """The evaluation's last view and what came out of it; nothing where it did not succeed."""
    trainer = door.trainer()
    trained = trainer.get(run)
    policy = checkpoint_path(trained, checkpoint)
    payload = eval_payload(trainer.config(trained["run_id"]), str(policy), episodes, has_video, seed_override)
    view = follow(door, trainer.submit(payload))
    if view["stage"] != "finished" or view["outcome"] != "succeeded":
        return view, None
    said = _read_summary(RunFolder(view["run_dir"]).eval_summary)
    return view, {**summarised(said["returns"]), "run_id": view["run_id"], "returns": said["returns"]}


def checkpoint_path(view: Json, which: str) -> Path:
    """The checkpoint that is meant; NotAllowed where the run has none."""
    if which not in ("best", "last") and not which.isdecimal():
        raise BadInput(f"--checkpoint {which!r}: expected best, last or the step of a checkpoint.")
    folder = RunFolder(view["run_dir"])
    path = folder.checkpoints / which
    if path.exists():
        return path
    steps = sorted(int(one.name) for one in folder.checkpoints.glob("*") if one.name.isdecimal())
    has = "It has those of steps " + ", ".join(map(str, steps)) if steps else "It has saved none yet"
    raise NotAllowed(f"Run {output.short_id(view['run_id'])} has no checkpoint {which!r}. {has}.")


def _read_summary(path: Path) -> Json:
    try:
        said: Json = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RunEnded(f"The evaluation ended, but its summary cannot be read ({error}): {path}") from None
    return {**said, "returns": [float(value) for value in _returns(said)]}


def _returns(said: Json) -> list[Any]:
    """Of all batches."""
    if "returns" in said:
        return list(said["returns"])
    return [value for batch in said.get("batches", ()) for value in batch.get("returns", ())]


def summarised(returns: Sequence[float]) -> Json:
    """Mean, spread and the interquartile mean with its 95 % confidence interval (bootstrap)."""
    if not returns:
        raise RunEnded("The evaluation ended without one whole episode.")
    chance = random.Random(0)  # the same returns give the same interval
    drawn = sorted(interquartile_mean(chance.choices(returns, k=len(returns))) for _ in range(RESAMPLES))
    return {
        "episodes": len(returns),
        "avg_return": statistics.fmean(returns),
        "median_return": statistics.median(returns),
        "min_return": min(returns),
        "max_return": max(returns),
        "std_return": statistics.pstdev(returns),
        "iqm": interquartile_mean(returns),
        "ci95": [drawn[int(0.025 * RESAMPLES)], drawn[int(0.975 * RESAMPLES)]],
    }


def interquartile_mean(values: Sequence[float]) -> float:
    """The mean of the middle half; the values at its edges count in part."""
    ordered = sorted(values)
    cut = len(ordered) / 4
    first = math.floor(cut)
    weights = [1.0] * len(ordered)
    for at in range(first):
        weights[at] = weights[-1 - at] = 0.0
    if first < len(ordered) / 2:
        weights[first] -= cut - first
        weights[-1 - first] -= cut - first
    return sum(weight * value for weight, value in zip(weights, ordered, strict=True)) / sum(weights)


def summary_rows(summary: Json) -> list[tuple[str, str]]:
    low, high = summary["ci95"]
    return [
        ("episodes", str(summary["episodes"])),
        ("mean return", f"{output.figure(summary['avg_return'])} ± {output.figure(summary['std_return'])}"),
        ("median", output.figure(summary["median_return"])),
        ("worst, best", f"{output.figure(summary['min_return'])}, {output.figure(summary['max_return'])}"),
        (
            "middle half",
            f"{output.figure(summary['iqm'])}, 95 % between {output.figure(low)} and {output.figure(high)}",
        ),
        ("run", summary["run_id"]),
    ]
