"""Runs a duel: a session for each actor, and in a game for each side, all under the same seeds."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from mosaic.base.curves import score_with_interval
from mosaic.base.files import atomic_write
from mosaic.base.run_payloads import default_group_name
from mosaic.base.yaml_file import read_yaml_file, to_plain_mapping
from mosaic.contracts.duel import DuelActor, DuelConfig
from mosaic.contracts.errors import BadInput, FieldProblem, NotAllowed
from mosaic.contracts.model import parse_contract, refuse
from mosaic.contracts.printable import make_printable
from mosaic.contracts.states import Outcome, Stage
from mosaic.contracts.views import ActorTotals
from mosaic.features.play.core import ActorRequest, build_match_payload
from mosaic.features.runs.api_run import html_table, make_frame
from mosaic.trainer.client.run_wait import InterruptCounter
from mosaic.trainer.client.trainer_client import submit_once

if TYPE_CHECKING:
    import pandas as pd

    from mosaic.contracts.views import RunView
    from mosaic.trainer.client.trainer_client import TrainerClient

# --- The result of a duel: every episode, and statistics of each actor and of its difference to the first.


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DuelEpisode:
    """A complete episode of one actor."""

    actor: str
    """Its label."""
    seed: int
    side: int
    """Which agent of a game the actor was, from 1."""
    episodic_return: float
    opponent_return: float | None
    """In a game, that of the other agent, or the mean of the others."""
    length: int
    ending: str
    run: str

    @property
    def outcome(self) -> str | None:
        """In a game: `win`, `draw` or `loss`."""
        if self.opponent_return is None:
            return None
        difference = self.episodic_return - self.opponent_return
        return "win" if difference > 0 else "loss" if difference < 0 else "draw"

    def to_json(self) -> dict[str, Any]:
        """Return one line of the results; returns that are not finite are null."""
        game = {} if self.opponent_return is None else {"outcome": self.outcome, "side": self.side}
        line = {"actor": self.actor, "seed": self.seed, "return": self.episodic_return}
        if self.opponent_return is not None:
            line["opponent_return"] = self.opponent_return
        return _finite(line) | {"length": self.length, "ending": self.ending, **game, "run": self.run}


@dataclass(frozen=True)
class MeanEstimate:
    """A mean over seeds, its error and 95 % interval: of a rate Wilson's, else Student's; one seed has no interval."""

    mean: float
    standard_error: float | None
    ci95: tuple[float, float] | None


@dataclass(frozen=True)
class ActorResult:
    label: str
    actor: str
    runs: tuple[str, ...]
    """Its sessions: one, in a game one for each side."""
    episodes: int
    """Those that are complete."""
    expected_episodes: int
    problem: str | None
    """Why it is incomplete; then there are no statistics."""
    returns: MeanEstimate | None
    """In a game over the seeds, each with the mean of its sides."""
    difference: MeanEstimate | None
    """To the first actor, seed by seed; None for the first itself, and where one of the two is incomplete."""
    avg_length: float | None
    totals: ActorTotals | None = None
    """Fallbacks, tokens, cost and latency, of an actor that counts them."""
    wins: int | None = None
    draws: int | None = None
    losses: int | None = None

    @property
    def is_complete(self) -> bool:
        return self.problem is None


@dataclass(frozen=True)
class DuelResult:
    """The comparison of actors under the same seeds."""

    name: str
    """The group of its runs."""
    env_id: str
    seeds: tuple[int, ...]
    opponent: str | None
    actors: tuple[ActorResult, ...]
    episodes: tuple[DuelEpisode, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every actor has played all of its episodes."""
        return all(actor.is_complete for actor in self.actors)

    def __getitem__(self, label: str) -> ActorResult:
        return {actor.label: actor for actor in self.actors}[label]

    def to_json(self) -> dict[str, Any]:
        """Return everything but the single episodes."""
        actors = [
            {
                **asdict(actor),
                "totals": None if actor.totals is None else actor.totals.model_dump(),
                "is_complete": actor.is_complete,
            }
            for actor in self.actors
        ]
        return {
            "duel": self.name,
            "env_id": self.env_id,
            "seeds": list(self.seeds),
            "opponent": self.opponent,
            "is_complete": self.is_complete,
            "actors": actors,
        }

    def write_jsonl(self, path: str | Path) -> None:
        """Write one line of JSON per episode; a file that exists is replaced."""
        with atomic_write(path) as file:
            for episode in self.episodes:
                file.write(json.dumps(episode.to_json()).encode() + b"\n")

    def to_frame(self) -> pd.DataFrame:
        """Return one row per episode. Requires pandas."""
        rows = [episode.to_json() for episode in self.episodes]
        return make_frame({name: [row[name] for row in rows] for name in (rows[0] if rows else ())})

    def __repr__(self) -> str:
        means = ", ".join(
            f"{actor.label}: {'incomplete' if actor.returns is None else f'{actor.returns.mean:.6g}'}"
            for actor in self.actors
        )
        return make_printable(f"<DuelResult {self.name} on {self.env_id}, {len(self.seeds)} seeds: {means}>")

    def _repr_html_(self) -> str:
        header = ("actor", "episodes", "mean", "95 % interval", "difference", "95 % interval")
        rows = [
            (
                actor.label,
                f"{actor.episodes} of {actor.expected_episodes}",
                *_cells(actor.returns),
                *_cells(actor.difference),
            )
            for actor in self.actors
        ]
        return html_table(header, rows)


