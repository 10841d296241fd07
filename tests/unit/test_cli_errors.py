"""Every error is one sentence for people, and with --json one object for programs, with the same exit code."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.helpers.cli_trainer import CommandResult, FakeTrainer, call, view
from tests.helpers.commands_by_kind import ALL

from mosaic.cli.context import CliContext
from mosaic.cli.main import _name_flags
from mosaic.contracts.errors import BadInput, ConfigRefused, FieldProblem, MosaicError, RunEnded, UnknownName


def error_of(result: CommandResult) -> dict[str, Any]:
    """The only line of stdout."""
    (line,) = result.out.splitlines()
    error = json.loads(line)
    assert set(error) == {"error", "problems"}
    return dict(error)


class FailingTrainer(FakeTrainer):
    """Fails in every command that looks for a run."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(view())
        self._error = error

    def get_run(self, run: str) -> Any:
        raise self._error


@pytest.mark.parametrize("name", [name for name, _ in ALL])
def test_arguments_that_no_command_has_are_refused_as_json(name: str) -> None:
    """Before --json is reached, and where the command has no such option itself."""
    words = [name] if name == "run" else [*name.split(), "--no-such-option"]  # what follows a script belongs to it
    plain, result = call(None, *words), call(None, *words, "--json")
    assert plain.out == ""
    assert result.code == plain.code == BadInput.exit_code
    assert error_of(result)["error"] == result.err.strip()


@pytest.mark.parametrize("name", [name for name, parameters in ALL if {"run", "runs", "one"} & set(parameters)])
def test_a_run_that_does_not_exist_is_refused_as_json(name: str) -> None:
    """By every command that takes one, whichever options it has."""
    parameters = dict(ALL)[name]
    words = [*name.split(), *("X" for _ in parameters), *(["--csv", "x"] if name == "export" else [])]
    plain, result = (call(FailingTrainer(UnknownName("No run 'X'.")), *words, *more) for more in ((), ("--json",)))
    assert plain.out == ""
    assert result.code == plain.code == BadInput.exit_code
    assert error_of(result)["error"] in result.err


@pytest.mark.parametrize("words", [("nocommand", "--json"), ("--json", "train", "pppo"), ("train", "pppo", "--json")])
def test_an_unknown_name_is_refused_as_json(words: tuple[str, ...]) -> None:
    result = call(None, *words)
    assert result.code == BadInput.exit_code
    assert "Did you mean" in error_of(result)["error"] or "No command" in error_of(result)["error"]


def test_what_a_script_is_given_is_not_for_us() -> None:
    result = call(None, "run", "my_script.py", "--json")
    assert "is not a program" in result.err
    assert result.out == ""


@pytest.mark.parametrize("error", [BadInput("No."), RunEnded("It failed."), MosaicError("Broken.")])
def test_an_error_has_the_same_exit_code_as_json(error: MosaicError) -> None:
    plain, result = (call(FailingTrainer(error), "show", "X", *more) for more in ((), ("--json",)))
    assert (plain.out, plain.err) == ("", f"{error}\n")
    assert result.code == plain.code == error.exit_code
    assert error_of(result) == {"error": str(error), "problems": []}


def test_the_problems_of_a_config_are_named_by_field() -> None:
    refusal = ConfigRefused("LOG705 seed: expected a number.", [FieldProblem("seed", "expected a number")])
    result = call(FailingTrainer(refusal), "show", "X", "--json")
    assert error_of(result)["problems"] == [{"path": "seed", "problem": "expected a number", "setting": "seed"}]


def test_an_interrupt_is_said_as_json() -> None:
    result = call(FailingTrainer(KeyboardInterrupt()), "show", "X", "--json")
    assert (result.code, error_of(result)["error"]) == (130, "Interrupted.")


def test_a_bug_shows_its_traceback_and_is_an_object_all_the_same() -> None:
    """What the traceback quotes cannot control the terminal either."""
    result = call(FailingTrainer(RuntimeError("\x1b[2J")), "show", "X", "--json")
    assert result.code == 1
    assert error_of(result)["error"] == "RuntimeError: \x1b[2J"
    assert "Traceback (most recent call last)" in result.err
    assert result.err.endswith("RuntimeError: \\x1b[2J\n")


def test_a_refusal_names_the_flag_where_flags_were_given() -> None:
    """As it was written. The keys of a config are for whoever wrote one."""
    path = "metadata.worker.config.algo_params.learning_rate"
    problems = [FieldProblem(path, "expected a number"), FieldProblem("resources.gpus.requested", "there is none")]
    refusal = ConfigRefused(f"LOG705 The config was refused: {path}: expected a number.", problems)
    assert [problem.setting for problem in problems] == ["learning_rate", "gpus"]
    assert FieldProblem("metadata.tags.0", "").setting == "tags"
    context = CliContext()
    assert _name_flags(refusal, context, ["x.json"]) == str(refusal)
    context.flags = {"learning_rate": ["--learning-rate"], "gpus": ["--gpus"], "run_name": ["--run-name", "--name"]}
    assert _name_flags(refusal, context, []) == "The config was refused: --learning-rate: expected a number."
    named = BadInput("--run-name must be a line of text.", [FieldProblem("run_name", "")])
    assert _name_flags(named, context, ["--name=x"]) == "--name must be a line of text."
    several = BadInput("learning_rate = 3 needs run_name; gpus: 1.", [FieldProblem("learning_rate", "")])
    assert _name_flags(several, context, []) == "--learning-rate = 3 needs --run-name; --gpus: 1."
    unnamed = BadInput("No such thing.", [FieldProblem("gpus", "")])
    assert _name_flags(unnamed, context, ["--gpus=3"]) == "--gpus: No such thing."
    assert _name_flags(unnamed, context, []) == "No such thing.", "nobody wrote the flag"
