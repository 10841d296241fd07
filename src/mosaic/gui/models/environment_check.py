"""Whether an environment exists and suits an algorithm, found from the catalog while it is typed. No widget here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mosaic.contracts.errors import similar_environments
from mosaic.contracts.views import EnvironmentDetails, EnvironmentListing
from mosaic.submission.algorithm_schema import Algorithm

MAX_SUGGESTIONS = 4
CONTINUOUS = "Box"


@dataclass(frozen=True)
class EnvironmentFinding:
    """Something that the worker will probably refuse; the worker decides."""

    text: str = ""
    """Empty where nothing was found."""
    environments: tuple[str, ...] = ()
    """Ids that may have been meant."""
    algorithms: tuple[str, ...] = ()
    """Algorithms of the same worker that suit the environment."""


def action_kinds(algorithm: Algorithm) -> tuple[str, ...]:
    """The names of the action spaces that it supports; empty where its worker does not state them."""
    supports = algorithm.schema_entry.get("supports")
    return tuple(supports.get("action_spaces", ())) if isinstance(supports, dict) else ()


def game_family(algorithm: Algorithm) -> str:
    """The family of games whose frames it is for; empty where it is for other environments, too."""
    supports = algorithm.schema_entry.get("supports")
    return str(supports.get("games") or "") if isinstance(supports, dict) else ""


def is_suggested(algorithm: Algorithm) -> bool:
    """Whether it needs nothing special, so that it may be suggested."""
    supports = algorithm.schema_entry.get("supports")
    return isinstance(supports, dict) and bool(supports.get("is_suggested"))


def algorithm_groups(algorithms: Iterable[Algorithm]) -> list[tuple[str, list[str]]]:
    """Names by what they are for, in the order in which a form lists them."""
    groups: dict[str, list[str]] = {
        title: []
        for title in ("Discrete actions", "Continuous actions", "Discrete and continuous actions", "Games", "Others")
    }
    for algorithm in algorithms:
        kinds = action_kinds(algorithm)
        if not kinds:
            title = "Others"
        elif game_family(algorithm):
            title = "Games"
        elif CONTINUOUS not in kinds:
            title = "Discrete actions"
        else:
            title = "Continuous actions" if set(kinds) == {CONTINUOUS} else "Discrete and continuous actions"
        groups[title].append(algorithm.name)
    return [(title, names) for title, names in groups.items() if names]


def check_environment(
    env_id: str,
    algorithm: Algorithm,
    listings: Sequence[EnvironmentListing],
    details: EnvironmentDetails | None,
    candidates: Iterable[Algorithm],
) -> EnvironmentFinding:
    """`listings` are the worker's environments, empty until they are known; so is `details`. `candidates` are all
    algorithms of the worker."""
    is_checkable = bool(env_id and listings) and not algorithm.is_user_script and ":" not in env_id
    if not is_checkable:
        return EnvironmentFinding()
    ids = [listing.id for listing in listings]
    if env_id not in ids:
        # Without a version it means the newest one; other namespaces, such as PettingZoo's, are not listed.
        is_known_otherwise = any(known.startswith(f"{env_id}-v") for known in ids)
        namespace, _, name = env_id.rpartition("/")
        is_foreign = bool(namespace and name) and not any(known.startswith(f"{namespace}/") for known in ids)
        if is_known_otherwise or is_foreign:
            return EnvironmentFinding()
        near = similar_environments(env_id, [listing.id for listing in listings if listing.is_installed])
        end = "Did you mean:" if near else "The worker checks it when it is submitted."
        return EnvironmentFinding(
            f"No environment {env_id!r} is listed. {end}", environments=tuple(near[:MAX_SUGGESTIONS])
        )
    if details is None or details.has_several_agents or not details.action_space:
        return EnvironmentFinding()
    return _check_fit(algorithm, details, candidates)


def _check_fit(
    algorithm: Algorithm, details: EnvironmentDetails, candidates: Iterable[Algorithm]
) -> EnvironmentFinding:
    kind = details.action_space.partition("(")[0]
    kinds, games = action_kinds(algorithm), game_family(algorithm)
    if not kinds or (kind in kinds and games in ("", details.family)):
        return EnvironmentFinding()
    if kind not in kinds:
        problem = f"Its actions are {details.action_space}; {algorithm.name} needs {' or '.join(kinds)}."
    else:
        problem = f"{algorithm.name} is for the frames of {games.capitalize()} games."
    fitting = [
        one
        for one in candidates
        if kind in action_kinds(one) and is_suggested(one) and game_family(one) in ("", details.family)
    ]
    # For the frames of a game those that are made for them.
    preferred = [one for one in fitting if game_family(one)] or fitting
    names = tuple(sorted((one.name for one in preferred), key=lambda name: _distance(algorithm.name, name)))
    return EnvironmentFinding(f"{problem}{' These fit:' if names else ''}", algorithms=names[:MAX_SUGGESTIONS])


def _distance(name: str, other: str) -> tuple[bool, str]:
    """Variants of the same algorithm first, such as ppo_continuous_action for ppo."""
    return other.partition("_")[0] != name.partition("_")[0], other