def _cells(estimate: MeanEstimate | None) -> tuple[str, str]:
    if estimate is None:
        return "", ""
    interval = "" if estimate.ci95 is None else f"{estimate.ci95[0]:.6g} to {estimate.ci95[1]:.6g}"
    return f"{estimate.mean:.6g}", interval


def _finite(line: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in line.items()
    }


# --- statistics


def estimate_mean(values: Floats) -> MeanEstimate | None:
    """None where a value is not finite."""
    mean, low, high = score_with_interval(values)
    if not math.isfinite(mean):
        return None
    if len(values) < 2:
        return MeanEstimate(mean, None, None)
    return MeanEstimate(mean, float(values.std(ddof=1) / math.sqrt(len(values))), (low, high))


def values_by_seed(episodes: Sequence[DuelEpisode], seeds: Sequence[int]) -> Floats:
    """Return the return of each seed, in a game the mean of the sides: the two games of a seed are not independent."""
    returns: dict[int, list[float]] = {seed: [] for seed in seeds}
    for episode in episodes:
        returns[episode.seed].append(episode.episodic_return)
    return np.array([np.mean(returns[seed]) for seed in seeds], np.float64)


# --- Runs a duel: a session for each actor, and in a game for each side, all under the same seeds.


TAG = "duel"
POLL_S = 0.2
_SUBJECT = "The duel"

Result = TypeVar("Result")
Call = Callable[[Callable[["TrainerClient"], Result]], Result]
"""Calls the daemon, and again if it was restarted meanwhile."""


def read_duel_file(path: Path) -> DuelConfig:
    return parse_duel(read_yaml_file(path, _SUBJECT))


def parse_duel(data: Any) -> DuelConfig:
    """Return the duel that a mapping describes; raises ConfigRefused naming the keys that do not fit."""
    return parse_contract(DuelConfig, to_plain_mapping(data, _SUBJECT, "env, actors and seeds"), f"{_SUBJECT} was")


@dataclass(frozen=True)
class DuelSession:
    """One run of a duel."""

    actor: DuelActor
    side: int
    """Which agent of a game the actor is, from 1."""
    payload: dict[str, Any]


@dataclass(frozen=True)
class DuelPlan:
    config: DuelConfig
    group: str
    sessions: tuple[DuelSession, ...]

    @property
    def episode_count(self) -> int:
        return len(self.config.all_seeds) * len(self.sessions)


