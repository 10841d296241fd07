"""W&B's page in a real window, through a proxy; in a separate process, as Chromium leaves processes behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.wandb_routes import answering, listening

from mosaic.contracts.folder import Workspace
from mosaic.window import web

HELPER = Path(__file__).parents[1] / "helpers" / "wandb_window.py"


@pytest.mark.skipif(not web.is_installed(), reason="Qt WebEngine is not installed")
def test_the_page_is_loaded_through_the_proxy_and_loopback_is_direct(workspace: Workspace, settings_path: Path) -> None:
    asked: list[str] = []
    html = "200 OK\r\nConnection: close\r\nContent-Type: text/html"
    with (
        listening(answering(html, "<p>by the proxy</p>", asked)) as proxy,
        listening(answering(html, "<p>direct</p>")) as loopback,
    ):
        done = subprocess.run(
            [
                *(sys.executable, str(HELPER), str(workspace.root), str(settings_path)),
                *("http://wandb.invalid/run", f"http://127.0.0.1:{proxy}", f"http://127.0.0.1:{loopback}/"),
            ],
            env={**os.environ, "QT_QPA_PLATFORM": "offscreen"},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    if done.returncode == 77 or (done.returncode < 0 and "WebEngine" in done.stderr):
        pytest.skip(f"WebEngine cannot start here: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report == {"page": "by the proxy", "proxy": "127.0.0.1", "loopback": "direct", "proxy_when_hidden": ""}
    assert any(head.startswith("GET http://wandb.invalid/run ") for head in asked)
    assert not any(f"127.0.0.1:{loopback}" in head.splitlines()[0] for head in asked)
