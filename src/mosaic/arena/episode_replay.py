"""One recorded episode, shown at any of its steps: simulated again, from the frames that were stored, or neither."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mosaic.arena.actors import Turn, action_count
from mosaic.arena.human import action_names
from mosaic.arena.play_envs import PlayEnv
from mosaic.arena.recording import RecordedEpisode, RecordingHeader
from mosaic.arena.simulation import Simulation
from mosaic.arena.state_text import describe_action, describe_value, read_symbols, read_text
from mosaic.contracts.errors import BadInput, MissingExtra
from mosaic.contracts.play import ANY_AGENT, HUMAN
from mosaic.contracts.replays import ReplayDifference
from mosaic.contracts.views import SeatState, SessionState
from mosaic.envs.factory import find_family
from mosaic.fastlane.tap import FrameRenderer, RenderUnavailable

IsSuperseded = Callable[[], bool]
NO_FRAMES = "No frames were stored, and this environment cannot be simulated again."


class EpisodeReplay(ABC):
    def __init__(self, header: RecordingHeader, episode: RecordedEpisode, agents: tuple[str, ...]) -> None:
        self.header = header
        self.episode = episode
        self.agents = agents
        self.names = header.action_names
        rewards = episode.rewards if episode.rewards.ndim > 1 else episode.rewards[:, None]
        zeros = np.zeros((1, rewards.shape[1]))
        self._rewards = np.concatenate([zeros, rewards])
        self._returns = np.cumsum(self._rewards, axis=0)
        self.position = 0
        """Steps since the reset."""
        self.verified_steps = 0
        """How many steps have been simulated and compared so far."""
        self.difference: ReplayDifference | None = None

    @property
    def is_at_end(self) -> bool:
        return self.position >= len(self.episode)

    @abstractmethod
    def seek(self, index: int, is_superseded: IsSuperseded = lambda: False) -> None:
        """Go to the state after `index` steps; stop on the way if superseded."""

    @abstractmethod
    def render(self) -> Any:
        """Return the frame, as bytes [height, width, 3: RGB or 4: BGRX]; raise what prevents it."""

    @property
    def turns(self) -> list[Turn]:
        """The agents that act next."""
        return []

    @property
    def last_actions(self) -> Mapping[str, Any]:
        """Of the last step, by agent."""
        return {self.agents[0]: self.episode.actions[self.position - 1]} if self.position else {}

    def state(self) -> SessionState:
        """Return what a window shows of the current step."""
        turns = {turn.agent: turn for turn in self.turns}
        first = next(iter(turns.values()), None)
        return SessionState(
            episode=self.episode.number,
            step=self.position,
            seed=self.episode.seed,
            ending=self.episode.ending if self.is_at_end else "running",
            is_paused=False,
            rate_hz=None,
            action_names=self.names,
            seats=tuple(self._seat(agent, turns.get(agent)) for agent in self.agents),
            observation="" if first is None else describe_value(first.observation),
            info="" if first is None else describe_value(dict(first.info)),
        )

    def reward(self, agent: str) -> float:
        """Return the recorded reward of the last step."""
        return float(self._rewards[self.position, self._column(agent)])

    def episodic_return(self, agent: str) -> float:
        return float(self._returns[self.position, self._column(agent)])

    def _column(self, agent: str) -> int:
        return min(self.agents.index(agent), int(self._rewards.shape[1]) - 1)

    def actor(self, agent: str) -> str:
        """Return who chose the last action; empty in a training."""
        return next(
            (
                change.actor
                for change in reversed(self.episode.actors)
                if change.agent == agent and change.step <= max(0, self.position - 1)
            ),
            "",
        )

    def _seat(self, agent: str, turn: Turn | None) -> SeatState:
        actor = self.actor(agent)
        action = self.last_actions.get(agent)
        legal = None if turn is None else turn.legal_actions
        return SeatState(
            agent="" if agent == ANY_AGENT else agent,
            actor=actor,
            is_human=actor == HUMAN,
            can_switch=False,
            is_to_act=turn is not None,
            episodic_return=self.episodic_return(agent),
            last_action="" if action is None else describe_action(action, self.names),
            last_reward=self.reward(agent),
            legal_actions=None if legal is None else tuple(legal),
        )


class SimulatedReplay(EpisodeReplay):
    """Simulates the episode again and compares rewards and observations."""

    def __init__(self, header: RecordingHeader, episode: RecordedEpisode, env: PlayEnv) -> None:
        super().__init__(header, episode, env.agents)
        family = find_family(header.env_id)
        self._entry = None if family is None else family.find_entry(header.env_id)
        count = action_count(env.action_space(env.agents[0]))
        self.names = action_names(env.env, self._entry, count)
        self._env = env
        self._renderer = FrameRenderer(env.env)
        self._simulation = Simulation(env, episode, self._renderer.hash_frame if header.has_frame_hashes else None)
        self.difference = self._simulation.difference

    @property
    def is_at_end(self) -> bool:
        return self._simulation.is_at_end

    @property
    def turns(self) -> list[Turn]:
        return self._env.turns

    @property
    def last_actions(self) -> Mapping[str, Any]:
        return self._simulation.last_actions

    def seek(self, index: int, is_superseded: IsSuperseded = lambda: False) -> None:
        simulation = self._simulation
        simulation.seek(index, is_superseded)
        self.position, self.verified_steps = simulation.position, simulation.verified_steps
        self.difference = simulation.difference

    def state(self) -> SessionState:
        core = self._env.core
        shown = {"text": read_text(core), "symbols": read_symbols(core, self._entry, self._env.turns)}
        return super().state().model_copy(update=shown)

    def render(self) -> Any:
        return self._renderer.render_frame()


class StoredReplay(EpisodeReplay):
    """Shows the frames of a video that was stored while the episode was played; its first frame is the reset."""

    def __init__(self, header: RecordingHeader, episode: RecordedEpisode, video: Path | None) -> None:
        agents = tuple(change.agent for change in episode.actors if change.step == 0) or (ANY_AGENT,)
        super().__init__(header, episode, agents)
        self._video = video
        self._frames: Iterator[Any] = iter(())
        self._frame: Any = None
        self._frame_number = -1

    def seek(self, index: int, is_superseded: IsSuperseded = lambda: False) -> None:
        self.position = min(max(index, 0), len(self.episode))

    def render(self) -> Any:
        if self._video is None:
            raise RenderUnavailable(NO_FRAMES)
        if not self._video.exists():
            raise BadInput(f"The frames of this episode are missing: {self._video.name} was not completed.")
        if self.position < self._frame_number or self._frame is None:
            self._frames, self._frame_number = _decode(self._video), -1
        while self._frame_number < self.position:
            following = next(self._frames, None)
            if following is None:
                break  # the last frame stays
            self._frame = following
            self._frame_number += 1
        if self._frame is None:
            raise BadInput(f"{self._video.name} has no frames.")
        return self._frame.to_ndarray(format="rgb24")


def _decode(video: Path) -> Iterator[Any]:
    try:
        import av
    except ModuleNotFoundError:
        raise MissingExtra(
            "The frames of this episode are a video, which needs PyAV: pip install 'mosaic-rl[video]'."
        ) from None
    try:
        with av.open(str(video)) as container:
            yield from container.decode(video=0)
    except (OSError, ValueError, IndexError) as error:
        raise BadInput(f"{video.name} cannot be read: {error}.") from None
