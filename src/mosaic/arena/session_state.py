"""What a window shows of a session besides its frames: written to `session.json`, replaced at each write."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from mosaic.arena.actors import Turn
from mosaic.arena.play_envs import PlayEnv, StepResult
from mosaic.arena.played_seat import PlayedSeat
from mosaic.arena.recording import Ending
from mosaic.arena.state_text import describe_action, describe_value, read_symbols, read_text
from mosaic.common.files import write_text
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.key_binding import KeyBinding
from mosaic.contracts.play import ANY_AGENT
from mosaic.contracts.views import ActorTotals, PlayedEpisode, SeatState, SessionState
from mosaic.envs.families import EnvEntry

RATE_HZ = 60.0


class StateWriter:
    """Writes the state at most RATE_HZ times a second. A state that cannot be written is skipped."""

    def __init__(
        self,
        folder: RunFolder,
        env: PlayEnv,
        entry: EnvEntry | None,
        names: tuple[str, ...],
        own_rate_hz: float | None = None,
    ) -> None:
        self._path = folder.session_state
        self._env = env
        self._entry = entry
        self._names = names
        self._own_rate_hz = own_rate_hz
        self._next_at = 0.0
        self.has_changed = True
        self.episode = 0
        self._last_actions: dict[str, str] = {}
        self._last_rewards: dict[str, float] = {}
        self._ending: Ending = "running"
        self._complete_episodes = 0
        self._last_episode: PlayedEpisode | None = None
        self._totals: dict[str, float] = {}
        self._wins: Counter[str] = Counter()
        self.seed = 0

    def start_episode(self) -> int:
        """Return the number of the episode that starts, from 1."""
        self.episode += 1
        self._last_actions, self._last_rewards, self._ending = {}, {}, "running"
        self.has_changed = True
        return self.episode

    def add_step(self, actions: Mapping[str, Any], result: StepResult, ending: Ending) -> None:
        self._last_actions = {agent: describe_action(action, self._names) for agent, action in actions.items()}
        self._last_rewards = dict(result.rewards)
        self._ending = ending
        self.has_changed = True

    def add_episode(self, episode: PlayedEpisode) -> None:
        """Count a complete episode."""
        self._complete_episodes += 1
        self._last_episode = episode
        for agent, value in episode.returns.items():
            self._totals[agent] = self._totals.get(agent, 0.0) + value
        best = max(episode.returns.values())
        winners = [agent for agent, value in episode.returns.items() if value == best]
        if len(winners) == 1 and len(episode.returns) > 1:
            self._wins[winners[0]] += 1
        self.has_changed = True

    def is_due(self) -> bool:
        """Return whether something has changed that is to be written now."""
        return self.has_changed and time.monotonic() >= self._next_at

    def write(
        self,
        seats: Mapping[str, PlayedSeat],
        returns: Mapping[str, float],
        *,
        is_paused: bool,
        waits_for_key: bool,
        rate_hz: float | None,
        failure: str,
    ) -> None:
        self.has_changed = False
        self._next_at = time.monotonic() + 1 / RATE_HZ
        turns = {turn.agent: turn for turn in self._env.turns}
        first = next(iter(turns.values()), None)
        state = SessionState(
            episode=self.episode,
            step=self._env.steps,
            seed=self.seed,
            ending=self._ending,
            is_paused=is_paused,
            waits_for_key=waits_for_key,
            failure=failure,
            rate_hz=rate_hz,
            own_rate_hz=self._own_rate_hz,
            action_names=self._names,
            keys=_human_keys(seats),
            seats=tuple(
                SeatState(
                    agent="" if agent == ANY_AGENT else agent,
                    actor=seat.actor_name,
                    is_human=seat.is_human,
                    can_switch=seat.can_switch,
                    is_to_act=agent in turns,
                    episodic_return=returns.get(agent, 0.0),
                    last_action=self._last_actions.get(agent, ""),
                    last_reward=self._last_rewards.get(agent, 0.0),
                    legal_actions=_legal_actions(turns.get(agent)),
                    problem=seat.problem,
                    mean_return=self._mean_return(agent),
                    wins=self._wins[agent],
                    totals=tuple(map(ActorTotals.model_validate, seat.summarize().values())),
                )
                for agent, seat in seats.items()
            ),
            complete_episodes=self._complete_episodes,
            last_episode=self._last_episode,
            text=read_text(self._env.core),
            symbols=read_symbols(self._env.core, self._entry, self._env.turns),
            observation="" if first is None else describe_value(first.observation),
            info="" if first is None else describe_value(dict(first.info)),
        )
        with suppress(OSError):
            write_text(self._path, state.model_dump_json())

    def _mean_return(self, agent: str) -> float | None:
        return self._totals.get(agent, 0.0) / self._complete_episodes if self._complete_episodes else None


def _human_keys(seats: Mapping[str, PlayedSeat]) -> tuple[KeyBinding, ...]:
    human = next((seat.human for seat in seats.values() if seat.human is not None), None)
    return () if human is None else human.bindings


def _legal_actions(turn: Turn | None) -> tuple[int, ...] | None:
    return None if turn is None or turn.legal_actions is None else tuple(turn.legal_actions)
