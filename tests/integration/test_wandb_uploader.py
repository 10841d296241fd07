"""The process that uploads on request: it receives folders, prints states, and ends with its caller."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mosaic.common.files import write_json
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.sidecar import sync_state

ECHO = "import json, sys; [print(json.dumps({'run_id': path}), flush=True) for path in json.load(sys.stdin)]"
HANG = ECHO + "; import time; time.sleep(300)"


def test_it_receives_folders_and_yields_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sync_state, "uploader_command", lambda: [sys.executable, "-c", ECHO])
    folders = [RunFolder(tmp_path / name) for name in ("it's one", "two")]
    assert [line["run_id"] for line in sync_state.upload_runs(folders)] == [str(folder.path) for folder in folders]


def test_it_exits_when_its_output_is_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sync_state, "uploader_command", lambda: [sys.executable, "-c", HANG])
    lines = sync_state.upload_runs([RunFolder(tmp_path)])
    assert next(lines)
    lines.close()  # type: ignore[attr-defined]  # the leak check would detect a remaining process


def test_a_run_that_cannot_be_uploaded_is_reported_and_the_next_one_is_tried(workspace: Workspace) -> None:
    plain = workspace.run("01PLAIN")
    plain.path.mkdir(parents=True)
    write_json(plain.config, {"metadata": {"worker": {"id": "cleanrl", "config": {}}}, "artifacts": {}})
    lines = list(sync_state.upload_runs([workspace.run("01GONE"), plain]))
    assert [(line["run_id"], line["state"], line["is_last"]) for line in lines] == [
        ("01GONE", "failed", True),
        ("01PLAIN", "failed", True),
    ]
    assert "cannot be read" in lines[0]["error"]
    assert "was not tracked" in lines[1]["error"]
