"""`mosaic gui`: the workbench's window."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import click

from mosaic.cli.context import CliContext, command, pass_context
from mosaic.contracts.errors import BadInput, MissingExtra
from mosaic.contracts.folder import Workspace

INSTALL_HINT = "pip install 'mosaic-rl[gui]'"


@command(has_json=False)
@click.option("--run", metavar="RUN", help="Show this run: its id, the beginning or end of one, its name, or 'last'.")
@pass_context
def gui(context: CliContext, run: str | None) -> int:
    """Opens the workbench. Runs continue when it is closed."""
    remote = context.remote_trainer()
    if importlib.util.find_spec("PySide6") is None:
        raise MissingExtra(f"The workbench needs PySide6, which is not installed: {INSTALL_HINT}")
    require_display()
    try:
        from mosaic.window.app import main
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "mosaic":
            raise
        raise MissingExtra(f"The workbench needs {error.name}, which is not installed: {INSTALL_HINT}") from None
    except ImportError as error:
        raise MissingExtra(
            f"Qt cannot be loaded: {error}. Install its system libraries; on Debian and Ubuntu: "
            "sudo apt-get install libegl1 libgl1 libxkbcommon-x11-0 libdbus-1-3 libfontconfig1 libxcb-cursor0"
        ) from None
    return main(Workspace.resolve(context.workspace_dir) if remote else context.workspace, run, remote)


def _has_display(*other_variables: str) -> bool:
    names = ("DISPLAY", "WAYLAND_DISPLAY", *other_variables)
    return sys.platform == "darwin" or any(os.environ.get(name) for name in names)


def open_workbench_detached(workspace: Path, run_id: str) -> bool:
    """Opens the workbench on a run in another process; does nothing without a display or Qt."""
    if not _has_display() or importlib.util.find_spec("PySide6") is None:
        return False
    code = "import sys; from mosaic.cli.main import main; sys.exit(main())"
    subprocess.Popen(
        [sys.executable, "-P", "-c", code, "gui", "--var", str(workspace), "--run", run_id],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return True


def require_display() -> None:
    if not _has_display("QT_QPA_PLATFORM"):
        raise BadInput(
            "There is no display to open a window on. Set DISPLAY or WAYLAND_DISPLAY (over SSH: ssh -X), "
            "or use a virtual one: xvfb-run mosaic gui"
        )
