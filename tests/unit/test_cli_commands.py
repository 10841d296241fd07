"""What the commands say, and how they end."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from tests.helpers.cli_trainer import FakeTrainer, call, finished, view
from tests.helpers.commands_by_kind import ALL

from mosaic import __version__
from mosaic.base.formatting import short_state
from mosaic.cli.main import COMMANDS
from mosaic.contracts.errors import ConfigRefused, MissingExtra, NotAllowed
from mosaic.contracts.folder import Workspace
from mosaic.contracts.views import MetricSeries, RunView, Verdict
from mosaic.trainer.client.trainer_client import Json

RUN = "01M7F4D1G10M14WJPB063GKCSW"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_without_a_daemon(name: str) -> None:
    result = call(None, name, "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Usage: mosaic {name}")


def test_mosaic_alone_shows_help() -> None:
    assert call(None).out == call(None, "--help").out


def test_the_version_is_printed() -> None:
    assert call(None, "--version").out == f"mosaic {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("trian",), 2, "No command 'trian'. Did you mean 'train'?"),
        (("runs", "--nosuch"), 2, "No such option '--nosuch'. See: mosaic runs --help"),
        (("train", "ppo", "--lr", "0.1"), 2, "No such option '--lr'. Did you mean --learning-rate or --anneal-lr? See"),
        (("train", "ppo", "--timesteps", "1"), 2, "Did you mean --total-timesteps?"),
        (("train", "sac"), 2, "Did you mean 'sac_atari' or 'sac_continuous_action'?"),
        (("train", "nosuch"), 2, "Known: a2c, bdi_q, c51, c51_atari,"),
        (("train", "trpo"), 2, "No algorithm 'trpo'. The nearest in purpose: 'ppo' or 'ppo_cont"),
        (("check", "TRPO"), 2, "The nearest in purpose: 'ppo' or 'ppo_continuous_action'. Known: a2c, bdi_q, c51"),
        (("algorithms", "iqn"), 2, "The nearest in purpose: 'qrdqn' or 'c51'."),
        (("runs", "--limit", "abc"), 2, "--limit must be a whole number of at least 1, not 'abc'. See: mosaic runs"),
        (("logs", "last", "-n", "-1"), 2, "--lines must be a whole number of at least 0, not -1. See: mosaic logs"),
        (
            ("watch", "last", "--rate", "x is not y"),
            2,
            "--rate must be a number of at least 0.5 and of at most 120,",
        ),
        (("eval", "last", "--episodes", "0"), 2, "--episodes must be a whole number of at least 1, not '0'."),
        (("show",), 2, "Missing argument 'RUN'"),
        (("runs", "--status", "tired"), 2, "'tired' is not one of"),
        (("runs",), 4, "No daemon runs."),
        (("export", "last"), 2, "Choose what to export"),
        (
            ("export", "last", "--png", "curve.pdf"),
            2,
            "--png curve.pdf: expected a name that ends in .png. For this name: --pdf curve.pdf",
        ),
        (("export", "last", "--svg", "curve"), 2, "--svg curve: expected a name that ends in .svg."),
        (("resume", "last", "--total-timesteps", "20q"), 2, "must be a whole number of at least 1, not '20q'."),
        (("submit", "/nowhere/x.json"), 2, "/nowhere/x.json cannot be read: No such file or directory."),
        (("resubmit", "last", "--set", "x"), 2, "expected key=value"),
        (("completion", "tcsh"), 2, "tcsh"),
        (("train", "ppo", "--preset", "cartpole"), 2, "No preset of ppo 'cartpole'."),
        (("train", "ppo", "--total-timesteps", "9" * 20), 2, "of at most 1,000,000,000,000, not '9999"),
    ],
)
def test_errors_are_one_sentence_with_the_right_exit_code(arguments: tuple[str, ...], code: int, words: str) -> None:
    result = call(None, *arguments)
    assert (result.code, result.out) == (code, "")
    assert words in result.err
    assert "Traceback" not in result.err


def test_the_workspace_may_be_named_before_and_after_the_command(tmp_path: Path) -> None:
    for arguments in (("--var", str(tmp_path), "runs"), ("runs", "--var", str(tmp_path))):
        assert str(tmp_path) in call(FakeTrainer(), *arguments).err
    for flags in (("--json", "runs"), ("runs", "--json")):
        assert call(FakeTrainer(), *flags).out == "[]\n"


def test_an_empty_list_shows_what_to_do() -> None:
    result = call(FakeTrainer(), "runs")
    assert (result.code, result.out) == (0, "")
    assert "Make one: mosaic train ppo" in result.err
    assert "matches" in call(FakeTrainer(), "runs", "--tag", "x").err


def test_runs_are_a_table_for_people_and_an_array_for_programs() -> None:
    one = finished(view(episodic_return=487.25, sps=12_345.6, global_step=1000, tags=["good"]))
    table = call(FakeTrainer(one), "runs").out
    assert [line.split() for line in table.splitlines()][1][:8] == [
        "3GKCSW", "succeeded", "ppo", "CartPole-v1", "1", "100%", "487.2", "12,346"
    ]  # fmt: skip
    assert json.loads(call(FakeTrainer(one), "runs", "--json").out) == [one.model_dump(mode="json")]


def test_a_long_list_is_cut_for_people_only() -> None:
    many = [view(f"01M7F4D1G1{number:04}0000") for number in range(40)]
    result = call(FakeTrainer(*many), "runs")
    assert len(result.out.splitlines()) == 31
    assert "mosaic runs --all" in result.err
    assert len(call(FakeTrainer(*many), "runs", "--all").out.splitlines()) == 41
    assert len(json.loads(call(FakeTrainer(*many), "runs", "--json").out)) == 40


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_no_line_of_the_table_is_wider_than_the_terminal(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    wide = view(algo="ppo_continuous_action", env_id="ALE/MontezumaRevenge-v5", tags=["a-long-tag", "another-tag"])
    out = call(FakeTrainer(wide), "runs").out
    assert len(out.splitlines()) == 2
    assert max(map(len, out.splitlines())) <= int(columns)


@pytest.mark.parametrize(("env_ids", "kept"), [(("CartPole-v1",) * 3, "SEED"), (("A-v1", "B-v1", "C-v1"), "ENV")])
def test_a_narrow_terminal_keeps_the_column_that_tells_runs_apart(
    env_ids: tuple[str, ...], kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "46")
    seeds = (1, 2, 3) if kept == "SEED" else (1, 1, 1)
    facts = {"global_step": 500, "sps": 12_345.6, "episodic_return": 487.25}
    runs = [
        finished(view(f"01M7F4D1G1{at}", env_id=env_id, seed=seed, **facts))
        for at, (env_id, seed) in enumerate(zip(env_ids, seeds, strict=True))
    ]
    header, *rows = call(FakeTrainer(*runs), "runs").out.splitlines()
    assert kept in header
    assert max(map(len, (header, *rows))) <= 46
    place = header.split().index(kept)
    assert [row.split()[place] for row in rows] == [str(one) for one in (seeds if kept == "SEED" else env_ids)]


@pytest.mark.parametrize("group", sorted({name.split()[0] for name, _ in ALL if " " in name}))
def test_no_summary_of_a_command_is_cut_off(group: str) -> None:
    shown = call(None, *group.split(), "--help").out
    assert "Commands:" in shown
    assert "..." not in shown.partition("Commands:")[2]


def test_a_name_from_elsewhere_cannot_break_the_table() -> None:
    """F41: an imported record may have any text as its environment."""
    lines = call(FakeTrainer(view(env_id="a\nb\x1b[2J"), view(RUN[:-1] + "X", env_id="日本")), "runs").out.splitlines()
    assert len(lines) == 3
    assert r"a\nb\x1b[2J" in lines[1]
    assert cell_len(lines[1].partition(" 1 ")[0]) == cell_len(lines[2].partition(" 1 ")[0])


def test_metrics_as_csv_have_all_their_digits() -> None:
    trainer = FakeTrainer(view())
    trainer.series = [MetricSeries("charts/a,b", [1, 2], [0.1, 0.2], [1 / 3, float("nan")])]
    result = call(trainer, "metrics", "last", "--csv")
    assert result.out == f'tag,step,at,value\n"charts/a,b",1,0.1,{1 / 3!r}\n"charts/a,b",2,0.2,nan\n'
    series = json.loads(call(trainer, "metrics", "last", "--json").out)["series"]
    assert series == {"charts/a,b": [[1, 0.1, 1 / 3], [2, 0.2, None]]}


def test_a_run_with_a_problem_is_marked_in_the_list() -> None:
    result = call(FakeTrainer(finished(view(), problem="journal.jsonl cannot be read")), "runs")
    assert "succeeded !" in result.out
    assert "! One run has files that cannot be read. See: mosaic show" in result.err


def test_an_unknown_metric_is_named_with_the_nearest() -> None:
    trainer = FakeTrainer(view())
    trainer.series = [MetricSeries("charts/SPS", [1], [0.1], [1.0])]
    result = call(trainer, "metrics", "last", "--tag", "charts/SP")
    assert result.code == 2
    assert "Did you mean 'charts/SPS'?" in result.err


def test_the_log_as_json_is_one_line() -> None:
    trainer = FakeTrainer(view())
    trainer.log_bytes = b"one\ntwo \xff\n"
    result = call(trainer, "logs", "last", "-n", "1", "--json")
    assert json.loads(result.out) == {"run_id": RUN, "stream": "stdout", "text": "two \ufffd\n"}


def test_tags_are_added_and_removed_in_every_spelling() -> None:
    trainer = FakeTrainer(view())
    call(trainer, "tag", "last", "+good", "better", "-old", "--remove", "older")
    (_, _, changes) = next(call for call in trainer.calls if call[0] == "annotate")
    assert (list(changes["add_tags"]), list(changes["remove_tags"])) == (["good", "better"], ["old", "older"])


def test_a_run_is_renamed() -> None:
    trainer = FakeTrainer(view(run_name="größeres Netz"))
    result = call(trainer, "rename", "last", "größeres Netz")
    assert ("annotate", RUN, {"run_name": "größeres Netz"}) in trainer.calls
    assert "is now named 'größeres Netz'" in result.out


def test_names_are_a_column_of_the_list_where_a_run_has_one() -> None:
    assert "NAME" not in call(FakeTrainer(view()), "runs").out
    listed = call(FakeTrainer(view(run_name="größeres Netz")), "runs").out
    assert "NAME" in listed
    assert "größeres Netz" in listed


def test_nothing_is_deleted_without_a_terminal_to_confirm(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull, encoding="utf-8") as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        trainer = FakeTrainer(finished(view()))
        result = call(trainer, "delete", "last")
        assert result.code == 2
        assert "--yes" in result.err
        assert "delete" not in [name for name, *_ in trainer.calls]
        result = call(trainer, "delete", "last", "--yes")
    assert ("delete", RUN) in trainer.calls
    assert "/trash/it's here" in result.out
    assert f"Undo: mosaic restore {RUN[-6:]}" in result.err


def test_show_names_the_worker_process_and_the_agent(tmp_path: Path) -> None:
    result = call(FakeTrainer(view(run_dir=str(tmp_path), worker_id="w-1", agent_id="a-1")), "show", "last")
    assert result.code == 0, result.err
    assert "w-1" in result.out
    assert "a-1" in result.out


def test_a_run_is_resubmitted_with_changes() -> None:
    """R1.3: from a run to its config and a new run."""
    trainer = FakeTrainer(view())
    trainer.config_json = {
        "metadata": {"worker": {"id": "cleanrl", "config": {"algo": "ppo", "seed": 1}}},
        "artifacts": {},
    }
    result = call(trainer, "resubmit", "last", "--set", "seed=2", "--set", "eval_repeat=true", "--set", "gamma=0.9")
    assert result.code == 0, result.err
    assert trainer.submitted[0]["metadata"]["worker"]["config"] == {
        "algo": "ppo",
        "seed": 2,
        "algo_params": {"gamma": 0.9},
    }
    assert trainer.submitted[0]["evaluation"] == {"repeat": True}


@pytest.mark.parametrize(
    ("arguments", "group", "words"),
    [
        (("--set", "seed=2", "--set", "priority=5", "--set", "gamma=0.99"), "g", ""),
        (
            ("--set", "gamma=0.9", "--set", "seed=2"),
            None,
            "not in group 'g': it differs in gamma. --group sets one.",
        ),
        (("--set", "env_id=Acrobot-v1"), None, "it differs in env_id."),
        (("--set", "gamma=0.9", "--group", "g"), "g", ""),
        (("--set", "gamma=0.9", "--set", "metadata.group=h"), "h", ""),
    ],
)
def test_a_run_with_other_settings_leaves_its_group(arguments: tuple[str, ...], group: str | None, words: str) -> None:
    trainer = FakeTrainer(view())
    config = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1}
    trainer.config_json = {"metadata": {"worker": {"id": "cleanrl", "config": config}, "group": "g"}, "artifacts": {}}
    result = call(trainer, "resubmit", "last", *arguments)
    assert result.code == 0, result.err
    assert trainer.submitted[0]["metadata"].get("group") == group
    assert words in result.err
    assert ("not in group" in result.err) == bool(words)


def test_nothing_of_a_group_is_submitted_where_one_of_its_runs_is_refused() -> None:
    class Refusing(FakeTrainer):
        def config(self, run: str) -> Json:
            config = {"algo": "dqn" if run == RUN else "ppo", "seed": 1}
            return {"metadata": {"worker": {"id": "cleanrl", "config": config}, "group": "g"}, "artifacts": {}}

        def check(self, payload: Json, *environment: Any) -> Verdict:
            if payload["metadata"]["worker"]["config"]["algo"] == "dqn":
                raise ConfigRefused("dqn has no setting clip_coef.")
            return Verdict()

    trainer = Refusing(view(group="g"), view(run_id=RUN[:-1] + "Z", group="g"))
    result = call(trainer, "resubmit", "g", "--set", "clip_coef=0.1", "--group", "h")
    assert (result.code, "dqn has no setting clip_coef." in result.err) == (2, True)
    assert trainer.submitted == []


def test_who_waits_for_a_cancelled_run_learns_that_it_is_saving_a_checkpoint() -> None:
    saving = view(stage="stopping", checkpoint_limit_s=600.0)

    class SavingTrainer(FakeTrainer):
        polls = 0

        def cancel_run(self, run: str) -> RunView:
            return saving

        def get_run(self, run: str) -> RunView:
            self.polls += 1
            return saving if self.polls < 4 else finished(saving, "cancelled", checkpoint_limit_s=None)

    result = call(SavingTrainer(view()), "cancel", view().run_id)
    assert (result.code, result.err.count("is saving a checkpoint; it has up to 10 minutes")) == (0, 1)
    assert "End it at once: mosaic cancel" in result.err
    assert short_state(saving.model_copy(update={"wait_reason": saving.checkpoint_wait})) == (
        "stopping: saving a checkpoint; it has up to 10 minutes"
    )


def test_a_run_that_ends_while_its_group_is_cancelled_does_not_keep_the_others_from_it() -> None:
    class Racing(FakeTrainer):
        def cancel_run(self, run: str) -> RunView:
            if run == RUN:
                self.views[run] = finished(self.views[run])
                raise NotAllowed("It has already ended.")
            return super().cancel_run(run)

    trainer = Racing(view(group="g"), view(run_id=RUN[:-1] + "Z", group="g"))
    result = call(trainer, "cancel", "g", "--json")
    assert (result.code, [one["outcome"] for one in json.loads(result.out)]) == (0, ["cancelled", "succeeded"])


def test_what_has_succeeded_is_extended_with_its_group_and_not_resumed() -> None:
    other = RUN[:-1] + "Z"
    done, stopped = view(group="g", checkpoint_step=512), view(run_id=other, group="g", checkpoint_step=512)
    trainer = FakeTrainer(finished(done), finished(stopped, "cancelled"))
    for arguments, resumed in ((), {other}), (("--total-timesteps", "2k"), {RUN, other}):
        trainer.calls.clear()
        result = call(trainer, "resume", "g", *arguments)
        assert result.code == 0, result.err
        assert {one[1] for one in trainer.calls if one[0] == "resume"} == resumed


def test_a_number_of_steps_is_written_the_same_way_everywhere() -> None:
    trainer = FakeTrainer(finished(view(checkpoint_step=512)))
    for text in ("20k", "2e4", "20,000", "20000"):
        result = call(trainer, "resume", "last", "--total-timesteps", text)
        assert result.code == 0, result.err
        assert trainer.calls[-1] == ("resume", RUN, 20_000)


def test_last_of_watch_is_a_run_that_has_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mosaic.features.watch.cli._frame_source_factory", lambda *_: lambda envs: None)
    monkeypatch.setattr("mosaic.features.watch.cli._save_video", lambda *_: None)
    old, running, newest = (f"{RUN[:-1]}{number}" for number in (1, 2, 3))
    trainer = FakeTrainer(view(newest, stage="queued", wait_reason="2 of 2 slots busy, place 1"), view(running))
    result = call(trainer, "watch", "last", "--save", "x.mp4")
    assert f"The run 'last' is {running[-6:]}, ppo on CartPole-v1, running." in result.err.replace(", seed 1", "")
    trainer.views[running] = finished(trainer.views[running])
    trainer.views[old] = view(old, stage="queued")
    result = call(trainer, "watch", "last", "--save", "x.mp4")
    assert f"Run {newest[-6:]} is queued (2 of 2 slots busy, place 1): there are no frames before it runs" in result.err


def test_an_evaluation_needs_a_checkpoint_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "512").mkdir(parents=True)
    (tmp_path / "checkpoints" / "512" / "manifest.json").touch()
    result = call(FakeTrainer(view(run_dir=str(tmp_path))), "eval", "last", "--checkpoint", "best")
    assert result.code == 2
    assert "It has those of steps 512." in result.err


def test_completion_scripts_name_the_program() -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_MOSAIC_COMPLETE" in call(None, "completion", shell).out


def test_a_daemon_in_the_foreground_does_not_end_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R2.7: the daemon starts by itself, once."""
    idle_timeouts = []

    class FakeDaemon:
        def __init__(self, workspace: Workspace, slots: object, port: int, idle_s: float, *_: object) -> None:
            idle_timeouts.append(idle_s)

        def run(self) -> None:
            pass

    monkeypatch.setattr("mosaic.trainer.__main__.Daemon", FakeDaemon)
    monkeypatch.setattr("mosaic.trainer.__main__.configure_logging", lambda _: None)
    result = call(FakeTrainer(), "--var", str(tmp_path), "daemon", "run")
    assert result.code == 0
    assert f"Its log: {tmp_path / 'logs' / 'trainer.log'}" in result.err
    assert idle_timeouts == [float("inf")]


