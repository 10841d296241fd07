"""The flags of `mosaic train ALGO`, built from the algorithm's schema."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

from mosaic.cli.cli_context import CliContext, Command, common_options
from mosaic.cli.script_command import flag_value
from mosaic.contracts.errors import BadInput, unknown_name_error
from mosaic.submission.algorithm_schema import (
    DEFAULT_CORE_FIELDS,
    DEFAULT_EXTRA_FIELDS,
    Algorithm,
    SettingField,
    get_algorithm,
    load_algorithms,
    load_algorithms_from,
    parse_bool,
)
from mosaic.submission.run_payloads import CORE_FIELD_NAMES, SECTION_PATHS, RunOptions, build_train_payload

Json = dict[str, Any]
CommandHandler = Callable[[CliContext, Algorithm, Json, str | None, bool], Any]
"""Door, algorithm, payload, seeds as written, whether to detach."""


class SettingType(click.ParamType[Any]):
    """Parses one setting; an invalid value is explained in one sentence."""

    def __init__(self, field: SettingField) -> None:
        self.field = field
        self.name = {"int": "integer", "float": "number"}.get(field.type, "text")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self.field.parse(value) if isinstance(value, str) else value

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        choices = (self.field.constraints or {}).get("choices")
        return "|".join(map(str, choices)) if choices else self.name.upper()


class SettingOption(click.Option):
    """An option that belongs to a section of the help page."""

    section = ""


def build_setting_option(field: SettingField, section: str) -> click.Option:
    words = field.help.strip()
    if field.default is not None:
        shown = str(field.default).lower() if isinstance(field.default, bool) else field.default
        words = f"{words}  [default: {shown}]"
    flag = field.flag
    if field.type == "bool":
        option = SettingOption([field.name, f"{flag}/--no-{flag[2:]}"], default=None, help=words)
    else:
        option = SettingOption([field.name, flag], type=SettingType(field), help=words)
        if field.name == "env_id":
            option._custom_shell_complete = _complete_env_id
    option.section = section
    return option


def _complete_env_id(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from mosaic.cli.completion import env_ids

    return [env_id for env_id in env_ids(ctx) if env_id.startswith(incomplete)]


def build_run_options(is_check: bool) -> list[click.Option]:
    """Options of a run besides the settings of its algorithm."""
    option = click.Option
    options = [
        option(["--seeds"], metavar="LIST", help="One run for each seed: 1-5 or 1,3,7."),
        option(["--group"], metavar="NAME", help="The group of these runs.  [default: made from algorithm and time]"),
        option(["--tag", "tags"], multiple=True, metavar="TAG", help="A tag; can be given several times."),
        option(["--note"], metavar="TEXT", help="A note, for yourself."),
        option(["--run-name"], metavar="NAME", help="A name for the run."),
        option(
            ["--priority"], metavar="N", type=click.IntRange(-100, 100), help="Higher starts earlier.  [default: 0]"
        ),
        option(
            ["--max-seconds"],
            metavar="N",
            type=click.FloatRange(0, min_open=True),
            help="Stop the run after N seconds.",
        ),
        option(["--memory-mb"], metavar="N", type=click.IntRange(16), help="The most memory it may take."),
        option(
            ["--cpus"],
            metavar="N",
            type=click.IntRange(1),
            help="CPU threads it gets.  [default: chosen per algorithm]",
        ),
        option(["--gpus"], metavar="N", type=click.IntRange(0), help="GPUs it needs; it waits for them.  [default: 0]"),
        option(
            ["--keep-checkpoints"],
            metavar="N",
            type=click.IntRange(1),
            help="How many of the newest checkpoints to keep.",
        ),
        option(["--no-tensorboard"], is_flag=True, help="Write no TensorBoard events."),
    ]
    detach = option(["--detach"], is_flag=True, help="Do not wait; the run continues in the background.")
    return options if is_check else [detach, *options]


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
        core = [
            shown.get(name) or DEFAULT_CORE_FIELDS[name]
            for name in CORE_FIELD_NAMES
            if own_cleanrl is None or name in shown
        ]
        extra = [
            shown.get(field.name) or field
            for field in DEFAULT_EXTRA_FIELDS
            if own_cleanrl is None or field.name in shown
        ]
        rest = [
            field
            for field in algorithm.fields
            if field.name not in CORE_FIELD_NAMES and field.name not in SECTION_PATHS
        ]
        self.settings = [*core, *rest, *extra]
        options = [
            *(build_setting_option(field, "What to train") for field in core),
            *(build_setting_option(field, field.group) for field in rest),
            *(build_setting_option(field, "Tracking and recording") for field in extra),
            *(_own_cleanrl_options() if own_cleanrl is not None else ()),
        ]
        super().__init__(
            algorithm.name,
            params=[*options, *build_run_options(is_check)],
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
        wishes = RunOptions(
            run_name=values["run_name"],
            tags=values["tags"],
            notes=values["note"],
            group=values["group"],
            priority=values["priority"],
            max_seconds=values["max_seconds"],
            memory_mb=values["memory_mb"],
            cpus=values["cpus"],
            gpus=values["gpus"],
            keep_checkpoints=values["keep_checkpoints"],
            has_tensorboard=not values["no_tensorboard"],
        )
        defaults = {field.name: field.default for field in self.settings}
        payload = build_train_payload(self.algorithm.worker.id, self.algorithm.name, given, defaults, wishes)
        if self._own_cleanrl:
            payload["metadata"]["worker"]["config"].update(self._own_cleanrl)
        door = ctx.ensure_object(CliContext)
        return self._handler(door, self.algorithm, payload, values["seeds"], bool(values.get("detach")))


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
