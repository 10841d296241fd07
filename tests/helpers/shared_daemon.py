"""Fixtures for modules whose tests only need a daemon and an empty workspace: one for all of them, not one each.

A module takes them with `plugins, workspace, live, trainer = shared_daemon.FIXTURES`. A test of it that kills, restarts
or configures a daemon starts another one in a workspace of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.conftest import logged_problems
from tests.helpers.daemons import LiveDaemon, ended, running_daemon

from mosaic.contracts.errors import NotAllowed
from mosaic.contracts.folder import WORKSPACE_VARIABLE, Workspace
from mosaic.trainer.client.connect import connect
from mosaic.trainer.client.trainer_client import TrainerClient

MAX_RUNS = 4


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared") / "plug ins"


@pytest.fixture(scope="module")
def workspace(plugins: Path) -> Iterator[Workspace]:
    """A workspace with a space and a quote in its path. The log of its daemon is checked at the end."""
    place = Workspace(plugins.with_name("it's a place") / "var")
    yield place
    assert not (problems := logged_problems(place.daemon_log)), problems


@pytest.fixture(scope="module")
def live(workspace: Workspace, plugins: Path) -> Iterator[tuple[LiveDaemon, TrainerClient]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(WORKSPACE_VARIABLE, raising=False)
        patch.setenv("XDG_CONFIG_HOME", str(plugins.with_name("con fig")))
        with running_daemon(workspace, plugins, "--max-runs", str(MAX_RUNS)) as both:
            # Its checker would otherwise start during a test, which would take it for a process of its own.
            both[1].ask_worker("cleanrl", {"ask": "environments"})
            yield both


@pytest.fixture
def trainer(live: tuple[LiveDaemon, TrainerClient], monkeypatch: pytest.MonkeyPatch) -> Iterator[TrainerClient]:
    """Afterwards, the runs of the test are cancelled and deleted, and its failures do not pause the queue."""
    monkeypatch.delenv(WORKSPACE_VARIABLE, raising=False)
    with connect(live[0].workspace, may_start=False) as connection:
        yield connection
        connection.continue_queue()
        views = connection.runs()
        for view in views:
            with suppress(NotAllowed):  # it has ended
                connection.cancel_run(view.run_id)
        for view in views:
            ended(connection, view.run_id)
            connection.delete_run(view.run_id)


FIXTURES = (plugins, workspace, live, trainer)
