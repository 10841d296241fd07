"""A wrong value of any flag is refused by the flag as it was written, never by a key of the config.

The flags are those of the commands themselves, of every algorithm that runs here; a real daemon and worker decide.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator, Mapping
from typing import Any

import click
import pytest
from tests.helpers import shared_daemon
from tests.helpers.commands import CommandResult
from tests.helpers.daemons import LiveDaemon, ended

import mosaic
from mosaic.base.algorithm_schema import load_algorithms
from mosaic.base.run_payloads import build_train_payload
from mosaic.cli.context import CliContext
from mosaic.cli.main import main
from mosaic.cli.parameters import SettingType
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.contracts.folder import WORKSPACE_VARIABLE
from mosaic.contracts.options import CONFIG_PATH
from mosaic.features.evaluate.cli import evaluate
from mosaic.features.play.cli import play
from mosaic.features.train.cli import AlgorithmCommand
from mosaic.features.train.cli import run as run_script
from mosaic.trainer.client.trainer_client import TrainerClient

plugins, workspace, live, trainer = shared_daemon.FIXTURES
pytestmark = pytest.mark.timeout(600)
"""Thousands of configs are checked."""

INTERNAL = re.compile(rf"LOG7\d\d|{CONFIG_PATH}|algo_params|metadata\.|artifacts\.|resources\.|schedule\.|evaluation\.")
NUMBERS = ("", "x", "-1", "0", "99", "1e30")
TEXTS = ("", "a:b", "\x01", "no:such-1", "é" * 200)
FREE_TEXTS = {"notes", "exp_name", "wandb_project_name", "wandb_entity", "wandb_run_name", "wandb_email", "hf_entity"}
FREE_TEXTS |= {"wandb_http_proxy", "wandb_https_proxy", "teacher_model_exp_name"}
"""Settings of which every text may be right."""
SHARED = {param.name for param in AlgorithmCommand(load_algorithms()["ppo"], lambda *_: None, is_check=True).params}


@pytest.fixture(scope="module", autouse=True)
def _checkers(live: tuple[LiveDaemon, TrainerClient]) -> None:
    """They last as long as the daemon, and would otherwise start during a test."""
    for worker in ("bdi", "play"):
        with contextlib.suppress(MosaicError):
            live[1].ask_worker(worker, {"ask": "environments"})


class Accepted(MosaicError):
    """The values may be right."""


class FlagContext(CliContext):
    """Checks what it would submit, and keeps its connection."""

    def __init__(self, trainer: TrainerClient) -> None:
        super().__init__()
        self._trainer = trainer

    def connect(self, may_start: bool = True) -> TrainerClient:
        return self._trainer

    def submit(self, payload: Mapping[str, Any], environment: Mapping[str, str] | None = None, *_: Any) -> Any:
        self._trainer.check(payload, environment)
        raise Accepted("It would be started.")

    def __exit__(self, *_: object) -> None:
        """The connection is that of the test."""


def call(trainer: TrainerClient, *words: str) -> CommandResult:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words, FlagContext(trainer))
    return CommandResult(code, out.getvalue(), err.getvalue())


def wrong_values(param: click.Parameter) -> tuple[str, ...]:
    kind = param.type.field.type if isinstance(param.type, SettingType) else ""
    is_number = kind in ("int", "float", "ints", "duration") or isinstance(
        param.type, click.IntRange | click.FloatRange
    )
    return NUMBERS if is_number else TEXTS


def spellings(command: click.Command) -> Iterator[tuple[click.Option, str]]:
    """Every way to write each of its options that take a value, but for those that all commands have."""
    for param in command.params:
        if isinstance(param, click.Option) and not param.is_flag and param.expose_value:
            yield from ((param, flag) for flag in param.opts if flag.startswith("--"))


def problems(trainer: TrainerClient, param: click.Option, flag: str, *words: str) -> list[str]:
    """What is wrong with the refusals of a flag; `words` are the command without it."""
    found, refused = [], 0
    at = 2 if words[0] == "check" else 1
    for value in wrong_values(param):
        result = call(trainer, *words[:at], f"{flag}={value}", *words[at:])
        refused += result.code == BadInput.exit_code
        is_good = result.code == BadInput.exit_code and re.search(rf"{flag}(?![\w-])", result.err)
        if result.code not in (0, Accepted.exit_code) and not (is_good and not INTERNAL.search(result.err)):
            found.append(f"{words} {flag} {value[:20]!r}: {result.code} {result.err[:300]!r}")
    if not refused and param.name not in FREE_TEXTS:
        found.append(f"{words} {flag} takes anything")
    return found


@pytest.mark.parametrize("algo", sorted(load_algorithms()))
def test_the_flags_of_an_algorithm_are_named(
    algo: str, trainer: TrainerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that ppo has, too, are tried with that."""
    command = AlgorithmCommand(load_algorithms()[algo], lambda *_: None, is_check=True)
    flags = [pair for pair in spellings(command) if algo == "ppo" or pair[0].name not in SHARED]
    monkeypatch.setattr("mosaic.features.train.cli.parse_own_cleanrl", lambda _: {})
    if not flags or call(trainer, "check", algo).code:
        pytest.skip("it has no flags of its own, or needs what is not here")
    found = [problem for param, flag in flags for problem in problems(trainer, param, flag, "check", algo)]
    assert found == [], "\n".join(found)


def test_the_flags_of_a_script_are_named(trainer: TrainerClient) -> None:
    found = [
        problem
        for param, flag in spellings(run_script)
        if param.name != "env_id_from"  # the script decides
        for problem in problems(trainer, param, flag, "run", "--", "true")
    ]
    assert found == [], "\n".join(found)


def test_the_flags_of_a_session_are_named(trainer: TrainerClient) -> None:
    found = [
        problem
        for param, flag in spellings(play)
        for problem in problems(
            trainer, param, flag, "play", "pettingzoo/tictactoe_v3" if "opponent" in flag else "CartPole-v1"
        )
    ]
    assert found == [], "\n".join(found)


def test_the_flags_of_an_evaluation_are_named(trainer: TrainerClient) -> None:
    settings = {"env_id": "CartPole-v1", "total_timesteps": 64, "num_envs": 2, "num_steps": 16}
    run_id = ended(trainer, trainer.submit(build_train_payload("cleanrl", "ppo", settings, {})).run_id).run_id
    found = [
        problem for param, flag in spellings(evaluate) for problem in problems(trainer, param, flag, "eval", run_id)
    ]
    assert found == [], "\n".join(found)


def test_python_names_the_keyword(trainer: TrainerClient, workspace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WORKSPACE_VARIABLE, str(workspace.root))
    wrong: dict[str, Any] = {
        "learning_rate": -1,
        "num_envs": "x",
        "gpus": 1e6,
        "tags": [""],
        "priority": 1000,
        "env_kwargs": {"nonsense": 1},
        "wrappers": ["nonsense"],
        "seed": -1,
    }
    assert [mosaic.check("ppo", "CartPole-v1", seed=seed).summary.seed for seed in (1, 7)] == [1, 7]
    for setting, value in wrong.items():
        with pytest.raises(BadInput) as refusal:
            mosaic.check("ppo", "CartPole-v1", **{setting: value})
        assert setting in [problem.setting for problem in refusal.value.problems], refusal.value
    with pytest.raises(BadInput) as refusal:
        mosaic.check("ppo", "Foo-v1")
    assert [problem.setting for problem in refusal.value.problems] == ["env_id"]
