"""Whether a process has ended, also while that cannot be found out."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mosaic.base import processes
from mosaic.base.processes import identify, is_gone, own_identity


def test_a_process_is_gone_when_it_has_ended_or_its_number_belongs_to_another() -> None:
    mine = own_identity()
    assert not is_gone(mine)
    assert is_gone({**mine, "start": "1"})
    assert is_gone({**mine, "boot_id": "another"})
    with subprocess.Popen(["sleep", "60"]) as child:
        identity = identify(child.pid)
        assert not is_gone(identity)
        child.kill()
    assert is_gone(identity)


def test_a_process_that_cannot_be_looked_at_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """F9: a daemon that has too many files open takes no keeper for lost."""

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    mine = own_identity()
    monkeypatch.setattr(processes, "open", fail, raising=False)
    assert not is_gone(mine)
    monkeypatch.setattr(Path, "read_text", fail)
    assert not is_gone(mine)
    assert not is_gone({**mine, "start": "", "boot_id": ""})
