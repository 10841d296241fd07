"""What a new user meets first: modules of one's own, names, the queue, `last`, groups, what is said before a start."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.commands import MOSAIC, mosaic
from tests.helpers.commands_by_kind import ALL, EXTRA
from tests.helpers.daemons import LiveDaemon, ended, environment, running_daemon, scripted, wait_for

from mosaic.cli.context import CREATING_COMMANDS
from mosaic.contracts.errors import BadInput
from mosaic.contracts.folder import Workspace
from mosaic.features.play.core import build_play_payload
from mosaic.trainer.client.trainer_client import TrainerClient

WITHOUT_A_WORKSPACE = (
    *("gui", "algorithms", "presets", "actors", "llm", "sweep init", "wandb login", "wandb logout", "wandb probe"),
    *("daemon", "trainer", "completion"),
)
NEEDING_A_WORKSPACE = [
    name
    for name, _ in ALL
    if not f"{name} ".startswith(tuple(f"{one} " for one in (*CREATING_COMMANDS, *WITHOUT_A_WORKSPACE)))
]
"""Commands that work with what is in a workspace."""
TINY = ("--total-timesteps", "64", "--num-envs", "2", "--num-steps", "16")


def train_payload(**config: Any) -> dict[str, Any]:
    settings = {"algo": "ppo", "total_timesteps": 64, "algo_params": {"num_envs": 2, "num_steps": 16}}
    return {"metadata": {"worker": {"id": "cleanrl", "config": settings | config}}, "artifacts": {}}


# --- environments of one's own


@pytest.fixture
def own_module(tmp_path: Path) -> Path:
    folder = tmp_path / "my project"
    folder.mkdir()
    (folder / "my_envs.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('Own-v0', 'gymnasium.envs.classic_control.cartpole:CartPoleEnv', max_episode_steps=20)\n"
    )
    return folder


def test_a_module_of_ones_own_is_found_from_the_callers_folder(
    daemon: LiveDaemon,
    trainer: TrainerClient,
    workspace: Workspace,
    own_module: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a daemon that was started elsewhere; later resumed and evaluated from another folder."""
    payload = train_payload(env_id="my_envs:Own-v0")
    with pytest.raises(BadInput, match=r"env_id: there is no module 'my_envs'\. Give the command in its folder"):
        trainer.submit(payload)
    monkeypatch.chdir(own_module)
    with pytest.raises(BadInput, match=r"No environment 'Owm-v0'.* Did you mean 'Own-v0'\?"):
        trainer.check(train_payload(env_id="my_envs:Owm-v0"))
    assert trainer.check(payload).summary.environment.id == "Own-v0"
    trained = ended(trainer, trainer.submit(payload).run_id)
    assert (trained.outcome, trained.env_id) == ("succeeded", "my_envs:Own-v0")
    monkeypatch.chdir("/")
    daemon.stop()
    with daemon.start() as again:
        again.resume(trained.run_id, 128)
        assert ended(again, trained.run_id).outcome == "succeeded"
    evaluated = mosaic(workspace, "eval", trained.run_id, "--episodes", "2", "--json")
    assert evaluated.code == 0, evaluated.err
    imports = trainer_of(daemon).payload(trained.run_id).metadata.worker.imports
    assert imports is not None
    assert (imports.modules, imports.folders[0]) == (("my_envs",), str(own_module))


@pytest.mark.parametrize("given", ["Own-v0", "Own", "my_envs", "my_envs.py", "my_envs.py:Own-v0"])
def test_the_module_of_an_environment_of_ones_own_is_named_where_it_was_left_out(
    given: str, trainer: TrainerClient, own_module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own_module)
    with pytest.raises(BadInput, match="my_envs:Own-v0") as refusal:
        trainer.check(train_payload(env_id=given))
    assert [problem.setting for problem in refusal.value.problems] == ["env_id"]
    monkeypatch.chdir("/")
    with pytest.raises(BadInput) as refusal:
        trainer.check(train_payload(env_id=given.partition(":")[0]))
    assert "my_envs:Own-v0" not in str(refusal.value), "there is no such file there"


def test_a_module_that_a_file_or_a_remote_client_names_is_not_imported(
    daemon: LiveDaemon, workspace: Workspace, own_module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own_module)
    payload = train_payload(env_id="my_envs:Own-v0")
    config = own_module / "config.json"
    config.write_text(json.dumps(payload))
    refusal = f"{config} would import the module 'my_envs'. If you trust it, add --trust."
    for command in ("check", "submit"):
        assert (refused := mosaic(workspace, command, str(config))).code == 2
        assert refusal in refused.err
    assert mosaic(workspace, "check", str(config), "--trust").code == 0
    remote = trainer_of(daemon)
    remote.is_local = False
    with pytest.raises(BadInput, match="env_id: the module 'my_envs' is not allowed: its run was not submitted by"):
        remote.check(payload)