def plan_duel(trainer: TrainerClient, config: DuelConfig) -> DuelPlan:
    """Return the sessions of a duel, each checked by a dry run; raises ConfigRefused with all that is wrong."""
    group = default_group_name(config.name or TAG, config.env, time.time())
    sessions: list[DuelSession] = []
    problems: list[FieldProblem] = []
    for number, actor in enumerate(config.actors):
        try:
            own = [
                DuelSession(actor, side, _build_payload(trainer, config, group, actor, side)) for side in config.sides
            ]
            verdicts = [trainer.check(session.payload) for session in own]
        except BadInput as error:
            problems.append(FieldProblem(f"actors.{number}", str(error).rstrip(".")))
            continue
        if problem := _check_agents(config, verdicts[0].summary.model_dump().get("agents", ())):
            raise refuse([problem], f"{_SUBJECT} was")
        sessions += own
    if len(problems) == len(config.actors) and len({problem for _, problem in problems}) == 1:
        problems = [FieldProblem("env", problems[0].problem)]  # it is not the actors
    if problems:
        raise refuse(problems, f"{_SUBJECT} was")
    return DuelPlan(config, group, tuple(sessions))


def _build_payload(
    trainer: TrainerClient, config: DuelConfig, group: str, actor: DuelActor, side: int
) -> dict[str, Any]:
    seeds = list(config.all_seeds)
    settings: dict[str, Any] = {"seed": seeds[0], "seeds": seeds, "record": config.record}
    given = {"env_kwargs": config.env_kwargs or None, "rate_hz": config.rate_hz, "max_steps": config.max_steps}
    settings |= {name: value for name, value in given.items() if value is not None}
    own = ActorRequest(actor.actor, actor.options)
    other = None if config.opponent is None else ActorRequest(config.opponent.actor, config.opponent.options)
    first, others = (own, other) if side == 1 or other is None else (other, own)
    options = {"group": group, "tags": (TAG,), "notes": f"{actor.name}{_describe_side(config, side)}"}
    return build_match_payload(trainer, config.env, first, others, settings, options)


def _describe_side(config: DuelConfig, side: int) -> str:
    return "" if config.opponent is None else f" as agent {side} against {config.opponent.name}"


def _check_agents(config: DuelConfig, agents: Sequence[str]) -> FieldProblem | None:
    """Return what does not fit to the number of agents, which only the environment knows."""
    names = ", ".join(agents)
    if len(agents) < 2 and config.opponent is not None:
        return FieldProblem("opponent", f"{config.env} has a single agent; leave it out")
    if len(agents) > 1 and config.opponent is None:
        return FieldProblem("opponent", f"missing; {config.env} has the agents {names}. Name one, such as random")
    if len(agents) > 2 and config.swap_sides:
        return FieldProblem("swap_sides", f"{config.env} has more than two agents ({names}); expected false")
    return None


def start_duel(call: Call[Any], plan: DuelPlan) -> list[RunView]:
    """Submit all sessions; if one is refused, the others are cancelled."""
    views: list[RunView] = []
    try:
        for session in plan.sessions:
            views.append(submit_once(call, session.payload))
    except BaseException:
        cancel_sessions(call, views)
        raise
    return views


def cancel_sessions(call: Call[Any], views: Sequence[RunView]) -> None:
    for view in views:
        with suppress(NotAllowed):  # it has ended by itself
            call(lambda trainer, run_id=view.run_id: trainer.cancel_run(run_id))  # type: ignore[misc]


def wait_for_duel(
    call: Call[Any],
    plan: DuelPlan,
    views: Sequence[RunView],
    show: Callable[[str], None] = lambda line: None,
    interrupts: InterruptCounter | None = None,
) -> list[RunView]:
    """Wait until all sessions have ended and return their last views.

    The first Ctrl-C cancels the sessions, the second one raises KeyboardInterrupt.
    """
    handled = 0
    while True:
        found = call(lambda trainer: trainer.runs(group=plan.group, include_archived=True))
        by_id = {view.run_id: view for view in found}
        current = [by_id.get(view.run_id, view) for view in views]
        ended = sum(view.stage is Stage.FINISHED for view in current)
        episodes = f"{sum(view.episodes for view in current):,} of {plan.episode_count:,} episodes"
        show(f"{ended} of {len(current)} sessions have ended, {episodes}")
        if ended == len(current):
            return current
        if interrupts is not None and interrupts.count > handled:
            handled += 1
            if handled > 1:
                raise KeyboardInterrupt
            show("Stopping the sessions. Ctrl-C again: detach.")
            cancel_sessions(call, [view for view in current if view.stage is not Stage.FINISHED])
        time.sleep(POLL_S)


