"""The command `mosaic`: its table of commands, and what an error looks like.

A command's module is imported when the command is used: `mosaic --help` must stay instant.
"""

from __future__ import annotations

import errno
import importlib
import itertools
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from mosaic import __version__
from mosaic.base.features import PACKAGE, Command, features
from mosaic.base.files import DISK_ERRORS
from mosaic.cli import output
from mosaic.cli.context import INTERRUPTED_EXIT_CODE, CliContext, common_options
from mosaic.contracts.errors import (
    BadInput,
    ConfigRefused,
    FieldProblem,
    MosaicError,
    similar_names,
    unknown_name_error,
)
from mosaic.contracts.names import CLI_COMMAND, CLI_ERROR
from mosaic.contracts.options import CONFIG_PATH

PROGRAM_NAME = "mosaic"
STARTING_COMMANDS = ("train", "run", "submit", "eval", "play", "resubmit", "duel", "demo", "experiment")
"""Submit runs."""

OUTPUT_ERRORS = (errno.EPIPE, *DISK_ERRORS)
"""Of a write to stdout; an error of another file has its name."""

SECTIONS = ("Start here", "Train", "Play", "Inspect", "Control", "Organize", "MOSAIC itself")
"""The headings of `mosaic --help`, in their order."""
_COMMANDS = (
    Command(
        "gui", "Start here", 1, "gui_command:gui", "Open the workbench: train, watch and compare runs in a window."
    ),
    Command(
        "completion",
        "MOSAIC itself",
        6,
        "parameters:completion",
        "Print the script that completes commands in your shell.",
    ),
)


def _read_commands() -> dict[str, tuple[Command, str]]:
    """By name each command, with the module that has it."""
    rows = [(command, "mosaic.cli") for command in _COMMANDS]
    rows += [(command, f"{PACKAGE}.{name}") for name, feature in features().items() for command in feature.commands]
    rows.sort(key=lambda row: (SECTIONS.index(row[0].section), row[0].position))
    return {command.name: (command, package) for command, package in rows}


COMMANDS = _read_commands()


class LazyGroup(click.Group):
    """Knows its commands by name and sentence; imports one when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if (context := ctx.find_object(CliContext)) is not None:
            context.command_name = cmd_name
        row, package = COMMANDS[cmd_name]
        module, _, attribute = row.function.partition(":")
        command = getattr(importlib.import_module(f"{package}.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise unknown_name_error("command", args[0], COMMANDS)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title in SECTIONS:
            rows = [(name.ljust(width), row.summary) for name, (row, _) in COMMANDS.items() if row.section == title]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 120,
        # Users of CleanRL may write --learning_rate.
        "token_normalize_func": lambda token: token.replace("_", "-"),
    },
    params=common_options(),
    epilog="RUN is a run's id, the beginning or end of one, its name, or 'last'. "
    "Help for one command: mosaic train --help",
)
@click.version_option(__version__, message="mosaic %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """A workbench for reinforcement learning: pick, check, train, watch, evaluate, compare."""
    if ctx.invoked_subcommand is None:
        output.echo(ctx.get_help())


def main(argv: Sequence[str] | None = None, context: CliContext | None = None) -> int:
    """Runs one command and returns its exit code."""
    _open_closed_streams()
    if sys.platform == "win32":
        output.print_message("MOSAIC runs on Linux and macOS. On Windows, use it inside WSL 2.")
        return MosaicError.exit_code
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a character shows a question mark
    if hasattr(sys.stdin, "reconfigure") and not sys.stdin.isatty():
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")  # a file or another program's output
    context = context or CliContext()
    started = time.monotonic()
    with warnings.catch_warnings():
        warnings.showwarning = _print_warning
        code = _run_command(sys.argv[1:] if argv is None else list(argv), context)
    if context.command_name:
        context.log(CLI_COMMAND, command=context.command_name, exit_code=code, duration_s=time.monotonic() - started)
    return code


def _open_closed_streams() -> None:
    """A command may be started with `<&-` or `>&-`: it reads nothing there, and what it writes is dropped."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # which has the number of the closed one
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8"))


def _print_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: str | None = None,
) -> None:
    output.print_message(warnings.formatwarning(message, category, filename, lineno, line).rstrip())


def _run_command(arguments: list[str], context: CliContext) -> int:
    try:
        return _invoke(arguments, context)
    except OSError as error:
        # The interpreter must not fail when it flushes the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno != errno.EPIPE:  # the reader of the output has what it wanted
            with suppress(OSError):  # where stderr cannot be written either
                output.print_message(f"The output cannot be written: {error.strerror}.")
        return MosaicError.exit_code


