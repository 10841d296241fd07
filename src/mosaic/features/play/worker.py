"""`python -m mosaic.features.play.worker`: runs a play session, or serves as its checker.

Exit codes: 0 finished or stopped on request; 2 config refused; 1 failed.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pydantic import Field

from mosaic import __version__
from mosaic.base.fastlane import FrameTap
from mosaic.base.files import write_json
from mosaic.contracts.errors import BadInput, MosaicError, unknown_name_error
from mosaic.contracts.folder import RUN_DIR_VARIABLE, RunFolder
from mosaic.contracts.model import parse_contract
from mosaic.contracts.payload import EnvId, EnvKwargs, Payload
from mosaic.contracts.play import ANY_AGENT, FIRST_AGENT, HUMAN, PLAY_WORKER, PlayConfig, problems_of_actor
from mosaic.contracts.views import EnvironmentDetails, PlayedEpisode, View
from mosaic.features.play.worker_actors import key_bindings
from mosaic.features.play.worker_session import NamedActor, PlayedSeat, PlaySession, PreparedSession
from mosaic.worker import checker_loop
from mosaic.worker.actors import Seat, action_count, make_actor
from mosaic.worker.envs.factory import EnvListing, describe_env, find_family, list_environments, render_help
from mosaic.worker.envs.families import FAMILIES
from mosaic.worker.envs.spaces import describe_space
from mosaic.worker.envs.teams import PETTINGZOO_PREFIX
from mosaic.worker.envs.user_modules import allow_imports
from mosaic.worker.evaluation import summarize_values
from mosaic.worker.live_frames import LiveFrames
from mosaic.worker.play_envs import PlayEnv, action_names, make_play_env
from mosaic.worker.recorders import EpisodeRecorder, VideoRecorder, choose_session_replay
from mosaic.worker.recording import RecordingHeader
from mosaic.worker.run import Run
from mosaic.worker.simulation import library_versions
from mosaic.worker.worker_run import finish_with_errors

CAPABILITIES = ("inbox", "pause")
DEFAULT_RATE_HZ = 15.0
"""Of a human in an environment without a rate of its own."""
FRAME_RATE_HZ = 120.0
FRAME_BUDGET = 0.5


def prepare(config: PlayConfig, report: Callable[..., None] | None = None) -> PreparedSession:
    """Make the environment and the actors, or raise why that fails."""
    wrappers = {"wrappers": list(config.wrappers)} if config.wrappers else {}
    header = RecordingHeader(env_id=config.env_id, env_kwargs={**config.env_kwargs, **wrappers})
    env = make_play_env(header)
    try:
        return _prepare_seats(config, header, env, report)
    except BaseException:
        env.close()
        raise


def _prepare_seats(
    config: PlayConfig, header: RecordingHeader, env: PlayEnv, report: Callable[..., None] | None
) -> PreparedSession:
    family = find_family(config.env_id)
    entry = None if family is None else family.find_entry(config.env_id)
    is_real_time = config.pacing == "real_time" or (
        config.pacing == "automatic" and entry is not None and entry.is_real_time
    )
    count = action_count(env.action_space(env.agents[0]))
    names = action_names(env.env, entry, count)
    seats = []
    for agent, choice in config.assign_actors(env.agents).items():
        seat = Seat(
            env_id=config.env_id,
            agent=agent,
            observation_space=env.observation_space(agent),
            action_space=env.action_space(agent),
            action_names=names,
            seed=config.seed,
            policy_paths=config.policy_paths,
            env=env.env,
            entry=entry,
            is_real_time=is_real_time,
            report=report,
        )
        is_other = FIRST_AGENT in config.actors and choice is config.actors.get(ANY_AGENT)
        with problems_of_actor(ANY_AGENT if is_other else agent, config.actors):
            first = NamedActor(str(choice), make_actor(choice, seat))
        standby = None
        if config.standby is not None and (HUMAN in (choice.kind, config.standby.kind) or not config.has_human):
            standby = NamedActor(str(config.standby), make_actor(config.standby, seat))
        seats.append(PlayedSeat(agent, first, standby))
    own_rate_hz = ((entry.rate_hz if entry is not None else None) or DEFAULT_RATE_HZ) if is_real_time else None
    has_human = any(seat.human is not None for seat in seats)
    rate_hz = own_rate_hz if config.rate_hz is None and has_human else config.rate_hz
    return PreparedSession(header, env, tuple(seats), entry, names, rate_hz, own_rate_hz)


def run_session(config: PlayConfig, folder: RunFolder) -> None:
    with ExitStack() as stack:
        sessions: list[PlaySession] = []

        def on_command(body: Mapping[str, Any]) -> bool:
            return bool(sessions) and sessions[0].handle_command(body)

        run = stack.enter_context(
            Run(folder, worker=PLAY_WORKER, version=__version__, capabilities=CAPABILITIES, on_command=on_command)
        )
        run.hello()
        with finish_with_errors(run):
            prepared = prepare(config, run.event)
        env = prepared.env
        header = prepared.header.model_copy(update={"versions": library_versions(find_family(config.env_id))})
        if config.record:
            header = choose_session_replay(header, env, config, prepared.action_names, run.warn)
        camera = VideoRecorder(folder.videos, folder.run_id, lambda _: True, run.warn)
        recorder = EpisodeRecorder(
            folder.recording if config.record else None,
            header,
            run.warn,
            env,
            camera if header.replay == "frames" else None,
        )
        stack.callback(recorder.close)
        tap = _make_tap(config, run, env)
        if tap is not None:
            stack.callback(tap.close)
        session = PlaySession(config, run, prepared, recorder, tap)
        stack.callback(session.close)
        sessions.append(session)
        try:
            with finish_with_errors(run):
                session.play()
        finally:
            recorder.close()  # before the run is seen to have ended
            # Also of a session that fails: its complete episodes count.
            write_json(folder.play_summary, summarize_session(config, prepared.seats, session.episodes))
        lasts_until_stopped = config.has_human or config.episode_count is None
        if run.stop_requested and not lasts_until_stopped:
            run.finish("stopped")
        else:
            run.finish("succeeded", "Ended on request." if run.stop_requested else None)


def _make_tap(config: PlayConfig, run: Run, env: PlayEnv) -> FrameTap | None:
    """Frames of a session are what it is for: they may take half of its time, unlike those of a training."""
    frames = LiveFrames(run.folder, 1, run.warn, render_help(config.env_id))
    return frames.tap(env.env, 0, 1, rate_hz=FRAME_RATE_HZ, budget=FRAME_BUDGET)


def summarize_session(
    config: PlayConfig, seats: Sequence[PlayedSeat], episodes: Sequence[PlayedEpisode]
) -> dict[str, Any]:
    """Return the summary as JSON: statistics by agent, totals of actors that have some, every complete episode."""
    totals = {seat.agent: seat.summarize() for seat in seats}
    steps = {seat.agent: seat.steps for seat in seats}
    seeds = [episode.seed for episode in episodes]
    lengths = [episode.length for episode in episodes]
    return {
        "env_id": config.env_id,
        "episodes": [json.loads(episode.model_dump_json()) for episode in episodes],
        "agents": {
            agent: {
                "actor": str(choice),
                **summarize_values(seeds, [episode.returns[agent] for episode in episodes], lengths),
                "steps_by_actor": steps[agent],
                **({"totals": totals[agent]} if totals[agent] else {}),
            }
            for agent, choice in config.assign_actors(list(totals)).items()
        },
    }


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
        return _read_choice(Payload.parse(data))
    return data


def _read_choice(payload: Payload) -> dict[str, Any]:
    """The worker's part of a payload, whose modules may be imported from now on."""
    allow_imports(payload.metadata.worker.imports)
    return payload.metadata.worker.config


