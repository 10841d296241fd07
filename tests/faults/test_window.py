"""F8: the window is killed; runs and other viewers do not notice, and it opens as it was."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtWidgets import QTabWidget
from tests.helpers.daemons import ended, scripted, wait_for
from tests.helpers.fault_table import count_kills
from tests.helpers.gui import find, pump
from tests.helpers.gui_fixtures import make_program, qapp, settings_path, the_window_is_quiet
from tests.helpers.streams import telemetry

from mosaic.contracts.folder import Workspace
from mosaic.trainer.client.connect import connect
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window.app import Application

__all__ = ["make_program", "qapp", "settings_path", "the_window_is_quiet"]

KILLS = count_kills(3)
"""The last one after everything was saved, the others at random times of the start."""
CHILD = Path(__file__).parents[1] / "helpers" / "gui_child.py"


@pytest.mark.usefixtures("live")
def test_a_killed_window_affects_no_run_and_no_viewer_and_opens_as_it_was(
    workspace: Workspace,
    trainer: TrainerClient,
    settings_path: Path,
    make_program: Callable[[], Application],
    chance: random.Random,
    record_property: Callable[[str, object], None],
) -> None:
    """F8: same runs, same tab, same size."""
    run_ids = [trainer.submit(scripted(steps=1_000_000, dt=0.02)).run_id for _ in range(2)]
    wait_for(lambda: all(trainer.get_run(run_id).pid for run_id in run_ids), "their workers")
    pids = [trainer.get_run(run_id).pid for run_id in run_ids]
    received: list[int] = []
    viewer = threading.Thread(target=follow, args=(workspace, run_ids[0], received))
    viewer.start()
    path = os.pathsep.join((os.getcwd(), os.environ.get("PYTHONPATH", "")))
    command = [sys.executable, str(CHILD), str(workspace.root), str(settings_path), run_ids[0], "logs"]
    for kill in range(1, KILLS + 1):
        with subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True
        ) as child:
            try:
                if kill == KILLS:
                    assert child.stdout is not None
                    assert child.stdout.readline() == "chosen\n"
                    wait_for(
                        lambda: settings_path.exists() and run_ids[0] in settings_path.read_text(encoding="utf-8"),
                        "it to save",
                    )
                else:
                    time.sleep(chance.uniform(0.5, 3.0))
            finally:
                child.kill()
    again = make_program()
    again.start()
    pump(lambda: len(again.workbench.runs) == 2, "the runs")
    assert (again.workbench.selection, again.window.current_page) == (run_ids[0], "run")
    assert (again.window.width(), again.window.height()) == (1300, 765)
    tabs = find(again.window, "run.tabs", QTabWidget)
    pump(lambda: (widget := tabs.currentWidget()) is not None and widget.objectName() == "logs", "the tab")
    assert [trainer.get_run(run_id).pid for run_id in run_ids] == pids
    for run_id in run_ids:
        trainer.cancel_run(run_id)
    steps, _ = (ended(trainer, run_id).global_step for run_id in run_ids)
    viewer.join(30)
    assert received == list(range(1, (steps or 0) + 1))
    record_property("tries", KILLS)


def follow(workspace: Workspace, run_id: str, received: list[int]) -> None:
    """Receive every step of a run, until it has ended."""
    with connect(workspace, may_start=False) as trainer:
        for batch in telemetry(trainer, run_id, ["metrics", "record"]):
            for event in batch.events:
                if event.kind == "metrics":
                    received += [step for step, *_ in event.series["scripted/step"]]  # type: ignore[attr-defined]
                elif getattr(event, "stage", None) == "finished":
                    return
