"""Handlers of the actions of the File menu: runs as files, and other workspaces."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from PySide6.QtCore import QMimeData
from PySide6.QtWidgets import QFileDialog

from mosaic.base.formatting import count_noun, run_title
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.folder import Workspace
from mosaic.contracts.views import RunView
from mosaic.trainer.client.exports import (
    ExportCancelled,
    ExportTask,
    TransferResult,
    export_stem,
    export_zip,
    export_zips,
)
from mosaic.trainer.client.file_transfer import import_runs
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window import widgets as ui
from mosaic.window.run_changes import describe_runs
from mosaic.window.run_dialogs import Export, run_task, write_export
from mosaic.window.workbench import Workbench

# --- Whether a folder is, or can become, a workspace that this user can write.


@dataclass(frozen=True)
class WorkspaceState:
    is_workspace: bool = False
    has_content: bool = False
    problem: str = ""
    """Why it cannot be used; empty where it can."""


def inspect_workspace(root: Path, may_create: bool = False) -> WorkspaceState:
    """Write and delete a file, so that a workspace which cannot be written is noticed before it is opened."""
    workspace = Workspace(root)
    try:
        workspace.require_own()
        if may_create:
            workspace.create_private()
        is_workspace = workspace.trainer.is_dir()
        with tempfile.TemporaryFile(dir=workspace.trainer if is_workspace else root):
            pass
        return WorkspaceState(is_workspace, any(root.iterdir()))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return WorkspaceState(problem=f"{root} cannot be used as a workspace: {reason}. Choose another folder.")


# --- Handlers of the actions of the File menu: runs as files, and other workspaces.


ZIP_FILTER = "Runs (*.zip)"
MAX_NAMED_PROBLEMS = 6


def _show_transfer(
    workbench: Workbench, result: TransferResult, total: int, sentence: str, show: Callable[[], None]
) -> None:
    """Show what was done, with a button that shows it, and what was not."""
    if result.done and not result.problems and not result.is_cancelled:
        workbench.offer_action(sentence, "Show", show)
        return
    left = total - len(result.done)
    cancelled = f" Cancelled: {left} of {total} left out." if result.is_cancelled else ""
    if len(result.problems) < 2:
        text = " ".join([sentence, *result.problems]) if result.done else " ".join(result.problems)
        workbench.show_message(f"{text}{cancelled}".strip(), "bad" if result.problems else "warning")
        return
    named = result.problems[:MAX_NAMED_PROBLEMS]
    more = [f"and {len(result.problems) - len(named):,} more"] if len(result.problems) > len(named) else []
    ui.inform(
        workbench.window,
        "transfer.problems",
        "MOSAIC",
        f"{sentence if result.done else ''} {len(result.problems)} of {total} failed.{cancelled}".strip(),
        "\n\n".join([*named, *more]),
    )


# --- import


def import_problem(workbench: Workbench) -> str:
    """Why nothing can be imported; empty where it can."""
    if not workbench.is_remote:
        return ""
    return f"Files are imported on the trainer's machine. Log in to {workbench.trainer_name}, then: mosaic import F.zip"


def ask_import(workbench: Workbench) -> None:
    start = str(workbench.settings.get("export.folder", str(Path.home())))
    dialog = ui.with_object_name(
        QFileDialog(workbench.window, "Import runs", start, f"{ZIP_FILTER};;All files (*)"), "import.files"
    )
    dialog.setFileMode(QFileDialog.FileMode.ExistingFiles)
    dialog.filesSelected.connect(lambda names: import_files(workbench, [Path(name) for name in names]))
    dialog.finished.connect(dialog.deleteLater)
    dialog.open()


def ask_import_folder(workbench: Workbench) -> None:
    start = Path(workbench.settings.get("export.folder", str(Path.home())))
    ui.open_path_dialog(
        workbench.window,
        "import.folder",
        "Import the folder of a run",
        start,
        lambda path: import_files(workbench, [path]),
    )


def dropped_runs(data: QMimeData) -> list[Path]:
    """The zips and folders of what is dragged over the window."""
    paths = [Path(url.toLocalFile()) for url in data.urls() if url.isLocalFile()]
    return [path for path in paths if path.suffix == ".zip" or path.is_dir()]


def import_files(workbench: Workbench, paths: Sequence[Path]) -> None:
    """Import zips and folders one after the other; one that is refused does not stop the others."""
    if problem := import_problem(workbench):
        workbench.show_message(problem, "warning")
        return
    workbench.settings.put("export.folder", str(paths[0].parent))
    task = ExportTask(f"Importing {paths[0].name if len(paths) == 1 else f'{len(paths)} files'}")
    task.total = len(paths)

    def call(trainer: TrainerClient) -> TransferResult:
        done: list[RunView] = []
        problems: list[str] = []
        for path in paths:
            try:
                done += import_runs(trainer, path)
                task.advance()
            except ExportCancelled:
                return TransferResult(done, problems, is_cancelled=True)
            except (MosaicError, OSError) as error:
                problems.append(_with_file_name(path, str(error)))
        return TransferResult(done, problems)

    def then(result: TransferResult) -> None:
        workbench.runs.update(result.done)
        workbench.runs_submitted.emit([view.run_id for view in result.done])
        total = max(len(paths), len(result.done) + len(result.problems))
        show = partial(_show_imported, workbench, result.done)
        _show_transfer(
            workbench, result, total, f"{describe_runs(result.done)}: imported." if result.done else "", show
        )

    run_task(workbench, task, call, then)


def _with_file_name(path: Path, sentence: str) -> str:
    """An error as the trainer states it; it names the file itself in most cases."""
    return sentence if path.name in sentence else f"{path.name}: {sentence}"


def _show_imported(workbench: Workbench, views: Sequence[RunView]) -> None:
    workbench.select(views[0].run_id)
    workbench.mark([view.run_id for view in sorted(views, key=lambda view: view.age_key, reverse=True)])


# --- export


def export(workbench: Workbench, write: Export, ending: str, kind: str, view: RunView | None = None) -> None:
    """Asks for a path and exports a run, by default the target run."""
    run = view or workbench.target_runs()[0]
    ui.open_save_dialog(
        workbench.window,
        "export.file",
        f"Export {run_title(run)}",
        _export_folder(workbench) / f"{export_stem(run)}{ending}",
        kind,
        partial(write_export, workbench, write, run),
    )


def export_runs(workbench: Workbench) -> None:
    """Export one run to a zip, or several to one zip each in a folder."""
    views = workbench.target_runs()
    if len(views) == 1:
        export(workbench, export_zip, ".zip", ZIP_FILTER, views[0])
        return
    ui.open_path_dialog(
        workbench.window,
        "export.target",
        f"Export {len(views):,} runs into a folder",
        _export_folder(workbench),
        lambda folder: export_into(workbench, views, folder),
    )


def export_into(workbench: Workbench, views: Sequence[RunView], folder: Path) -> None:
    """Write a zip for each run."""
    workbench.settings.put("export.folder", str(folder))
    task = ExportTask(f"Exporting {len(views):,} runs")

    def then(result: TransferResult) -> None:
        sentence = f"Wrote {count_noun(len(result.done), 'zip')} to {folder}." if result.done else ""
        _show_transfer(workbench, result, len(views), sentence, partial(workbench.open_path, folder))

    run_task(workbench, task, lambda trainer: export_zips(trainer, views, folder, task), then)


def _export_folder(workbench: Workbench) -> Path:
    return Path(workbench.settings.get("export.folder", str(Path.home())))


# --- workspaces


def ask_workspace(workbench: Workbench) -> None:
    ui.open_path_dialog(
        workbench.window,
        "workspace.folder",
        "Open a workspace",
        workbench.workspace.root.parent,
        lambda path: open_workspace(workbench, path),
    )


def open_workspace(workbench: Workbench, root: Path) -> None:
    """Open the workspace in this folder in place of the current one; a folder without one may become one."""

    def then(state: WorkspaceState) -> None:
        if state.problem:
            workbench.show_message(state.problem, "bad")
        elif state.is_workspace:
            workbench.workspace_requested.emit(root)
        else:
            ui.confirm(
                workbench.window,
                "workspace.question",
                "Open workspace",
                "Create a workspace in this folder?",
                f"{root}\n\nIt is not a workspace yet. The folders trainer and logs are created in it"
                f"{'; what it holds stays as it is' if state.has_content else ''}.",
                "Create workspace",
                partial(_create_workspace, workbench, root),
            )

    if root == workbench.workspace.root and not workbench.is_remote:
        workbench.show_message("This workspace is open already.")
        return
    workbench.bridge.run_in_background(lambda: inspect_workspace(root), then, workbench.show_error, workbench)


def _create_workspace(workbench: Workbench, root: Path) -> None:
    def then(state: WorkspaceState) -> None:
        if state.problem:
            workbench.show_message(state.problem, "bad")
        else:
            workbench.workspace_requested.emit(root)

    workbench.bridge.run_in_background(
        lambda: inspect_workspace(root, may_create=True), then, workbench.show_error, workbench
    )


def recent_workspaces(workbench: Workbench) -> list[tuple[str, Callable[[Workbench], None]]]:
    """The entries of a menu."""
    current = None if workbench.is_remote else str(workbench.workspace.root)
    names = [name for name in workbench.settings.recent_workspaces() if name != current]
    return [(name, partial(open_workspace, root=Path(name))) for name in names]
