from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the runs of a test may lie."""
    path = tmp_path / "a user's runs"
    path.mkdir()
    return path
