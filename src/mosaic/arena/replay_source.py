"""A recording with what shows its episodes: an environment that is made when it is first needed, or stored videos."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from mosaic.arena.episode_replay import EpisodeReplay, SimulatedReplay, StoredReplay
from mosaic.arena.play_envs import PlayEnv, make_play_env
from mosaic.arena.recording import RecordedEpisode, Recording
from mosaic.arena.simulation import describe_version_changes
from mosaic.arena.video_recorder import DEFAULT_FPS, render_rate, video_name
from mosaic.common.workspace_trust import Origin, find_origin
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.payload import Payload
from mosaic.contracts.replays import EpisodeSummary, ReplayOpened, ReplayReport
from mosaic.envs.factory import find_family
from mosaic.envs.user_modules import allow_imports

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
