"""The columns of the list of runs: what each shows of a run, and what it is sorted by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from mosaic import formatting
from mosaic.contracts.options import RunKind
from mosaic.contracts.views import RunView

SETTING_PREFIX, METRIC_PREFIX = "setting:", "metric:"
"""Begin the ids of columns that show a hyper-parameter, or the last value of a metric."""
VALUES_AFTER = "seed"
"""Such columns come after this one."""
_STATE_ORDER = (
    *("running", "stalled", "paused", "stopping", "starting", "queued"),
    *("failed", "lost", "rejected", "cancelled", "ended", "succeeded"),
)
"""Those that may need attention come first."""


@dataclass(frozen=True)
class Column:
    id: str
    title: str
    text: Callable[[RunView], str]
    key: Callable[[RunView], Any]
    """The sort key; None comes last in either order."""
    width_sample: str
    """As wide as this."""
    is_right_aligned: bool = False
    tooltip: Callable[[RunView], str] = lambda _: ""

    @property
    def shows_value(self) -> bool:
        """Whether it shows a hyper-parameter or a metric, which is read for the visible rows only."""
        return self.id.startswith((SETTING_PREFIX, METRIC_PREFIX))


def run_label(view: RunView) -> str:
    """The name of a run, or what it trains and where: `ppo · CartPole-v1`."""
    return view.run_name or " · ".join(filter(None, (_algorithm_text(view), view.env_id)))


def _state_rank(view: RunView) -> int:
    state = view.status
    return _STATE_ORDER.index(state) if state in _STATE_ORDER else len(_STATE_ORDER)


def _algorithm_text(view: RunView) -> str:
    name = str(view.algo or view.worker or "–")
    return f"{name} (eval)" if view.kind == RunKind.POLICY_EVAL else name


def _percent_text(view: RunView) -> str:
    fraction = formatting.progress_fraction(view)
    return "–" if fraction is None else f"{100 * fraction:.0f}%"


def _steps_tooltip(view: RunView) -> str:
    if view.global_step is None:
        return ""
    total = f" of {view.total_timesteps:,}" if view.total_timesteps else ""
    return f"{view.global_step:,}{total} steps"


def _tags_text(view: RunView) -> str:
    return ", ".join(view.tags or ())


def _name_tooltip(view: RunView) -> str:
    marks = (
        "Archived: hidden from the list unless archived runs are shown" if view.is_archived else "",
        "Imported: what its config would execute needs your trust" if view.is_imported else "",
    )
    return "\n".join(filter(None, marks))


def _column(
    column_id: str,
    title: str,
    field: str,
    width_sample: str,
    format_value: Callable[[Any], str] = lambda value: "–" if value is None else str(value),
    is_right_aligned: bool = True,
    tooltip: Callable[[RunView], str] = lambda _: "",
) -> Column:
    """A column that shows one field and is sorted by it."""
    value = attrgetter(field)
    return Column(
        column_id, title, lambda view: format_value(value(view)), value, width_sample, is_right_aligned, tooltip
    )


COLUMNS: tuple[Column, ...] = (
    Column("state", "State", lambda run: run.status, _state_rank, "succeeded", tooltip=formatting.explain_state),
    Column("name", "Name", run_label, lambda run: run_label(run).lower(), "ppo · CartPole", tooltip=_name_tooltip),
    _column("seed", "Seed", "seed", "12"),
    _column("group", "Group", "group", "ppo-CartPo", is_right_aligned=False),
    _column("return", "Return", "episodic_return", "-123.4", formatting.format_si_number,
            tooltip=lambda run: f"Mean of the last 100 of {run.episodes:,} episodes"),
    Column("progress", "Done", _percent_text, formatting.progress_fraction, "100%", True, _steps_tooltip),
    Column("algo", "Algo", _algorithm_text, _algorithm_text, "ppo_continuous"),
    _column("env", "Environment", "env_id", "MountainCar-v0", is_right_aligned=False),
    _column("left", "Time left", "seconds_left", "12m 34s", formatting.format_duration),
    _column("sps", "Steps/s", "sps", "12.3k", formatting.format_si_number),
    Column("age", "Age", lambda run: formatting.format_ago(run.submitted_at), lambda run: -run.submitted_at,
           "59 min ago", True, lambda run: f"Submitted {formatting.format_timestamp(run.submitted_at)}"),
    _column("user", "User", "submitted_by", "username", is_right_aligned=False),
    Column("tags", "Tags", _tags_text, lambda run: _tags_text(run) or None, "baseline"),
)  # fmt: skip
"""In the order in which a narrow list leaves them out: the last first."""
COLUMN_IDS = tuple(column.id for column in COLUMNS)
