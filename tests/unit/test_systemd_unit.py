"""The service of systemd that runs a daemon."""

from __future__ import annotations

import configparser
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.cli_trainer import FakeTrainer, call

from mosaic.features.machines import cli as service_commands
from mosaic.features.machines.cli import quote_argument

PLACE = 'it\'s 50% of a "place" for $HOME'


def unit_of(text: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(text)
    return parser


def test_the_unit_restarts_the_daemon_and_leaves_its_runs_alone(tmp_path: Path) -> None:
    workspace = tmp_path / PLACE
    listen = ("--listen", "0.0.0.0")
    printed = call(FakeTrainer(), "daemon", "install-service", "--print", *listen, "--var", str(workspace))
    assert printed.code == 0, printed.err
    unit = unit_of(printed.out)
    service = unit["Service"]
    assert (service["KillMode"], service["Restart"]) == ("process", "on-failure")
    assert unit["Install"]["WantedBy"] == "default.target"
    command = [text.replace("%%", "%").replace("$$", "$") for text in shlex.split(service["ExecStart"])]
    assert command[:4] == [sys.executable, "-P", "-m", "mosaic.trainer"]
    assert command[4:] == ["--var", str(workspace), "--idle-s", "inf", "--listen", "0.0.0.0:50055"]
    assert not service_commands.unit_path().exists(), "--print writes nothing"


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze, which checks units, is not installed")
    for name in ("plain", PLACE):
        printed = call(FakeTrainer(), "daemon", "install-service", "--print", "--var", str(tmp_path / name))
        path = tmp_path / service_commands.UNIT_NAME
        path.write_text(printed.out)
        done = subprocess.run(
            ["systemd-analyze", "--user", "verify", str(path)],
            env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_a_service_is_installed_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []
    monkeypatch.setattr(service_commands, "_has_systemd", lambda: True)
    monkeypatch.setattr(service_commands, "_systemctl", lambda *arguments: calls.append(arguments))
    var = ("--var", str(tmp_path))
    path = service_commands.unit_path()
    assert call(FakeTrainer(), "daemon", "install-service", *var).code == 0
    assert "mosaic.trainer" in path.read_text()
    assert calls == [("daemon-reload",), ("enable", "--now", service_commands.UNIT_NAME)]
    assert call(FakeTrainer(), "daemon", "uninstall-service", *var).code == 0
    assert not path.exists()
    assert calls[2:] == [("disable", "--now", service_commands.UNIT_NAME), ("daemon-reload",)]
    again = call(FakeTrainer(), "daemon", "uninstall-service", *var)
    assert (again.code, "There is no service" in again.err) == (2, True)


def test_without_systemd_the_commands_for_it_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_commands, "_has_systemd", lambda: False)
    written = call(FakeTrainer(), "daemon", "install-service", "--var", str(tmp_path))
    assert (written.code, "systemctl --user enable --now mosaic-trainer.service" in written.err) == (0, True)
    assert service_commands.unit_path().exists()


def test_arguments_are_quoted_as_systemd_reads_them() -> None:
    assert quote_argument('a "b" \\ $c 50%') == '"a \\"b\\" \\\\ $$c 50%%"'
