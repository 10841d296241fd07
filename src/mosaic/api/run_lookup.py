"""Finds the runs that a user names: by id, by `last`, or by their group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mosaic.contracts.errors import NotAllowed, UnknownName
from mosaic.contracts.options import RunKind

if TYPE_CHECKING:
    from mosaic.client import TrainerClient
    from mosaic.contracts.views import RunView

LAST = "last"
MAX_SEARCHED = 1000
"""Runs among which `last` is searched."""

Fits = Callable[["RunView"], bool]
"""Whether a command can be applied to a run."""


def resolve_run(trainer: TrainerClient, name: str, fits: Fits | None = None, include_archived: bool = False) -> RunView:
    """Return the run; `last` is the newest one that fits, or the newest of all, about which the caller reports why."""
    if name.lower() == LAST and fits is not None:
        newest = trainer.runs(include_archived=include_archived, limit=MAX_SEARCHED)
        fitting = next((view for view in newest if fits(view)), None)
        if fitting is not None:
            return fitting
    return trainer.get(name)


def resolve_runs(
    trainer: TrainerClient, names: Sequence[str], fits: Fits | None = None, include_archived: bool = False
) -> list[RunView]:
    """Return each run once, in the order given; those of a group that fit, from its first to its last."""
    views: dict[str, RunView] = {}
    for name in names:
        try:
            matches = [resolve_run(trainer, name, fits, include_archived)]
        except UnknownName:
            members = trainer.runs(group=name, include_archived=include_archived)[::-1]
            if not members:
                raise
            matches = [view for view in members if fits is None or fits(view)]
            if not matches:
                raise NotAllowed(f"None of the {len(members)} runs of group {name!r} is in a state for this.") from None
        views |= {view.run_id: view for view in matches}
    return list(views.values())


def has_policy(view: RunView) -> bool:
    """Whether a run may have trained a policy: evaluations are runs too."""
    return view.kind is RunKind.TRAIN and (view.checkpoint_step is not None or view.stage == "finished")


def can_resume(view: RunView) -> bool:
    if view.stage != "finished":
        return view.stage == "paused"
    return view.kind is RunKind.TRAIN and view.checkpoint_step is not None
