"""`python -m mosaic.arena.play_worker`: runs a play session, or serves as its checker.

Exit codes: 0 finished or stopped on request; 2 config refused; 1 failed.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mosaic import __version__
from mosaic.arena.actors import Actor, Seat, make_actor
from mosaic.arena.play_envs import PlayEnv, make_play_env
from mosaic.arena.play_session import EpisodeRecorder, PlaySession
from mosaic.arena.play_summary import summarize_session
from mosaic.arena.recording import RecordingHeader, RecordingWriter
from mosaic.arena.simulation import library_versions
from mosaic.common.files import write_json
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.contracts.folder import RUN_DIR_VARIABLE, RunFolder
from mosaic.contracts.model import parse_contract
from mosaic.contracts.payload import Payload
from mosaic.contracts.play import ANY_AGENT, PLAY_WORKER, PlayConfig
from mosaic.envs.factory import describe_env, find_family, render_help
from mosaic.run import Run
from mosaic.run.live_frames import LiveFrames
from mosaic.workers import checker_loop

CAPABILITIES = ("inbox", "pause")


@dataclass(frozen=True)
class PreparedSession:
    """A session that is about to start: everything in its config has been checked."""

    config: PlayConfig
    header: RecordingHeader
    env: PlayEnv
    actors: Mapping[str, Actor]

    def close(self) -> None:
        for actor in self.actors.values():
            actor.close()
        self.env.close()


def read_config(payload: Payload) -> PlayConfig:
    return parse_contract(PlayConfig, payload.metadata.worker.config, "The session was")


def prepare(config: PlayConfig, run: Run | None = None) -> PreparedSession:
    """Make the environment and the actors, or raise why that fails."""
    header = RecordingHeader(env_id=config.env_id, env_kwargs=config.env_kwargs)
    env = make_play_env(header)
    try:
        actors = {}
        for agent, choice in config.assign_actors(env.agents).items():
            seat = Seat(
                env_id=config.env_id,
                agent=agent,
                observation_space=env.observation_space(agent),
                action_space=env.action_space(agent),
                seed=config.seed,
                policy_paths=config.policy_paths,
                env=env.env,
                report=None if run is None else run.event,
            )
            actors[agent] = make_actor(choice, seat)
    except BaseException:
        env.close()
        raise
    return PreparedSession(config, header, env, actors)


def run_session(config: PlayConfig, folder: RunFolder) -> None:
    with ExitStack() as stack:
        sessions: list[PlaySession] = []

        def on_command(command: Mapping[str, Any]) -> bool:
            return bool(sessions) and sessions[0].handle_command(command)

        run = stack.enter_context(
            Run(folder, worker=PLAY_WORKER, version=__version__, capabilities=CAPABILITIES, on_command=on_command)
        )
        run.hello()
        try:
            prepared = prepare(config, run)
        except MosaicError as error:
            run.finish("rejected" if isinstance(error, BadInput) else "failed", str(error))
            raise
        stack.callback(prepared.close)
        family = find_family(config.env_id)
        header = prepared.header.model_copy(update={"versions": library_versions(family)})
        writer = stack.enter_context(RecordingWriter(folder.recording, header)) if config.record else None
        frames = LiveFrames(folder, 1, run.warn, render_help(config.env_id))
        tap = frames.tap(prepared.env.env, 0, 1)
        if tap is not None:
            stack.callback(tap.close)
        session = PlaySession(config, run, prepared.env, prepared.actors, EpisodeRecorder(writer), tap)
        sessions.append(session)
        session.play()
        write_json(folder.play_summary, summarize_session(config, prepared.env.agents, session.episodes))
        run.finish("stopped" if run.stop_requested else "succeeded")


# --- the checker


def check(request: checker_loop.CheckerRequest) -> checker_loop.Reply:
    """Return what a session would use."""
    config = parse_contract(PlayConfig, _worker_config(request.config), "The session was")
    prepared = prepare(config)
    try:
        env = prepared.env
        return {
            "summary": {
                "env_id": config.env_id,
                "seed": config.seed,
                "settings": config.model_dump(mode="json", exclude={"run_id", "policy_paths"}),
                "environment": describe_env(env.env) if ANY_AGENT in env.agents else {"id": config.env_id},
                "agents": list(env.agents),
            }
        }
    finally:
        prepared.close()


def _worker_config(data: Any) -> Any:
    """The worker's part of a payload, or a bare config."""
    if isinstance(data, dict) and "metadata" in data:
        return Payload.parse(data).metadata.worker.config
    return data


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m mosaic.arena.play_worker", description="MOSAIC's play sessions.")
    parser.add_argument("--config", metavar="PATH", help="a trainer payload, as JSON")
    parser.add_argument("--checker", action="store_true", help="answer requests on stdin until it is closed")
    args, _ = parser.parse_known_args(argv)
    faulthandler.enable()
    if args.checker:
        return checker_loop.serve({"check": check, "ping": lambda _: {"pid": os.getpid()}})
    if args.config is None:
        parser.error("--config is missing: the path of a trainer payload.")
    try:
        config = read_config(Payload.read(Path(args.config)))
        run_session(config, RunFolder(os.environ[RUN_DIR_VARIABLE]))
    except MosaicError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
