"""`mosaic gui` before Qt is loaded: what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from mosaic.cli.gui_command import open_workbench_detached, require_display
from mosaic.contracts.errors import BadInput


def test_without_a_display_the_error_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """F24: `mosaic gui`."""
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BadInput, match=r"DISPLAY or WAYLAND_DISPLAY.*xvfb-run"):
        require_display()
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    require_display()


def test_the_demo_opens_no_window_without_a_display(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    started: list[list[str]] = []
    monkeypatch.setattr("subprocess.Popen", lambda command, **_: started.append(command))
    assert not open_workbench_detached(tmp_path, "01K9")
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert not open_workbench_detached(tmp_path, "01K9")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    assert open_workbench_detached(tmp_path, "01K9")
    assert started[0][-5:] == ["gui", "--var", str(tmp_path), "--run", "01K9"]
