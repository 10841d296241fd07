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
    """Records one environment with several agents."""

    __slots__ = ("returns",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.returns: dict[Any, float] = {}

    def start_episode(self) -> None:
        super().start_episode()
        self.returns = {}

    def record_step(self, rewards: Any, is_over: bool) -> None:
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
        if is_over:
            self.finish_episode()

    def finish_episode(self, is_cut: bool = False) -> None:
        if "metrics" in self.probe.parts and self.is_training:
            for agent in list(self.returns)[:MAX_CURVES]:
                self.probe.add_scalar(OWN, f"agents/{agent}/episodic_return", self.returns[agent], self.probe.steps)
        super().finish_episode(is_cut)


class ParallelTap(AgentsTap):
    """Records an environment in which all agents act at once."""

    __slots__ = ()

    @staticmethod
    def patch_step(kind: Any) -> None:
        call_after(kind, "step", "environments", functools.partial(_on_parallel_step, kind))


class TurnsTap(AgentsTap):
    """Records an environment in which agents take turns (AEC)."""

    __slots__ = ()

    @staticmethod
    def patch_step(kind: Any) -> None:
        call_after(kind, "step", "environments", functools.partial(_on_turn, kind))


def patch_pettingzoo(module: Any) -> None:
    watch_class(module.ParallelEnv, (), functools.partial(_tap, ParallelTap))
    watch_class(module.AECEnv, (), functools.partial(_tap, TurnsTap))


def _tap(tap_class: type[AgentsTap], env: Any, place: Place, seed: Any) -> None:
    if find_tap(env) is None:
        tap_env(env, take_index(), 1, group_at(place), seed=seed, tap_class=tap_class)


def _on_parallel_step(kind: Any, result: Any, env: Any, *args: Any, **kwargs: Any) -> None:
    tap = taps.get(id(env))
    if tap is not None and tap.kind is kind:
        _, rewards, terminations, truncations, _ = result
        tap.record_step(rewards, _are_all_done(rewards, terminations, truncations))


def _on_turn(kind: Any, result: Any, env: Any, action: Any = None, *args: Any, **kwargs: Any) -> None:
    tap = taps.get(id(env))
    if tap is not None and tap.kind is kind and action is not None:  # a dead agent only leaves
        tap.record_step(env.rewards, _are_all_done(env.agents, env.terminations, env.truncations))


def _are_all_done(agents: Any, terminations: Any, truncations: Any) -> bool:
    return all(terminations.get(agent) or truncations.get(agent) for agent in agents)
