"""What the train form offers to begin with, besides the presets in the user's file."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from mosaic.contracts.errors import BadInput
from mosaic.contracts.options import RunKind
from mosaic.contracts.views import RunView
from mosaic.gui.gui_settings import GuiSettings
from mosaic.gui.models.draft import Draft, preset_from_draft
from mosaic.submission.user_presets import read_presets, save_preset

MAX_BEST_RUNS = 5


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
                    save_preset(name, preset_from_draft(draft.layout, draft))
                    del earlier[name]
        settings.put("presets", earlier)
        settings.flush()


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
