"""The result of a play session: the returns of each agent, with statistics."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mosaic.arena.episode_summary import summarize_values
from mosaic.arena.played_seat import PlayedSeat
from mosaic.contracts.play import PlayConfig
from mosaic.contracts.views import PlayedEpisode


def summarize_session(
    config: PlayConfig, seats: Sequence[PlayedSeat], episodes: Sequence[PlayedEpisode]
) -> dict[str, Any]:
    """Return the summary as JSON: statistics by agent, totals of actors that have some, every complete episode."""
    totals = {seat.agent: seat.summarize() for seat in seats}
    steps = {seat.agent: seat.steps for seat in seats}
    seeds = [episode.seed for episode in episodes]
    lengths = [episode.length for episode in episodes]
    return {
        "env_id": config.env_id,
        "episodes": [json.loads(episode.model_dump_json()) for episode in episodes],
        "agents": {
            agent: {
                "actor": str(choice),
                **summarize_values(seeds, [episode.returns[agent] for episode in episodes], lengths),
                "steps_by_actor": steps[agent],
                **({"totals": totals[agent]} if totals[agent] else {}),
            }
            for agent, choice in config.assign_actors(list(totals)).items()
        },
    }
