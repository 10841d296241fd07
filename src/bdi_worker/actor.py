"""The actor `bdi:FILE` of play sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bdi_worker.asl_source import read_source
from bdi_worker.percepts import find_perception
from bdi_worker.plan_values import LearningAgent, build_learner
from mosaic.contracts.errors import unknown_name_error
from mosaic.contracts.play import ActorChoice
from mosaic.worker.actors import Seat, Turn

MAX_REPORTED = 20
"""Fallbacks that are written to the journal one by one."""


class BdiActor:
    """An AgentSpeak agent. Its plans with `[learn]` have no values here: a trained agent is `policy:RUN`."""

    def __init__(self, choice: ActorChoice, seat: Seat) -> None:
        fallback = choice.options.get("fallback")
        self._perception = find_perception(seat.env)
        names = self._perception.action_names
        if fallback is not None and fallback not in names:
            raise unknown_name_error("action", str(fallback), names, seat.env_id)
        source = read_source(choice.target)
        self._mind = build_learner(source, self._perception, np.random.default_rng(seat.seed))
        self._agent: LearningAgent = self._mind.agent
        # All values are equal, so that each choice among plans with [learn] is random.
        self._agent.epsilon = 1.0
        if fallback is not None:
            self._mind.fallback = names.index(fallback)
        self._name = str(choice)
        self._report = seat.report
        self._fallback_count = self._decisions = 0
        self._report_warnings(self._mind.warnings)

    def start_episode(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 2])
        self._mind.rng = self._agent.rng = rng
        self._mind.start_episode()

    def act(self, turn: Turn) -> int:
        self._agent.state = self._perception.state(turn.observation)
        decision = self._mind.decide(turn.observation)
        self._decisions += 1
        if decision.problem:
            self._fallback_count += 1
            if self._report is not None and self._fallback_count <= MAX_REPORTED:
                action = self._perception.action_names[decision.action]
                self._report("actor_fallback", agent=turn.agent, step=turn.step, action=action, reason=decision.problem)
        return decision.action

    def summarize(self) -> dict[str, Any]:
        return {"decisions": self._decisions, "fallbacks": self._fallback_count}

    def close(self) -> None:
        if self._report is not None and self._fallback_count:
            text = f"{self._name} chose no action in {self._fallback_count:,} steps, and the fallback was taken."
            self._report("warning", text=text, code="actor_fallback")

    def _report_warnings(self, warnings: list[str]) -> None:
        report: Callable[..., Any] | None = self._report
        if report is not None:
            for text in warnings:
                report("warning", text=text, code="asl_warning")
