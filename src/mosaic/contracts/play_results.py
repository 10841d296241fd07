"""The result of a play session: every complete episode, and statistics by agent."""

from __future__ import annotations

from mosaic.contracts.views import ActorTotals, PlayedEpisode, ReturnStatistics, View


class AgentSummary(ReturnStatistics):
    """The returns of one agent."""

    actor: str
    """Who acted, such as `policy:RUN`."""
    steps_by_actor: dict[str, int] = {}
    """In how many steps each acted, where a human or a standby took turns with it."""
    totals: dict[str, ActorTotals] = {}
    """By actor, what it counted, such as fallbacks and tokens."""

    @property
    def who_acted(self) -> str:
        """`policy:RUN`, or of several: `human 301 steps, policy:RUN 569 steps`."""
        shares = [f"{actor} {steps:,} steps" for actor, steps in self.steps_by_actor.items() if steps]
        return ", ".join(shares) if len(shares) > 1 else self.actor


class PlaySummary(View):
    env_id: str
    episodes: tuple[PlayedEpisode, ...]
    agents: dict[str, AgentSummary]
    """By agent, in the order of the environment; an environment without named agents has one, `*`."""
