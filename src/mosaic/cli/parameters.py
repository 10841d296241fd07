"""The arguments and flags that commands share, what they complete to in a shell, and `mosaic completion`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mosaic.base import formatting
from mosaic.cli import output
from mosaic.cli.context import CliContext, command
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.contracts.options import OPTIONS
from mosaic.contracts.setting_field import SettingField
from mosaic.trainer.client.run_lookup import LAST, Fits, resolve_run, resolve_runs

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView
    from mosaic.trainer.client.trainer_client import TrainerClient

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])
COMPLETE_VARIABLE = "_MOSAIC_COMPLETE"
INSTALL_COMMANDS = {
    "bash": "mosaic completion bash > ~/.local/share/bash-completion/completions/mosaic",
    "zsh": "mosaic completion zsh > ~/.zfunc/_mosaic    (with ~/.zfunc in fpath before compinit)",
    "fish": "mosaic completion fish > ~/.config/fish/completions/mosaic.fish",
}
COMPLETION_HELP = "Prints the script that completes commands, settings and runs in your shell.\n\n\b\n" + "\n".join(
    f"{shell + ':':<5} {line}" for shell, line in INSTALL_COMMANDS.items()
)
MAX_RUNS_OFFERED = 50
FURTHER_FLAGS = {"run_name": ("--name",), "wrappers": ("--wrapper",)}
"""By option: other spellings of its flag."""


# --- completion


TRUST_HELP = "Execute what the config of an imported run would execute: its program, or the module of its environment."


def _completer(list_names: Callable[[TrainerClient], list[str]], *always: str) -> Callable[..., list[Any]]:
    """Completes to names from the daemon, where one is running: pressing Tab does not start one."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[Any]:
        names = list(always)
        try:
            with (ctx.find_object(CliContext) or CliContext()).connect(may_start=False) as trainer:
                names += list_names(trainer)
        except MosaicError:
            pass
        return [name for name in names if name.startswith(incomplete) and name.isprintable()]

    return complete


def _run_completer(has_groups: bool, fits: Fits | None) -> Callable[..., list[Any]]:
    """Completes to ids, names and groups of the newest runs that fit the command."""

    def list_names(trainer: TrainerClient) -> list[str]:
        views = [view for view in trainer.runs(limit=MAX_RUNS_OFFERED) if fits is None or fits(view)]
        names = [view.run_name for view in views] + ([view.group for view in views] if has_groups else [])
        # A shell would split a name at its spaces.
        words = dict.fromkeys(name for name in names if name and not re.search(r"\s", name))
        return [view.run_id for view in views] + list(words)

    return _completer(list_names, LAST)


_complete_env_id = _completer(lambda trainer: [env.id for env in trainer.environments("cleanrl") if env.is_installed])


@command(has_json=False, help=COMPLETION_HELP)
@click.argument("shell", type=click.Choice(list(INSTALL_COMMANDS)), required=False)
def completion(shell: str | None) -> None:
    from click.shell_completion import get_completion_class

    from mosaic.cli.main import PROGRAM_NAME, cli

    shell = shell or Path(os.environ.get("SHELL", "")).name
    kind = get_completion_class(shell) if shell in INSTALL_COMMANDS else None
    if kind is None:
        raise BadInput(f"Your shell ({shell or 'unknown'}) is none of {', '.join(INSTALL_COMMANDS)}; name one of them.")
    source = kind(cli, {}, PROGRAM_NAME, COMPLETE_VARIABLE)
    output.echo(source.source_template % source.source_vars())
    output.print_message(f"To install it: {INSTALL_COMMANDS[shell]}")


# --- runs


def run_argument(
    name: str = "run", metavar: str = "RUN", required: bool = True, fits: Fits | None = None
) -> Callable[[Any], Any]:
    """An argument that names a run; a shell completes it to runs that fit."""
    shown = metavar if required else f"[{metavar}]"
    complete = _run_completer("GROUP" in metavar, fits)
    return click.argument(name, metavar=shown, required=required, shell_complete=complete)


def runs_argument(required: bool = True, fits: Fits | None = None) -> Callable[[Any], Any]:
    shown = "RUN|GROUP…" if required else "[RUN|GROUP…]"
    complete = _run_completer(True, fits)
    return click.argument("runs", metavar=shown, nargs=-1, required=required, shell_complete=complete)


def is_active(view: RunView) -> bool:
    return view.stage != "finished"


def is_running(view: RunView) -> bool:
    return view.stage == "running"


