"""What the palette finds, and in which order the trainer's page lists; without a widget."""

from __future__ import annotations

from mosaic.contracts.states import Stage
from mosaic.contracts.views import RunView
from mosaic.window.palette import rank, score
from mosaic.window.runs import sort_queue


def found(query: str, *titles: str) -> list[str]:
    return rank(query, ((title, title) for title in titles))


def test_what_begins_with_the_letters_comes_first() -> None:
    assert found("set", "Reset the view", "Settings", "Test") == ["Settings", "Reset the view"]


def test_initials_find_an_action() -> None:
    assert found("swl", "Quit", "Switch between light and dark") == ["Switch between light and dark"]


def test_every_word_must_fit_in_any_order() -> None:
    assert found("ppo cart", "CartPole-v1 ppo", "CartPole-v1 dqn") == ["CartPole-v1 ppo"]


def test_nothing_typed_keeps_the_order() -> None:
    assert found("", "b", "a") == ["b", "a"]


def test_letters_that_do_not_occur_find_nothing() -> None:
    assert score("xyz", "Settings") is None


def view(run_id: str, stage: str, queue_position: int | None = None) -> RunView:
    return RunView.placeholder(run_id).model_copy(update={"stage": Stage(stage), "queue_position": queue_position})


def test_the_queue_follows_what_runs_in_the_daemons_order() -> None:
    views = [
        view("new", "queued"),
        view("third", "queued", 3),
        view("first", "queued", 1),
        view("second", "queued", 2),
        view("works", "running"),
        view("done", "finished"),
    ]
    assert [row.run_id for row in sort_queue(views)] == ["works", "first", "second", "third", "new"]
