"""Whether an environment exists and suits an algorithm, found from the catalog while it is typed. No widget here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from PySide6.QtCore import QObject, Signal

from mosaic.base.algorithm_schema import Algorithm
from mosaic.base.formatting import capitalize_first
from mosaic.contracts.errors import similar_environments
from mosaic.contracts.views import EnvironmentDetails, EnvironmentListing
from mosaic.window.bridge import Bridge

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


# --- The environments of each worker, as a form offers them.


_TITLES = {
    "box2d": "Box2D",
    "mujoco": "MuJoCo",
    "minigrid": "MiniGrid",
    "pettingzoo_classic": "PettingZoo classic",
    "pettingzoo_butterfly": "PettingZoo butterfly",
    "pettingzoo_atari": "PettingZoo Atari",
    "pettingzoo_mpe": "PettingZoo particles",
}
ALL_FAMILIES = "All families"


def sort_environments(listings: Iterable[EnvironmentListing]) -> list[EnvironmentListing]:
    """Those that are installed first, each family together, the newest version first."""
    return sorted(listings, key=_order)


def _order(listing: EnvironmentListing) -> tuple[bool, str, str, int]:
    name, _, version = listing.id.rpartition("-v")
    is_versioned = bool(name) and version.isdigit()
    base = name if is_versioned else listing.id
    return not listing.is_installed, listing.family, base.lower(), -int(version) if is_versioned else 0


def unavailable_hint(listing: EnvironmentListing) -> str:
    """What to do before it can be chosen; empty where nothing is missing."""
    return "" if listing.is_installed else listing.install_hint or "not in this version"


def family_title(name: str) -> str:
    words = name.replace("_", " ")
    return _TITLES.get(name, capitalize_first(words))


def families(listings: Iterable[EnvironmentListing]) -> list[tuple[str, bool]]:
    """Names, and whether an environment of the family is installed; families that have one come first."""
    usable: dict[str, bool] = {}
    for listing in listings:
        usable[listing.family] = usable.get(listing.family, False) or listing.is_installed
    return sorted(usable.items(), key=lambda item: (not item[1], family_title(item[0]).lower()))


def environment_problem(env_id: str, listings: Iterable[EnvironmentListing]) -> str:
    """Return why a listed environment cannot be used; one that is not listed is checked by the worker."""
    listing = next((listing for listing in listings if listing.id == env_id and not listing.is_installed), None)
    if listing is None:
        return ""
    return f"Is not installed: {listing.install_hint}" if listing.install_hint else f"Is {unavailable_hint(listing)}."


class WorkerEnvironments(QObject):
    """The environments of each worker, requested once and again after a reconnection."""

    environments_loaded = Signal(str)
    """The worker whose environments are known now."""
    details_loaded = Signal(str)
    """The environment that is described now."""

    def __init__(self, bridge: Bridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self._known: dict[str, list[EnvironmentListing]] = {}
        self._requested: set[str] = set()
        self._details: dict[str, EnvironmentDetails] = {}
        self._requested_details: set[str] = set()
        bridge.connected.connect(lambda _: self._retry_missing())

    def for_worker(self, worker: str) -> list[EnvironmentListing]:
        """Empty until they are known; then `environments_loaded` is emitted."""
        if worker not in self._requested:
            self._requested.add(worker)
            self._request(worker)
        return self._known.get(worker, [])

    def details(self, env_id: str) -> EnvironmentDetails | None:
        """What there is to know about an environment; None until it is known, then `details_loaded` is emitted."""
        if env_id not in self._requested_details:
            self._requested_details.add(env_id)
            self._request_details(env_id)
        return self._details.get(env_id)

    def _request_details(self, env_id: str) -> None:
        def take(details: EnvironmentDetails) -> None:
            self._details[env_id] = details
            self.details_loaded.emit(env_id)

        # Without an answer the settings are written as JSON, and the worker checks them.
        self._bridge.ask(lambda trainer: trainer.environment(env_id), take, None, self)

    def _retry_missing(self) -> None:
        for worker in self._requested - set(self._known):
            self._request(worker)
        for env_id in self._requested_details - set(self._details):
            self._request_details(env_id)

    def _request(self, worker: str) -> None:
        def take(listings: list[EnvironmentListing]) -> None:
            self._known[worker] = sort_environments(listings)
            self.environments_loaded.emit(worker)

        # A worker that lists none is not an error: the field then accepts any id.
        self._bridge.ask(lambda trainer: trainer.environments(worker), take, None, self)
