"""The environments of each worker, as a form offers them."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import QObject, Signal

from mosaic.contracts.views import EnvironmentDetails, EnvironmentListing
from mosaic.formatting import capitalize_first
from mosaic.gui.bridge import Bridge

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