def trainer_of(daemon: LiveDaemon) -> TrainerClient:
    from mosaic.trainer.client.connect import connect

    return connect(daemon.workspace, may_start=False)


def test_an_id_without_a_version_is_recorded_with_it(trainer: TrainerClient) -> None:
    run_id = trainer.submit(train_payload(env_id="CartPole")).run_id
    assert trainer.get_run(run_id).env_id == "CartPole-v1"
    assert trainer.payload(run_id).metadata.worker.config["env_id"] == "CartPole-v1"
    assert [view.run_id for view in trainer.runs(env_id="CartPole-v1")] == [run_id]
    assert ended(trainer, run_id).outcome == "succeeded"


# --- the queue


def test_a_queued_run_shows_what_it_waits_for(workspace: Workspace, plugins: Path) -> None:
    with running_daemon(workspace, plugins, "--max-runs", "1") as (_, trainer):
        first = trainer.submit(scripted(steps=100_000, dt=0.01)).run_id
        wait_for(lambda: trainer.get_run(first).stage == "running", "the first run")
        others = [trainer.submit(scripted(steps=1)).run_id for _ in range(2)]
        wait_for(
            lambda: trainer.get_run(others[1]).wait_reason == "1 of 1 slots busy, place 2", "its place in the queue"
        )
        assert trainer.get_run(first).wait_reason is None
        listed = mosaic(workspace, "runs")
        assert "3 runs: 2 queued, 1 running. Next in the queue: 1 of 1 slots busy, place 1." in listed.err
        assert "1 of 1 slots busy, place 2" in mosaic(workspace, "show", "last").out
        game = trainer.submit(build_play_payload(trainer, "FrozenLake-v1", {"*": "random"}, {"episodes": 1}))
        assert game.wait_reason in (None, "place 1"), "it waits for no training"
        assert ended(trainer, game.run_id).outcome == "succeeded"
        detached = mosaic(workspace, "run", "--detach", "--", "true")
        assert "is queued (1 of 1 slots busy, place 3)" in detached.out
        for run_id in (*others, first):
            trainer.cancel_run(run_id)
        ended(trainer, first)
        ended(trainer, detached.out.split()[1])


# --- last, and groups


def test_last_is_the_newest_run_that_fits_the_command_and_is_printed(
    trainer: TrainerClient, workspace: Workspace
) -> None:
    done = ended(trainer, trainer.submit(scripted(steps=1)).run_id).run_id
    active = trainer.submit(scripted(steps=100_000, dt=0.01)).run_id
    wait_for(lambda: trainer.get_run(active).stage == "running", "the second run")
    assert f"The run 'last' is {active[-6:]}, scripted, running." in mosaic(workspace, "logs", "last").err
    archived = mosaic(workspace, "archive", "last")
    assert archived.code == 2
    assert f"The run 'last' is {active[-6:]}, scripted, running." in archived.err, "no older one is taken"
    assert mosaic(workspace, "archive", done).code == 0
    assert trainer.get_run(done).is_archived
    undone = mosaic(workspace, "archive", "last", "--undo")
    assert (undone.code, trainer.get_run(done).is_archived) == (0, False)
    assert mosaic(workspace, "delete", "last", "--yes").code == 2
    assert mosaic(workspace, "delete", done, "--yes").code == 0
    assert [view.run_id for view in trainer.runs()] == [active]
    assert mosaic(workspace, "cancel", "last").code == 0
    assert trainer.get_run(active).outcome == "cancelled"
    trainer.annotate_run(active, is_archived=True)
    newer = ended(trainer, trainer.submit(scripted(steps=1)).run_id).run_id
    trainer.annotate_run(newer, is_archived=True)
    assert trainer.get_run("last").run_id == newer, "where all are archived, the newest of them"


def test_the_last_run_to_push_is_one_that_has_a_checkpoint(trainer: TrainerClient, workspace: Workspace) -> None:
    """A script that ended later has nothing to push."""
    trained = ended(trainer, trainer.submit(train_payload(env_id="CartPole-v1")).run_id).run_id
    script = mosaic(workspace, "run", "--detach", "--json", "--", "true").json["run_id"]
    assert ended(trainer, script).outcome == "succeeded"
    pushed = mosaic(workspace, "push", "last", "--repo", "a/b", HF_TOKEN="", HF_ENDPOINT="http://127.0.0.1:9")
    assert f"The run 'last' is {trained[-6:]}" in pushed.err
    assert "--checkpoint" not in pushed.err, "it was not given"