def _invoke(arguments: list[str], context: CliContext) -> int:
    """Raises an OSError only where the output cannot be written."""

    def fail(message: str, code: int, problems: Sequence[FieldProblem] = (), details: str = "") -> int:
        if _wants_json(arguments, context):
            output.print_json(
                {
                    "error": message or "Interrupted.",
                    "problems": [{**problem._asdict(), "setting": problem.setting} for problem in problems],
                }
            )
        output.print_message(details or message)
        return code

    try:
        with context:
            code: Any = cli.main(arguments, PROGRAM_NAME, standalone_mode=False, obj=context)
            sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except MosaicError as error:
        context.log(CLI_ERROR, "warning", log_code=error.log_code, message=str(error))
        return fail(_name_flags(error, context, arguments), error.exit_code, error.problems)
    except click.UsageError as error:
        return fail(_format_usage_error(error), error.exit_code)
    except click.ClickException as error:
        return fail(error.format_message(), error.exit_code)
    except (KeyboardInterrupt, click.Abort, EOFError) as error:
        is_interrupted = isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt)
        is_early = is_interrupted and context.command_name in STARTING_COMMANDS and not context.has_submitted
        return fail("Interrupted. Nothing was started." if is_early else "", INTERRUPTED_EXIT_CODE)
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None and error.errno in OUTPUT_ERRORS:
            raise
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            return fail(f"This is no name of a file or run: {str(error.filename)[:100]!r}…", BadInput.exit_code)
        if isinstance(error, FileNotFoundError) and _is_in_deleted_folder():
            return fail("This shell is in a folder that was deleted. Change to another: cd DIR", BadInput.exit_code)
        details = traceback.format_exc().rstrip()
        context.log(CLI_ERROR, "error", message=details)
        return fail(f"{type(error).__name__}: {error}", MosaicError.exit_code, details=details)


def _name_flags(error: MosaicError, context: CliContext, arguments: Sequence[str]) -> str:
    """Return the message with flags, as they were written, in place of settings and of the config's keys."""
    text = str(error)
    words = [argument.removeprefix("--set=").partition("=") for argument in arguments]
    written = {word.replace("_", "-") for word, _, _ in words}
    flags = {
        name: next((one for one in spellings if one in written), spellings[0])
        for name, spellings in context.flags.items()
        if spellings
    }
    if context.command_name == "resubmit":
        flags |= {FieldProblem(key, "").setting: f"--set {key}" for key, equals, _ in words if equals}
    named = [(re.sub(r"(\.\d+)+$", "", problem.path), flags.get(problem.setting)) for problem in error.problems]
    if any(flag is None and CONFIG_PATH in path for path, flag in named) or not flags:
        return text  # it speaks of a config in a file
    text = text.removeprefix(f"{ConfigRefused.log_code} ")
    for path, flag in sorted(named, key=lambda pair: -len(pair[0])):
        if flag is not None and "." in path:
            text = re.sub(rf"{re.escape(path)}(\.\d+)*", flag, text)
    for name, flag in flags.items():
        is_word = "_" not in name or flag.startswith("--set ")  # which may stand in any sentence
        ending = "(?=:| =)" if is_word else r"(?![\w-])"
        text = re.sub(rf"(?<!--set )(?<![\w./-]){name}{ending}", flag, text)
        for other in context.flags.get(name, ()):
            text = re.sub(rf"{other}(?![\w-])", flag, text)
    first = next((flag for _, flag in named if flag in written or str(flag).startswith("--set ")), None)
    return text if first is None or any(flag in text for flag in flags.values()) else f"{first}: {text}"


def _wants_json(arguments: list[str], context: CliContext) -> bool:
    """Also where the arguments are refused before --json is reached. Those of a script are its own."""
    own = [] if context.command_name == "run" else itertools.takewhile(lambda word: word != "--", arguments)
    return context.is_json or "--json" in own


def _is_in_deleted_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _format_usage_error(error: click.UsageError) -> str:
    sentence = error.format_message()
    path = error.ctx.command_path if error.ctx is not None else PROGRAM_NAME
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        params = error.ctx.command.get_params(error.ctx)
        known = [flag.lstrip("-") for param in params for flag in param.opts if flag.startswith("--")]
        near = [f"--{name}" for name in similar_names(error.option_name.lstrip("-"), known)]
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        return f"No such option {error.option_name!r}.{hint} See: {path} --help"
    if isinstance(error, click.BadParameter) and error.param is not None:
        sentence = _describe_range(error.param, error.message) or sentence
    return f"{sentence.rstrip('.')}. See: {path} --help"


def _describe_range(param: click.Parameter, message: str) -> str:
    """`--lines must be a whole number of at least 0, not 'abc'` for click's `'abc' is not a valid integer range`."""
    from mosaic.contracts.setting_field import SettingField

    if not isinstance(param.type, click.IntRange | click.FloatRange):
        return ""
    bounds = {"ge": param.type.min, "le": param.type.max}
    kind = "int" if isinstance(param.type, click.IntRange) else "float"
    field = SettingField("", kind, constraints={name: value for name, value in bounds.items() if value is not None})
    return f"{max(param.opts, key=len)} must be {field.expected_values}, not {message.rpartition(' is not ')[0]}"