def has_ended(view: RunView) -> bool:
    return view.stage == "finished"


def find_run(context: CliContext, name: str, fits: Fits | None = None) -> RunView:
    """Return the run that a user names; of `last`, print which one that is: the newest that fits the command."""
    view = resolve_run(context.trainer(), name, fits)
    _print_if_last(name, view)
    return view


def find_current_runs(context: CliContext, name: str, fits: Fits | None = None) -> list[RunView]:
    """Return the same for one name; of a group, without runs that later ones of their experiment replaced."""
    from mosaic.trainer.client.run_lookup import split_superseded

    views = find_runs(context, [name], fits)
    return split_superseded(views)[0] if len(views) > 1 else views


def find_runs(
    context: CliContext,
    names: Sequence[str],
    fits: Fits | None = None,
    include_archived: bool = False,
    is_last_newest: bool = False,
) -> list[RunView]:
    """Return the runs that a user names, by ids, names, groups or `last`; of a group, those that fit the command.

    Every command that takes RUN|GROUP calls this, so that a name means the same in all of them. One that removes
    something sets `is_last_newest`, and refuses the newest run where that has not ended.
    """
    views = resolve_runs(context.trainer(), names, fits, include_archived, is_last_newest)
    for name in names:
        if name.lower() == LAST and len(names) == 1:
            _print_if_last(name, views[0])
    return views


def _print_if_last(name: str, view: RunView) -> None:
    if name.lower() == LAST:
        run = f"{formatting.short_id(view.run_id)}, {formatting.run_description(view)}, {view.status}"
        output.print_message(f"The run {name!r} is {run}.")


# --- options of a run and settings of an algorithm


class SettingType(click.ParamType[Any]):
    """Parses one setting; an error names it and what was expected."""

    def __init__(self, field: SettingField) -> None:
        self.field = field
        self.name = {
            "int": "integer",
            "float": "number",
            "name": "name",
            "names": "name",
            "ints": "integers",
            "duration": "duration",
            "mapping": "name=value",
        }.get(field.type, "text")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        flag = max(param.opts, key=len) if param is not None else ""
        return self.field.parse(value, flag) if isinstance(value, str) else value

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        choices = (self.field.constraints or {}).get("choices")
        return "|".join(map(str, choices)) if choices else self.name.upper()


COUNT = SettingType(SettingField("", "int", constraints={"ge": 1}))
"""A number of steps or episodes: 20000, 20k, 2e4 or 20,000."""
DURATION = SettingType(SettingField("", "duration", constraints={"ge": 0.1}))
"""Seconds: 90, 90s, 30m, 2h, 1d or 1w."""
ENV_KWARGS = SettingType(SettingField("", "mapping"))
"""Settings of an environment: is_slippery=false, or JSON."""


class SettingOption(click.Option):
    """An option that belongs to a section of the help page."""

    section = ""


def build_flag(field: SettingField, section: str = "") -> click.Option:
    help_text = field.help.strip()
    if field.default is not None:
        shown = str(field.default).lower() if isinstance(field.default, bool) else field.default
        if field.type == "ints":
            shown = ",".join(map(str, field.default))
        help_text = f"{help_text}  [default: {shown}]"
    flag = field.flag
    flags = [flag, *FURTHER_FLAGS.get(field.name, ())]
    if field.type == "bool":
        option = SettingOption([field.name, f"{flag}/--no-{flag[2:]}"], default=None, help=help_text)
    elif field.type == "wrappers":
        option = SettingOption(
            [field.name, *reversed(flags)],
            type=SettingType(field),
            multiple=True,
            callback=lambda _, __, values: [wrapper for value in values for wrapper in value or ()] or None,
            help=f"{help_text} Can be given several times.",
        )
    elif field.type == "names":
        option = SettingOption(
            [field.name, flag], multiple=True, metavar="NAME", help=f"{help_text} Can be given several times."
        )
    else:
        complete = _complete_env_id if field.name == "env_id" else None
        option = SettingOption([field.name, *flags], type=SettingType(field), help=help_text, shell_complete=complete)
    option.section = section
    return option


def run_options(*names: str) -> Callable[[AnyFunction], AnyFunction]:
    """A decorator that adds the flags of these options to a command, in this order."""

    def decorate(function: AnyFunction) -> AnyFunction:
        params = getattr(function, "__click_params__", [])
        function.__click_params__ = [*params, *(build_flag(OPTIONS[name]) for name in reversed(names))]  # type: ignore[attr-defined]
        return function

    return decorate
