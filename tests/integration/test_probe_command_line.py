"""`mosaic run`, as a user types it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.helpers import shared_daemon
from tests.helpers.commands import mosaic
from tests.helpers.probe_scripts import write_script

from mosaic.contracts.folder import Workspace
from mosaic.contracts.views import RunView
from mosaic.trainer.client.trainer_client import TrainerClient

plugins, workspace, live, trainer = shared_daemon.FIXTURES
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
        printed = json.loads(Path(view.run_dir, "logs", "script.stdout.log").read_text(encoding="utf-8"))
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
    assert trainer.get_run(result.json["run_id"]).tags == ("t",)


def test_a_missing_command_or_unknown_part_is_an_error(workspace: Workspace) -> None:
    assert "COMMAND" in mosaic(workspace, "run", "--name", "x").err
    assert mosaic(workspace, "run", "--without", "magic", "--", "true").code == 2


def test_a_script_can_be_resubmitted_with_the_environment_of_now(workspace: Workspace, script: str) -> None:
    mosaic(workspace, "run", "--", sys.executable, script, "one", MINE="then", CODE="7")
    result = mosaic(workspace, "--json", "resubmit", "last", "--follow", MINE="now")
    assert result.code == 0, result.err
    printed = json.loads(Path(result.json["run_dir"], "logs", "script.stdout.log").read_text(encoding="utf-8"))
    assert printed == {"argv": ["one"], "cwd": str(Path.cwd()), "mine": "now"}


def test_the_hints_for_an_ended_script_do_not_go_in_a_circle(workspace: Workspace, script: str) -> None:
    mosaic(workspace, "run", "--total-timesteps", "100", "--", sys.executable, script)
    for steps in ([], ["--total-timesteps", "200"]):
        result = mosaic(workspace, "resume", "last", *steps)
        assert (result.code, "no checkpoint to resume from" in result.err) == (2, True), result.err
        assert "mosaic resubmit" in result.err
        assert "Extend it" not in result.err
    assert mosaic(workspace, "resubmit", "last", "--follow").code == 0


def test_the_model_that_a_script_saved_can_be_evaluated(workspace: Workspace, tmp_path: Path) -> None:
    code = """
        import os, sys, torch
        class Network(torch.nn.Module):
            def __init__(self):
                super().__init__()
                layers = [torch.nn.Linear(4, 120), torch.nn.ReLU(), torch.nn.Linear(120, 84), torch.nn.ReLU()]
                self.network = torch.nn.Sequential(*layers, torch.nn.Linear(84, 2))
        os.chdir(sys.argv[1])
        os.makedirs("runs/CartPole-v1__dqn__1__1700000000")
        torch.save(Network().state_dict(), "runs/CartPole-v1__dqn__1__1700000000/dqn.cleanrl_model")
    """
    result = mosaic(workspace, "run", "--", sys.executable, str(write_script(tmp_path, code)), str(tmp_path))
    assert result.code == 0, result.err
    result = mosaic(workspace, "--json", "eval", "last", "--episodes", "2")
    assert result.code == 0, result.err


def test_a_saved_file_that_cannot_be_evaluated_is_named(workspace: Workspace, tmp_path: Path) -> None:
    code = "import sys, torch\ntorch.save({}, sys.argv[1])\n"
    path = tmp_path / "model.bin"
    mosaic(workspace, "run", "--", sys.executable, str(write_script(tmp_path, code)), str(path))
    result = mosaic(workspace, "eval", "last")
    assert result.code == 2
    assert f"saved {path}, which cannot be evaluated" in result.err
