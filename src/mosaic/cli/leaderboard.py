"""`mosaic leaderboard`: all evaluated policies of the workspace, the best first."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import click

from mosaic.cli import output
from mosaic.cli.door import Door, command, pass_door
from mosaic.contracts.errors import unknown

if TYPE_CHECKING:
    from mosaic.client.leaderboard import Place
    from mosaic.statistics import Interval

COLUMNS = ("RANK", "POLICY", "ALGO", "STEP", "EPISODES", "MEAN", "95 %", "IQM", "EVALUATED")
RIGHT = ("RANK", "STEP", "EPISODES", "MEAN", "IQM", "EVALUATED")


@command()
@click.option("--env", "env_id", default="", metavar="ENV", help="Only policies on this environment.")
@pass_door
def leaderboard(door: Door, env_id: str) -> None:
    """Ranks all evaluated policies, for each environment by the lower end of the 95 % interval of the mean return.

    The newest evaluation of a checkpoint counts, with all its batches.
    """
    from mosaic.client.leaderboard import ranked

    trainer = door.trainer()
    places = ranked(trainer.evaluations(env_id=env_id))
    if env_id and not places:
        known = {str(one["env_id"]) for one in trainer.evaluations()}
        if known:
            raise unknown("environment", env_id, known, "the evaluations")
    if door.is_json:
        output.print_json([place.to_json() for place in places])
        return
    if not places:
        output.say(f"No policy has been evaluated yet in {door.workspace.root}. Evaluate one: mosaic eval RUN")
        return
    names = output.short_ids(list({place.trained["run_id"] for place in places if place.trained}))
    screen = output.console()
    for at, (env, group) in enumerate(itertools.groupby(places, key=lambda place: place.env_id)):
        if at:
            screen.print()
        screen.print(env, style="bold")
        table = output.table(*COLUMNS, right=RIGHT, cut=("POLICY", "ALGO"))
        for place in group:
            table.add_row(*_cells(place, names))
        screen.print(table)


def _cells(place: Place, names: dict[str, str]) -> tuple[str, ...]:
    trained = place.trained
    policy = names[trained["run_id"]] if trained else place.file
    if trained and trained["seed"] is not None:
        policy += f" seed {trained['seed']}"
    return (
        str(place.rank),
        policy,
        place.algo if place.is_deterministic else f"{place.algo} (stochastic)",
        output.count(place.step),
        output.count(place.episodes),
        output.figure(place.mean.point),
        interval(place.mean),
        output.figure(place.iqm),
        f"{output.age(place.evaluated_at)} ago",
    )


def interval(value: Interval) -> str:
    """`450.2 to 500`."""
    if not math.isfinite(value.low):
        return output.NOTHING
    return f"{output.figure(value.low)} to {output.figure(value.high)}"
