"""The place of one agent in a session, and which of its actors acts now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mosaic.arena.actors import Actor, SummarizedActor, Turn
from mosaic.arena.human import HumanActor
from mosaic.contracts.play_commands import Act, Keys


@dataclass(frozen=True)
class NamedActor:
    name: str
    """As in the config: `policy:RUN`."""
    actor: Actor


class PlayedSeat:
    """One agent with the actor that acts for it, and perhaps one on standby."""

    def __init__(self, agent: str, first: NamedActor, standby: NamedActor | None = None) -> None:
        self.agent = agent
        self._actors = [first] if standby is None else [first, standby]
        self._current = first
        self.steps = dict.fromkeys((one.name for one in self._actors), 0)
        """By actor: in how many steps it acted."""

    @property
    def actor_name(self) -> str:
        return self._current.name

    @property
    def human(self) -> HumanActor | None:
        """The human of this seat, acting or not."""
        return next((one.actor for one in self._actors if isinstance(one.actor, HumanActor)), None)

    @property
    def is_human(self) -> bool:
        return isinstance(self._current.actor, HumanActor)

    @property
    def problem(self) -> str:
        """Why the last input of a human, or the last answer of a model, was not an action."""
        return str(getattr(self._current.actor, "problem", ""))

    @property
    def can_switch(self) -> bool:
        return len(self._actors) > 1

    def switch(self, to_human: bool) -> bool:
        """Let the human act, or the other actor; return whether that is a change."""
        if self.is_human == to_human or not self.can_switch:
            return False
        self.alternate()
        return True

    def alternate(self) -> None:
        """Let the other actor act."""
        self._current = next(one for one in self._actors if one is not self._current)
        if self.human is not None:
            self.human.forget_input()

    def receive_keys(self, keys: Keys, is_to_act: bool) -> None:
        """Keys pressed while another agent or actor acts are not kept for later; which ones are held is."""
        if self.human is not None:
            self.human.receive_keys(keys if is_to_act and self.is_human else Keys(down=keys.down))

    def receive_action(self, command: Act) -> None:
        if self.human is not None and self.is_human:
            self.human.receive_action(command)

    def start_episode(self, seed: int) -> None:
        for one in self._actors:
            one.actor.start_episode(seed)

    def act(self, turn: Turn) -> Any:
        """Return an action, or None if there is none yet."""
        return self._current.actor.act(turn)

    def count_step(self) -> None:
        self.steps[self.actor_name] += 1

    def summarize(self) -> dict[str, Mapping[str, Any]]:
        """Return the totals of the actors that have some, by name."""
        return {one.name: one.actor.summarize() for one in self._actors if isinstance(one.actor, SummarizedActor)}

    def close(self) -> None:
        for one in self._actors:
            one.actor.close()