def test_commands_and_their_errors_are_in_the_log_of_the_workspace(tmp_path: Path) -> None:
    """R1.2: `logs/cli.log` has a line per command; a workspace that does not exist is not created for it."""
    arguments = ("--var", str(tmp_path / "var"))
    assert call(FakeTrainer(view("01A")), "show", "nosuch", *arguments).code == 2
    assert not (tmp_path / "var").exists()
    (tmp_path / "var" / "logs").mkdir(parents=True)
    assert call(FakeTrainer(view("01A")), "show", "nosuch", *arguments).code == 2
    error, command = map(json.loads, (tmp_path / "var" / "logs" / "cli.log").read_text().splitlines())
    assert (error["event"], error["level"], error["log_code"]) == ("cli_error", "warning", "LOG706")
    assert (command["event"], command["topic"], command["command"], command["exit_code"]) == (
        "cli_command", "cli.command", "show", 2,
    )  # fmt: skip


def test_a_daemon_is_not_started_with_an_executor_that_it_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "submitit" else find(name, *rest)
    )
    for variable, options in ((None, ("--executor", "slurm")), ("slurm", ())):
        if variable is not None:
            monkeypatch.setenv("MOSAIC_EXECUTOR", variable)
        result = call(None, "daemon", "start", *options)
        assert (result.code, result.err) == (
            MissingExtra.exit_code,
            "Runs on slurm need the extra 'slurm': pip install 'mosaic-rl[slurm]'.\n",
        )
