"""The command as a process: what it imports, how it ends, what it does when the daemon or the user goes away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.commands import MOSAIC, mosaic
from tests.helpers.daemons import wait_for

from mosaic.cli.main import COMMANDS
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.views import RunView
from mosaic.trainer.client.connect import connect, read_daemon_address

LONG = ("train", "ppo", "--env-id", "CartPole-v1", "--total-timesteps", "20000000", "--json")


def started(workspace: Workspace, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [MOSAIC, *arguments],
        env={**os.environ, "MOSAIC_VAR": str(workspace.root)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def steps(workspace: Workspace) -> int:
    with connect(workspace) as trainer:
        return max((view.global_step or 0 for view in trainer.runs()), default=0)


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    program = (
        "import sys; from mosaic.cli.main import main; code = main(['--help']);"
        "print([name for name in ('grpc', 'pydantic', 'rich', 'numpy', 'asyncio') if name in sys.modules], code)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.endswith("[] 0\n")
    assert all(f"  {name} " in result.stdout for name in COMMANDS)


def test_a_closed_pipe_is_not_an_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run([MOSAIC, "--help"], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert result.stderr == ""


def test_ctrl_c_stops_the_run_with_a_checkpoint(workspace: Workspace) -> None:
    process = started(workspace, *LONG)
    wait_for(lambda: steps(workspace) > 1000, "some steps")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    view = RunView.model_validate(json.loads(out))
    assert (view.stage, view.outcome, view.pid) == ("finished", "cancelled", None)
    assert view.checkpoint_step == view.global_step
    assert (RunFolder(view.run_dir).last_checkpoint / "manifest.json").exists()


@pytest.mark.may_log("call_refused")  # by the command, before it has read the address of the new daemon
def test_a_train_command_survives_a_restart_of_the_daemon(workspace: Workspace) -> None:
    process = started(workspace, "train", "ppo", "--total-timesteps", "400000", "--json")
    wait_for(lambda: steps(workspace) > 1000, "some steps")
    address = read_daemon_address(workspace)
    assert address is not None
    os.kill(address.process["pid"], signal.SIGKILL)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert (json.loads(out)["outcome"], len(json.loads(out)["attempts"])) == ("succeeded", 1)
    after = read_daemon_address(workspace)
    assert after is not None
    assert after.process != address.process


def test_a_run_is_evaluated_exported_deleted_and_imported_again(workspace: Workspace, tmp_path: Path) -> None:
    """R1.5, R6.4: a run folder is self-contained."""
    view = RunView.model_validate(
        mosaic(workspace, "train", "ppo", "--total-timesteps", "2048", "--json", "--tag", "one").json
    )
    run_id = view.run_id
    summary = mosaic(workspace, "eval", "last", "--episodes", "2", "--json").json
    assert (summary["episodes"], len(summary["returns"])) == (2, 2)
    assert summary["min_return"] <= summary["avg_return"] <= summary["max_return"]
    again = mosaic(workspace, "eval", "last", "--episodes", "2", "--json").json
    assert (again["returns"], again["run_id"] != summary["run_id"]) == (summary["returns"], True)
    model = next(RunFolder(view.run_dir).models.glob("*/ppo.cleanrl_model"))
    assert mosaic(workspace, "eval", str(model), "--episodes", "2", "--json").json["returns"] == summary["returns"]

    kinds = ("--zip", "--csv", "--png", "--pdf", "--svg", "--episodes")
    files = {name: str(tmp_path / f"it's.{name[2:]}") for name in kinds}
    arguments = [word for pair in files.items() for word in pair]
    assert len(mosaic(workspace, "export", run_id, *arguments, "--json").json["files"]) == len(kinds)
    assert Path(files["--png"]).read_bytes().startswith(b"\x89PNG")
    assert Path(files["--pdf"]).read_bytes().startswith(b"%PDF")
    assert b"<svg" in Path(files["--svg"]).read_bytes()
    csv = mosaic(workspace, "metrics", run_id, "--csv").out
    assert Path(files["--csv"]).read_text(encoding="utf-8") == csv
    rows = [json.loads(line) for line in Path(files["--episodes"]).read_text(encoding="utf-8").splitlines()]
    assert [row["number"] for row in rows] == list(range(1, len(rows) + 1))

    trash = mosaic(workspace, "delete", run_id, "--yes", "--json").json["run_dir"]
    assert mosaic(workspace, "show", run_id).code == 2
    for source in (files["--zip"], trash):
        assert mosaic(workspace, "import", source, "--json").json["run_id"] == run_id
        assert mosaic(workspace, "metrics", run_id, "--csv").out == csv
        shown = mosaic(workspace, "show", run_id, "--json").json
        assert (shown["tags"], shown["outcome"], shown["global_step"]) == (["one"], "succeeded", view.global_step)
        assert os.readlink(RunFolder(shown["run_dir"]).last_checkpoint) == str(view.global_step)
        if source != trash:
            mosaic(workspace, "delete", run_id, "--yes")


def test_the_daemon_starts_and_stops_on_demand(workspace: Workspace) -> None:
    """R2.7: the daemon starts by itself, once."""
    assert mosaic(workspace, "daemon", "status").code == 4
    started = mosaic(workspace, "daemon", "start", "--json").json
    status = mosaic(workspace, "daemon", "status", "--json").json
    assert {"pid", "address", "started_at"} <= set(status)
    assert status["pid"] == started["pid"]
    assert mosaic(workspace, "daemon", "stop", "--json").json == {"stopped": started["pid"]}
    assert mosaic(workspace, "daemon", "stop").code == 0
    assert mosaic(workspace, "daemon", "status").code == 4


@pytest.mark.parametrize("has_daemon", [True, False])
def test_completion_offers_runs_only_where_a_daemon_runs_already(workspace: Workspace, has_daemon: bool) -> None:
    run_id = ""
    if has_daemon:
        named = ("--name", "walker", "--group", "exp", "--total-timesteps", "512", "--json")
        run_id = mosaic(workspace, "train", "ppo", *named).json["run_id"]
    for command, names in (("show", [run_id, "walker"]), ("delete", [run_id, "walker", "exp"]), ("cancel", [])):
        words = {"_MOSAIC_COMPLETE": "bash_complete", "COMP_WORDS": f"mosaic {command} ", "COMP_CWORD": "2"}
        offered = [line.partition(",")[2] for line in mosaic(workspace, **words).out.splitlines()]
        assert offered == (["last", *names] if has_daemon else ["last"]), command
    assert (read_daemon_address(workspace) is not None) == has_daemon


def test_the_doctor_reports_no_problem_here(workspace: Workspace) -> None:
    result = mosaic(workspace, "doctor", "--json")
    assert result.code == 0, result.err
    states = {check["name"]: check["state"] for check in result.json["checks"]}
    assert states["daemon"] == states["packages"] == states["frame: classic_control"] == "ok"


def test_an_unusable_workspace_path_is_an_error_of_one_sentence(workspace: Workspace) -> None:
    workspace.root.parent.mkdir(parents=True)
    workspace.root.write_text("a file stands where the workspace should be")
    for command in (("runs",), ("train", "ppo"), ("doctor",), ("daemon", "status"), ("demo",)):
        result = mosaic(workspace, *command)
        assert (result.code, result.out) == (2, ""), command
        assert result.err == f"The workspace {workspace.root} is a file; expected a folder. Name another: --var DIR\n"
    workspace.root.unlink()


def test_the_demo_trains_an_agent_that_balances_the_pole(workspace: Workspace) -> None:
    result = mosaic(workspace, "demo", "--json")
    assert result.code == 0, result.err
    view = RunView.model_validate(result.json)
    assert (view.episodic_return or 0) >= 475
    assert (result.json["evaluation"]["episodes"], result.json["evaluation"]["avg_return"] >= 475) == (20, True)
    assert set(result.json["made"]) == {"curve", "video", "checkpoint", "tensorboard"}
    for path in result.json["made"].values():
        assert Path(path).is_relative_to(workspace.root)
        assert Path(path).exists()


def run_in_shell(script: str, workspace: Workspace, **variables: str) -> subprocess.CompletedProcess[str]:
    """`mosaic` is the command, with a workspace."""
    return subprocess.run(
        ["sh", "-c", f'mosaic() {{ "{MOSAIC}" "$@"; }}\n{script}'],
        env={**os.environ, "MOSAIC_VAR": str(workspace.root), **variables},
        capture_output=True,
        encoding="utf-8",
        timeout=110,
    )


IN_DELETED_FOLDER = 'mkdir "$PLACE" && cd "$PLACE" && rmdir "$PLACE" && '


@pytest.mark.parametrize("arguments", ["runs", "show last", "train ppo", "run -- true", "export last --csv x"])
def test_a_folder_that_was_deleted_is_named_in_a_sentence(workspace: Workspace, tmp_path: Path, arguments: str) -> None:
    """A relative workspace is looked for in the folder of the shell."""
    script = f"{IN_DELETED_FOLDER} mosaic {arguments}"
    result = run_in_shell(script, workspace, MOSAIC_VAR="var", PLACE=str(tmp_path / "gone"))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "This shell is in a folder that was deleted. Change to another: cd DIR\n"


def test_a_workspace_elsewhere_is_used_from_a_deleted_folder(workspace: Workspace, tmp_path: Path) -> None:
    script = f"{IN_DELETED_FOLDER} mosaic train ppo --total-timesteps 512 --json && mosaic runs --json"
    result = run_in_shell(script, workspace, PLACE=str(tmp_path / "gone"))
    assert result.returncode == 0, result.stderr
    trained, listed = map(json.loads, result.stdout.splitlines())
    assert [run["run_id"] for run in listed] == [trained["run_id"]]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_an_empty_one(workspace: Workspace, tmp_path: Path, closed: str) -> None:
    """As /dev/null is: a run is trained all the same, and none is deleted without a terminal to confirm in."""
    script = (
        f'mosaic train ppo --total-timesteps 512 {closed}; echo $? >> "$CODES"; '
        f'mosaic delete last {closed}; echo $? >> "$CODES"; mosaic runs --json'
    )
    result = run_in_shell(script, workspace, CODES=str(tmp_path / "codes"))
    assert (tmp_path / "codes").read_text(encoding="utf-8").split() == ["0", "2"], result.stderr
    assert "Traceback" not in result.stderr
    assert [run["outcome"] for run in json.loads(result.stdout.splitlines()[-1])] == ["succeeded"]


def test_the_locale_changes_nothing(workspace: Workspace) -> None:
    """Neither in what is read, of files and of stdin, nor in what is written."""
    notes = "Zürich ✓"
    payload: dict[str, Any] = {"metadata": {"notes": notes, "worker": {"id": "cleanrl"}}, "artifacts": {}}
    payload["metadata"]["worker"]["config"] = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 512}
    workspace.root.mkdir(parents=True)
    file = workspace.root / "it.json"
    file.write_text(json.dumps(payload, ensure_ascii=False), encoding="utf-8")
    steps = (
        "mosaic submit --follow - < it.json && mosaic submit --follow it.json && mosaic show last && mosaic runs && "
        "mosaic eval last --episodes 1 && mosaic run -- python -c 'print(1)' && mosaic logs last && "
        "mosaic algorithms ppo && mosaic doctor && mosaic runs --json"
    )
    ascii_only = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    result = run_in_shell(f'cd "$MOSAIC_VAR" && {steps}', workspace, **ascii_only)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    assert [run["notes"] for run in json.loads(result.stdout.splitlines()[-1])] == [None, None, notes, notes]
