"""Records PettingZoo environments. The return of an episode is the sum over its agents; each has a curve of its own."""

from __future__ import annotations

import functools
import time
from typing import Any

from mosaic.probe.inside.core import OWN
from mosaic.probe.inside.discovery import taps, watch_class
from mosaic.probe.inside.env_taps import MAX_CURVES, EnvTap, find_tap, take_index, tap_env
from mosaic.probe.inside.groups import Place, group_at
from mosaic.probe.inside.hooks import call_after


class AgentsTap(EnvTap):
    """Records one environment with several agents, which act at once or take turns."""

    @staticmethod
    def patch_step(kind: Any) -> None:
        call_after(kind, "step", "environments", functools.partial(_on_step, kind))

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.returns: dict[Any, float] = {}

    def start_episode(self) -> None:
        super().start_episode()
        self.returns = {}

    def record_step(self, agents: Any, rewards: Any, terminations: Any, truncations: Any) -> None:
        if self.counter is not None:
            self.counter.steps += 1
        self.length += 1
        total = 0.0
        for agent, reward in rewards.items():
            self.returns[agent] = self.returns.get(agent, 0.0) + reward
            total += reward
        self.total += total
        now = time.monotonic()
        if now >= self.next_poll_at:
            self.poll(now, total)
        if all(terminations.get(agent) or truncations.get(agent) for agent in agents):
            self.finish_episode()

    def finish_episode(self, is_cut: bool = False) -> None:
        if "metrics" in self.probe.parts and self.is_training:
            for agent in list(self.returns)[:MAX_CURVES]:
                self.probe.add_scalar(OWN, f"agents/{agent}/episodic_return", self.returns[agent], self.probe.steps)
        super().finish_episode(is_cut)


def patch_pettingzoo(module: Any) -> None:
    watch_class(module.ParallelEnv, (), _tap)
    watch_class(module.AECEnv, (), _tap)


def _tap(env: Any, place: Place, seed: Any) -> None:
    if find_tap(env) is None:
        tap_env(env, take_index(), 1, group_at(place), seed=seed, tap_class=AgentsTap)


def _on_step(kind: Any, result: Any, env: Any, action: Any = None, *args: Any, **kwargs: Any) -> None:
    tap = taps.get(id(env))
    if tap is None or tap.kind is not kind:
        return
    if isinstance(result, tuple):  # all agents act at once
        _, rewards, terminations, truncations, _ = result
        tap.record_step(rewards, rewards, terminations, truncations)
    elif action is not None:  # they take turns (AEC); a dead one only leaves
        tap.record_step(env.agents, env.rewards, env.terminations, env.truncations)
