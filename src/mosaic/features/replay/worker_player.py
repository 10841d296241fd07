"""A recording with what shows its episodes: an environment that is made when it is first needed, or stored videos."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np

from mosaic.base.fastlane.tap import FrameRenderer, RenderUnavailable
from mosaic.base.workspace_trust import Origin, find_origin
from mosaic.contracts.errors import BadInput, MissingExtra
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.payload import Payload
from mosaic.contracts.play import ANY_AGENT, HUMAN
from mosaic.contracts.replays import EpisodeSummary, ReplayDifference, ReplayOpened, ReplayReport
from mosaic.contracts.views import SeatState, SessionState
from mosaic.worker.actors import Turn, action_count
from mosaic.worker.envs.factory import find_family
from mosaic.worker.envs.user_modules import allow_imports
from mosaic.worker.play_envs import (
    PlayEnv,
    action_names,
    describe_action,
    describe_value,
    make_play_env,
    read_symbols,
    read_text,
)
from mosaic.worker.recorders import DEFAULT_FPS, render_rate, video_name
from mosaic.worker.recording import RecordedEpisode, Recording, RecordingHeader
from mosaic.worker.simulation import Simulation, describe_version_changes

# --- One recorded episode, shown at any of its steps: simulated again, from the frames that were stored, or neither.


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


# --- A recording with what shows its episodes: an environment that is made when it is first needed, or stored videos.


STORED = "Not simulated again: frames were stored"
NOT_STORED = "Not simulated again: only actions and rewards were stored"
CUT_OFF = "The recording is incomplete: its last block was cut off."


class ReplaySource:
    def __init__(self, path: Path) -> None:
        self.recording = Recording(path)
        self.header = self.recording.header
        self._folder = RunFolder(path.parent)
        self._env: PlayEnv | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._env is not None:
            self._env.close()
        self.recording.close()

    @property
    def env(self) -> PlayEnv:
        if self._env is None:
            self._allow_imports()
            self._env = make_play_env(self.header)
        return self._env

    def _allow_imports(self) -> None:
        """Let the environment import what the config of the run allows; nothing for one that comes from elsewhere."""
        with suppress(OSError, ValueError):
            metadata = Payload.read(self._folder.config).metadata
            is_foreign = metadata.is_imported or find_origin(Workspace.containing(self._folder)) is Origin.FOREIGN
            allow_imports(None if is_foreign else metadata.worker.imports)

    @property
    def note(self) -> str:
        """Why episodes are not simulated again; empty where they are."""
        if self.header.replay == "simulation":
            return ""
        stored = STORED if self.header.replay == "frames" else NOT_STORED
        return f"{stored}, because {self.header.reason}."

    @property
    def rate_hz(self) -> float:
        """Steps per second at which the environment is meant to be watched."""
        if self.header.replay != "simulation":
            return self.header.rate_hz or DEFAULT_FPS
        return render_rate(self.env.env)

    def warnings(self) -> list[str]:
        changes = describe_version_changes(self.header, find_family(self.header.env_id)) if not self.note else []
        problem = self.recording.problem or (CUT_OFF if self.recording.is_cut_off else None)
        return [*changes, *([] if problem is None else [problem])]

    def describe(self) -> ReplayOpened:
        rows = self.recording.summarize()
        columns: Any = tuple(tuple(row[place] for row in rows) for place in range(len(EpisodeSummary._fields)))
        return ReplayOpened(
            env_id=self.header.env_id,
            columns=columns,
            rate_hz=self.rate_hz,
            note=self.note,
            warnings=tuple(self.warnings()),
        )

    def open_episode(self, number: int) -> EpisodeReplay:
        episode = self.recording.episode(number)
        if self.header.replay == "simulation":
            return SimulatedReplay(self.header, episode, self.env)
        video = self._folder.videos / video_name(number) if self.header.replay == "frames" else None
        return StoredReplay(self.header, episode, video)

    def verify(self, number: int) -> ReplayReport:
        """Simulate an episode again until its end, or until it differs."""
        replay = self.open_episode(number)
        while not self.note and not replay.is_at_end and replay.difference is None:
            replay.seek(replay.position + 1)
        return self.report(replay)

    def list_compared(self, episode: RecordedEpisode) -> tuple[str, ...]:
        """Return what a replay of an episode compares with the recording."""
        if self.note:
            return ()
        frames = ("frames",) if self.header.has_frame_hashes else ()
        return ("rewards", "ending", *(("observations", *frames) if episode.hashes else ()))

    def report(self, replay: EpisodeReplay) -> ReplayReport:
        """Return how an episode compares with the recording, as far as it was simulated."""
        episode = replay.episode
        return ReplayReport(
            episode=episode.number,
            steps=len(episode),
            total_reward=episode.total_reward,
            ending=episode.ending,
            is_identical=None if self.note else replay.difference is None,
            compared=self.list_compared(episode),
            difference=replay.difference,
            note=self.note,
            warnings=tuple(self.warnings()),
        )
