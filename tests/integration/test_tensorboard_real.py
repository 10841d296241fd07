"""The real TensorBoard, started as the window starts it, serves what a run wrote, under the run's name."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.daemons import wait_for
from tests.helpers.worker_runs import small, train_here

from mosaic.contracts.folder import RunFolder

tensorboard = pytest.importorskip("mosaic.features.tracking.window_tensorboard")


def asked(url: str, body: Any = None, **headers: str) -> Any:
    data = None if body is None else json.dumps(body).encode()
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})
    with direct.open(request, timeout=30) as reply:
        return json.load(reply)


@contextmanager
def serving(folder: RunFolder, title: str, places: Path) -> Iterator[tuple[str, int]]:
    """Its address and its process id."""
    places.mkdir()
    board = subprocess.Popen(
        tensorboard.launch_command(folder.tensorboard, title),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(places)},
    )
    assert board.stdin is not None
    assert board.stderr is not None
    try:
        yield (
            next(found.group(1) for line in board.stderr if (found := re.search(r"at (http://127\S+/)", line))),
            board.pid,
        )
    finally:
        os.killpg(board.pid, signal.SIGTERM)
        board.wait(timeout=30)
        board.stdin.close()
        board.stderr.close()


def test_it_names_the_run_and_shows_its_scalars_settings_and_outcome(tmp_path: Path) -> None:
    folder = train_here(RunFolder(tmp_path / "it's a place, with: all" / "01RUN"), small())
    places = tmp_path / "tmp"
    name = "ALE_Pong-v5 · ppo · seed 3"
    with serving(folder, "ALE/Pong-v5 · ppo · seed 3", places) as (url, _):
        wait_for(lambda: asked(f"{url}data/runs") == [name], "the run to be read")
        assert "charts/episodic_return" in asked(f"{url}data/plugin/scalars/tags")[name]
        assert "hyperparameters/text_summary" in asked(f"{url}data/plugin/text/tags")[name]
        question = {"startIndex": 0, "sliceSize": 9, "allowedStatuses": ["STATUS_SUCCESS"], "colParams": []}
        [group] = asked(f"{url}data/plugin/hparams/session_groups", question)["sessionGroups"]
        assert group["hparams"]["num_steps"] == 16
    assert not list(places.glob("mosaic-tensorboard-*"))


def refusal(url: str, **headers: str) -> int:
    with pytest.raises(urllib.error.HTTPError) as error:
        asked(url, **headers)
    with error.value:
        return error.value.code


def test_nothing_is_served_without_the_secret_path_or_to_another_host(tmp_path: Path) -> None:
    """F46: another local user, or a web page by DNS rebinding; no list of processes and no file shows the path."""
    folder = train_here(RunFolder(tmp_path / "01RUN"), small())
    places = tmp_path / "tmp"
    with serving(folder, "run", places) as (url, pid):
        origin, secret = re.fullmatch(r"(http://127\.0\.0\.1:\d+)/([\w-]{32})/", url).groups()  # type: ignore[union-attr]
        wait_for(lambda: asked(f"{url}data/runs") == ["run"], "the run to be read")
        for path in (
            "",
            "/data/runs",
            "/data/plugin/scalars/tags",
            "/data/environment",
            "/x/data/runs",
            "/%2e/data/runs",
        ):
            assert refusal(origin + path) == 404
        for host in (
            "evil.example",
            "127.0.0.1",
            "evil.example:80",
            f"127.0.0.1.evil.example:{origin.rpartition(':')[2]}",
        ):
            assert refusal(f"{url}data/runs", Host=host) == 403
        assert asked(f"{url}data/runs", Host=origin.replace("http://127.0.0.1", "localhost")) == ["run"]
        assert secret.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        processes = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != pid]
        assert [child for child in processes if _group(child) == pid] == []
        for file in places.rglob("*"):
            assert not file.is_file() or file.stat().st_mode & 0o077 == 0


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None