def test_a_group_is_cancelled_tagged_archived_exported_and_its_metrics_printed(
    trainer: TrainerClient, workspace: Workspace, tmp_path: Path
) -> None:
    """R10.4: what takes a run takes a group, of which it uses the runs in a state for it."""

    def submit(**config: Any) -> str:
        payload = scripted(**config)
        payload["metadata"]["group"] = "exp"
        return trainer.submit(payload).run_id

    done = ended(trainer, submit(steps=2)).run_id
    active = [submit(steps=100_000, dt=0.01) for _ in range(2)]
    wait_for(lambda: all(trainer.get_run(run_id).global_step for run_id in active), "their first steps")
    cancelled = mosaic(workspace, "cancel", "exp", "--json")
    assert sorted(view["run_id"] for view in cancelled.json) == sorted(active), "one had ended already"
    assert mosaic(workspace, "tag", "exp", "good").code == 0
    assert [view.tags for view in trainer.runs(group="exp")] == [("good",)] * 3
    rows = mosaic(workspace, "metrics", "exp", "--csv").out.splitlines()
    assert rows[0] == "run,tag,step,at,value"
    assert {row.partition(",")[0] for row in rows[1:]} == {done, *active}
    exported = mosaic(workspace, "export", "exp", "--csv", str(tmp_path / "all.csv"), "--json")
    assert [entry["files"] for entry in exported.json] == [[str(tmp_path / "all.csv")]] * 3
    assert (tmp_path / "all.csv").read_text().splitlines() == rows
    assert mosaic(workspace, "export", "exp", "--metrics", str(tmp_path / "all.json")).code == 0
    stored = json.loads((tmp_path / "all.json").read_text())
    assert [entry["run_id"] for entry in stored] == [done, *active]
    assert sum(len(series["values"]) for entry in stored for series in entry["metrics"].values()) == len(rows) - 1
    assert mosaic(workspace, "export", "exp", "--zip", str(tmp_path / "all.zip")).code == 0
    assert "3 runs: 1 succeeded, 2 cancelled." in mosaic(workspace, "runs", "--group", "exp").err
    assert mosaic(workspace, "archive", "exp").code == 0
    assert list(trainer.runs(group="exp")) == []
    refused = mosaic(workspace, "cancel", "exp")
    assert (refused.code, "No run or group 'exp'" in refused.err) == (2, True)
    asked = mosaic(workspace, "delete", done, *active)
    assert (asked.code, "Use --yes" in asked.err) == (2, True)
    assert mosaic(workspace, "archive", "exp", "--undo").code == 0
    assert mosaic(workspace, "delete", "exp", "--yes").code == 0
    assert list(trainer.runs(include_archived=True)) == []
    imported = mosaic(workspace, "import", str(tmp_path / "all.zip"), "--json")
    assert [view["run_id"] for view in imported.json] == [done, *active]
    assert {view.group for view in trainer.runs(include_archived=True)} == {"exp"}


