"""What the tabs of a run say where they have nothing to show: one table, by tab and by what the run does."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from mosaic.contracts.states import Stage
from mosaic.contracts.views import RunView
from mosaic.formatting import count_noun


class RunPhase(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    NEVER_STARTED = "never started"
    """It ended in the queue: cancelled or rejected."""
    ENDED = "ended"


class EmptyText(NamedTuple):
    title: str
    text: str = ""

    def as_line(self) -> str:
        return f"{self.title}. {self.text}".rstrip()


_WAITS = "It waits for a free slot."
_NEVER_STARTED = EmptyText("The run never started", "It was {outcome} while it was queued.")

EMPTY_STATES: dict[str, dict[RunPhase, EmptyText]] = {
    "chart": {
        RunPhase.QUEUED: EmptyText("The run is queued"),
        RunPhase.STARTING: EmptyText("The run is starting"),
        RunPhase.RUNNING: EmptyText("No episode has ended yet"),
        RunPhase.PAUSED: EmptyText("The run was paused before an episode ended"),
        RunPhase.NEVER_STARTED: EmptyText("The run never started"),
        RunPhase.ENDED: EmptyText("The run ended before an episode did"),
    },
    "evaluation": {
        RunPhase.QUEUED: EmptyText("The evaluation is queued", _WAITS),
        RunPhase.STARTING: EmptyText("The evaluation is starting"),
        RunPhase.RUNNING: EmptyText("The first batch is being played", "{episodes} so far."),
        RunPhase.PAUSED: EmptyText("The evaluation is paused", "Its first batch is not complete: {episodes} so far."),
        RunPhase.NEVER_STARTED: EmptyText("The evaluation never started", _NEVER_STARTED.text),
        RunPhase.ENDED: EmptyText("No batch was completed", "The evaluation {ended} before."),
    },
    "fastlane": {
        RunPhase.NEVER_STARTED: EmptyText("The run never started", f"{_NEVER_STARTED.text} So there were no frames."),
        RunPhase.ENDED: EmptyText("The run has ended: {outcome}", "Frames are live: they are shown while it runs."),
    },
    "analytics": {
        RunPhase.QUEUED: EmptyText("No points yet", "The run waits for a free slot. Curves begin when it has started."),
        RunPhase.STARTING: EmptyText(
            "No points yet", "The run is starting. Curves begin with its first episode or update."
        ),
        RunPhase.RUNNING: EmptyText(
            "No points yet", "The run has logged nothing yet. Curves begin with its first episode or update."
        ),
        RunPhase.PAUSED: EmptyText(
            "No points yet", "The run was paused before it logged anything. Resume it to continue."
        ),
        RunPhase.NEVER_STARTED: _NEVER_STARTED,
        RunPhase.ENDED: EmptyText("No points", "The run {ended} before it logged anything. The Logs tab may show why."),
    },
    "tensorboard": {
        RunPhase.QUEUED: EmptyText("The run is queued", f"{_WAITS} TensorBoard starts when the run has."),
        RunPhase.NEVER_STARTED: _NEVER_STARTED,
        RunPhase.ENDED: EmptyText("The run wrote no TensorBoard files", "Its metrics are in Analytics."),
    },
    "wandb": {
        RunPhase.QUEUED: EmptyText("The run is queued", f"{_WAITS} W&B starts with it."),
        RunPhase.STARTING: EmptyText("The run is starting", "W&B starts with it."),
        RunPhase.RUNNING: EmptyText("W&B has not written anything yet"),
        RunPhase.PAUSED: EmptyText("W&B has not written anything yet", "The run is paused."),
        RunPhase.NEVER_STARTED: _NEVER_STARTED,
        RunPhase.ENDED: EmptyText("W&B wrote nothing of this run"),
    },
    "logs": {
        RunPhase.QUEUED: EmptyText("The run is queued", f"{_WAITS} Lines appear here as soon as it writes some."),
        RunPhase.STARTING: EmptyText("The run is starting", "Lines appear here as soon as it writes some."),
        RunPhase.RUNNING: EmptyText("Nothing on {stream} yet", "Lines appear here as the run writes them."),
        RunPhase.PAUSED: EmptyText("Nothing on {stream} yet", "The run is paused."),
        RunPhase.NEVER_STARTED: _NEVER_STARTED,
        RunPhase.ENDED: EmptyText("The run wrote nothing to {stream}"),
    },
    "videos": {
        RunPhase.NEVER_STARTED: _NEVER_STARTED,
        RunPhase.ENDED: EmptyText(
            "No videos",
            "A run records some when “Capture video” is on; an evaluation of its policy, when “Evaluation video” is.",
        ),
    },
}
"""A tab without a sentence for a phase of an active run has that of RunPhase.ENDED, or shows its own content.

Config has content in every phase, and Replay is a tab only of runs with a recording. A run that stops is one that runs.
"""


def run_phase(view: RunView) -> RunPhase:
    if view.stage is Stage.FINISHED:
        return RunPhase.NEVER_STARTED if view.started_at is None else RunPhase.ENDED
    named = {Stage.QUEUED: RunPhase.QUEUED, Stage.STARTING: RunPhase.STARTING, Stage.PAUSED: RunPhase.PAUSED}
    return named.get(view.stage, RunPhase.RUNNING)


def empty_text(tab: str, view: RunView, stream: str = "") -> EmptyText:
    """Return what a tab says of a run that it has nothing to show of."""
    states = EMPTY_STATES[tab]
    title, text = states.get(run_phase(view)) or states[RunPhase.ENDED]
    ended = {"failed": "failed", "cancelled": "was cancelled", "rejected": "was rejected", "lost": "was lost"}
    facts = {
        "outcome": view.outcome or "",
        "ended": ended.get(view.outcome or "", "ended"),
        "episodes": count_noun(view.episodes, "episode"),
        "stream": stream,
    }
    return EmptyText(title.format(**facts), text.format(**facts))
