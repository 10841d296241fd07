"""What the palette finds, and in which order the trainer's page lists; without a widget."""

from __future__ import annotations

from typing import Any

from mosaic.gui.models.fuzzy import rank, score
from mosaic.gui.models.queue_order import sort_queue


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


def view(run_id: str, stage: str, priority: int = 0, queued_at: float = 0.0) -> dict[str, Any]:
    return {"run_id": run_id, "stage": stage, "priority": priority, "queued_at": queued_at}


def test_the_queue_stands_behind_what_runs_by_priority_then_by_time() -> None:
    views = [
        view("late", "queued", 0, 3.0),
        view("early", "queued", 0, 1.0),
        view("urgent", "queued", 5, 9.0),
        view("works", "running"),
        view("done", "finished"),
    ]
    assert [row["run_id"] for row in sort_queue(views)] == ["works", "urgent", "early", "late"]