def test_a_group_is_resumed_resubmitted_deleted_and_restored(
    trainer: TrainerClient, workspace: Workspace, plugins: Path
) -> None:
    """R10.4: what takes a run and not a group says so; new runs of a group keep their seeds."""

    def submit(**config: Any) -> str:
        payload = scripted(**config)
        payload["metadata"]["group"] = "exp"
        return trainer.submit(payload).run_id

    done = ended(trainer, submit(steps=2, seed=1)).run_id
    active = submit(steps=100_000, dt=0.01, seed=2)
    wait_for(lambda: trainer.get_run(active).global_step, "its first steps")
    assert mosaic(workspace, "cancel", "exp").code == 0
    assert trainer.get_run(active).outcome == "cancelled"
    resumed = mosaic(workspace, "resume", "exp", "--json")
    assert (resumed.code, resumed.json["run_id"]) == (0, active), resumed.err
    wait_for(lambda: trainer.get_run(active).stage == "running", "the resumed run")
    both = mosaic(workspace, "pause", done, active)
    assert (both.code, f"{done} has succeeded" in both.err) == (2, True), "the other is paused nevertheless"
    wait_for(lambda: trainer.get_run(active).stage == "paused", "the pause")
    assert mosaic(workspace, "cancel", "exp").code == 0
    refused = mosaic(workspace, "pause", "exp")
    assert (refused.code, refused.err.splitlines()[-1]) == (
        2,
        "No run of group 'exp' is in a state for this: 1 succeeded, 1 cancelled.",
    )
    for command in (("show", "exp"), ("logs", "exp"), ("note", "exp", "x"), ("config", "exp"), ("watch", "exp")):
        one = mosaic(workspace, *command)
        assert one.code == 2
        assert "'exp' is a group (2 runs), and one run is expected. List them: mosaic runs --group exp" in one.err

    python_path = environment(plugins)["PYTHONPATH"]
    unloadable = mosaic(workspace, "eval", done, PYTHONPATH=python_path)
    assert (unloadable.code, "The worker 'scripted' of run" in unloadable.err) == (2, True), unloadable.err
    for changes, words in (
        (("--set", "metadata.worker.config.steps=3"), "they differ in steps. Name one: --group NAME"),
        (("--set", "metadata.worker.config={}", "--group", "new"), "only 1 of the 2 new runs would differ"),
        (("--set", "metadata.nonsense=1", "--group", "new"), "metadata.nonsense: unknown key"),
    ):
        refused = mosaic(workspace, "resubmit", "exp", *changes, PYTHONPATH=python_path)
        assert (refused.code, words in refused.err) == (2, True), refused.err
    assert len(trainer.runs()) == 2
    changes = ("--set", "metadata.worker.config.steps=3", "--group", "new")
    again = mosaic(workspace, "resubmit", "exp", *changes, "--json", PYTHONPATH=python_path)
    assert [view["group"] for view in again.json] == ["new"] * 2, again.err
    assert [trainer.config(view["run_id"])["metadata"]["worker"]["config"]["seed"] for view in again.json] == [1, 2]
    for view in again.json:
        ended(trainer, view["run_id"])

    deleted = mosaic(workspace, "delete", "exp", "new", "--yes")
    assert "Undo: mosaic restore exp new" in deleted.err
    assert list(trainer.runs()) == []
    listed = mosaic(workspace, "restore", "--json")
    assert {run["run_id"]: run["group"] for run in listed.json} == {
        done: "exp", active: "exp", **{view["run_id"]: "new" for view in again.json},
    }  # fmt: skip
    unknown = mosaic(workspace, "restore", "nothing")
    assert (unknown.code, "No run or group 'nothing' in the trash" in unknown.err) == (2, True)
    assert mosaic(workspace, "restore", "exp", again.json[0]["run_id"][-6:]).code == 0
    assert {view.run_id for view in trainer.runs()} == {done, active, again.json[0]["run_id"]}
    assert "DAYS LEFT" in mosaic(workspace, "restore").out
    assert mosaic(workspace, "restore", "last").code == 0
    assert "is empty" in mosaic(workspace, "restore").err

    refused = mosaic(workspace, "resubmit", "new", "--seeds", "5-6", "--set", "seed=3", PYTHONPATH=python_path)
    assert (refused.code, "cannot both be given" in refused.err) == (2, True), refused.err
    seeded = mosaic(workspace, "resubmit", "new", "--seeds", "5-6", "--group", "five", "--json", PYTHONPATH=python_path)
    assert [view["seed"] for view in seeded.json] == [5, 5, 6, 6], "two settings: they differ in dt"
    assert {view["group"] for view in seeded.json} == {"five"}
    for view in seeded.json:
        ended(trainer, view["run_id"])


# --- before a run starts


def test_warnings_of_the_dry_run_are_printed_by_train_and_kept(trainer: TrainerClient, workspace: Workspace) -> None:
    result = mosaic(workspace, "train", "ppo", "--env-id", "CartPole-v1", *TINY[2:], "--total-timesteps", "80")
    warning = "total_timesteps: 80 is not a multiple of the 32 steps of an update, so 64 steps are trained."
    assert f"Warning: {warning}" in result.err
    assert result.code == 0
    assert trainer.get_run("last").warnings == (warning,)
    assert "64 steps are trained" in " ".join(mosaic(workspace, "show", "last").out.split())


def test_a_script_without_its_interpreter_is_refused_with_the_command(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "my_script.py").write_text("print(1)\n")
    result = mosaic(workspace, "run", "--", str(tmp_path / "my_script.py"), "--seed", "1")
    assert result.code == 2
    assert f"mosaic run -- python {tmp_path / 'my_script.py'} --seed 1" in result.err


def test_a_daemon_gets_the_options_of_daemon_start(workspace: Workspace) -> None:
    started = mosaic(workspace, "daemon", "start", "--max-runs", "3", "--port", "0", "--idle-s", "300", "--json")
    assert started.json["slots"]["runs"] == 3
    again = mosaic(workspace, "daemon", "start", "--max-runs", "5")
    assert (again.code, "--max-runs has no effect" in again.err) == (2, True)
    assert mosaic(workspace, "daemon", "stop").code == 0


