"""The life of a run for the documentation: every transition of `trainer/lifecycle.py`, as a table and as a drawing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mosaic.contracts.events import Exited
from mosaic.contracts.names import CONTRACT_VERSION
from mosaic.contracts.process_identity import ProcessIdentity
from mosaic.contracts.states import Attempt, FinalReport, RunRecord, Stage
from mosaic.trainer import lifecycle
from mosaic.trainer.lifecycle import LifecycleEvent, advance

_PROCESS = ProcessIdentity(pid=1, start="", boot_id="")


def _exit(code: int | None = 0, cause: str | None = None) -> lifecycle.Ended:
    exited = Exited(seq=1, kind="exited", code=code, cause=cause, duration_s=1, peak_rss_mb=1, limit=1)
    return lifecycle.Ended(0, exited, "")


CASES: tuple[tuple[str, LifecycleEvent], ...] = (
    ("the scheduler starts it", lifecycle.Dispatched(0, Attempt(number=1, slot=1, started_at=0))),
    ("its keeper is up", lifecycle.KeeperUp(0, _PROCESS)),
    ("its worker is up", lifecycle.WorkerUp(0, _PROCESS)),
    ("the worker says hello", lifecycle.HandshakeReceived(0, (), None)),
    (
        "the worker writes another version of the journal",
        lifecycle.HandshakeReceived(0, (), None, None, CONTRACT_VERSION + 1),
    ),
    ("a script makes its environment", lifecycle.EnvironmentReported(0, "CartPole-v1", 1)),
    ("a warning", lifecycle.WarningReported(0, "text")),
    ("pause", lifecycle.Paused(0)),
    ("resume", lifecycle.Unpaused(0)),
    ("a stop is requested", lifecycle.StopRequested(0)),
    ("its keeper waits for a checkpoint", lifecycle.CheckpointWaited(0, 600)),
    ("the worker reports its end", lifecycle.FinishReported(0, FinalReport(outcome="succeeded"))),
    ("it cannot be started", lifecycle.StartFailed(0, "")),
    ("it exits with 0", _exit()),
    ("it exits otherwise, or at a limit", _exit(1, "time_limit")),
    ("its keeper is gone", lifecycle.KeeperLost(0)),
    ("its workspace was moved", lifecycle.Moved(0, "")),
    ("a cluster queues it", lifecycle.JobQueued(0, "1")),
    ("a cluster places it", lifecycle.Placed(0, "node")),
    ("its node is lost", lifecycle.NodeLost(0, "", None)),
    ("it was never started", lifecycle.NeverStarted(0)),
    ("another attempt is requested", lifecycle.Requeued(0, None)),
)
"""One event for each thing that can happen, in words. A test compares them with the table of the lifecycle."""


class Transition(NamedTuple):
    stage: Stage
    words: str
    target: Stage
    outcome: str


def transitions() -> Iterator[Transition]:
    """What each event does in each stage in which the table has it."""
    for stage in Stage:
        attempts = () if stage is Stage.QUEUED else (Attempt(number=1, slot=1, started_at=0),)
        stop = 0.0 if stage is Stage.STOPPING else None
        record = RunRecord(
            run_id="RUN",
            worker="w",
            stage=stage,
            attempts=attempts,
            stop_requested_at=stop,
            submitted_at=0,
            queued_at=0,
        )
        for words, event in CASES:
            if (stage, type(event)) in lifecycle._TRANSITIONS:
                after = advance(record, event)
                yield Transition(stage, words, after.stage, after.outcome or "")


def rows() -> list[list[str]]:
    """The transitions that change the stage; stages with the same one share a row."""
    shared: dict[tuple[str, str], list[Stage]] = {}
    for one in transitions():
        if one.target is not one.stage:
            result = f"`{one.target}`" + (f", {one.outcome}" if one.outcome else "")
            shared.setdefault((one.words, result), []).append(one.stage)
    return [[", ".join(f"`{stage}`" for stage in stages), *key] for key, stages in shared.items()]


# --- the drawing

_PLACES = {
    Stage.QUEUED: (90, 170),
    Stage.STARTING: (300, 170),
    Stage.RUNNING: (510, 170),
    Stage.PAUSED: (510, 50),
    Stage.STOPPING: (720, 170),
    Stage.FINISHED: (510, 330),
}
_WIDTH, _HEIGHT = 130, 44
_EXIT = "exit, or keeper lost"
_ROUTES: dict[tuple[Stage, Stage], tuple[str, str, int, int]] = {
    (Stage.QUEUED, Stage.STARTING): ("M155 170 H233", "start", 194, 162),
    (Stage.STARTING, Stage.RUNNING): ("M365 170 H443", "hello", 404, 162),
    (Stage.RUNNING, Stage.PAUSED): ("M490 148 V74", "pause", 464, 118),
    (Stage.PAUSED, Stage.RUNNING): ("M530 72 V146", "resume", 560, 118),
    (Stage.RUNNING, Stage.STOPPING): ("M575 170 H653", "stop", 614, 162),
    (Stage.PAUSED, Stage.STOPPING): ("M575 58 C650 58 705 90 712 146", "stop", 668, 86),
    (Stage.STARTING, Stage.STOPPING): (
        "M335 192 C385 262 640 262 690 194",
        "stop, or another version of the journal",
        510,
        250,
    ),
    (Stage.STOPPING, Stage.FINISHED): ("M720 192 C720 325 660 328 577 328", "exit: cancelled", 722, 282),
    (Stage.RUNNING, Stage.FINISHED): ("M510 192 V306", _EXIT, 510, 286),
    (Stage.PAUSED, Stage.FINISHED): ("M575 42 C890 42 890 342 577 342", _EXIT, 806, 240),
    (Stage.STARTING, Stage.FINISHED): ("M300 192 C300 300 380 320 443 320", f"cannot start, {_EXIT}", 325, 290),
    (Stage.QUEUED, Stage.FINISHED): ("M75 192 C75 330 300 338 443 338", "cancelled before its start", 185, 320),
    (Stage.FINISHED, Stage.QUEUED): ("M480 352 C400 424 35 424 42 194", "mosaic resume: another attempt", 235, 392),
    (Stage.STARTING, Stage.QUEUED): ("M275 148 C250 112 155 112 128 146", "node lost, or never started", 203, 138),
    (Stage.RUNNING, Stage.QUEUED): ("M455 148 C400 60 160 60 105 146", "node lost", 285, 88),
    (Stage.PAUSED, Stage.QUEUED): ("M445 50 C300 40 110 40 78 146", "node lost", 260, 52),
}
"""Where each transition is drawn, its words, and their place."""


def draw() -> str:
    """An SVG of all transitions between stages; a transition without a route is an error."""
    moves = dict.fromkeys((one.stage, one.target) for one in transitions() if one.target is not one.stage)
    lines = [
        '<div class="scrolling"><svg class="drawing" role="img" aria-label="The stages of a run" viewBox="0 0 880 420" '
        'xmlns="http://www.w3.org/2000/svg" font-family="inherit" font-size="13">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="var(--md-default-fg-color--light, #777)"/></marker></defs>',
    ]
    labels = []
    for move in moves:
        path, words, x, y = _ROUTES[move]
        lines.append(
            f'<path d="{path}" fill="none" stroke="var(--md-default-fg-color--light, #777)" marker-end="url(#tip)"/>'
        )
        if words:
            labels.append(
                f'<text x="{x}" y="{y}" text-anchor="middle" fill="var(--md-default-fg-color, #333)" '
                f'stroke="var(--md-default-bg-color, #fff)" stroke-width="5" paint-order="stroke">{words}</text>'
            )
    for stage, (x, y) in _PLACES.items():
        lines.append(
            f'<rect x="{x - _WIDTH / 2:g}" y="{y - _HEIGHT / 2:g}" width="{_WIDTH}" height="{_HEIGHT}" rx="8" '
            'fill="var(--md-code-bg-color, #f5f5f5)" stroke="var(--md-primary-fg-color, #4051b5)"/>'
            f'<text x="{x}" y="{y + 5}" text-anchor="middle" font-weight="bold" '
            f'fill="var(--md-default-fg-color, #333)">{stage}</text>'
        )
    return "".join([*lines, *labels, "</svg></div>"]) + "\n"
