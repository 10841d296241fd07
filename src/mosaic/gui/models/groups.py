"""Groups of runs: how far each is, and its comparison by setting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mosaic.api.experiment_state import (
    SettingRow,
    count_statuses,
    environment_label,
    format_counts,
    is_done,
    rows_by_setting,
    split_superseded,
)
from mosaic.api.group_comparison import ComparisonResult, compare_entries, run_titles, suggest_key
from mosaic.contracts.metric_tags import RETURN_TAG
from mosaic.contracts.states import Stage
from mosaic.contracts.views import RunView
from mosaic.formatting import run_title
from mosaic.gui.models.series import Floats
from mosaic.statistics.comparison import NO_GROUPING, SETTING_KEY, ComparedRun, Settings, format_value
from mosaic.statistics.run_progress import run_progress

STOPPABLE_STAGES = (Stage.QUEUED, Stage.STARTING, Stage.RUNNING, Stage.PAUSED)
Points = Mapping[str, tuple[Floats, Floats]]
"""By run: steps and values of one metric."""


@dataclass(frozen=True)
class GroupState:
    """The runs of a group, newest first."""

    name: str
    views: Sequence[RunView]
    """Those that count: later attempts and later settings of an experiment replace earlier ones."""
    superseded: Sequence[RunView] = ()
    """Those that were replaced."""

    @property
    def line(self) -> str:
        """`18 of 30 done, 2 failed, 4 running, 6 queued`."""
        return format_counts([view.status for view in self.views])

    @property
    def counts(self) -> dict[str, int]:
        return count_statuses([view.status for view in self.views])

    @property
    def ended_share(self) -> float:
        return sum(view.stage is Stage.FINISHED for view in self.views) / max(1, len(self.views))

    @property
    def is_active(self) -> bool:
        return any(view.is_active for view in self.views)

    @property
    def is_archived(self) -> bool:
        return all(view.is_archived for view in (*self.views, *self.superseded))

    @property
    def stoppable(self) -> list[RunView]:
        return [view for view in self.views if view.stage in STOPPABLE_STAGES]

    @property
    def retryable(self) -> list[RunView]:
        """Runs of an experiment that have ended without success; they can be submitted as a further attempt."""
        ended = [view for view in self.views if view.stage is Stage.FINISHED and not is_done(view)]
        return [view for view in ended if view.experiment is not None]

    @property
    def archivable(self) -> list[RunView]:
        """Runs that have ended and are not archived, with those that were replaced."""
        every = (*self.views, *self.superseded)
        return [view for view in every if view.stage is Stage.FINISHED and not view.is_archived]


def group_state(name: str, views: Iterable[RunView]) -> GroupState:
    own = sorted((view for view in views if view.group == name), key=lambda view: view.age_key, reverse=True)
    return GroupState(name, *split_superseded(own))


def list_groups(views: Iterable[RunView], with_archived: bool = False) -> list[GroupState]:
    """Return all groups, the one with the newest run first."""
    members: dict[str, list[RunView]] = {}
    for view in sorted(views, key=lambda view: view.age_key, reverse=True):
        if view.group:
            members.setdefault(view.group, []).append(view)
    groups = [GroupState(name, *split_superseded(own)) for name, own in members.items()]
    return [group for group in groups if with_archived or not group.is_archived]


# --- settings


def label_runs(views: Sequence[RunView], settings: Mapping[str, Settings]) -> dict[str, str]:
    """Name the setting of each run: as its experiment does, otherwise by what separates the runs.

    `settings`: those of runs that are not part of an experiment, by run.
    """
    labels = {view.run_id: view.experiment.setting for view in views if view.experiment is not None}
    others = [view for view in views if view.experiment is None]
    known = [settings.get(view.run_id, {}) for view in others]
    key = suggest_key(known)
    if key == NO_GROUPING:
        return labels | dict(zip((view.run_id for view in others), run_titles(others), strict=True))
    for view, own in zip(others, known, strict=True):
        value = format_value(own.get(key) or view.algo or view.worker)
        labels[view.run_id] = value if key == "algo" else f"{key} {value}"
    return labels


def setting_rows(views: Sequence[RunView], labels: Mapping[str, str]) -> list[SettingRow]:
    """Return the rows of the table: by environment, then in the order in which they were submitted."""
    rows = rows_by_setting(views, lambda view: labels.get(view.run_id, ""))
    environments = list(dict.fromkeys(row.environment for row in rows))
    return sorted(rows, key=lambda row: environments.index(row.environment))


def compare_group(
    views: Sequence[RunView],
    labels: Mapping[str, str],
    points: Points,
    tag: str = RETURN_TAG,
    smoothing: float = 0.0,
    is_brief: bool = True,
) -> ComparisonResult | None:
    """Compare the runs of a group by setting; None where none has a point yet."""
    nothing = np.empty(0)
    entries = []
    for view in sorted(views, key=lambda view: view.age_key):
        steps, values = points.get(view.run_id, (nothing, nothing))
        settings = {SETTING_KEY: labels.get(view.run_id, ""), "env_id": view.env_id, "algo": view.algo}
        entries.append(
            ComparedRun(
                view.run_id,
                run_title(view),
                settings,
                steps,
                values,
                values,
                environment_label(view),
                run_progress(view),
            )
        )
    if not any(len(entry.x) for entry in entries):
        return None
    return compare_entries(entries, SETTING_KEY, tag, smoothing=smoothing, is_brief=is_brief)
