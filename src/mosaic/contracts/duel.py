"""The config of a duel: actors that are compared in one environment under the same seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from mosaic.contracts.model import Contract
from mosaic.contracts.payload import EnvId, SafeName, Seed, Text
from mosaic.contracts.play import MAX_EPISODES, MAX_RATE_HZ

MAX_ACTORS = 100
DEFAULT_EPISODES = 20
_Episodes = Annotated[int, Field(ge=1, le=MAX_EPISODES)]


class DuelActor(Contract):
    """An actor, such as `policy:RUN`; a bare text is short for one without options."""

    actor: Annotated[Text, Field(min_length=1)]
    label: Annotated[Text, Field(min_length=1, max_length=60)] | None = None
    """How results name it; unset: as the actor is written."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Settings of this kind of actor; it checks them."""

    @property
    def name(self) -> str:
        return self.label or self.actor


class DuelSeeds(Contract):
    """The seeds of the episodes: a list, or `count` consecutive ones."""

    start: Seed | None = None
    """The first of consecutive seeds; unset: 1."""
    count: _Episodes | None = None
    """How many consecutive seeds; unset: as many as `episodes`."""
    values: Annotated[tuple[Seed, ...], Field(min_length=1, max_length=MAX_EPISODES)] | None = None
    """The seeds themselves; a bare list is short for them."""

    @model_validator(mode="after")
    def _check_form(self) -> Self:
        if self.values is not None and (self.start is not None or self.count is not None):
            raise ValueError("expected a list of seeds, or start and count, not both")
        if self.values is not None and len(set(self.values)) < len(self.values):
            raise ValueError("a seed is listed twice; each is one episode of every actor")
        return self


def _expand_actor(value: Any) -> Any:
    return {"actor": value} if isinstance(value, str) else value


def _expand_seeds(value: Any) -> Any:
    return {"values": value} if isinstance(value, (list, tuple)) else value


Contestant = Annotated[DuelActor, BeforeValidator(_expand_actor)]


class DuelConfig(Contract):
    env: EnvId
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Passed to the environment."""
    actors: Annotated[tuple[Contestant, ...], Field(min_length=1, max_length=MAX_ACTORS)]
    """Those that are compared; differences are to the first."""
    opponent: Contestant | None = None
    """Who acts for the other agents of a game; required there."""
    swap_sides: bool = True
    """In a game, each seed is played twice: with the actor as the first agent, and as the second."""
    seeds: Annotated[DuelSeeds, BeforeValidator(_expand_seeds)] = Field(default_factory=DuelSeeds)
    episodes: _Episodes | None = None
    """Of each actor, one per seed; unset: as many as there are seeds, else 20."""
    rate_hz: Annotated[float, Field(gt=0, le=MAX_RATE_HZ)] | None = None
    """Steps per second; unset: as fast as possible."""
    max_steps: Annotated[int, Field(ge=1)] | None = None
    """An episode is truncated after this many steps."""
    record: bool = True
    """Whether every episode is stored for `mosaic replay`."""
    name: SafeName | None = None
    """The beginning of the name of the group of its runs; unset: from the environment."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        names = [actor.name for actor in self.actors]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two actors are called {repeated[0]!r}; give each a label of its own")
        if len(self.actors) < 2 and self.opponent is None:
            raise ValueError("expected at least two actors to compare, or one and an opponent")
        given = {len(self.seeds.values)} if self.seeds.values is not None else {self.seeds.count}
        counts = (given | {self.episodes}) - {None}
        if len(counts) > 1:
            raise ValueError(
                f"episodes: {self.episodes} does not match the number of seeds, {given.pop()}; an episode has one seed"
            )
        return self

    @property
    def all_seeds(self) -> Sequence[int]:
        """The seed of each episode, in order."""
        if self.seeds.values is not None:
            return self.seeds.values
        start = 1 if self.seeds.start is None else self.seeds.start
        return range(start, start + (self.seeds.count or self.episodes or DEFAULT_EPISODES))

    @property
    def sides(self) -> tuple[int, ...]:
        """Which agent an actor is in its sessions, from 1."""
        return (1, 2) if self.opponent is not None and self.swap_sides else (1,)
