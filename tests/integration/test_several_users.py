"""Two users of one machine, each with a daemon: neither finds or takes what is the other's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.helpers import slow_cart
from tests.helpers.commands import MOSAIC, PATIENCE_S
from tests.helpers.daemons import wait_for

from mosaic.base.fastlane.lane_files import LANES_VARIABLE
from mosaic.contracts.folder import Workspace

UIDS = (61_234, 61_235)
"""Users that no machine has."""
SLOW_CART = "slow_cart:SlowCart-v0"
ENDLESS = ("ppo", "--env-id", SLOW_CART, "--num-envs", "2", "--total-timesteps", "500000000", "--detach", "--json")


def why_impossible() -> str:
    if os.geteuid() != 0:
        return "only root can act as two other users"
    if not shutil.which("setpriv"):
        return "acting as another user needs the command 'setpriv' (util-linux)"
    if subprocess.run([*as_user(UIDS[0]), MOSAIC, "--version"], capture_output=True).returncode:
        return "another user cannot execute this installation"
    return ""


def as_user(uid: int) -> list[str]:
    """It may read files, because this installation may be in a private folder; it writes as that user only."""
    reads = "+dac_read_search"
    return [
        "setpriv",
        f"--reuid={uid}",
        f"--regid={uid}",
        "--clear-groups",
        f"--inh-caps={reads}",
        f"--ambient-caps={reads}",
    ]


class User(NamedTuple):
    uid: int
    home: Path

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.home / "var")

    def run(self, *arguments: str) -> str:
        # Shared memory as users have it, without the override of the tests.
        variables = {name: value for name, value in os.environ.items() if name != LANES_VARIABLE}
        folders = {"HOME": self.home, "XDG_CONFIG_HOME": self.home / "config", "MOSAIC_VAR": self.workspace.root}
        variables |= {name: str(folder) for name, folder in folders.items()}
        done = subprocess.run(
            [*as_user(self.uid), MOSAIC, *arguments],
            env=variables,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def lanes(self) -> Path:
        return Path("/dev/shm", f"mosaic-{self.uid}")


@contextmanager
def user(uid: int) -> Iterator[User]:
    home = Path(tempfile.mkdtemp(prefix="mosaic-user-"))
    os.chown(home, uid, uid)
    shutil.copy(slow_cart.__file__, home)
    made = User(uid, home)
    try:
        yield made
    finally:
        if made.workspace.daemon_file.exists():
            made.run("daemon", "stop", "--runs")
        shutil.rmtree(home)
        shutil.rmtree(made.lanes, ignore_errors=True)


@pytest.mark.timeout(240)
def test_two_users_share_a_machine_and_nothing_else() -> None:
    if reason := why_impossible():
        pytest.skip(reason)
    with user(UIDS[0]) as first, user(UIDS[1]) as second:
        runs = {one: json.loads(one.run("train", *ENDLESS))["run_id"] for one in (first, second)}
        addresses = {json.loads(one.run("daemon", "status", "--json"))["address"] for one in runs}
        assert len(addresses) == 2, "the second took the next port"
        for one, run_id in runs.items():
            wait_for(lambda one=one: list(one.lanes.rglob("*.lane")), "its lanes")  # type: ignore[misc]
            assert [view["run_id"] for view in json.loads(one.run("runs", "--json"))] == [run_id]
            one.run("watch", run_id, "--save", str(one.home / "one.mp4"), "--seconds", "0.1")
            for path in (one.lanes, *one.lanes.rglob("*")):
                status = path.lstat()
                assert (status.st_uid, status.st_mode & 0o077) == (one.uid, 0), path
            private = [one.workspace.root, one.workspace.trainer, one.workspace.daemon_file, one.workspace.logs]
            assert [path for path in private if path.stat().st_mode & 0o077] == []
            outside = [path for path in Path(tempfile.gettempdir()).glob("*") if path.lstat().st_uid == one.uid]
            assert outside in ([one.home], []), "temporary files that it left to others"
