"""Several environments of a team, in which each agent is a row of its own, as if it were alone in an environment.

An agent may leave before the others: its episode ends then, and until the team's next episode its row is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cleanrl_worker.environments.vector import EpisodeEnd, VectorEnvs
from mosaic.contracts.errors import BadInput, FieldProblem
from mosaic.worker.envs.teams import TeamEnv
from mosaic.worker.live_frames import LiveFrames

Array = npt.NDArray[Any]


def check_rows(env_id: str, rows: int, agents: int) -> None:
    if rows % agents:
        fitting = max(rows // agents * agents, agents)
        message = (
            f"num_envs = {rows} is the number of agents in all environments, and {env_id} has {agents} of them: use a "
            f"multiple of {agents}, such as {fitting}."
        )
        raise BadInput(message, [FieldProblem("num_envs", message)])


class AgentRows(VectorEnvs):
    """`rows` agents: row `environment × agents + agent`. The inherited parts know whole environments only."""

    def __init__(
        self,
        make_env: Callable[[], TeamEnv],
        rows: int,
        seed: int,
        frames: LiveFrames | None = None,
        clips_rewards: bool = False,
    ) -> None:
        """With `clips_rewards`, the rewards of a rollout are within -1 and 1; returns are not clipped."""
        first = make_env()
        first.close()
        self.agents, self.action_spaces, self.sizes = first.agents, first.action_spaces, first.sizes
        self.observation_spaces = first.observation_spaces
        count = len(self.agents)
        super().__init__(make_env, rows // count, seed, frames)
        self._teams: list[TeamEnv] = self._unwrapped_envs
        self._clips_rewards = clips_rewards
        self.shape = (self.observation_space.shape or ())[1:]
        """The shape of an agent's row."""
        self.action_space = self.action_spaces[0]
        self._agent_rewards: list[Array] = []
        self._step_absences: list[Array] = []
        self._agent_returns = np.zeros((len(self), count))
        """The return of each agent's current episode."""
        self._team_ends: dict[int, EpisodeEnd] = {}
        self.is_absent = np.zeros((0, rows), np.bool_)
        """The rows of the last rollout in which no agent acted, [steps, rows]."""

    @property
    def observation_size(self) -> int:
        return max(self.sizes)

    def agent_of(self, row: int) -> str:
        return self.agents[row % len(self.agents)]

    def observe(self, into: Array) -> None:
        super().observe(into.reshape(len(self), -1))

    def step(self, actions: Iterable[Any], into: Array) -> Sequence[EpisodeEnd]:
        """Step each environment; return the ends of agents' episodes."""
        count = len(self.agents)
        self._step_absences.append(np.concatenate([~team.is_present for team in self._teams]))
        team_ends = super().step(np.asarray(actions).reshape(len(self), count), into.reshape(len(self), -1))
        rewards = np.concatenate([team.rewards for team in self._teams])
        self._agent_rewards.append(rewards)
        self._agent_returns += rewards.reshape(len(self), count)
        self._team_ends = {episode_end.env: episode_end for episode_end in team_ends}
        ends: list[EpisodeEnd] = []
        for index, team in enumerate(self._teams):
            if not team.has_left.any():
                continue
            team_end = self._team_ends.get(index)
            length = self._step_count - self._episode_starts[index] if team_end is None else team_end.length
            for agent in np.flatnonzero(team.has_left).tolist():
                row = index * count + agent
                final = into[row] if team_end is None else team_end.observation.reshape(count, *self.shape)[agent]
                is_terminal, agent_return = bool(team.is_terminal[agent]), float(self._agent_returns[index, agent])
                ends.append(EpisodeEnd(row, np.array(final), is_terminal, agent_return, length))
            if team_end is not None:
                self._agent_returns[index] = 0
        return ends

    def take_team_end(self, row: int) -> EpisodeEnd | None:
        """Return, once, the end of the team's episode in the last step, if that of this row's team ended."""
        return self._team_ends.pop(row // len(self.agents), None)

    def finish_rollout(self, actions: Array) -> npt.NDArray[np.float64]:
        """End a rollout with these actions [steps, rows]; return its rewards [steps, rows]."""
        super().finish_rollout(actions.reshape(len(actions), len(self), len(self.agents)))
        rewards, self.is_absent = np.array(self._agent_rewards), np.array(self._step_absences)
        self._agent_rewards.clear()
        self._step_absences.clear()
        return np.clip(rewards, -1, 1) if self._clips_rewards else rewards

    # --- resuming

    def checkpoint_state(self) -> tuple[dict[str, Array], list[dict[str, Any]]]:
        arrays, facts = super().checkpoint_state()
        return {**arrays, "env.agent_returns": self._agent_returns.copy()}, facts

    def restore(self, arrays: Mapping[str, Array], facts: Sequence[Mapping[str, Any]]) -> list[str]:
        problems = super().restore(arrays, facts)
        for index, fact in enumerate(facts):
            is_restored = self._step_count - self._episode_starts[index] == fact["length"]
            self._agent_returns[index] = arrays["env.agent_returns"][index] if is_restored else 0
        return problems
