"""The process that uploads because somebody asked: it is told folders, says states, and ends with its caller."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mosaic.contracts.files import write_json
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.sidecar import upload_request

ECHO = "import json, sys; [print(json.dumps({'run_id': path}), flush=True) for path in json.load(sys.stdin)]"
HANG = ECHO + "; import time; time.sleep(300)"


def test_it_is_told_folders_and_heard_line_by_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(upload_request, "uploader_command", lambda: [sys.executable, "-c", ECHO])
    folders = [RunFolder(tmp_path / name) for name in ("it's one", "two")]
    assert [line["run_id"] for line in upload_request.upload_runs(folders)] == [str(folder.path) for folder in folders]


def test_it_ends_when_nobody_listens_any_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(upload_request, "uploader_command", lambda: [sys.executable, "-c", HANG])
    said = upload_request.upload_runs([RunFolder(tmp_path)])
    assert next(said)
    said.close()  # type: ignore[attr-defined]  # what is left of it would be seen by the leak check


def test_a_run_that_cannot_be_uploaded_is_said_and_the_next_one_is_tried(workspace: Workspace) -> None:
    plain = workspace.run("01PLAIN")
    plain.path.mkdir(parents=True)
    write_json(plain.config, {"metadata": {"worker": {"id": "cleanrl", "config": {}}}, "artifacts": {}})
    said = list(upload_request.upload_runs([workspace.run("01GONE"), plain]))
    assert [(line["run_id"], line["state"], line["is_last"]) for line in said] == [
        ("01GONE", "failed", True),
        ("01PLAIN", "failed", True),
    ]
    assert "cannot be read" in said[0]["error"]
    assert "was not tracked" in said[1]["error"]
