"""A daemon of its own for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.daemons import LiveDaemon, running_daemon

from mosaic.client import Trainer
from mosaic.contracts.folder import Workspace


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    return tmp_path / "plug ins"


@pytest.fixture
def live(workspace: Workspace, plugins: Path) -> Iterator[tuple[LiveDaemon, Trainer]]:
    with running_daemon(workspace, plugins, "--max-runs", "4") as both:
        yield both


@pytest.fixture
def daemon(live: tuple[LiveDaemon, Trainer]) -> LiveDaemon:
    return live[0]


@pytest.fixture
def trainer(live: tuple[LiveDaemon, Trainer]) -> Trainer:
    return live[1]