def test_a_daemon_of_another_version_is_reported(trainer: TrainerClient, workspace: Workspace) -> None:
    content = json.loads(workspace.daemon_file.read_text())
    workspace.daemon_file.write_text(json.dumps(content | {"version": "0.0.1"}))
    assert "The daemon is of MOSAIC 0.0.1" in mosaic(workspace, "runs").err


def test_commands_work_with_a_trainer_of_another_machine(
    trainer: TrainerClient, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R10.3: by address and token, as the window does; what needs files of this machine is refused."""
    run_id = ended(trainer, trainer.submit(scripted(steps=2)).run_id).run_id
    content = json.loads(workspace.daemon_file.read_text())
    elsewhere = Workspace(tmp_path / "elsewhere")
    remote = ("--trainer", content["address"])
    monkeypatch.setenv("MOSAIC_TOKEN", content["token"])
    assert [view["run_id"] for view in mosaic(elsewhere, "runs", *remote, "--json").json] == [run_id]
    trained = mosaic(elsewhere, "train", "ppo", "--env-id", "CartPole-v1", *TINY, *remote)
    assert (trained.code, f"Trainer: {content['address']}" in trained.err) == (0, True)
    assert mosaic(elsewhere, "show", "last", *remote).out.startswith("Succeeded  ppo on CartPole-v1")
    assert mosaic(elsewhere, "daemon", "status", *remote, "--json").json["pid"] == content["process"]["pid"]
    for local in (("daemon", "stop"), ("doctor",), ("import", "x.zip")):
        refused = mosaic(elsewhere, *local, *remote)
        assert (refused.code, "leave out --trainer" in refused.err) == (2, True)
    monkeypatch.delenv("MOSAIC_TOKEN")
    assert "needs its token" in mosaic(elsewhere, "runs", *remote).err
    assert not elsewhere.root.exists()


# --- a workspace that is not there


@pytest.mark.parametrize("name", NEEDING_A_WORKSPACE)
def test_a_workspace_that_was_mistyped_is_not_created(name: str, workspace: Workspace, tmp_path: Path) -> None:
    arguments = [*name.split(), *("last" for _ in dict(ALL)[name])]
    extra = EXTRA | {"push": ["--repo", "a/b"], "prune": ["--videos"], "wandb sync": ["--all"]}
    arguments += [word.format(out=tmp_path) for word in extra.get(name, ()) if word != "--json"]
    result = mosaic(workspace, "--var", str(workspace.root), *arguments, "--json")
    assert (result.code, f"No workspace at {workspace.root}" in result.json["error"]) == (2, True), result
    assert "mosaic train" in result.err
    assert not workspace.root.parent.exists()


@pytest.mark.parametrize("variable", ["", "elsewhere"])
def test_the_default_workspace_of_a_new_machine_holds_nothing(
    variable: str, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("runs", "experiments", "sweeps", "leaderboard", "wandb status"):
        plain, result = (mosaic(workspace, *name.split(), *more, MOSAIC_VAR=variable) for more in ((), ("--json",)))
        assert (plain.code, result.code) == (0, 0), plain.err
        assert (result.json["runs"] if name == "wandb status" else result.json) == []
        assert "mosaic " in plain.err, "what to do first"
    refused = mosaic(workspace, "show", "last", MOSAIC_VAR=variable)
    assert (refused.code, f"No workspace at {tmp_path / (variable or 'var')}" in refused.err) == (2, True)
    assert not (tmp_path / (variable or "var")).exists()


# --- output


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_one_sentence(trainer: TrainerClient, workspace: Workspace) -> None:
    ended(trainer, trainer.submit(scripted(steps=2)).run_id)
    environment = {**os.environ, "MOSAIC_VAR": str(workspace.root)}
    for arguments in (("runs",), ("show", "last"), ("metrics", "last"), ("metrics", "last", "--csv"), ("algorithms",)):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run(
                [MOSAIC, *arguments], env=environment, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
            )
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == "The output cannot be written: No space left on device."
        assert "Traceback" not in done.stderr


def test_a_workspace_whose_path_is_not_utf8_is_refused(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff\xfe"
    done = subprocess.run([MOSAIC, "runs"], env={**os.environb, b"MOSAIC_VAR": folder}, capture_output=True, timeout=60)
    assert done.returncode == 2
    assert b"is not valid UTF-8" in done.stderr
    assert b"Traceback" not in done.stderr
