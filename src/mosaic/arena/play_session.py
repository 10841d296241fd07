"""A play session: actors act in an environment, at a rate or by turns, until its episodes are played.

Everything happens in one thread. An actor that has no action yet is asked again; meanwhile commands are read, so the
session can be paused, stepped, reset and stopped at any time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from mosaic.arena.actors import ActorFailed, Turn
from mosaic.arena.episode_recorder import EpisodeRecorder
from mosaic.arena.play_envs import PlayEnv, StepResult
from mosaic.arena.played_seat import PlayedSeat
from mosaic.arena.recording import Ending
from mosaic.arena.session_state import StateWriter
from mosaic.contracts import play_commands
from mosaic.contracts.play import PlayConfig
from mosaic.contracts.play_commands import parse_inbox_line
from mosaic.contracts.views import PlayedEpisode
from mosaic.fastlane import FrameTap
from mosaic.run import Run
from mosaic.run.file_watch import FileWatch

ASK_AGAIN_S = 0.005
"""Interval at which an actor that has no action yet is asked again."""
IDLE_S = 0.05
SHOW_END_S = 1.0
"""For which the end of an episode is shown to a human before the next one."""


class PlaySession:
    def __init__(
        self,
        config: PlayConfig,
        run: Run,
        env: PlayEnv,
        seats: Sequence[PlayedSeat],
        recorder: EpisodeRecorder,
        state: StateWriter,
        rate_hz: float | None,
        tap: FrameTap | None = None,
        is_real_time: bool = False,
    ) -> None:
        self._config = config
        self._run = run
        self._env = env
        self._seats = {seat.agent: seat for seat in seats}
        self._recorder = recorder
        self._state = state
        self._tap = tap
        self._watch = FileWatch(run.folder.inbox)
        self._is_paused = False
        self._is_real_time = is_real_time
        self._waits_for_key = False
        self._has_input = False
        """Whether a human has pressed a key or a button since the episode began, or holds one since before."""
        self._is_key_down = False
        self._failure = ""
        """Why it has paused by itself."""
        self._single_steps = 0
        self._next_seed: int | None = None
        self._is_reset_requested = False
        self._rate_hz = rate_hz
        self._next_step_at = 0.0
        self._global_step = 0
        self._returns: dict[str, float] = {}
        self._last_reward = 0.0
        self._has_new_frame = False
        self.episodes: list[PlayedEpisode] = []
        """Those that are complete."""

    # --- commands

    def handle_command(self, body: Mapping[str, Any]) -> bool:
        """Apply one line of the inbox; return False for what every run handles itself."""
        command = parse_inbox_line(body)
        if not isinstance(command, play_commands.Keys | play_commands.Act):
            self._state.has_changed = True  # input changes nothing before the step; a write now would delay the next
        match command:
            case play_commands.Keys():
                self._is_key_down = bool(command.down)
                if command.down or command.pressed:
                    self._start_by_input()
                acting = {turn.agent for turn in self._env.turns}
                for seat in self._seats.values():
                    seat.receive_keys(command, seat.agent in acting)
            case play_commands.Act():
                self._start_by_input()
                acting = {turn.agent for turn in self._env.turns}
                for seat in self._find_seats(command.agent):
                    if seat.agent in acting:
                        seat.receive_action(command)
            case play_commands.TakeOver() | play_commands.HandBack():
                for seat in self._find_seats(command.agent):
                    if seat.switch(to_human=isinstance(command, play_commands.TakeOver)):
                        self._recorder.change_actor(seat.agent, seat.actor_name)
                if not self._has_acting_human:
                    self._start_by_input()
            case play_commands.Pause() | play_commands.Resume():
                self._set_paused(isinstance(command, play_commands.Pause))
            case play_commands.Step():
                self._single_steps, self._failure, self._waits_for_key = self._single_steps + 1, "", False
            case play_commands.Reset():
                self._next_seed, self._is_reset_requested = command.seed, True
                self._single_steps = 0
            case play_commands.SetRate():
                self._rate_hz = command.rate_hz
        return command is not None

    def _find_seats(self, agent: str | None) -> list[PlayedSeat]:
        """Return the seat of an agent; without one, those whose turn it is."""
        agents = [turn.agent for turn in self._env.turns] if agent is None else [agent]
        return [self._seats[one] for one in agents if one in self._seats]

    @property
    def _has_acting_human(self) -> bool:
        return any(seat.is_human for seat in self._seats.values())

    def _wait_for_key_if_idle(self) -> None:
        """Let an episode in real time wait for a human who did nothing in the last one, or has not started yet."""
        is_idle = not self._has_input and self._has_acting_human and self._is_paused == self._config.is_paused
        if self._is_real_time and is_idle:
            self._set_paused(True)
            self._waits_for_key = self._state.has_changed = True
        self._has_input = self._is_key_down

    def _start_by_input(self) -> None:
        """Start an episode that waits for a key; a session that is stepped from outside is stepped there."""
        self._has_input = True
        if self._waits_for_key:
            self._waits_for_key, self._state.has_changed = False, True
            self._set_paused(self._config.is_paused)

    def _set_paused(self, is_paused: bool) -> None:
        self._waits_for_key = self._waits_for_key and is_paused
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            self._failure = self._failure if is_paused else ""
            self._run.event("paused" if is_paused else "resumed", global_step=self._global_step)
            self._state.has_changed = True

    def _handle_commands(self, seconds: float) -> None:
        """Wait for commands for this long, and show what has changed."""
        self._show_changes()
        self._recorder.flush_if_due()
        if self._watch.wait(seconds):
            self._run.handle_commands()

    # --- playing

    def play(self) -> None:
        """Play until the episodes are over or a stop is requested."""
        self._set_paused(self._config.is_paused)
        while not self._run.stop_requested and not self._is_complete:
            number = self._state.start_episode()
            seed = self._choose_seed(number) if self._next_seed is None else self._next_seed
            self._next_seed = None
            self._play_episode(seed)

    @property
    def _is_complete(self) -> bool:
        count = self._config.episode_count
        return count is not None and len(self.episodes) >= count

    def _choose_seed(self, number: int) -> int:
        """Return the seed of an episode, numbered from 1; of listed seeds, each is that of one complete episode."""
        seeds = self._config.seeds
        return self._config.seed + number - 1 if seeds is None else seeds[len(self.episodes)]

    def _play_episode(self, seed: int) -> None:
        env = self._env
        env.reset(seed)
        self._returns = dict.fromkeys(env.agents, 0.0)
        for seat in self._seats.values():
            seat.start_episode(seed)
        self._recorder.start(seed, {seat.agent: seat.actor_name for seat in self._seats.values()})
        self._state.seed = seed
        self._is_reset_requested = False
        self._has_new_frame, self._last_reward = True, 0.0
        self._wait_for_key_if_idle()
        ending: Ending = "running"
        while ending == "running":
            actions = self._choose_actions()
            if actions is None:
                break
            ending = self._step(actions)
        self._recorder.finish(ending)
        if ending != "running":
            first = self._returns[env.agents[0]]
            self._run.episode(env=0, step=self._global_step, episodic_return=first, length=env.steps)
            self.episodes.append(PlayedEpisode(seed=seed, length=env.steps, ending=ending, returns=self._returns))
            self._state.add_episode(self.episodes[-1])
            self._show_end()

    def _show_end(self) -> None:
        """Show the end of an episode: in a paused session until the next step, else for a moment."""
        until = max(time.monotonic() + SHOW_END_S if self._has_acting_human else 0.0, self._next_step_at)
        while not (self._run.stop_requested or self._is_reset_requested or self._is_complete):
            left = until - time.monotonic()
            if self._single_steps or (left <= 0 and not self._is_paused):
                break
            self._run.update(self._global_step)
            self._handle_commands(min(IDLE_S, left) if left > 0 else IDLE_S)
        self._single_steps = max(0, self._single_steps - 1)
        if self._rate_hz is not None:
            self._next_step_at = time.monotonic() + 1 / self._rate_hz

    def _step(self, actions: Mapping[str, Any]) -> Ending:
        env = self._env
        row = env.to_row(actions)
        result = env.step(actions)
        self._global_step += 1
        for agent in actions:
            self._seats[agent].count_step()
        ending = result.ending
        if ending == "running" and self._config.max_steps is not None and env.steps >= self._config.max_steps:
            ending = "truncated"
        self._recorder.add(row, env.reward_row(result.rewards))
        self._add_rewards(result)
        if self._config.alternate_steps is not None and env.steps % self._config.alternate_steps == 0:
            for seat in self._seats.values():
                if seat.can_switch:
                    seat.alternate()
                    self._recorder.change_actor(seat.agent, seat.actor_name)
        self._state.add_step(actions, result, ending)
        self._has_new_frame, self._last_reward = True, result.rewards[env.agents[0]]
        self._run.update(self._global_step)
        return ending

    def _add_rewards(self, result: StepResult) -> None:
        for agent, reward in result.rewards.items():
            self._returns[agent] += reward

    def _choose_actions(self) -> dict[str, Any] | None:
        """Return the actions of all agents whose turn it is; None if the episode is to be left."""
        actions: dict[str, Any] = {}
        while True:
            if not self._wait_for_step():
                return None
            for turn in self._env.turns:
                if turn.agent not in actions and (action := self._ask(turn)) is not None:
                    actions[turn.agent] = action
            if len(actions) == len(self._env.turns):
                self._single_steps = max(0, self._single_steps - 1)
                if self._rate_hz is not None:
                    self._next_step_at = max(time.monotonic(), self._next_step_at + 1 / self._rate_hz)
                return actions
            self._handle_commands(ASK_AGAIN_S)
            self._run.update(self._global_step)

    def _ask(self, turn: Turn) -> Any:
        seat = self._seats[turn.agent]
        problem = seat.problem
        try:
            action = seat.act(turn)
        except ActorFailed as failure:
            if not self._config.pauses_on_failure:
                raise
            self._failure, self._single_steps, action = str(failure), 0, None
            self._set_paused(True)
            self._state.has_changed = True
        if seat.problem != problem:
            self._state.has_changed = True
        return action

    def _wait_for_step(self) -> bool:
        """Handle commands until the next step is due; return False if the episode is to be left."""
        self._handle_commands(0.0)
        while not self._run.stop_requested and not self._is_reset_requested:
            if self._is_paused and not self._single_steps:
                self._run.update(self._global_step)
                self._handle_commands(IDLE_S)
                continue
            left = 0.0 if self._rate_hz is None else self._next_step_at - time.monotonic()
            if left <= 0:
                return True
            self._handle_commands(min(left, IDLE_S))
        return False

    # --- showing

    def _show_changes(self) -> None:
        """Publish the newest frame and state if they are due; else they are at the next call."""
        if self._tap is not None and self._has_new_frame and self._tap.is_due():
            self._has_new_frame = False
            first = self._env.agents[0]
            reward, total = self._last_reward, self._returns[first]
            self._tap.publish_frame(self._state.episode, self._env.steps, reward, total)
        if self._state.is_due():
            self._write_state()

    def _write_state(self) -> None:
        self._state.write(
            self._seats,
            self._returns,
            is_paused=self._is_paused,
            waits_for_key=self._waits_for_key,
            rate_hz=self._rate_hz,
            failure=self._failure,
        )

    def close(self) -> None:
        self._write_state()
        self._watch.close()
        for seat in self._seats.values():
            seat.close()
        self._env.close()
