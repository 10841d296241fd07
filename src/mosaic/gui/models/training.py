"""What will be trained next: the draft that the form shows and that "Train Agent" submits."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from mosaic.client import TrainerClient
from mosaic.client.trainer_client import new_submission_key
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.contracts.options import RunKind
from mosaic.contracts.views import RunView
from mosaic.gui.gui_settings import GuiSettings
from mosaic.gui.models.draft import Draft, draft_from_payload, draft_from_preset
from mosaic.gui.models.form_layout import algorithms_by_worker, forget_scripts
from mosaic.submission.caller_environment import program_environment
from mosaic.submission.user_presets import Preset, read_presets, save_preset

SAVE_DELAY_MS = 500
DEFAULT_ALGORITHM = "ppo"
MAX_BEST_RUNS = 5


class PartlySubmitted(MosaicError):
    """Some runs of a group were created before one was refused."""

    def __init__(self, views: list[RunView], total: int, error: MosaicError) -> None:
        super().__init__(f"{len(views)} of {total} runs were submitted, then: {error}", error.problems)
        self.views = views


class Training(QObject):
    draft_replaced = Signal()
    """The draft is another one: a preset, a payload, another algorithm."""
    draft_edited = Signal()
    """A field of it has changed."""

    def __init__(self, settings: GuiSettings, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._settings = settings
        move_presets_to_file(settings)
        self._draft: Draft | None = None
        self._left: dict[str, Draft] = {}
        """By worker: the draft that was shown when another worker was chosen."""
        self._save_timer = QTimer(self, singleShot=True, interval=SAVE_DELAY_MS)
        self._save_timer.timeout.connect(self.save)

    @property
    def draft(self) -> Draft:
        if self._draft is None:
            stored = self._settings.get_for_workspace("train_draft")
            self._draft = _available(Draft.from_json(stored) or default_draft())
        return self._draft

    def edit(self, draft: Draft) -> None:
        """The same form with another value in it."""
        if draft != self.draft:
            self._draft = draft
            self._save_timer.start()
            self.draft_edited.emit()

    def replace(self, draft: Draft) -> None:
        self._draft = draft
        self._save_timer.start()
        self.draft_replaced.emit()

    def choose_worker(self, worker: str, first_algorithm: str) -> None:
        """Whoever comes back to a worker finds what was left there: its algorithm with its settings."""
        left = self.draft
        if worker != left.worker:
            self._left[left.worker] = left
            if worker in self._left:
                self.replace(self._left[worker])
            else:
                self.choose_algorithm(worker, first_algorithm)

    def choose_algorithm(self, worker: str, algorithm: str) -> None:
        """Texts are kept for settings that the other algorithm has too."""
        draft = self.draft
        if (worker, algorithm) != (draft.worker, draft.algorithm):
            self.replace(replace(draft, worker=worker, algorithm=algorithm))

    def choose_cleanrl(self, folder: str, python: str) -> None:
        """Take the scripts of the user's CleanRL from there, as they are now."""
        forget_scripts()
        self.replace(_available(replace(self.draft, cleanrl=folder, cleanrl_python=python)))

    def reset(self) -> None:
        self.replace(replace(self.draft, texts={}, seeds=None, rest={}, source=""))

    def load_payload(self, payload: dict[str, Any], source: str = "") -> None:
        """`source` is the id of the run that it comes from. Raises BadInput where no form can show it."""
        draft = self.draft
        self.replace(replace(draft_from_payload(payload, draft.cleanrl, draft.cleanrl_python), source=source))

    def save(self) -> None:
        self._save_timer.stop()
        if self._draft is not None:
            self._settings.put_for_workspace("train_draft", self._draft.to_json())

    def payloads(self) -> list[dict[str, Any]]:
        """One for each seed. Raises BadInput where a field is invalid."""
        return self.draft.payloads(time.time())

    def load_preset(self, preset: Preset) -> None:
        """Raises BadInput where no form can show it."""
        self.replace(draft_from_preset(preset, self.draft.cleanrl, self.draft.cleanrl_python))


def default_draft() -> Draft:
    """A draft without changes, for PPO where a worker has it."""
    known = algorithms_by_worker()
    if not known:
        raise BadInput("No worker with algorithms is installed: pip install 'mosaic-rl[train]'")
    worker, names = next(iter(known.items()))
    return Draft(worker, DEFAULT_ALGORITHM if DEFAULT_ALGORITHM in names else names[0])


def _available(draft: Draft) -> Draft:
    """The draft; where its algorithm is not here any more, one of the default algorithm."""
    try:
        is_here = bool(draft.layout.fields)
    except BadInput:
        is_here = False
    if is_here:
        return draft
    default = default_draft()
    return replace(default, texts=draft.texts, cleanrl=draft.cleanrl, cleanrl_python=draft.cleanrl_python)


def move_presets_to_file(settings: GuiSettings) -> None:
    """Move presets from the window's settings, where it kept them before, to the file that commands read, too.

    One that cannot be read, such as that of a worker which is not installed, stays until it can be.
    """
    earlier = settings.get("presets", {})
    if not earlier or not isinstance(earlier, dict):
        return
    with suppress(BadInput):
        known = read_presets()
        for name, stored in list(earlier.items()):
            with suppress(BadInput):
                draft = Draft.from_json(stored)
                if name not in known and draft is not None:
                    save_preset(name, draft.to_preset())
                    del earlier[name]
        settings.put("presets", earlier)
        settings.flush()


def best_runs(views: Iterable[RunView], env_id: str) -> list[RunView]:
    """The finished trainings in this environment with the highest returns, one for each algorithm, the best first."""
    best: dict[str | None, RunView] = {}
    ended = [view for view in views if view.kind == RunKind.TRAIN and view.has_succeeded]
    for view in sorted(ended, key=_return):
        if view.env_id == env_id and view.worker != "script" and view.episodic_return is not None:
            best[view.algo] = view
    return sorted(best.values(), key=_return, reverse=True)[:MAX_BEST_RUNS]


def _return(view: RunView) -> float:
    return view.episodic_return if view.episodic_return is not None else float("-inf")


class RunsSubmission:
    """Submits the runs of a group. It can be called again where the connection broke: no run is created twice."""

    def __init__(self, payloads: list[dict[str, Any]]) -> None:
        self._payloads = [(payload, new_submission_key()) for payload in payloads]

    def __call__(self, trainer: TrainerClient, is_trusted: bool = False) -> list[RunView]:
        """Raise PartlySubmitted if not the first one was refused."""
        views: list[RunView] = []
        for payload, key in self._payloads:
            try:
                views.append(trainer.submit(payload, program_environment(payload), is_trusted, key))
            except MosaicError as error:
                if not views:
                    raise
                raise PartlySubmitted(views, len(self._payloads), error) from error
        return views
