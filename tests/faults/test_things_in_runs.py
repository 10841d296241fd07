"""F58: whatever lies in `runs/`, and however the id of a run is spelled, commands show and change the runs."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import end_daemon, logged_problems
from tests.helpers.commands import CommandResult, mosaic
from tests.helpers.commands_by_kind import EXTRA, READING
from tests.helpers.daemons import wait_for
from tests.helpers.hostile_runs import finished_runs
from tests.helpers.worker_runs import run_worker, small

from mosaic.contracts.folder import WORKSPACE_VARIABLE, RunFolder, Workspace
from mosaic.trainer.client.connect import connect

BY_HAND = "test1"
NAMES = ("last", "best", "a b", "-rf", "new\nline", "é", "x" * 255, "é\udcff\udcfe", "RUN;rm", "%s", "..x", "~")
"""No ids of runs, though each has the files of one."""
ODD_IDS = ("7ZZZZZZZZZZZZZZZZZZZZZZZZZ", "00000000000000000000000000", "01krun", "zzzz", "_", "A.b-c", "1e9", "0")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def add_copy(run: RunFolder, name: str, **changes: Any) -> RunFolder:
    copied = RunFolder(run.path.with_name(name))
    shutil.copytree(run.path, copied.path, symlinks=True)
    copied.record.write_text(json.dumps({**read_json(run.record), "run_id": name, **changes}), encoding="utf-8")
    return copied


def add_odd_things(workspace: Workspace, run: RunFolder) -> None:
    """Beside a run's folder: files, links, folders that are not runs, and runs of which something is wrong."""
    runs = workspace.runs
    (runs / "file").write_bytes(b"\0\xff")
    (runs / "01K9FILE.json").write_text("{}")
    (runs / "empty").mkdir()
    (runs / "nowhere").symlink_to(runs / "missing")
    (runs / "loop").symlink_to(runs / "loop")
    (runs / "zero").symlink_to("/dev/zero")
    (runs / "everything").symlink_to("/")
    (runs / "another").symlink_to(run.path)
    os.mkfifo(runs / "pipe")
    for name in NAMES:
        add_copy(run, name)
    for name in ODD_IDS:
        add_copy(run, name, submitted_at=1.0)
    add_copy(run, "two-ids").record.write_bytes(run.record.read_bytes())
    add_copy(run, "no-history", history=[], attempts=[])
    add_copy(run, "no-config").config.unlink()
    add_copy(run, "config-garbage").config.write_bytes(b"\xff{")
    add_copy(run, "config-list").config.write_text("[]")
    for name, path in (("config-folder", "config.json"), ("journal-folder", "journal.jsonl"), ("logs-file", "logs")):
        place = add_copy(run, name).path / path
        shutil.rmtree(place, ignore_errors=True)
        place.unlink(missing_ok=True)
        place.write_text("") if name == "logs-file" else place.mkdir()
    for name in ("config.json", "journal.jsonl", "record.json"):
        place = add_copy(run, f"pipe-{name}").path / name
        place.unlink()
        os.mkfifo(place)
    for number, record in enumerate((b"", b"{}", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"run_id": 1}')):
        add_copy(run, f"record-{number}").record.write_bytes(record)
    garbage = add_copy(run, "garbage")
    for file in (garbage.journal, garbage.keeper, garbage.inbox, garbage.analytics, garbage.eval_summary):
        file.write_bytes(b'\xff\n{"seq": 1e999}\n[]\n\n"x"\n{"seq":' + b"9" * 5000 + b"}\n")
    add_copy(run, "active", stage="running", outcome=None, finished_at=None, attempts=[]).journal.write_text("")
    unfinished = runs / "by-hand-garbage"
    unfinished.mkdir()
    shutil.copy(run.config, unfinished)
    (unfinished / "journal.jsonl").write_text('{"seq": 1}\nnot JSON\n')


@contextmanager
def odd_workspace(folder: Path) -> Iterator[tuple[Workspace, str]]:
    """A workspace full of them, and the id of a healthy run: the newest that a daemon has started."""
    place = Workspace(folder / "var")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(place.root.with_name("config")))
        patch.delenv(WORKSPACE_VARIABLE, raising=False)
        worker = {"id": "cleanrl", "config": small(total_timesteps=256)}
        (run_id,) = finished_runs(place, {"metadata": {"worker": worker}, "artifacts": {}})
        done = run_worker(
            place.root, {"run_id": BY_HAND, "algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 1024}
        )
        assert done.returncode == 0, done.stderr
        add_odd_things(place, place.run(run_id))
        with connect(place) as trainer:
            wait_for(lambda: any(view.run_id == BY_HAND for view in trainer.runs()), "the run that was started by hand")
            trainer.ask_worker("cleanrl", {"ask": "environments"})  # a test would take its process for one of its own
        yield place, run_id
        end_daemon(place)
        unexpected = [line for line in logged_problems(place.daemon_log) if line["level"] != "warning"]
        assert not unexpected


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Workspace, str]]:
    """One for tests that only read."""
    with odd_workspace(tmp_path_factory.mktemp("odd")) as made:
        yield made


