"""`mosaic eval`: a trained policy on fresh seeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mosaic.cli import output
from mosaic.cli.arguments import run_argument
from mosaic.cli.door import Door, command, pass_door
from mosaic.cli.following import exit_code, report_end, submit_and_follow
from mosaic.contracts.errors import BadInput, NotAllowed, RunEnded
from mosaic.contracts.folder import RunFolder
from mosaic.plugins.payloads import eval_payload

if TYPE_CHECKING:
    from mosaic.client import Trainer

Json = dict[str, Any]
SUMMARY_KEYS = (
    *("episodes", "avg_return", "median_return", "min_return", "max_return", "std_return"),
    *("iqm", "ci95", "returns"),
)


@command("eval")
@run_argument()
@click.option(
    "--episodes", metavar="N", type=click.IntRange(1), default=20, show_default=True, help="How many to play."
)
@click.option(
    "--checkpoint", default="last", show_default=True, metavar="best|last|STEP", help="Which of its policies."
)
@click.option("--video", is_flag=True, help="Record the first episodes.")
@click.option(
    "--seed-override",
    metavar="N",
    type=click.IntRange(0),
    help="First seed, instead of seeds that training never uses.",
)
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
        output.print_facts(summary_rows(summary))
    return 0


def evaluated(
    door: Door, run: str, episodes: int, checkpoint: str, has_video: bool, seed_override: int | None
) -> tuple[Json, Json | None]:
    """The evaluation's last view and what came out of it; nothing where it did not succeed."""
    trainer = door.trainer()
    trained = _trained(trainer, run)
    policy = checkpoint_path(trained, checkpoint)
    payload = eval_payload(trainer.config(trained["run_id"]), str(policy), episodes, has_video, seed_override)
    view = submit_and_follow(door, payload, episodes_wanted=episodes)
    if view["stage"] != "finished" or view["outcome"] != "succeeded":
        return view, None
    said = _read_summary(RunFolder(view["run_dir"]).eval_summary)
    return view, {**{key: said[key] for key in SUMMARY_KEYS}, "run_id": view["run_id"]}


def _trained(trainer: Trainer, run: str) -> Json:
    """Evaluations are runs, too: `last` means the last one that trained."""
    view = trainer.get(run)
    if run == "last" and view["kind"] != "train":
        return next((other for other in trainer.runs() if other["kind"] == "train"), view)
    return view


def checkpoint_path(view: Json, which: str) -> Path:
    """The checkpoint that is meant; NotAllowed where the run has none."""
    if which not in ("best", "last") and not which.isdecimal():
        raise BadInput(f"--checkpoint {which!r}: expected best, last or the step of a checkpoint.")
    folder = RunFolder(view["run_dir"])
    path = folder.checkpoints / which
    if path.exists():
        return folder.checkpoints / path.resolve().name  # `last` moves on while the run still trains
    steps = sorted(int(one.name) for one in folder.checkpoints.glob("*") if one.name.isdecimal())
    has = "It has those of steps " + ", ".join(map(str, steps)) if steps else "It has saved none yet"
    raise NotAllowed(f"Run {output.short_id(view['run_id'])} has no checkpoint {which!r}. {has}.")


def _read_summary(path: Path) -> Json:
    """What the worker wrote when it had played."""
    try:
        said: Json = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RunEnded(f"The evaluation ended, but its summary cannot be read ({error}): {path}") from None
    if any(key not in said for key in SUMMARY_KEYS):
        raise RunEnded(f"The evaluation ended without one whole episode: {path}")
    return said


def summary_rows(summary: Json) -> list[tuple[str, str]]:
    words = {key: output.figure(summary[key]) for key in SUMMARY_KEYS if key not in ("ci95", "returns")}
    low, high = map(output.figure, summary["ci95"])
    return [
        ("episodes", words["episodes"]),
        ("mean return", f"{words['avg_return']} (95 % confidence: {low} to {high})"),
        ("deviation", words["std_return"]),
        ("median", words["median_return"]),
        ("worst, best", f"{words['min_return']}, {words['max_return']}"),
        ("middle half", f"{words['iqm']} on average"),
        ("run", summary["run_id"]),
    ]
