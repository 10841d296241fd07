"""A play session: actors act in an environment, at a rate or by turns, until its episodes are played.

Everything happens in one thread. An actor that has no action yet is asked again; meanwhile commands are read, so the
session can be paused, stepped, reset and stopped at any time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from mosaic.arena.actors import Actor, Turn
from mosaic.arena.play_envs import PlayEnv
from mosaic.arena.recording import ActorChange, Ending, RecordedEpisode, RecordingWriter
from mosaic.contracts import commands
from mosaic.contracts.play import PlayConfig
from mosaic.fastlane import FrameTap
from mosaic.run import Run
from mosaic.run.file_watch import FileWatch

FLUSH_S = 1.0
"""How long a step may be unrecorded if the process is killed."""
ASK_AGAIN_S = 0.005
"""Interval at which an actor that has no action yet is asked again."""
IDLE_S = 0.05


class EpisodeRecorder:
    """Collects the steps of the current episode and appends them to the recording at intervals."""

    def __init__(self, writer: RecordingWriter | None) -> None:
        self._writer = writer
        self._number = 0 if writer is None else writer.next_number
        self._flushed_at = 0.0

    def start(self, seed: int, actors: Mapping[str, str]) -> None:
        self._seed: int | None = seed
        self._actions: list[Any] = []
        self._rewards: list[Any] = []
        self._length = 0
        self._changes = [ActorChange(0, agent, actor) for agent, actor in actors.items()]

    def add(self, action_row: Any, reward_row: Any) -> None:
        self._actions.append(action_row)
        self._rewards.append(reward_row)
        self._length += 1
        if time.monotonic() - self._flushed_at > FLUSH_S:
            self._flush("running")

    def change_actor(self, agent: str, actor: str) -> None:
        self._changes.append(ActorChange(self._length, agent, actor))

    def finish(self, ending: Ending) -> None:
        self._flush(ending)
        self._number += 1

    def _flush(self, ending: Ending) -> None:
        self._flushed_at = time.monotonic()
        if self._writer is None or not self._length:
            return
        part = RecordedEpisode(
            self._number,
            self._seed,
            None,
            np.array(self._actions),
            np.array(self._rewards, np.float64),
            ending,
            tuple(self._changes),
        )
        self._writer.append([part])
        self._seed, self._actions, self._rewards, self._changes = None, [], [], []


class PlaySession:
    def __init__(
        self,
        config: PlayConfig,
        run: Run,
        env: PlayEnv,
        actors: Mapping[str, Actor],
        recorder: EpisodeRecorder,
        tap: FrameTap | None = None,
    ) -> None:
        self._config = config
        self._run = run
        self._env = env
        self._actors = dict(actors)
        self._actor_names = {agent: str(choice) for agent, choice in config.assign_actors(env.agents).items()}
        self._recorder = recorder
        self._tap = tap
        self._watch = FileWatch(run.folder.inbox)
        self._is_paused = config.is_paused
        self._single_steps = 0
        self._next_seed: int | None = None
        self._is_reset_requested = False
        self._rate_hz = config.rate_hz
        self._next_step_at = 0.0
        self._global_step = 0
        self.episodes: list[dict[str, Any]] = []
        """Of each complete episode: seed, length, ending and the return of each agent."""

    # --- commands

    def handle_command(self, command: Mapping[str, Any]) -> bool:
        """Apply one command of the inbox; return False for those of every run."""
        kind = command["kind"]
        if kind == commands.PAUSE:
            self._set_paused(True)
        elif kind == commands.RESUME:
            self._set_paused(False)
        elif kind == commands.STEP:
            self._single_steps += 1
        elif kind == commands.RESET:
            seed = command.get("seed")
            self._next_seed = seed if isinstance(seed, int) and 0 <= seed < 2**63 else None
            self._is_reset_requested = True
        elif kind == commands.RATE:
            rate = command.get("rate_hz")
            self._rate_hz = float(rate) if isinstance(rate, (int, float)) and 0 < rate <= 1000 else None
        else:
            return False
        return True

    def _set_paused(self, is_paused: bool) -> None:
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            self._run.event("paused" if is_paused else "resumed", global_step=self._global_step)

    # --- playing

    def play(self) -> None:
        """Play until the episodes are over or a stop is requested."""
        number = 0
        while not self._run.stop_requested and (self._config.episodes is None or number < self._config.episodes):
            seed = self._config.seed + number if self._next_seed is None else self._next_seed
            self._next_seed = None
            number += 1
            self._play_episode(number, seed)

    def _play_episode(self, number: int, seed: int) -> None:
        env = self._env
        env.reset(seed)
        for actor in self._actors.values():
            actor.start_episode(seed)
        self._recorder.start(seed, self._actor_names)
        returns = dict.fromkeys(env.agents, 0.0)
        self._is_reset_requested = False
        self._show(number, 0.0, 0.0)
        ending: Ending = "running"
        while ending == "running" and not self._run.stop_requested and not self._is_reset_requested:
            actions = self._choose_actions()
            if actions is None:
                continue
            row = env.to_row(actions)
            result = env.step(actions)
            self._global_step += 1
            ending = result.ending
            if ending == "running" and self._config.max_steps is not None and env.steps >= self._config.max_steps:
                ending = "truncated"
            self._recorder.add(row, env.reward_row(result.rewards))
            for agent, reward in result.rewards.items():
                returns[agent] += reward
            first = env.agents[0]
            self._show(number, result.rewards[first], returns[first])
            self._run.update(self._global_step)
        self._recorder.finish(ending)
        if ending != "running":
            self._finish_episode(number, seed, ending, returns)

    def _finish_episode(self, number: int, seed: int, ending: Ending, returns: Mapping[str, float]) -> None:
        length = self._env.steps
        first = returns[self._env.agents[0]]
        self._run.episode(env=0, step=self._global_step, episodic_return=first, length=length)
        self.episodes.append({"seed": seed, "length": length, "ending": ending, "returns": dict(returns)})

    def _choose_actions(self) -> dict[str, Any] | None:
        """Return the actions of all agents whose turn it is; None if something else is to be done first."""
        actions: dict[str, Any] = {}
        while True:
            self._wait_for_step()
            if self._run.stop_requested or self._is_reset_requested:
                return None
            for turn in self._env.turns:
                if turn.agent not in actions and (action := self._ask(turn)) is not None:
                    actions[turn.agent] = action
            if len(actions) == len(self._env.turns):
                self._single_steps = max(0, self._single_steps - 1)
                if self._rate_hz is not None:
                    self._next_step_at = max(time.monotonic(), self._next_step_at) + 1 / self._rate_hz
                return actions
            self._handle_commands(ASK_AGAIN_S)

    def _ask(self, turn: Turn) -> Any:
        return self._actors[turn.agent].act(turn)

    def _wait_for_step(self) -> None:
        """Handle commands until the next step is due."""
        self._handle_commands(0.0)
        while not self._run.stop_requested and not self._is_reset_requested:
            if self._is_paused and not self._single_steps:
                self._run.update(self._global_step)
                self._handle_commands(IDLE_S)
                continue
            left = 0.0 if self._rate_hz is None else self._next_step_at - time.monotonic()
            if left <= 0:
                return
            self._handle_commands(min(left, IDLE_S))

    def _handle_commands(self, seconds: float) -> None:
        if self._watch.wait(seconds):
            self._run.handle_commands()

    def _show(self, number: int, reward: float, episodic_return: float) -> None:
        if self._tap is not None and self._tap.is_due():
            self._tap.publish_frame(number, self._env.steps, reward, episodic_return)

    def close(self) -> None:
        self._watch.close()
        for actor in self._actors.values():
            actor.close()
        self._env.close()
