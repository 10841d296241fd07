"""The process that uploads on request: it receives folders and prints states."""

from __future__ import annotations

import json
import subprocess

from mosaic.base.files import write_json
from mosaic.contracts.folder import Workspace
from mosaic.features.tracking.sidecar import sync_state


def test_a_run_that_cannot_be_uploaded_is_reported_and_the_next_one_is_tried(workspace: Workspace) -> None:
    plain = workspace.run("01PLAIN")
    plain.path.mkdir(parents=True)
    write_json(plain.config, {"metadata": {"worker": {"id": "cleanrl", "config": {}}}, "artifacts": {}})
    request = sync_state.upload_request([workspace.run("01GONE"), plain])
    process = subprocess.run(
        sync_state.uploader_command(), input=request, stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )
    messages = [json.loads(line) for line in process.stdout.splitlines()]
    assert [(message["run_id"], message["state"], message["is_last"]) for message in messages] == [
        ("01GONE", "failed", True),
        ("01PLAIN", "failed", True),
    ]
    assert "cannot be read" in messages[0]["error"]
    assert "was not tracked" in messages[1]["error"]
