"""Named configurations of the train form, in the user's settings; the command line saves some, too."""

from __future__ import annotations

from collections.abc import Iterable

from mosaic.contracts.options import RunKind
from mosaic.contracts.views import RunView
from mosaic.gui.gui_settings import GuiSettings
from mosaic.gui.models.draft import Draft

MAX_BEST_RUNS = 5


class Presets:
    """Reads the file each time, as another process may have changed it."""

    def __init__(self, settings: GuiSettings) -> None:
        self._settings = settings

    def names(self) -> list[str]:
        return sorted(self._read())

    def get(self, name: str) -> Draft | None:
        return Draft.from_json(self._read().get(name))

    def save(self, name: str, draft: Draft) -> None:
        self._write(self._read() | {name: draft.to_json()})

    def delete(self, name: str) -> None:
        self._write({key: preset for key, preset in self._read().items() if key != name})

    def _read(self) -> dict[str, object]:
        self._settings.flush()
        presets = self._settings.get("presets", {})
        return presets if isinstance(presets, dict) else {}

    def _write(self, presets: dict[str, object]) -> None:
        self._settings.put("presets", presets)
        self._settings.flush()


def best_runs(views: Iterable[RunView], env_id: str) -> list[RunView]:
    """The finished trainings in this environment with the highest returns, one for each algorithm, the best first."""
    best: dict[str | None, RunView] = {}
    ended = [view for view in views if view.kind == RunKind.TRAIN and view.outcome == "succeeded"]
    for view in sorted(ended, key=_return):
        if view.env_id == env_id and view.worker != "script" and view.episodic_return is not None:
            best[view.algo] = view
    return sorted(best.values(), key=_return, reverse=True)[:MAX_BEST_RUNS]


def _return(view: RunView) -> float:
    return view.episodic_return if view.episodic_return is not None else float("-inf")