class EnvironmentQuestion(View):
    """Which environment is to be described."""

    env_id: EnvId
    env_kwargs: EnvKwargs = Field(default_factory=dict)


def list_play_environments(family: str | None) -> list[EnvListing]:
    """Return the environments that can be played, all or those of one family, with games for several agents."""
    games = {name: row for name, row in FAMILIES.items() if row.has_several_agents}
    listings = [] if family in games else list_environments(family)
    for name, row in games.items():
        if family in (None, name):
            for env_id in row.known_ids:
                package = row.missing_package(env_id) if row.is_installed else ""
                is_installed = row.is_installed and not package
                listings.append(
                    EnvListing(
                        id=env_id,
                        family=name,
                        is_installed=is_installed,
                        extra=row.extra,
                        max_episode_steps=None,
                        package=package,
                    )
                )
    return listings


def describe_environment(question: EnvironmentQuestion) -> EnvironmentDetails:
    """Return what the catalog says, and what only the environment itself knows; `problem` where it cannot be made."""
    env_id = question.env_id
    family = find_family(env_id)
    games = [game for row in FAMILIES.values() if row.has_several_agents for game in row.known_ids]
    if env_id.startswith(PETTINGZOO_PREFIX) and env_id not in games:
        raise unknown_name_error("environment", env_id, games)
    entry = None if family is None else family.find_entry(env_id)
    package = "" if family is None or not family.is_installed else family.missing_package(env_id)
    details = EnvironmentDetails(
        id=env_id,
        family="other" if family is None else family.name,
        family_title="Other environments" if family is None else family.title,
        about=entry.about if entry is not None else "" if family is None else family.about,
        install_hint=f"pip install {package}"
        if package
        else ("" if family is None or family.is_installed else family.install_command),
        settings=() if entry is None else entry.settings,
        has_settings_list=entry is not None,
        action_names=() if entry is None else entry.actions,
        keys=() if entry is None else entry.keys,
        is_real_time=entry is not None and entry.is_real_time,
        rate_hz=None if entry is None else entry.rate_hz,
        has_several_agents=family is not None and family.has_several_agents,
    )
    if details.install_hint:
        return details
    try:
        env = make_play_env(RecordingHeader(env_id=env_id, env_kwargs=question.env_kwargs))
    except MosaicError as error:
        return details.model_copy(update={"problem": str(error)})
    except Exception as error:  # a value that the environment does not accept raises anything
        return details.model_copy(update={"problem": f"{env_id} cannot be created: {error}"})
    try:
        space = env.action_space(env.agents[0])
        count = getattr(space, "n", None)
        names = action_names(env.env, entry, None if count is None else int(count))
        spec = getattr(env.env, "spec", None)
        return details.model_copy(
            update={
                "agents": () if env.agents == (ANY_AGENT,) else env.agents,
                "action_names": names,
                "keys": key_bindings(entry, names),
                "action_space": describe_space(space),
                "observation_space": describe_space(env.observation_space(env.agents[0])),
                "max_episode_steps": getattr(spec, "max_episode_steps", None),
            }
        )
    finally:
        env.close()


def _describe_environment(request: checker_loop.CheckerRequest) -> checker_loop.Reply:
    question = parse_contract(EnvironmentQuestion, request.config, "The question was")
    return {"environment": describe_environment(question).model_dump(mode="json")}


REQUEST_HANDLERS: checker_loop.Handlers = {
    "check": check,
    "environments": lambda request: {"environments": list_play_environments(request.family)},
    "environment": _describe_environment,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m mosaic.features.play.worker", description="MOSAIC's play sessions."
    )
    parser.add_argument("--config", metavar="PATH", help="a trainer payload, as JSON")
    parser.add_argument("--checker", action="store_true", help="answer requests on stdin until it is closed")
    args, _ = parser.parse_known_args(argv)
    faulthandler.enable()
    if args.checker:
        return checker_loop.serve(REQUEST_HANDLERS)
    if args.config is None:
        parser.error("--config is missing: the path of a trainer payload.")
    try:
        payload = Payload.read(Path(args.config))
        config = parse_contract(PlayConfig, _read_choice(payload), "The session was")
        run_session(config, RunFolder.hold(os.environ[RUN_DIR_VARIABLE]))
    except MosaicError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
