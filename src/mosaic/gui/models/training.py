"""What will be trained next: the draft that the form shows and that "Train Agent" submits; and its presets."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, QTimer, Signal

from mosaic.client import TrainerClient
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.gui.bridge import Bridge
from mosaic.gui.gui_settings import GuiSettings
from mosaic.gui.models.draft import Draft, build_payloads, draft_from_payload
from mosaic.gui.models.environment_choices import EnvironmentChoice, parse_choices
from mosaic.gui.models.form_layout import FormLayout, algorithms_by_worker, get_layout

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView

Json = dict[str, Any]
Callback = Callable[[Any], None]

SAVE_DELAY_MS = 500
DEFAULT_ALGORITHM = "ppo"


class PartlySubmitted(MosaicError):
    """Some runs of a group were created before one was refused."""

    def __init__(self, views: list[RunView], total: int, error: MosaicError) -> None:
        super().__init__(f"{len(views)} of {total} runs were submitted, then: {error}", error.problems)
        self.views = views


class Training(QObject):
    draft_replaced = Signal()
    """Another draft is here: a preset, a payload, another algorithm."""
    draft_edited = Signal()
    """A field of it has changed."""
    presets_changed = Signal()

    def __init__(self, bridge: Bridge, settings: GuiSettings, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self._settings = settings
        self._draft: Draft | None = None
        self._layout: FormLayout | None = None
        self._save_timer = QTimer(self, singleShot=True, interval=SAVE_DELAY_MS)
        self._save_timer.timeout.connect(self.save)

    @property
    def draft(self) -> Draft:
        if self._draft is None:
            self._draft = (
                _draft_if_available(Draft.from_json(self._settings.get_for_workspace("train_draft"))) or default_draft()
            )
        return self._draft

    @property
    def layout(self) -> FormLayout:
        draft = self.draft
        if self._layout is None:
            self._layout = get_layout(draft.worker, draft.algorithm)
        return self._layout

    def edit(self, draft: Draft) -> None:
        """The same form with another value in it."""
        if draft != self.draft:
            self._draft = draft
            self._save_timer.start()
            self.draft_edited.emit()

    def replace(self, draft: Draft) -> None:
        self._draft = draft
        self._layout = None
        self._save_timer.start()
        self.draft_replaced.emit()

    def choose_algorithm(self, worker: str, algorithm: str) -> None:
        """What was written stays where the other algorithm has the same setting."""
        draft = self.draft
        if (worker, algorithm) != (draft.worker, draft.algorithm):
            self.replace(Draft(worker, algorithm, draft.texts, draft.seeds, draft.rest))

    def reset(self) -> None:
        self.replace(Draft(self.draft.worker, self.draft.algorithm))

    def load_payload(self, payload: Json) -> None:
        """Raises BadInput where no form can show it."""
        self.replace(draft_from_payload(payload))

    def save(self) -> None:
        self._save_timer.stop()
        if self._draft is not None:
            self._settings.put_for_workspace("train_draft", self._draft.to_json())

    # --- the trainer

    def check(self, on_result: Callback, on_error: Callback, owner: QObject) -> None:
        """The verdict on the first of the runs; nothing is started."""
        first = build_payloads(self.layout, self.draft, time.time())[0]
        self._bridge.ask(lambda trainer: trainer.check(first), on_result, on_error, owner)

    def submit(self, on_result: Callback, on_error: Callback, owner: QObject) -> None:
        """`then` gets the views of the runs that were created. Raises BadInput where a field is wrong."""
        payloads = build_payloads(self.layout, self.draft, time.time())
        self.save()
        self._bridge.ask(lambda trainer: _submit_all(trainer, payloads), on_result, on_error, owner)

    # --- presets

    def presets(self) -> dict[str, Json]:
        found = self._settings.get("presets", {})
        return dict(sorted(found.items())) if isinstance(found, dict) else {}

    def save_preset(self, name: str) -> None:
        self._put_presets(self.presets() | {name: self.draft.to_json()})

    def delete_preset(self, name: str) -> None:
        self._put_presets({other: preset for other, preset in self.presets().items() if other != name})

    def load_preset(self, name: str) -> None:
        draft = _draft_if_available(Draft.from_json(self.presets().get(name)))
        if draft is None:
            raise BadInput(
                f"The preset {name!r} is for an algorithm that is not here. Delete it, or install its worker."
            )
        self.replace(draft)

    def _put_presets(self, presets: dict[str, Json]) -> None:
        self._settings.put("presets", presets)
        self.presets_changed.emit()


def default_draft() -> Draft:
    """For the first algorithm that is worth a try."""
    known = algorithms_by_worker()
    if not known:
        raise BadInput("No worker with algorithms is installed: pip install 'mosaic-rl[train]'")
    worker, names = next(iter(known.items()))
    return Draft(worker, DEFAULT_ALGORITHM if DEFAULT_ALGORITHM in names else names[0])


def _draft_if_available(draft: Draft | None) -> Draft | None:
    return draft if draft is not None and draft.algorithm in algorithms_by_worker().get(draft.worker, ()) else None


def _submit_all(trainer: TrainerClient, payloads: list[Json]) -> list[RunView]:
    views: list[RunView] = []
    for payload in payloads:
        try:
            views.append(trainer.submit(payload))
        except MosaicError as error:
            if not views:
                raise
            raise PartlySubmitted(views, len(payloads), error) from error
    return views


class WorkerEnvironments(QObject):
    """The environments of each worker, requested once and again after a reconnection."""

    environments_loaded = Signal(str)
    """The worker whose environments are known now."""

    def __init__(self, bridge: Bridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self._known: dict[str, list[EnvironmentChoice]] = {}
        self._requested: set[str] = set()
        bridge.connected.connect(lambda _: self._retry_missing())

    def for_worker(self, worker: str) -> list[EnvironmentChoice]:
        """Empty until they are known; then `listed` tells."""
        if worker not in self._requested:
            self._requested.add(worker)
            self._request(worker)
        return self._known.get(worker, [])

    def _retry_missing(self) -> None:
        for worker in self._requested - set(self._known):
            self._request(worker)

    def _request(self, worker: str) -> None:
        def take(answer: Json) -> None:
            self._known[worker] = parse_choices(answer["environments"])
            self.environments_loaded.emit(worker)

        # A worker that lists none is no error: the field then takes any id.
        self._bridge.ask(lambda trainer: trainer.ask_worker(worker, {"ask": "environments"}), take, None, self)
