"""`mosaic gui` before Qt is loaded: where it may connect to, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mosaic.cli.gui_command import open_workbench_detached, require_display
from mosaic.client.connect import check_loopback_address, read_token
from mosaic.contracts.errors import BadInput
from mosaic.contracts.folder import TOKEN_VARIABLE


@pytest.mark.parametrize("address", ["127.0.0.1:50055", "localhost:1", "127.1.2.3:65535", "[::1]:50055"])
def test_the_local_end_of_a_tunnel_is_accepted(address: str) -> None:
    assert check_loopback_address(address) == address


@pytest.mark.parametrize("address", ["10.0.0.4:50055", "example.org:50055", "0.0.0.0:50055"])
def test_another_machine_is_refused_with_the_tunnel_to_make(address: str) -> None:
    with pytest.raises(BadInput, match=r"not be encrypted.*ssh -L 50055:127\.0\.0\.1:50055"):
        check_loopback_address(address)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:0", "127.0.0.1:70000"])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(BadInput, match="expected HOST:PORT"):
        check_loopback_address(address)


def test_a_token_comes_from_the_environment_or_from_a_copied_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = tmp_path / "daemon.json"
    copied.write_text(json.dumps({"address": "127.0.0.1:1", "token": "from a file"}))
    monkeypatch.setenv(TOKEN_VARIABLE, "from the environment")
    assert read_token(None) == "from the environment"
    assert read_token(copied) == "from a file"


def test_without_a_token_the_error_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    with pytest.raises(BadInput, match=r"daemon\.json"):
        read_token(None)
    with pytest.raises(BadInput, match="cannot be read"):
        read_token(tmp_path / "missing")
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(BadInput, match="has no token"):
        read_token(tmp_path / "other.json")


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
