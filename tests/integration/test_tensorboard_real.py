"""The real TensorBoard, started as the window starts it, serves what a run wrote, under the run's name."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.daemons import wait_for
from tests.helpers.worker_runs import small, train_here

from mosaic.contracts.folder import RunFolder

tensorboard = pytest.importorskip("mosaic.gui.models.tensorboard_process")


def asked(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(urllib.request.Request(url, data, {"Content-Type": "application/json"}), timeout=30) as reply:
        return json.load(reply)


def test_it_names_the_run_and_shows_its_scalars_settings_and_outcome(tmp_path: Path) -> None:
    folder = train_here(RunFolder(tmp_path / "it's a place, with: all" / "01RUN"), small())
    places = tmp_path / "tmp"
    places.mkdir()
    board = subprocess.Popen(
        tensorboard.launch_command(folder.tensorboard, "ALE/Pong-v5 · ppo · seed 3"),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(places)},
    )
    name = "ALE_Pong-v5 · ppo · seed 3"
    assert board.stdin is not None
    assert board.stderr is not None
    try:
        url = next(found.group(1) for line in board.stderr if (found := re.search(r"at (http://127\S+/)", line)))
        wait_for(lambda: asked(f"{url}data/runs") == [name], "the run to be read")
        assert "charts/episodic_return" in asked(f"{url}data/plugin/scalars/tags")[name]
        assert "hyperparameters/text_summary" in asked(f"{url}data/plugin/text/tags")[name]
        question = {"startIndex": 0, "sliceSize": 9, "allowedStatuses": ["STATUS_SUCCESS"], "colParams": []}
        [group] = asked(f"{url}data/plugin/hparams/session_groups", question)["sessionGroups"]
        assert group["hparams"]["num_steps"] == 16
    finally:
        os.killpg(board.pid, signal.SIGTERM)
        board.wait(timeout=30)
        board.stdin.close()
        board.stderr.close()
    assert not list(places.glob("mosaic-tensorboard-*"))
