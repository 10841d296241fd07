"""What will be trained next: the draft that the form shows and that "Train Agent" submits; and its presets."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from mosaic.client import Trainer
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.gui.bridge import Bridge
from mosaic.gui.forms.draft import Draft, from_payload, payloads
from mosaic.gui.forms.environments import EnvironmentChoice, choices
from mosaic.gui.forms.layout import FormLayout, layout_of, offered
from mosaic.gui.settings import Settings

Json = dict[str, Any]
Then = Callable[[Any], None]

SAVE_MS = 500
FIRST_ALGORITHM = "ppo"


class PartlySubmitted(MosaicError):
    """Some runs of a group were made before one was refused."""

    def __init__(self, views: list[Json], wanted: int, error: Exception) -> None:
        super().__init__(f"{len(views)} of {wanted} runs were submitted, then: {error}")
        self.views = views


class Training(QObject):
    replaced = Signal()
    """Another draft is here: a preset, a payload, another algorithm."""
    edited = Signal()
    """A field of it has changed."""
    presets_changed = Signal()

    def __init__(self, bridge: Bridge, settings: Settings, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self._settings = settings
        self._draft: Draft | None = None
        self._layout: FormLayout | None = None
        self._save = QTimer(self, singleShot=True, interval=SAVE_MS)
        self._save.timeout.connect(self.save)

    @property
    def draft(self) -> Draft:
        if self._draft is None:
            self._draft = _usable(Draft.from_json(self._settings.get_here("train_draft"))) or first_draft()
        return self._draft

    @property
    def layout(self) -> FormLayout:
        draft = self.draft
        if self._layout is None:
            self._layout = layout_of(draft.worker, draft.algorithm)
        return self._layout

    def edit(self, draft: Draft) -> None:
        """The same form with another value in it."""
        if draft != self.draft:
            self._draft = draft
            self._save.start()
            self.edited.emit()

    def replace(self, draft: Draft) -> None:
        self._draft = draft
        self._layout = None
        self._save.start()
        self.replaced.emit()

    def choose(self, worker: str, algorithm: str) -> None:
        """What was written stays where the other algorithm has the same setting."""
        draft = self.draft
        if (worker, algorithm) != (draft.worker, draft.algorithm):
            self.replace(Draft(worker, algorithm, draft.texts, draft.seeds, draft.rest))

    def reset(self) -> None:
        self.replace(Draft(self.draft.worker, self.draft.algorithm))

    def fill(self, payload: Json) -> None:
        """Raises BadInput where no form can show it."""
        self.replace(from_payload(payload))

    def save(self) -> None:
        self._save.stop()
        if self._draft is not None:
            self._settings.put_here("train_draft", self._draft.to_json())

    # --- the trainer

    def check(self, then: Then, failed: Then, owner: QObject) -> None:
        """The verdict on the first of the runs; nothing is started."""
        first = payloads(self.layout, self.draft, time.time())[0]
        self._bridge.ask(lambda trainer: trainer.check(first), then, failed, owner)

    def submit(self, then: Then, failed: Then, owner: QObject) -> None:
        """`then` gets the views of the runs that were made. Raises BadInput where a field is wrong."""
        made = payloads(self.layout, self.draft, time.time())
        self.save()
        self._bridge.ask(lambda trainer: _submitted(trainer, made), then, failed, owner)

    # --- presets

    def presets(self) -> dict[str, Json]:
        found = self._settings.get("presets", {})
        return dict(sorted(found.items())) if isinstance(found, dict) else {}

    def save_preset(self, name: str) -> None:
        self._put_presets(self.presets() | {name: self.draft.to_json()})

    def delete_preset(self, name: str) -> None:
        self._put_presets({other: said for other, said in self.presets().items() if other != name})

    def load_preset(self, name: str) -> None:
        draft = _usable(Draft.from_json(self.presets().get(name)))
        if draft is None:
            raise BadInput(
                f"The preset {name!r} is for an algorithm that is not here. Delete it, or install its worker."
            )
        self.replace(draft)

    def _put_presets(self, presets: dict[str, Json]) -> None:
        self._settings.put("presets", presets)
        self.presets_changed.emit()


def first_draft() -> Draft:
    """For the first algorithm that is worth a try."""
    known = offered()
    if not known:
        raise BadInput("No worker with algorithms is installed: pip install 'mosaic-rl[train]'")
    worker, names = next(iter(known.items()))
    return Draft(worker, FIRST_ALGORITHM if FIRST_ALGORITHM in names else names[0])


def _usable(draft: Draft | None) -> Draft | None:
    return draft if draft is not None and draft.algorithm in offered().get(draft.worker, ()) else None


def _submitted(trainer: Trainer, made: list[Json]) -> list[Json]:
    views: list[Json] = []
    for payload in made:
        try:
            views.append(trainer.submit(payload))
        except MosaicError as error:
            if not views:
                raise
            raise PartlySubmitted(views, len(made), error) from error
    return views


class Environments(QObject):
    """What each worker can train on, asked for once and again after a trainer was found anew."""

    listed = Signal(str)
    """The worker whose environments are known now."""

    def __init__(self, bridge: Bridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self._known: dict[str, list[EnvironmentChoice]] = {}
        self._asked: set[str] = set()
        bridge.connected.connect(lambda _: self._again())

    def of(self, worker: str) -> list[EnvironmentChoice]:
        """Empty until they are known; then `listed` tells."""
        if worker not in self._asked:
            self._asked.add(worker)
            self._ask(worker)
        return self._known.get(worker, [])

    def _again(self) -> None:
        for worker in self._asked - set(self._known):
            self._ask(worker)

    def _ask(self, worker: str) -> None:
        def take(answer: Json) -> None:
            self._known[worker] = choices(answer["environments"])
            self.listed.emit(worker)

        # A worker that lists none is no error: the field then takes any id.
        self._bridge.ask(lambda trainer: trainer.ask_worker(worker, {"ask": "environments"}), take, None, self)
