"""Handlers of the actions that delete and restore runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from mosaic.client import TrainerClient
from mosaic.contracts.disk_views import PruneItem, TrashedRun
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.views import RunView
from mosaic.formatting import count_noun, format_size, run_title, short_id
from mosaic.gui.run_changes import describe_runs, list_titles
from mosaic.gui.views import widgets as ui
from mosaic.gui.workbench import Workbench


class Attempts(NamedTuple):
    """The results of calls, one per run."""

    views: dict[str, RunView]
    """By argument, of the calls that succeeded."""
    problem: str
    """The last error message; empty if all calls succeeded."""


def try_each(call: Callable[[str], RunView], arguments: Sequence[str]) -> Attempts:
    """Calls for each argument, so that one failure does not hide what has been done."""
    views: dict[str, RunView] = {}
    problem = ""
    for argument in arguments:
        try:
            views[argument] = call(argument)
        except MosaicError as error:
            problem = str(error)
    return Attempts(views, problem)


def deletable_runs(workbench: Workbench) -> list[RunView]:
    return [view for view in workbench.target_runs() if view.stage == "finished"]


def delete(workbench: Workbench) -> None:
    """Ask, naming what will be deleted; it can be restored from the trash for 30 days."""
    views = deletable_runs(workbench)
    kept = len(workbench.target_runs()) - len(views)
    note = f"\n\n{count_noun(kept, 'run has', 'runs have')} not ended and stay{'s' * (kept == 1)}." if kept else ""
    what = "this run" if len(views) == 1 else f"these {len(views):,} runs"
    titles = list_titles([run_title(view) for view in views])
    ui.confirm(
        workbench.window,
        "delete.question",
        "Delete runs",
        f"Move {what} to the trash?",
        f"{titles}\n\n{'It' if len(views) == 1 else 'They'} can be restored from the trash for 30 days.{note}",
        "Move to trash",
        lambda: _move_to_trash(workbench, [view.run_id for view in views]),
        "Keep",
    )


def _move_to_trash(workbench: Workbench, run_ids: list[str]) -> None:
    def then(result: Attempts) -> None:
        gone = list(result.views.values())
        if not gone:
            workbench.show_message(result.problem, "bad")
            return
        workbench.runs.remove(set(result.views))
        text = f"{describe_runs(gone)}: in the trash. {result.problem}".rstrip()
        paths = [view.run_dir for view in gone]
        workbench.offer_undo(
            text, f"delete {count_noun(len(gone), 'run')}", partial(restore, workbench, paths, is_shown=True)
        )

    workbench.ask(lambda trainer: try_each(trainer.delete_run, run_ids), then, workbench)


def restore(workbench: Workbench, paths: Sequence[str], is_shown: bool = False) -> None:
    """Restore runs by their folders in the trash; `is_shown`: show a single one."""

    def then(result: Attempts) -> None:
        restored = list(result.views.values())
        workbench.runs.update(restored)
        workbench.trash.refresh()
        if result.problem:
            failed = count_noun(len(paths) - len(restored), "run")
            text = f"{describe_runs(restored)}: back in the list. " if restored else ""
            workbench.show_message(f"{text}{failed} could not be restored: {result.problem}", "bad")
        elif is_shown and len(restored) == 1:
            workbench.select(restored[0].run_id)
            workbench.show_message(f"{describe_runs(restored)}: back in the list.", "good")
        else:
            show = partial(workbench.select, restored[0].run_id)
            workbench.offer_action(f"{describe_runs(restored)}: back in the list.", "Show", show)

    workbench.ask(lambda trainer: try_each(trainer.import_run, list(paths)), then, workbench)


def trashed_title(run: TrashedRun) -> str:
    """As other lists call a run: `ppo · CartPole-v1 · seed 1 · ABC123`."""
    seed = None if run.seed is None else f"seed {run.seed}"
    parts = (run.run_name, run.algo, run.env_id, seed, short_id(run.run_id))
    return " · ".join(part for part in parts if part)


def delete_for_good(workbench: Workbench, runs: Sequence[TrashedRun]) -> None:
    """Ask, naming what will be lost, then delete runs of the trash; those that were not named stay."""
    if not runs:
        return
    what = "this run" if len(runs) == 1 else f"these {len(runs):,} runs"
    sizes = [run.size_bytes for run in runs if run.size_bytes is not None]
    size = f" ({format_size(sum(sizes))})" if len(sizes) == len(runs) else ""
    ui.confirm(
        workbench.window,
        "trash.question",
        "Delete for good",
        f"Delete {what} for good{size}?",
        f"{list_titles([trashed_title(run) for run in runs])}\n\nTheir checkpoints, curves, logs and videos are lost. "
        "This cannot be undone.".replace("Their", "Its" if len(runs) == 1 else "Their"),
        f"Delete {count_noun(len(runs), 'run')}",
        lambda: _prune(workbench, [run.run_id for run in runs]),
        "Keep",
    )


def _prune(workbench: Workbench, run_ids: list[str]) -> None:
    def call(trainer: TrainerClient) -> list[PruneItem]:
        return [item for part in trainer.prune_runs(trashed=run_ids) for item in part.items]

    def then(items: list[PruneItem]) -> None:
        workbench.trash.refresh()
        size = format_size(sum(item.size_bytes for item in items))
        workbench.show_message(f"Deleted {count_noun(len(items), 'run')} for good: {size} are free again.", "good")

    def failed(error: Exception) -> None:
        workbench.trash.refresh()
        workbench.show_error(error)

    workbench.bridge.ask(call, then, failed, workbench)
