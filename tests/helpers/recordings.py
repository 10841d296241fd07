"""Recordings for tests: an agent that acts at random, and a player process with its replies."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mosaic.contracts.replays import ReplayFailed, ReplayMessage, ReplayOpened, ReplayRequest, ReplayStep
from mosaic.features.replay.api import REPLAY_COMMAND
from mosaic.worker.play_envs import make_play_env
from mosaic.worker.recording import ActorChange, RecordedEpisode, RecordingHeader, RecordingWriter


def record_episodes(path: Path, env_id: str, seeds: Sequence[int], steps: int = 40, **kwargs: Any) -> None:
    """Record an episode for each seed, played at random."""
    header = RecordingHeader(env_id=env_id, env_kwargs=kwargs)
    env = make_play_env(header)
    with RecordingWriter(path, header) as writer:
        for number, seed in enumerate(seeds):
            env.reset(seed)
            space = env.action_space(env.agents[0])
            space.seed(seed)
            actions, rewards, ending = [], [], "running"
            start = env.hash_observation()
            while ending == "running" and env.steps < steps:
                chosen = {env.agents[0]: space.sample()}
                actions.append(env.to_row(chosen))
                result = env.step(chosen)
                ending = result.ending
                rewards.append(env.reward_row(result.rewards))
            arrays = np.array(actions), np.array(rewards, np.float64)
            who = (ActorChange(0, env.agents[0], "random"),)
            hashes = ((0, start), (env.steps, env.hash_observation()))
            writer.append([RecordedEpisode(number, seed, None, *arrays, ending, who, hashes)])  # type: ignore[arg-type]
    env.close()


class PlayerProcess:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.frame = b""
        """Of the last reply."""

    def read(self) -> ReplayMessage:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        reply = json.loads(line)
        if "error" in reply:
            return ReplayFailed.model_validate_json(line)
        if "columns" in reply:
            return ReplayOpened.model_validate_json(line)
        step = ReplayStep.model_validate_json(line)
        self.frame = self.process.stdout.read(step.frame.size_bytes) if step.frame is not None else b""
        return step

    def send(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def seek(self, episode: int, step: int) -> ReplayStep:
        self.send(ReplayRequest(episode=episode, step=step).model_dump_json())
        reply = self.read()
        assert isinstance(reply, ReplayStep), reply
        return reply


@contextmanager
def player_process(recording: Path) -> Iterator[PlayerProcess]:
    command = [*REPLAY_COMMAND, "play", str(recording)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield PlayerProcess(process)
        finally:
            process.kill()
