"""Changes of several runs: one call of the trainer for each, one message, and a way back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from mosaic.base.formatting import count_noun, short_id
from mosaic.contracts.views import RunView
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window.workbench import Workbench

MAX_NAMED_RUNS = 8
"""Runs that a question names one by one."""

Operation = Callable[[RunView, TrainerClient], RunView]
"""A call of the trainer about one run, as it was before."""


class Reversal(NamedTuple):
    """How a change of runs is taken back."""

    title: str
    """As in `Undo: archive 3 runs`, with `{runs}` for the runs."""
    operation: Operation
    message: str
    """What is shown when it has been taken back."""


def call_for_each(
    workbench: Workbench,
    views: Sequence[RunView],
    operation: Operation,
    message: str | Callable[[Sequence[RunView]], str],
    kind: str = "info",
    reversal: Reversal | None = None,
) -> None:
    """Calls the trainer for each run; shows the answers at once, and one message when all have arrived.

    Without a message, only a problem is shown. A message that depends on the runs follows them while it is shown.
    """
    done: list[RunView] = []
    changed: list[RunView] = []
    problems: list[Exception] = []

    def then(before: RunView, view: RunView) -> None:
        workbench.runs.update([view])
        changed.append(before)
        done.append(view)
        finish()

    def failed(error: Exception) -> None:
        workbench.events.add_error(error)
        problems.append(error)
        finish()

    def finish() -> None:
        if len(done) + len(problems) < len(views):
            return
        if callable(message) and not problems:
            ids = [view.run_id for view in done]
            workbench.request_posted.emit(lambda: message([workbench.runs.get_or_placeholder(each) for each in ids]))
            return
        said = ""
        if done:
            said = message(done) if callable(message) else message.format(runs=describe_runs(done))
        text = " ".join(filter(None, (said, *map(str, problems[-1:]))))
        if reversal is None or not done:
            if text:
                workbench.show_message(text, "bad" if problems else kind)
            return
        operation, message_back = reversal.operation, reversal.message
        title = reversal.title.format(runs=count_noun(len(done), "run"))
        workbench.offer_undo(text, title, lambda: call_for_each(workbench, changed, operation, message_back, "good"))

    for view in views:
        workbench.bridge.ask(partial(operation, view), partial(then, view), failed, workbench)


def describe_runs(views: Sequence[RunView]) -> str:
    return f"Run {short_id(views[0].run_id)}" if len(views) == 1 else f"{len(views):,} runs"


def list_titles(titles: Sequence[str]) -> str:
    """The titles of runs, one per line, for a question."""
    more = len(titles) - MAX_NAMED_RUNS
    return "\n".join([*titles[:MAX_NAMED_RUNS], *([f"and {more:,} more"] if more > 0 else [])])