def collect_result(trainer: TrainerClient, plan: DuelPlan, views: Sequence[RunView]) -> DuelResult:
    """Read what the sessions have played, also those that failed."""
    config, seeds = plan.config, plan.config.all_seeds
    expected = len(seeds) * len(config.sides)
    results: list[ActorResult] = []
    played: list[DuelEpisode] = []
    first: Floats | None = None
    """The returns of the first actor, by seed."""
    for actor in config.actors:
        own = [pair for pair in zip(plan.sessions, views, strict=True) if pair[0].actor is actor]
        read = [_read_session(trainer, session, view) for session, view in own]
        episodes = [episode for found, *_ in read for episode in found]
        totals = ActorTotals.add([one for _, counted, _ in read for one in counted])
        others = ActorTotals.add([one for *_, counted in read for one in counted])
        failed = [view for _, view in own if view.outcome is not Outcome.SUCCEEDED]
        problems = [f"{view.status}: {view.reason}" if view.reason else view.status for view in failed]
        if not problems and len(episodes) < expected:
            problems = [f"only {len(episodes)} of {expected} episodes have results"]
        for who, counted in (("it", totals), ("its opponent", others)):
            if not problems and counted is not None and counted.has_only_fallbacks:
                reasons = ", ".join(counted.problems) or "no action"
                problems = [f"{who} did not play: {counted.describe()} ({reasons})"]
        returns = None if problems else values_by_seed(episodes, seeds)
        has_difference = returns is not None and first is not None
        outcomes = [episode.outcome for episode in episodes]
        counts = {"wins": "win", "draws": "draw", "losses": "loss"} if any(outcomes) else {}
        results.append(
            ActorResult(
                label=actor.name,
                actor=actor.actor,
                runs=tuple(view.run_id for _, view in own),
                # Of a session that was killed, the results are lost.
                episodes=max(len(episodes), sum(view.episodes for _, view in own)),
                expected_episodes=expected,
                problem="; ".join(dict.fromkeys(problems)) or None,
                totals=totals,
                returns=None if returns is None else estimate_mean(returns),
                difference=estimate_mean(returns - first) if has_difference else None,  # type: ignore[operator]
                avg_length=None if problems else sum(episode.length for episode in episodes) / len(episodes),
                **{name: outcomes.count(outcome) for name, outcome in counts.items()},
            )
        )
        played += episodes
        first = returns if len(results) == 1 else first
    return DuelResult(
        name=plan.group,
        env_id=config.env,
        seeds=tuple(seeds),
        opponent=None if config.opponent is None else config.opponent.name,
        actors=tuple(results),
        episodes=tuple(played),
    )


def _read_session(
    trainer: TrainerClient, session: DuelSession, view: RunView
) -> tuple[list[DuelEpisode], list[ActorTotals], list[ActorTotals]]:
    """Return the episodes of a session, what its actor counted, and what the others did."""
    summary = trainer.play_summary(view.run_id)
    if summary is None:
        return [], [], []
    agents = list(summary.agents)
    if len(agents) < session.side or any(
        episode.returns.keys() != summary.agents.keys() for episode in summary.episodes
    ):
        raise BadInput(
            f"The results of session {view.run_id} do not have the agents of {session.actor.name}'s session."
        )
    own = agents[session.side - 1]
    others = [agent for agent in agents if agent != own]
    episodes = [
        DuelEpisode(
            actor=session.actor.name,
            seed=episode.seed,
            side=session.side,
            episodic_return=episode.returns[own],
            opponent_return=sum(episode.returns[agent] for agent in others) / len(others) if others else None,
            length=episode.length,
            ending=episode.ending,
            run=view.run_id,
        )
        for episode in summary.episodes
    ]
    totals = {agent: list(found.totals.values()) for agent, found in summary.agents.items()}
    return episodes, totals[own], [one for agent in others for one in totals[agent]]


def run_duel(
    trainer: TrainerClient, call: Call[Any], plan: DuelPlan, show: Callable[[str], None] = lambda line: None
) -> DuelResult:
    """Start and follow a duel, and return its result; Ctrl-C cancels its sessions."""
    with InterruptCounter() as interrupts:
        views = start_duel(call, plan)
        views = wait_for_duel(call, plan, views, show, interrupts)
    result: DuelResult = call(lambda trainer: collect_result(trainer, plan, views))
    return result
