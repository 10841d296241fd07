"""A play session: actors act in an environment, at a rate or by turns, until its episodes are played.

Everything happens in one thread. An actor that has no action yet is asked again; meanwhile commands are read, so the
session can be paused, stepped, reset and stopped at any time. What a window shows of it besides its frames is written
to `session.json`, replaced at each write.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mosaic.base.fastlane import FrameTap
from mosaic.base.files import write_text
from mosaic.contracts import play as play_commands
from mosaic.contracts.play import ANY_AGENT, Act, Keys, PlayConfig, parse_inbox_line
from mosaic.contracts.views import ActorTotals, PlayedEpisode, SeatState, SessionState
from mosaic.features.play.worker_actors import HumanActor
from mosaic.features.play.worker_inbox_watch import FileWatch
from mosaic.worker.actors import Actor, ActorFailed, SummarizedActor, Turn
from mosaic.worker.envs.families import EnvEntry
from mosaic.worker.play_envs import PlayEnv, describe_action, describe_value, read_symbols, read_text
from mosaic.worker.recorders import EpisodeRecorder
from mosaic.worker.recording import Ending, RecordingHeader
from mosaic.worker.run import Run

ASK_AGAIN_S = 0.005
"""Interval at which an actor that has no action yet is asked again."""
IDLE_S = 0.05
SHOW_END_S = 1.0
"""For which the end of an episode is shown to a human before the next one."""
STATE_RATE_HZ = 60.0
"""At which the state is written at most."""


@dataclass(frozen=True)
class NamedActor:
    name: str
    """As in the config: `policy:RUN`."""
    actor: Actor


class PlayedSeat:
    """One agent with the actor that acts for it, and perhaps one on standby."""

    def __init__(self, agent: str, first: NamedActor, standby: NamedActor | None = None) -> None:
        self.agent = agent
        self._actors = [first] if standby is None else [first, standby]
        self._current = first
        self.steps = dict.fromkeys((one.name for one in self._actors), 0)
        """By actor: in how many steps it acted."""

    @property
    def actor_name(self) -> str:
        return self._current.name

    @property
    def human(self) -> HumanActor | None:
        """The human of this seat, acting or not."""
        return next((one.actor for one in self._actors if isinstance(one.actor, HumanActor)), None)

    @property
    def is_human(self) -> bool:
        return isinstance(self._current.actor, HumanActor)

    @property
    def problem(self) -> str:
        """Why the last input of a human, or the last answer of a model, was not an action."""
        return str(getattr(self._current.actor, "problem", ""))

    @property
    def can_switch(self) -> bool:
        return len(self._actors) > 1

    def switch(self, to_human: bool) -> bool:
        """Let the human act, or the other actor; return whether that is a change."""
        if self.is_human == to_human or not self.can_switch:
            return False
        self.alternate()
        return True

    def alternate(self) -> None:
        """Let the other actor act."""
        self._current = next(one for one in self._actors if one is not self._current)
        if self.human is not None:
            self.human.forget_input()

    def receive_keys(self, keys: Keys, is_to_act: bool) -> None:
        """Keys pressed while another agent or actor acts are not kept for later; which ones are held is."""
        if self.human is not None:
            self.human.receive_keys(keys if is_to_act and self.is_human else Keys(down=keys.down))

    def receive_action(self, command: Act) -> None:
        if self.human is not None and self.is_human:
            self.human.receive_action(command)

    def start_episode(self, seed: int) -> None:
        for one in self._actors:
            one.actor.start_episode(seed)

    def act(self, turn: Turn) -> Any:
        """Return an action, or None if there is none yet."""
        return self._current.actor.act(turn)

    def count_step(self) -> None:
        self.steps[self.actor_name] += 1

    def summarize(self) -> dict[str, Mapping[str, Any]]:
        """Return the totals of the actors that have some, by name."""
        return {one.name: one.actor.summarize() for one in self._actors if isinstance(one.actor, SummarizedActor)}

    def close(self) -> None:
        for one in self._actors:
            one.actor.close()


@dataclass(frozen=True)
class PreparedSession:
    """A session that is about to start: everything in its config has been checked."""

    header: RecordingHeader
    env: PlayEnv
    seats: tuple[PlayedSeat, ...]
    entry: EnvEntry | None
    action_names: tuple[str, ...]
    rate_hz: float | None
    own_rate_hz: float | None
    """Of the environment in real time; None where it waits for a human."""

    def close(self) -> None:
        for seat in self.seats:
            seat.close()
        self.env.close()


class PlaySession:
    def __init__(
        self,
        config: PlayConfig,
        run: Run,
        prepared: PreparedSession,
        recorder: EpisodeRecorder,
        tap: FrameTap | None = None,
    ) -> None:
        self._config = config
        self._run = run
        self._prepared = prepared
        self._env = prepared.env
        self._seats = {seat.agent: seat for seat in prepared.seats}
        self._recorder = recorder
        self._tap = tap
        self._watch = FileWatch(run.folder.inbox)
        self._is_paused = False
        self._waits_for_key = False
        self._has_input = False
        """Whether a human has pressed a key or a button since the episode began, or holds one since before."""
        self._is_key_down = False
        self._failure = ""
        """Why it has paused by itself."""
        self._single_steps = 0
        self._next_seed: int | None = None
        self._is_reset_requested = False
        self._rate_hz = prepared.rate_hz
        self._next_step_at = 0.0
        self._global_step = 0
        self._number = self._seed = 0
        """Of the episode, from 1."""
        self._ending: Ending = "running"
        self._returns: dict[str, float] = {}
        self._last_actions: dict[str, str] = {}
        self._last_rewards: dict[str, float] = {}
        self._has_new_frame = False
        self._has_new_state = True
        self._write_state_at = 0.0
        self.episodes: list[PlayedEpisode] = []
        """Those that are complete."""
        self._return_sums: dict[str, float] = dict.fromkeys(self._seats, 0.0)
        self._wins: Counter[str] = Counter()

    # --- commands

    def handle_command(self, body: Mapping[str, Any]) -> bool:
        """Apply one line of the inbox; return False for what every run handles itself."""
        command = parse_inbox_line(body)
        if not isinstance(command, Keys | Act):
            self._has_new_state = True  # input changes nothing before the step; a write now would delay the next
        match command:
            case Keys():
                self._is_key_down = bool(command.down)
                if command.down or command.pressed:
                    self._start_by_input()
                acting = {turn.agent for turn in self._env.turns}
                for seat in self._seats.values():
                    seat.receive_keys(command, seat.agent in acting)
            case Act():
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
        if self._prepared.own_rate_hz is not None and is_idle:
            self._set_paused(True)
            self._waits_for_key = self._has_new_state = True
        self._has_input = self._is_key_down

    def _start_by_input(self) -> None:
        """Start an episode that waits for a key; a session that is stepped from outside is stepped there."""
        self._has_input = True
        if self._waits_for_key:
            self._waits_for_key, self._has_new_state = False, True
            self._set_paused(self._config.is_paused)

    def _set_paused(self, is_paused: bool) -> None:
        self._waits_for_key = self._waits_for_key and is_paused
        if is_paused != self._is_paused:
            self._is_paused = is_paused
            self._failure = self._failure if is_paused else ""
            self._run.event("paused" if is_paused else "resumed", global_step=self._global_step)
            self._has_new_state = True

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
            self._number += 1
            seed = self._choose_seed() if self._next_seed is None else self._next_seed
            self._next_seed = None
            self._play_episode(seed)

    @property
    def _is_complete(self) -> bool:
        count = self._config.episode_count
        return count is not None and len(self.episodes) >= count

    def _choose_seed(self) -> int:
        """Return the seed of an episode; of listed seeds, each is that of one complete episode."""
        seeds = self._config.seeds
        return self._config.seed + self._number - 1 if seeds is None else seeds[len(self.episodes)]

    def _play_episode(self, seed: int) -> None:
        env = self._env
        env.reset(seed)
        self._returns = dict.fromkeys(env.agents, 0.0)
        for seat in self._seats.values():
            seat.start_episode(seed)
        self._recorder.start(seed, {seat.agent: seat.actor_name for seat in self._seats.values()})
        self._seed, self._ending, self._is_reset_requested = seed, "running", False
        self._last_actions, self._last_rewards = {}, {}
        self._has_new_frame = self._has_new_state = True
        self._wait_for_key_if_idle()
        while self._ending == "running" and (actions := self._choose_actions()) is not None:
            self._step(actions)
        self._recorder.finish(self._ending)
        if self._ending != "running":
            self._count_episode()
            self._show_end()

    def _count_episode(self) -> None:
        returns, length = self._returns, self._env.steps
        first = returns[self._env.agents[0]]
        self._run.episode(env=0, step=self._global_step, episodic_return=first, length=length)
        self.episodes.append(PlayedEpisode(seed=self._seed, length=length, ending=self._ending, returns=returns))
        for agent, value in returns.items():
            self._return_sums[agent] += value
        winners = [agent for agent, value in returns.items() if value == max(returns.values())]
        if len(winners) == 1 and len(returns) > 1:
            self._wins[winners[0]] += 1
        self._has_new_state = True

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

    def _step(self, actions: Mapping[str, Any]) -> None:
        env = self._env
        row = env.to_row(actions)
        result = env.step(actions)
        self._global_step += 1
        for agent in actions:
            self._seats[agent].count_step()
        is_too_long = self._config.max_steps is not None and env.steps >= self._config.max_steps
        self._ending = "truncated" if result.ending == "running" and is_too_long else result.ending
        self._recorder.add(row, env.reward_row(result.rewards))
        for agent, reward in result.rewards.items():
            self._returns[agent] += reward
        if self._config.alternate_steps is not None and env.steps % self._config.alternate_steps == 0:
            for seat in self._seats.values():
                if seat.can_switch:
                    seat.alternate()
                    self._recorder.change_actor(seat.agent, seat.actor_name)
        names = self._prepared.action_names
        self._last_actions = {agent: describe_action(action, names) for agent, action in actions.items()}
        self._last_rewards = dict(result.rewards)
        self._has_new_frame = self._has_new_state = True
        self._run.update(self._global_step)

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
            self._has_new_state = True
        if seat.problem != problem:
            self._has_new_state = True
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
            reward, total = self._last_rewards.get(first, 0.0), self._returns[first]
            self._tap.publish_frame(self._number, self._env.steps, reward, total)
        if self._has_new_state and time.monotonic() >= self._write_state_at:
            self._write_state()

    def _write_state(self) -> None:
        """Write what a window shows. A state that cannot be written is skipped."""
        self._has_new_state = False
        self._write_state_at = time.monotonic() + 1 / STATE_RATE_HZ
        env, prepared = self._env, self._prepared
        turns = {turn.agent: turn for turn in env.turns}
        first = next(iter(turns.values()), None)
        human = next((seat.human for seat in self._seats.values() if seat.human is not None), None)
        state = SessionState(
            episode=self._number,
            step=env.steps,
            seed=self._seed,
            ending=self._ending,
            is_paused=self._is_paused,
            waits_for_key=self._waits_for_key,
            failure=self._failure,
            rate_hz=self._rate_hz,
            own_rate_hz=prepared.own_rate_hz,
            action_names=prepared.action_names,
            keys=() if human is None else human.bindings,
            seats=tuple(self._describe_seat(seat, turns.get(agent)) for agent, seat in self._seats.items()),
            complete_episodes=len(self.episodes),
            last_episode=self.episodes[-1] if self.episodes else None,
            text=read_text(env.core),
            symbols=read_symbols(env.core, prepared.entry, env.turns),
            observation="" if first is None else describe_value(first.observation),
            info="" if first is None else describe_value(dict(first.info)),
        )
        with suppress(OSError):
            write_text(self._run.folder.session_state, state.model_dump_json())

    def _describe_seat(self, seat: PlayedSeat, turn: Turn | None) -> SeatState:
        agent, legal = seat.agent, None if turn is None else turn.legal_actions
        return SeatState(
            agent="" if agent == ANY_AGENT else agent,
            actor=seat.actor_name,
            is_human=seat.is_human,
            can_switch=seat.can_switch,
            is_to_act=turn is not None,
            episodic_return=self._returns.get(agent, 0.0),
            last_action=self._last_actions.get(agent, ""),
            last_reward=self._last_rewards.get(agent, 0.0),
            legal_actions=None if legal is None else tuple(legal),
            problem=seat.problem,
            mean_return=self._return_sums[agent] / len(self.episodes) if self.episodes else None,
            wins=self._wins[agent],
            totals=tuple(map(ActorTotals.model_validate, seat.summarize().values())),
        )

    def close(self) -> None:
        self._write_state()
        self._watch.close()
        self._prepared.close()
