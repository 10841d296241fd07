"""`mosaic demo`: from nothing to an agent that balances a pole, in one command."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import click

from mosaic.cli import output
from mosaic.cli.curve import draw_curve
from mosaic.cli.door import Door, command, pass_door
from mosaic.cli.evaluate import Wanted, evaluated
from mosaic.cli.following import exit_code, report_end, submit_and_follow
from mosaic.cli.gui import open_detached
from mosaic.contracts.errors import MissingExtra
from mosaic.contracts.files import replacing
from mosaic.contracts.folder import RunFolder
from mosaic.plugins.payloads import Wishes, train_payload

Json = dict[str, Any]
SETTINGS: Json = {"env_id": "CartPole-v1", "total_timesteps": 400_000, "seed": 1}
"""CleanRL's defaults but for the steps: five seeds of five stood above 488 after 300,000 of them."""
EPISODES = 20


@command()
@pass_door
def demo(door: Door) -> int:
    """Trains PPO on CartPole-v1, shows it learning, evaluates it on fresh seeds, and says what to do next."""
    door.announce()
    began_at = time.monotonic()
    output.say("Training PPO to balance a pole. A return of 500 is perfect.")
    view = submit_and_follow(door, train_payload("cleanrl", "ppo", SETTINGS, {}, Wishes(tags=("demo",))))
    if view["stage"] != "finished" or view["outcome"] != "succeeded":
        report_end(door, view)
        return exit_code(view)
    output.say(f"Evaluating it on {EPISODES} fresh seeds.")
    eval_view, summary = evaluated(door, view["run_id"], Wanted(EPISODES, has_video=True))
    if summary is None:
        report_end(door, eval_view)
        return exit_code(eval_view)
    made = {"curve": _curve(door, view), **_made(view, eval_view)}
    if door.is_json:
        output.print_json({**view, "evaluation": summary, "made": made})
    else:
        _print(view, summary, made, time.monotonic() - began_at)
        if open_detached(door.workspace.root, view["run_id"]):
            click.echo("\nThe workbench opens on this run; close it whenever you like.")
    return 0


def _curve(door: Door, view: Json) -> str | None:
    path = door.workspace.root / "exports" / view["run_id"] / "curve.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    episodes = list(door.trainer().episodes(view["run_id"]))
    try:
        with replacing(path) as file:
            draw_curve(view, episodes, file)
    except MissingExtra as error:
        output.say(str(error))
        return None
    return str(path)


def _made(view: Json, eval_view: Json) -> dict[str, str | None]:
    folder, evaluation = RunFolder(view["run_dir"]), RunFolder(eval_view["run_dir"])
    videos = sorted(evaluation.videos.rglob("*.mp4"))
    return {
        "video": str(videos[0]) if videos else None,
        "checkpoint": _if_there(folder.last_checkpoint),
        "tensorboard": _if_there(folder.tensorboard),
    }


def _if_there(path: Path) -> str | None:
    return str(path) if path.exists() else None


def _print(view: Json, summary: Json, made: dict[str, str | None], took_s: float) -> None:
    short = output.short_id(view["run_id"])
    console = output.console()
    console.print(
        f"\nThe agent learned to balance the pole: its mean return was {output.figure(view['episodic_return'])} "
        f"at the end of training and {output.figure(summary['avg_return'])} on {summary['episodes']} fresh seeds "
        f"({output.duration(took_s)} in all, {output.count(view['sps'])} steps/s)."
    )
    click.echo("\nWhat it made:")
    output.print_facts(made.items(), "  ")
    click.echo("\nTry next:")
    commands = [
        (f"show {short}", "everything about this run"),
        ("gui", "the workbench: train, watch and compare in a window"),
        ("train ppo --env-id Acrobot-v1", "another environment"),
    ]
    output.print_facts([(f"{_program()} {words}", says) for words, says in commands], "  ")


def _program() -> str:
    """How to call us from here: the virtual environment need not be on the path."""
    return "mosaic" if shutil.which("mosaic") else os.path.relpath(sys.argv[0])
