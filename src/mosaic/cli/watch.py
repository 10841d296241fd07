"""`mosaic watch`: a run's environments, live, in the terminal or as a film."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mosaic.cli import output
from mosaic.cli.arguments import run_argument
from mosaic.cli.door import Door, command, pass_door
from mosaic.contracts.errors import BadInput, MosaicError, NotAllowed

if TYPE_CHECKING:
    from mosaic.client.film import Film

Json = dict[str, Any]
SECONDS = 10.0
RATE_HZ = 30.0
PATIENCE_S = 20.0
"""How long a film waits for its first frame."""
LONGEST_SIDE = 1280
ASK_S = 1.0
TEXT_LINES = 2
EVALUATION = "policy_eval"
NEXT = ("\x1b[C", "n", "l")
PREVIOUS = ("\x1b[D", "p", "h")


@command()
@run_argument()
@click.option("--env", "env", metavar="N", type=click.IntRange(0), help="Which environment.  [default: 0]")
@click.option("--grid", is_flag=True, help="All environments that can be watched.")
@click.option("--rate", "rate_hz", metavar="HZ", type=click.FloatRange(0.5, 120), help="Pictures a second, in all.")
@click.option(
    "--budget",
    metavar="PERCENT",
    type=click.FloatRange(0.1, 50),
    help="How much of the training time drawing may take.  [default: 1.5]",
)
@click.option("--save", metavar="FILE", type=click.Path(dir_okay=False), help="Write an MP4 instead of showing it.")
@click.option("--seconds", metavar="S", type=click.FloatRange(0.1), help=f"The film's length.  [default: {SECONDS:g}]")
@click.option("--remote", is_flag=True, help="Through the daemon, as from another machine.")
@pass_door
def watch(
    door: Door,
    run: str,
    env: int | None,
    grid: bool,
    rate_hz: float | None,
    budget: float | None,
    save: str | None,
    seconds: float | None,
    remote: bool,
) -> None:
    """Shows what a run's environments look like now. The run draws only while somebody watches.

    Keys: q ends, g changes between one environment and all, the arrows change the environment.
    """
    if env is not None and grid:
        raise BadInput("--env and --grid cannot both be given.")
    if seconds is not None and save is None:
        raise BadInput("--seconds is the length of a film. Name its file too: --save out.mp4")
    view = door.ask(lambda trainer: trainer.get(run))
    short = output.short_id(view["run_id"])
    if view["stage"] == "finished":
        raise NotAllowed(
            f"Run {short} has ended ({view['outcome']}): there is nothing to watch. "
            f"Its last policy can be filmed: mosaic eval {short} --help"
        )
    if save is None and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInput(f"There is no terminal to draw in. Save a film instead: mosaic watch {short} --save out.mp4")
    opened = _opener(door, view, rate_hz, None if budget is None else budget / 100, remote)
    envs = () if grid else (env or 0,)
    if save is None:
        _show(door, view, opened, envs)
    else:
        _save(door, view, opened(envs), Path(save), seconds or SECONDS, rate_hz or RATE_HZ)


def _opener(
    door: Door, view: Json, rate_hz: float | None, budget: float | None, is_remote: bool
) -> Callable[[Sequence[int]], Any]:
    from mosaic.cli.sight import LocalSight, RemoteSight

    def opened(envs: Sequence[int]) -> Any:
        if is_remote or not Path(view["run_dir"]).is_dir():
            return RemoteSight(door.connect(), view["run_id"], envs, rate_hz, budget)
        return LocalSight(view["run_dir"], envs, rate_hz, budget)

    return opened


class _Standing:
    """Asks now and then whether the run still goes on, and how an evaluation stands."""

    def __init__(self, door: Door, view: Json) -> None:
        self._door = door
        self.view = view
        self.eval_line = ""
        self._ask_at = 0.0 if view.get("kind") == EVALUATION else time.monotonic() + ASK_S

    @property
    def has_ended(self) -> bool:
        if self.view["stage"] != "finished" and time.monotonic() >= self._ask_at:
            self._ask_at = time.monotonic() + ASK_S
            run_id = self.view["run_id"]
            self.view = self._door.ask(lambda trainer: trainer.get(run_id))
            if self.view.get("kind") == EVALUATION:
                from mosaic.client.evaluation import newest_line

                self.eval_line = self._door.ask(lambda trainer: newest_line(trainer, run_id))
        return bool(self.view["stage"] == "finished")


# --- in the terminal


def _show(door: Door, view: Json, opened: Callable[[Sequence[int]], Any], envs: Sequence[int]) -> None:
    from mosaic.cli.terminal import Screen

    standing = _Standing(door, view)
    env = envs[0] if envs else 0
    sight = opened(envs)
    pace = Pace()
    try:
        with Screen(TEXT_LINES) as screen:
            while not standing.has_ended:
                room = screen.room()
                if sight.look():
                    pace.note(time.monotonic())
                    screen.paint(sight.picture(*screen.brush.pixels(room)), room)
                said = told(standing.view, sight, pace.rate_hz(time.monotonic()), bool(envs), standing.eval_line)
                screen.say(said)
                typed = screen.keys(1 / 120)
                if typed in ("q", "Q", "\x1b"):
                    break
                chosen = changed(typed, env, envs)
                if chosen is not None:
                    envs, env = chosen, chosen[0] if chosen else env
                    sight.close()
                    sight = opened(envs)
                    screen.clear()
    except KeyboardInterrupt:
        pass  # as good as q
    finally:
        sight.close()
    if standing.has_ended:
        short = output.short_id(view["run_id"])
        output.say(f"Run {short} has ended: {output.status(standing.view)}. More: mosaic show {short}")


def changed(typed: str, env: int, envs: Sequence[int]) -> tuple[int, ...] | None:
    """The environments to show after a key; none where it means nothing, an empty tuple for all."""
    if typed == "g":
        return () if envs else (env,)
    if envs and typed in NEXT:
        return (env + 1,)
    if envs and typed in PREVIOUS and env > 0:
        return (env - 1,)
    return None


class Pace:
    """How many frames a second were seen lately."""

    def __init__(self, span_s: float = 2.0) -> None:
        self._span_s = span_s
        self._seen: list[float] = []

    def note(self, now: float) -> None:
        self._seen.append(now)

    def rate_hz(self, now: float) -> float:
        self._seen = [at for at in self._seen if now - at < self._span_s]
        return len(self._seen) / self._span_s


def told(view: Json, sight: Any, shown_hz: float, is_single: bool, eval_line: str = "") -> list[str]:
    """Two lines below the picture: how the environments stand, and how often they are drawn and why."""
    title = f"{view.get('env_id') or 'run'} {output.short_id(view['run_id'])}"
    if view.get("kind") == EVALUATION:
        title += f" (Eval)  {eval_line}".rstrip()
    keys = "q quits, g grid, arrows" if is_single else "q quits, g one"
    if sight.state != "connected" or not sight.huds:
        return [f"{title}  {sight.state}{': ' + sight.reason if sight.reason else ''}", keys]
    drawn = f"{shown_hz:.1f} frames/s ({sight.huds[0]['pace']})   {keys}"
    if is_single:
        hud = sight.huds[0]
        return [
            f"{title}  env {hud['env']}  episode {hud['episode']:,}  step {hud['step']:,}  "
            f"reward {output.figure(hud['reward'])}  return {output.figure(hud['return'])}",
            drawn,
        ]
    each = "  ".join(output.figure(hud["return"]) for hud in sight.huds)
    return [f"{title}  returns  {each}", drawn]


# --- as a film


def _save(door: Door, view: Json, sight: Any, path: Path, seconds: float, rate_hz: float) -> None:
    from mosaic.client.film import Film

    film = Film(path, rate_hz)
    try:
        _shoot(_Standing(door, view), sight, film, seconds)
        film.finish()
    except KeyboardInterrupt:
        film.finish()
    except BaseException:
        film.abandon()
        raise
    finally:
        sight.close()
    if film.size is None:
        raise MosaicError("Interrupted before the first frame came: nothing was saved.")
    if door.is_json:
        facts = {"path": str(path.absolute()), "frames": film.frames, "seconds": film.frames / film.rate_hz}
        output.print_json({**facts, "width": film.size[0], "height": film.size[1]})
    else:
        output.say(f"Saved {film.frames} frames ({film.size[0]} by {film.size[1]}) to {path}")


def film_size(size: tuple[int, int]) -> tuple[int, int]:
    """As it is, unless that is more than a screen holds."""
    from mosaic.fastlane import fit

    return fit(*size, LONGEST_SIDE, LONGEST_SIDE) if max(size) > LONGEST_SIDE else size


def _shoot(standing: _Standing, sight: Any, film: Film, seconds: float) -> None:
    """By the clock: what is not drawn as often as the film wants stands still in it."""
    deadline = time.monotonic() + PATIENCE_S
    while not sight.look() and sight.size() is None:
        if sight.state == "unavailable" or standing.has_ended or time.monotonic() > deadline:
            why = sight.reason if not standing.has_ended else "the run has ended"
            raise MosaicError(f"No frame came: {why}. Nothing was saved.")
        time.sleep(0.01)
    begun = time.monotonic()
    picture = None
    for number in range(max(1, round(seconds * film.rate_hz))):
        while time.monotonic() < begun + number / film.rate_hz:
            time.sleep(0.002)
        if sight.look() or picture is None:
            picture = sight.picture(*(film.size or film_size(sight.size())), is_smooth=True)
        film.add(picture)
        if standing.has_ended:
            return
