"""`mosaic run`, as a user types it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.helpers.commands import mosaic
from tests.helpers.probe_scripts import written

from mosaic.client import TrainerClient
from mosaic.contracts.folder import Workspace

pytestmark = pytest.mark.usefixtures("trainer")


@pytest.fixture
def script(tmp_path: Path) -> str:
    code = """
        import json, os, sys
        print(json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(), "mine": os.environ.get("MINE")}))
        sys.exit(int(os.environ.get("CODE", 0)))
    """
    return str(written(tmp_path / "the user's own", code))


def test_the_script_gets_its_arguments_as_they_were_written(workspace: Workspace, script: str) -> None:
    words = ["--learning_rate", "3", "--json", "-h", "--", "a b", "--var=x"]
    for dashes in (["--"], []):
        said = mosaic(workspace, "--json", "run", "--name", "mine", *dashes, sys.executable, script, *words, MINE="yes")
        assert said.code == 0, said.err
        view = said.json
        assert (view["outcome"], view["run_name"], view["algo"]) == ("succeeded", "mine", "script")
        told = json.loads(Path(view["run_dir"], "logs", "script.stdout.log").read_text())
        assert told["argv"] == words
        assert told["mine"] == "yes"
        assert told["cwd"] == str(Path.cwd())


def test_a_script_that_fails_fails_the_command(workspace: Workspace, script: str) -> None:
    said = mosaic(workspace, "run", "--", sys.executable, script, CODE="7")
    assert said.code == 3
    assert "exit code 7" in said.out


def test_a_detached_script_goes_on_by_itself(workspace: Workspace, script: str, trainer: TrainerClient) -> None:
    said = mosaic(workspace, "--json", "run", "--detach", "--tag", "t", "--", sys.executable, script)
    assert said.code == 0
    assert trainer.get(said.json["run_id"])["tags"] == ["t"]


def test_what_is_missing_is_said(workspace: Workspace) -> None:
    assert "COMMAND" in mosaic(workspace, "run", "--name", "x").err
    assert mosaic(workspace, "run", "--without", "magic", "--", "true").code == 2


def test_the_config_of_a_script_is_not_submitted_again_by_accident(workspace: Workspace, script: str) -> None:
    mosaic(workspace, "run", "--", sys.executable, script)
    said = mosaic(workspace, "resubmit", "last")
    assert said.code == 2
    assert "mosaic run" in said.err
