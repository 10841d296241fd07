"""The result of a play session: every complete episode, and statistics by agent."""

from __future__ import annotations

from typing import Any

from mosaic.contracts.views import PlayedEpisode, View


class AgentSummary(View):
    """The returns of one agent; figures are null where they are not finite."""

    actor: str
    """Who acted, such as `policy:RUN`."""
    episodes: int
    avg_return: float | None = None
    median_return: float | None = None
    min_return: float | None = None
    max_return: float | None = None
    std_return: float | None = None
    iqm: float | None = None
    ci95: tuple[float, float] | None = None
    """Student's 95 % confidence interval of the mean; null for a single episode."""
    avg_length: float | None = None
    returns: tuple[float | None, ...] = ()
    totals: dict[str, Any] = {}
    """By actor, what it counted, such as tokens."""


class PlaySummary(View):
    env_id: str
    episodes: tuple[PlayedEpisode, ...]
    agents: dict[str, AgentSummary]
    """By agent, in the order of the environment; an environment without named agents has one, `*`."""
