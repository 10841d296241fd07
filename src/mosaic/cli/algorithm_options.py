"""The flags of `mosaic train ALGO`, built from the algorithm's schema."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

from mosaic.cli.cli_context import CliContext, Command, common_options
from mosaic.cli.parameters import build_flag
from mosaic.cli.script_command import flag_value
from mosaic.contracts.errors import BadInput, unknown_name_error
from mosaic.contracts.options import CORE_GROUP, OPTIONS
from mosaic.contracts.setting_field import SettingField, parse_bool
from mosaic.submission.algorithm_schema import (
    Algorithm,
    get_algorithm,
    load_algorithms,
    load_algorithms_from,
)
from mosaic.submission.run_payloads import TRAIN_OPTION_NAMES, build_train_payload

Json = dict[str, Any]
CommandHandler = Callable[[CliContext, Algorithm, Json, str | None, bool], Any]
"""Door, algorithm, payload, seeds as written, whether to detach."""


class AlgorithmCommand(Command):
    """`train ppo` or `check ppo`: every setting of the algorithm, then those of the run.

    `own_cleanrl` locates an algorithm of the user's own, as keys of the config. It has only the flags that it states.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        handler: CommandHandler,
        is_check: bool = False,
        own_cleanrl: Mapping[str, str] | None = None,
    ) -> None:
        self.algorithm = algorithm
        self._own_cleanrl = dict(own_cleanrl or {})
        shown = {field.name: field for field in algorithm.fields}
        options = [OPTIONS[name] for name in TRAIN_OPTION_NAMES]
        core = [option for option in options if option.is_core]
        for_worker = [option for option in options if option.is_worker_option]
        for_run = [option for option in options if not option.is_core and not option.is_worker_option]
        if own_cleanrl is not None:
            core, for_worker = ([option for option in some if option.name in shown] for some in (core, for_worker))
        rest = [field for field in algorithm.fields if field.name not in TRAIN_OPTION_NAMES]
        sections: list[tuple[str | None, Sequence[SettingField]]] = [
            (CORE_GROUP, [shown.get(option.name, option) for option in core]),
            (None, rest),
            ("Tracking and recording", [shown.get(option.name, option) for option in for_worker]),
            ("", for_run),
        ]
        self.settings = [field for _, fields in sections for field in fields]
        flags = [
            build_flag(field, field.group if title is None else title) for title, fields in sections for field in fields
        ]
        super().__init__(
            algorithm.name,
            params=[*(_own_cleanrl_options() if own_cleanrl is not None else ()), *flags, *_start_options(is_check)],
            callback=self._invoke_handler,
            help=f"{algorithm.title}. {algorithm.summary}",
            short_help=algorithm.title,
        )
        self._handler = handler

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        flags = {field.flag[2:] for field in self.settings if field.type == "bool"}
        return super().parse_args(ctx, normalize_bool_flags(args, flags))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                title = getattr(param, "section", "") or "The run as a whole"
                sections.setdefault(title[:1].upper() + title[1:], []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records, col_max=34)

    def _invoke_handler(self, **values: Any) -> Any:
        ctx = click.get_current_context()
        given = {
            field.name: values[field.name]
            for field in self.settings
            if ctx.get_parameter_source(field.name) is ParameterSource.COMMANDLINE
        }
        if values["seeds"] is not None and "seed" in given:
            raise BadInput("--seed and --seeds cannot both be given.")
        defaults = {field.name: field.default for field in self.settings}
        payload = build_train_payload(self.algorithm.worker.id, self.algorithm.name, given, defaults)
        if self._own_cleanrl:
            payload["metadata"]["worker"]["config"].update(self._own_cleanrl)
        door = ctx.ensure_object(CliContext)
        return self._handler(door, self.algorithm, payload, values["seeds"], bool(values.get("detach")))


def _start_options(is_check: bool) -> list[click.Option]:
    seeds = click.Option(["--seeds"], metavar="LIST", help="One run for each seed: 1-5 or 1,3,7.")
    detach = click.Option(["--detach"], is_flag=True, help="Do not wait; the run continues in the background.")
    return [seeds] if is_check else [detach, seeds]


OWN_CLEANRL_KEYS = ("cleanrl", "cleanrl_python")


def parse_own_cleanrl(args: Sequence[str]) -> dict[str, str]:
    """The location of the user's own CleanRL, if these arguments name it, as absolute paths."""
    found = {name: flag_value(args, [name]) for name in OWN_CLEANRL_KEYS}
    # Not resolved: the interpreter of a virtual environment is a link to another one.
    own = {name: os.path.abspath(os.path.expanduser(path)) for name, path in found.items() if path}
    return own if "cleanrl" in own else {}


def _own_cleanrl_options() -> list[click.Option]:
    sentences = {
        "cleanrl": "A checkout of CleanRL, or an environment with it.",
        "cleanrl_python": "The interpreter that runs its scripts.  [default: the one next to them, else ours]",
    }
    return [
        click.Option([f"--{name.replace('_', '-')}"], metavar="PATH", expose_value=False, help=sentences[name])
        for name in OWN_CLEANRL_KEYS
    ]


def normalize_bool_flags(args: Sequence[str], bool_flags: Iterable[str]) -> list[str]:
    """`--anneal-lr False` and `--anneal-lr=false`, as older CleanRL scripts take them, become `--no-anneal-lr`."""
    known = set(bool_flags)
    plain: list[str] = []
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        name, equals, value = arg.partition("=")
        flag = name.removeprefix("--").replace("_", "-")
        if not name.startswith("--") or flag not in known:
            plain.append(arg)
            continue
        if not equals and rest and rest[0].lower() in ("true", "false"):
            equals, value = "=", rest.pop(0)
        try:
            is_on = parse_bool(value) if equals else True
        except ValueError:
            raise BadInput(f"{flag.replace('-', '_')}: {value!r} is neither true nor false.") from None
        plain.append(f"--{flag}" if is_on else f"--no-{flag}")
    return plain


class AlgorithmGroup(click.Group):
    """One command for each algorithm that a worker knows."""

    def __init__(self, handler: CommandHandler, is_check: bool, **attributes: Any) -> None:
        super().__init__(params=common_options(), subcommand_metavar="ALGORITHM [SETTINGS]…", **attributes)
        self._handler = handler
        self._is_check = is_check

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(load_algorithms())

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The flags of an algorithm of the user's own are known when its folder is."""
        own = parse_own_cleanrl(args)
        if own and args[0] in (found := load_algorithms_from(own["cleanrl"])):
            return args[0], AlgorithmCommand(found[args[0]], self._handler, self._is_check, own), args[1:]
        if own and ":" in args[0]:
            raise unknown_name_error("algorithm", args[0], found, own["cleanrl"])
        if ":" in args[0] and not ctx.resilient_parsing and args[0] not in load_algorithms():
            raise BadInput(f"{args[0]} is a script from your own CleanRL. Pass --cleanrl PATH.")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if ctx.resilient_parsing and cmd_name not in load_algorithms():
            return None
        return AlgorithmCommand(get_algorithm(cmd_name), self._handler, self._is_check)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Algorithms"):
            formatter.write_dl([(name, found.title) for name, found in sorted(load_algorithms().items())])
