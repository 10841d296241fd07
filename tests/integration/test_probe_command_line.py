"""`mosaic run`, as a user types it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.helpers.commands import mosaic
from tests.helpers.probe_scripts import write_script

from mosaic.client import TrainerClient
from mosaic.contracts.folder import Workspace
from mosaic.contracts.views import RunView

pytestmark = pytest.mark.usefixtures("trainer")


@pytest.fixture
def script(tmp_path: Path) -> str:
    code = """
        import json, os, sys
        print(json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(), "mine": os.environ.get("MINE")}))
        sys.exit(int(os.environ.get("CODE", 0)))
    """
    return str(write_script(tmp_path / "the user's folder", code))


def test_the_script_gets_its_arguments_unchanged(workspace: Workspace, script: str) -> None:
    words = ["--learning_rate", "3", "--json", "-h", "--", "a b", "--var=x"]
    for dashes in (["--"], []):
        result = mosaic(
            workspace, "--json", "run", "--name", "mine", *dashes, sys.executable, script, *words, MINE="yes"
        )
        assert result.code == 0, result.err
        view = RunView.model_validate(result.json)
        assert (view.outcome, view.run_name, view.algo) == ("succeeded", "mine", "script")
        printed = json.loads(Path(view.run_dir, "logs", "script.stdout.log").read_text())
        assert printed["argv"] == words
        assert printed["mine"] == "yes"
        assert printed["cwd"] == str(Path.cwd())


def test_a_failing_script_fails_the_command(workspace: Workspace, script: str) -> None:
    result = mosaic(workspace, "run", "--", sys.executable, script, CODE="7")
    assert result.code == 3
    assert "exit code 7" in result.out


def test_a_detached_script_keeps_running(workspace: Workspace, script: str, trainer: TrainerClient) -> None:
    result = mosaic(workspace, "--json", "run", "--detach", "--tag", "t", "--", sys.executable, script)
    assert result.code == 0
    assert trainer.get(result.json["run_id"]).tags == ("t",)


def test_a_missing_command_or_unknown_part_is_an_error(workspace: Workspace) -> None:
    assert "COMMAND" in mosaic(workspace, "run", "--name", "x").err
    assert mosaic(workspace, "run", "--without", "magic", "--", "true").code == 2


def test_the_config_of_a_script_cannot_be_resubmitted(workspace: Workspace, script: str) -> None:
    mosaic(workspace, "run", "--", sys.executable, script)
    result = mosaic(workspace, "resubmit", "last")
    assert result.code == 2
    assert "mosaic run" in result.err
