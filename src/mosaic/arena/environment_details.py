"""Describes environments to a person who wants to play: settings, agents, actions and keys."""

from __future__ import annotations

from pydantic import Field

from mosaic.arena.human import action_names, key_bindings
from mosaic.arena.play_envs import make_play_env
from mosaic.arena.recording import RecordingHeader
from mosaic.contracts.errors import MosaicError, unknown_name_error
from mosaic.contracts.payload import EnvId, EnvKwargs
from mosaic.contracts.play import ANY_AGENT
from mosaic.contracts.views import EnvironmentDetails, View
from mosaic.envs.factory import EnvListing, find_family, list_environments
from mosaic.envs.families import FAMILIES
from mosaic.envs.spaces import describe_space
from mosaic.envs.teams import PETTINGZOO_PREFIX


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
