"""Finds the runs that a user names: by id, name or `last`, or by their group."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from mosaic.base.formatting import count_noun
from mosaic.contracts.errors import BadInput, NotAllowed, UnknownName
from mosaic.contracts.options import RunKind

if TYPE_CHECKING:
    from mosaic.contracts.experiment_member import ExperimentMember
    from mosaic.contracts.views import RunView
    from mosaic.trainer.client.trainer_client import TrainerClient

LAST = "last"
MAX_SEARCHED = 1000
"""Runs among which `last` is searched."""

Fits = Callable[["RunView"], int]
"""How well a command can be applied to a run; 0 or False: not at all."""


Key = TypeVar("Key", bound=Hashable)


def resolve_run(trainer: TrainerClient, name: str, fits: Fits | None = None) -> RunView:
    """Return the run; `last` is the newest of those that fit best, or of all, about which the caller reports why."""
    try:
        return _find_run(trainer, name, fits)
    except UnknownName:
        if not (members := trainer.runs(group=name, include_archived=True)):
            raise
        raise BadInput(
            f"{name!r} is a group ({count_noun(len(members), 'run')}), and one run is expected. "
            f"List them: mosaic runs --group {shlex.quote(name)}"
        ) from None


def _find_run(trainer: TrainerClient, name: str, fits: Fits | None, include_archived: bool = False) -> RunView:
    if name.lower() == LAST and fits is not None:
        newest = trainer.runs(include_archived=include_archived, limit=MAX_SEARCHED)
        best = max(newest, key=fits, default=None)  # the first of several
        if best is not None and fits(best):
            return best
    return trainer.get_run(name)


class NamedRuns(NamedTuple):
    """What a name refers to."""

    views: list[RunView]
    is_group: bool


def resolve_runs(
    trainer: TrainerClient,
    names: Sequence[str],
    fits: Fits | None = None,
    include_archived: bool = False,
    is_last_newest: bool = False,
) -> list[RunView]:
    """Return each run once, in the order given; those of a group that fit, from its first to its last.

    With `is_last_newest`, `last` is the newest run also where it does not fit, which the caller then refuses.
    """
    by_name = {name: None if is_last_newest and name.lower() == LAST else fits for name in names}
    named = [resolve_name(trainer, name, one, include_archived) for name, one in by_name.items()]
    return list({view.run_id: view for one in named for view in one.views}.values())


def resolve_name(
    trainer: TrainerClient, name: str, fits: Fits | None = None, include_archived: bool = False
) -> NamedRuns:
    """Return the run or the runs of the group that a name refers to; of a group, those that fit."""
    members = trainer.runs(group=name, include_archived=include_archived)[::-1]
    try:
        view = _find_run(trainer, name, fits, include_archived)
    except UnknownName:
        if not members:
            raise
    else:
        if [member.run_id for member in members] == [view.run_id]:
            return NamedRuns(members, is_group=True)
        if members and name.lower() != LAST and name != view.run_id:
            raise BadInput(
                f"{name!r} is the name of a group, and also names the run {view.run_id}. "
                "For the run, give its id; for the group, the ids of its runs: "
                f"mosaic runs --group {shlex.quote(name)}"
            )
        return NamedRuns([view], is_group=False)
    matches = [view for view in members if fits is None or fits(view)]
    if not matches:
        statuses = Counter(view.status for view in members)
        listed = ", ".join(f"{count} {status}" for status, count in statuses.items())
        raise NotAllowed(f"No run of group {name!r} is in a state for this: {listed}.")
    return NamedRuns(matches, is_group=True)


def has_policy(view: RunView) -> bool:
    """Whether a run may have trained a policy: evaluations are runs too."""
    return view.kind is RunKind.TRAIN and (view.checkpoint_step is not None or view.stage == "finished")


def split_superseded(views: Sequence[RunView]) -> tuple[list[RunView], list[RunView]]:
    """Divide the runs of a group into those that count and those that later ones of its experiment replaced.

    A later attempt replaces an earlier one. Where the settings behind a label were changed, the runs with the settings
    of the newest run of that label and environment count.
    """
    groups: dict[str | None, list[RunView]] = {}
    for view in views:
        groups.setdefault(view.group, []).append(view)
    replaced: set[str] = set()
    for members in groups.values():
        attempts = _newest_by(members, lambda member: member.key)
        cells = _newest_by(members, lambda member: (member.setting, member.environment))
        for view in members:
            if (member := view.experiment) is None:
                continue
            newest = cells[member.setting, member.environment].experiment
            if attempts[member.key] is not view or newest is None or newest.settings_key != member.settings_key:
                replaced.add(view.run_id)
    current = [view for view in views if view.run_id not in replaced]
    return current, [view for view in views if view.run_id in replaced]


def _newest_by(views: Iterable[RunView], key_of: Callable[[ExperimentMember], Key]) -> dict[Key, RunView]:
    """Return the newest run of an experiment for each key; ids sort by time."""
    newest: dict[Key, RunView] = {}
    for view in sorted(views, key=lambda view: (view.experiment.attempt if view.experiment else 0, view.age_key)):
        if view.experiment is not None:
            newest[key_of(view.experiment)] = view
    return newest
