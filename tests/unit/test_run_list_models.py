"""Colors, filters and columns of the list of runs, without a window."""

from __future__ import annotations

import pytest
from tests.helpers.gui_runs import run_id, running, view

from mosaic.contracts.states import id_time_ms
from mosaic.contracts.views import RunView
from mosaic.features.experiments.window_model import list_groups
from mosaic.features.runs.window_order import COLUMNS, RunOrder, run_label, sort_value
from mosaic.window.palette import parse_query, with_chips
from mosaic.window.runs import short_labels
from mosaic.window.theme import RunColors


def test_runs_submitted_one_after_the_other_have_different_colors() -> None:
    colors = RunColors(16)
    colors.assign(run_id(number) for number in reversed(range(40)))
    numbers = [colors.number(run_id(number)) for number in range(40)]
    assert all(len(set(numbers[first : first + 16])) == 16 for first in range(24))


def test_runs_that_are_shown_together_never_have_the_same_color() -> None:
    colors = RunColors(8)
    colors.assign(run_id(number) for number in range(30))
    shown = [run_id(number) for number in (1, 9, 17, 25, 2, 10)]
    assert colors.separate(shown)
    assert len({colors.number(one) for one in shown}) == 6
    assert colors.number(run_id(1)) == 1  # the first one keeps its color
    assert not colors.separate(shown)


def test_runs_keep_their_colors_after_a_restart_though_older_runs_are_gone() -> None:
    colors = RunColors(8)
    colors.assign(run_id(number) for number in range(5))
    colors.separate([run_id(4), run_id(3)])
    saved = colors.save()
    again = RunColors(8)
    again.load({**saved, "bad": "red", "wrong": 8})
    again.assign(run_id(number) for number in range(2, 6))
    assert [again.number(run_id(number)) for number in range(2, 6)] == [2, 3, 4, 5]
    RunColors(8).load(["not", "colors"])


def test_more_runs_than_colors_share_some() -> None:
    colors = RunColors(2)
    assert not colors.separate([run_id(1), run_id(2), run_id(3)])


MIDNIGHT = 1_700_000_002.0


@pytest.mark.parametrize(
    ("chips", "fitting"),
    [
        ([], [1, 2, 3, 4]),
        (["running"], [3]),
        (["failed"], [2]),
        (["running", "failed"], [2, 3]),
        (["today"], [2, 3, 4]),
        (["today", "failed"], [2]),
        (["mine"], [1, 3]),
        (["mine", "running"], [3]),
    ],
)
def test_filters_of_one_kind_add_up_and_those_of_different_kinds_narrow_down(
    chips: list[str], fitting: list[int]
) -> None:
    views = [
        view(1, submitted_by="ann"),
        view(2, outcome="failed", submitted_by="ann@laptop"),
        running(3, stage="paused", submitted_by="ann"),
        running(4, stage="queued"),
    ]
    query = with_chips(parse_query("cartpole"), chips, MIDNIGHT, "ann")
    assert [one.run_id for one in views if query.matches(one)] == [run_id(number) for number in fitting]
    assert not with_chips(parse_query("acrobot"), chips, MIDNIGHT, "ann").matches(views[2])


def test_a_run_without_a_name_is_called_by_what_it_trains() -> None:
    assert run_label(view(1, run_name="größeres Netz")) == "größeres Netz"
    assert run_label(view(1)) == "ppo · CartPole-v1"
    assert run_label(view(1, algo=None, env_id=None, worker="script")) == "script"


def test_archived_and_imported_runs_are_marked_in_words_too() -> None:
    column = next(column for column in COLUMNS if column.id == "name")
    assert column.tooltip(view(1)) == ""
    both = column.tooltip(view(1, is_archived=True, is_imported=True))
    assert "Archived" in both
    assert "Imported" in both


def test_values_of_any_type_sort_numbers_before_texts() -> None:
    ordered = sorted([sort_value("tanh"), sort_value(0.5), sort_value([64, 64]), sort_value(3), sort_value(True)])
    assert [one[1:] for one in ordered] == [(0.5, ""), (True, ""), (3, ""), (0, "[64, 64]"), (0, "tanh")]
    assert sort_value(None) is None


@pytest.mark.parametrize(
    ("views", "labels"),
    [
        ([view(1, seed=1), view(2, seed=2)], ["seed 1", "seed 2"]),
        ([view(1), view(2)], ["000001", "000002"]),
        ([view(1, run_name="wide"), view(2, algo="dqn")], ["wide · ppo", "dqn"]),
    ],
)
def test_labels_of_runs_in_one_chart_are_as_short_as_they_can_be(views: list[RunView], labels: list[str]) -> None:
    assert list(short_labels(views).values()) == labels


def test_runs_whose_ids_are_no_ulids_are_listed_by_the_time_of_their_submission() -> None:
    """F58."""
    at = (id_time_ms(run_id(2)) or 0) / 1000
    by_hand = [view(0, run_id=name, submitted_at=at + seconds) for name, seconds in (("zz", -0.5), ("a", 0.5))]
    views = [*map(view, (1, 2, 3)), *by_hand]
    times = {one.run_id: one.age_key for one in views}
    expected = sorted(times, key=times.__getitem__, reverse=True)
    assert expected.index("a") < expected.index(run_id(2)) < expected.index("zz")
    order = RunOrder()
    order.collect([one.model_copy(update={"stage": "finished"}) for one in views])
    assert sorted(order.key_by_row, key=order.key_by_row.__getitem__) == expected
    groups = list_groups([one.model_copy(update={"group": one.run_id}) for one in views])
    assert [group.name for group in groups] == expected