@pytest.fixture
def own_odd(tmp_path: Path) -> Iterator[tuple[Workspace, str]]:
    """One for a test that changes it."""
    with odd_workspace(tmp_path / "odd") as made:
        yield made


def run_command(workspace: Workspace, *arguments: str) -> CommandResult:
    result = mosaic(workspace, *arguments)
    print(ascii(result))
    assert "Traceback" not in result.err
    assert "INTERNAL" not in result.err
    return result


@pytest.mark.parametrize(("command", "parameters"), READING, ids=[name for name, _ in READING])
def test_every_command_shows_a_run_among_odd_things(
    odd: tuple[Workspace, str], tmp_path: Path, command: str, parameters: list[str]
) -> None:
    """F58: the healthy run, the one that was started by hand, and the newest."""
    workspace, run_id = odd
    extra = [word.format(out=tmp_path) for word in {"prune": ["--replay", "--dry-run"], **EXTRA}.get(command, ())]
    for run in (run_id, BY_HAND, "last") if parameters else ("",):
        names = {"other": run_id, "experiment_name": "none", "sweep_name": "none"}
        result = run_command(workspace, *command.split(), *(names.get(name, run) for name in parameters), *extra)
        *notes, said = result.err.splitlines() or [""]
        is_refused = bool({"experiment_name", "sweep_name"} & set(parameters)) or command in ("replay", "watch")
        assert result.code == (2 if is_refused else 0), result.err
        assert not is_refused or re.match(
            "No sweep 'none'|No experiment 'none'|Run .{5,6} (recorded no|has ended)", said
        )
        if run == "last" and (notes or "last" in result.err):
            assert f"The run 'last' is {BY_HAND}, ppo on CartPole-v1, seed 1, succeeded." in result.err


def test_runs_are_listed_by_the_time_of_their_submission(odd: tuple[Workspace, str]) -> None:
    """F58: not by the spelling of their ids; `last` is the first of them."""
    workspace, run_id = odd
    views = run_command(workspace, "runs", "--json").json
    listed = [view["run_id"] for view in views]
    assert listed[0] == BY_HAND
    assert listed.index(run_id) < min(map(listed.index, ODD_IDS))
    assert {"no-history", "garbage", "active"} < set(listed)
    assert not set(NAMES) & set(listed)


def test_a_run_whose_id_is_no_ulid_works_in_every_command(own_odd: tuple[Workspace, str], tmp_path: Path) -> None:
    """R1.2, F58: such as one that was started by hand; its id may be written in any case."""
    workspace, _ = own_odd
    assert run_command(workspace, "tag", "Test1", "+good", "--json").json["tags"] == ["good"]
    assert run_command(workspace, "note", BY_HAND, "text", "--json").json["notes"] == "text"
    assert run_command(workspace, "rename", "est1", "its name", "--json").json["run_name"] == "its name"
    config = run_command(workspace, "config", BY_HAND).out
    assert json.loads(config)["metadata"]["worker"]["config"]["seed"] == 1
    assert run_command(workspace, "check", "ppo", "--env-id", "CartPole-v1").code == 0, "it estimates from earlier runs"
    assert run_command(workspace, "eval", BY_HAND, "--episodes", "1", "--json").json["episodes"] == 1
    for command in (["resume", BY_HAND, "--total-timesteps", "1536", "--follow"], ["resubmit", BY_HAND, "--follow"]):
        result = run_command(workspace, *command, "--json")
        assert (result.code, result.json["outcome"], result.json["seed"]) == (0, "succeeded", 1), result.err
    assert run_command(workspace, "diff", BY_HAND, result.json["run_id"]).code == 0
    assert run_command(workspace, "prune", BY_HAND, "--replay", "--videos", "--yes").code == 0
    assert run_command(workspace, "archive", BY_HAND).code == 0
    assert run_command(workspace, "archive", BY_HAND, "--undo").code == 0
    zipped = tmp_path / "run.zip"
    assert run_command(workspace, "export", BY_HAND, "--zip", str(zipped)).code == 0
    assert run_command(workspace, "delete", BY_HAND, "--yes").code == 0
    assert run_command(workspace, "import", str(zipped), "--json").json["run_id"] == BY_HAND
    assert run_command(workspace, "delete", BY_HAND, "--yes").code == 0
    assert run_command(workspace, "restore", BY_HAND).code == 0
    assert run_command(workspace, "show", BY_HAND, "--json").json["tags"] == ["good"]


def test_an_id_beside_that_of_a_run_names_the_run_alone(own_odd: tuple[Workspace, str]) -> None:
    """F58: also where it is the name of a group, or begins other ids."""
    workspace, run_id = own_odd
    for group in ("zzzz", "zzz"):
        assert run_command(workspace, "resubmit", run_id, "--group", group, "--detach").code == 0
    refused = run_command(workspace, "tag", "zzz")
    assert refused.code == 2
    assert "'zzz' is the name of a group, and also names the run zzzz. For the run, give its id" in refused.err
    assert run_command(workspace, "show", "zzzz", "--json").json["run_id"] == "zzzz"
    assert run_command(workspace, "tag", "zzzz", "--json").json["run_id"] == "zzzz"
    assert run_command(workspace, "show", "0", "--json").json["run_id"] == "0"
