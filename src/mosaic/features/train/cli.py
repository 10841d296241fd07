"""`mosaic train`, `check` and `submit`: from settings or a file to runs."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mosaic.base import formatting
from mosaic.base.algorithm_schema import (
    Algorithm,
    find_installed_scripts,
    get_algorithm,
    load_algorithms,
    open_script_folder,
    unknown_algorithm_error,
)
from mosaic.base.caller_environment import caller_environment, imported_modules
from mosaic.base.limited_json import MAX_BYTES
from mosaic.base.run_payloads import (
    PROBE_PARTS,
    TRAIN_OPTION_NAMES,
    UNCHECKED_MESSAGE,
    build_payload,
    default_group_name,
    flag_value,
    parse_seeds,
    script_config,
    verdict_rows,
    with_seed,
)
from mosaic.base.user_presets import Preset, find_preset
from mosaic.cli import output
from mosaic.cli.context import CliContext, Command, command, common_options, pass_context
from mosaic.cli.parameters import COUNT, build_flag, run_options
from mosaic.cli.submission import submit_many, submit_run
from mosaic.contracts.errors import BadInput, MosaicError, NotTrusted, problems_of
from mosaic.contracts.options import CORE_GROUP, OPTIONS
from mosaic.contracts.setting_field import SettingField, parse_bool
from mosaic.features.train.core import earlier_runs, estimate_run

if TYPE_CHECKING:
    from mosaic.contracts.views import Verdict

CommandHandler = Callable[[CliContext, Algorithm, dict[str, Any], str | None, bool], Any]
"""Takes the context, the algorithm, the payload, the seeds as written, and whether to detach."""
USER_CLEANRL_PREFIX = "cleanrl:"
FILE_TRUST_HELP = "Import the modules that the file names."
OWN_CLEANRL_FLAGS = {
    "cleanrl": "A checkout of CleanRL, or an environment with it.",
    "cleanrl_python": "The interpreter that runs its scripts.  [default: the one next to them, else ours]",
}


# --- one command for each algorithm


class AlgorithmCommand(Command):
    """`train ppo` or `check ppo`: every setting of the algorithm, then those of the run.

    A script of the user's CleanRL has only the flags that it states.
    """

    def __init__(self, algorithm: Algorithm, handler: CommandHandler, is_check: bool = False) -> None:
        self.algorithm = algorithm
        stated = {field.name: field for field in algorithm.fields}
        options = [OPTIONS[name] for name in TRAIN_OPTION_NAMES]
        for_run = [option for option in algorithm.run_options if option.has_flag]
        if algorithm.is_user_script:
            options = [option for option in options if option.name in stated]
        core = [stated.get(option.name, option) for option in options if option.is_core]
        rest = [field for field in algorithm.fields if field.name not in TRAIN_OPTION_NAMES]
        for_worker = [stated.get(option.name, option) for option in options if option.is_worker_option]
        self.settings: list[SettingField] = [*core, *rest, *for_worker, *for_run]
        flags = [build_flag(field, CORE_GROUP) for field in core]
        flags += [build_flag(field, field.group) for field in rest]
        flags += [build_flag(field, "Tracking and recording") for field in for_worker]
        flags += [build_flag(field) for field in for_run]
        own_flags = [
            click.Option([f"--{name.replace('_', '-')}"], metavar="PATH", expose_value=False, help=help_text)
            for name, help_text in OWN_CLEANRL_FLAGS.items()
            if algorithm.is_user_script
        ]
        detach = click.Option(["--detach"], is_flag=True, help="Do not wait; the run continues in the background.")
        seeds = click.Option(["--seeds"], metavar="LIST", help="One run for each seed: 1-5 or 1,3,7.")
        help_text = "Begin with the settings of a preset, which other flags change. List them: mosaic presets."
        preset = click.Option(["--preset"], metavar="NAME", help=help_text)
        super().__init__(
            algorithm.name,
            params=[*own_flags, *flags, *(() if is_check else (detach,)), seeds, preset],
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
                sections.setdefault(formatting.capitalize_first(title), []).append(record)
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
        seeds = values["seeds"]
        if seeds is not None and "seed" in given:
            raise BadInput("--seed and --seeds cannot both be given.")
        preset = Preset(self.algorithm.worker.id, self.algorithm.name)
        if values["preset"] is not None:
            with problems_of("preset"):
                preset = find_preset(values["preset"], preset.worker, preset.algorithm)
        if seeds is None and "seed" not in given:
            seeds = preset.seeds
        payload = preset.build_payload(given, {field.name: field.default for field in self.settings})
        payload["metadata"]["worker"]["config"].update(self.algorithm.location)
        return self._handler(ctx.ensure_object(CliContext), self.algorithm, payload, seeds, bool(values.get("detach")))


def parse_own_cleanrl(args: Sequence[str]) -> dict[str, str]:
    """The location of the user's own CleanRL, if these arguments name it, as absolute paths."""
    paths = {name: flag_value(args, [name]) for name in OWN_CLEANRL_FLAGS}
    # Not resolved: the interpreter of a virtual environment is a link to another one.
    return {name: os.path.abspath(os.path.expanduser(path)) for name, path in paths.items() if path}


def _unknown_script_error(algo: str, known: Iterable[str], own: Mapping[str, str]) -> MosaicError:
    """A script that states no settings is there, but cannot be started by its name."""
    name = f"{algo.rpartition(':')[2]}.py"
    for path in (Path(own["cleanrl"], "cleanrl", name), Path(own["cleanrl"], name)):
        if path.is_file():
            python = own.get("cleanrl_python", "python")
            return BadInput(
                f"{algo}: {path} has no class Args that declares its settings, so MOSAIC cannot set them. "
                f"Start it as a script: {shlex.join(['mosaic', 'run', '--', python, str(path)])}"
            )
    return unknown_algorithm_error(algo, known, own["cleanrl"])


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
        """A script of the user's CleanRL is found in the folder that the arguments name, else in an installed one."""
        own = parse_own_cleanrl(args)
        is_ours = args[0] in load_algorithms()
        scripts = None
        if "cleanrl" in own:
            scripts = open_script_folder(own["cleanrl"])
        elif not is_ours and (scripts := find_installed_scripts(own.get("cleanrl_python"))):
            name = f"{USER_CLEANRL_PREFIX}{args[0].removeprefix('cleanrl.').removeprefix(USER_CLEANRL_PREFIX)}"
            args = [name if name in scripts.names else args[0], *args[1:]]
        if scripts and args[0] in scripts.names:
            return args[0], AlgorithmCommand(scripts.load(args[0], **own), self._handler, self._is_check), args[1:]
        if scripts and ":" in args[0]:
            raise _unknown_script_error(args[0], scripts.names, {"cleanrl": scripts.path, **own})
        if ":" in args[0] and not ctx.resilient_parsing and not is_ours:
            raise BadInput(
                f"{args[0]} is a script from your own CleanRL, and no installed package cleanrl has it. "
                "Pass --cleanrl PATH."
            )
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if ctx.resilient_parsing and cmd_name not in load_algorithms():
            return None
        return AlgorithmCommand(get_algorithm(cmd_name), self._handler, self._is_check)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Algorithms"):
            formatter.write_dl([(name, algorithm.title) for name, algorithm in sorted(load_algorithms().items())])


# --- train


def _submit_training(
    context: CliContext, algorithm: Algorithm, payload: dict[str, Any], seeds: str | None, is_detached: bool
) -> int:
    environment = caller_environment() if algorithm.is_user_script else None
    if seeds is None:
        return submit_run(context, payload, is_detached, environment)
    group = payload["metadata"].get("group") or default_group_name(
        algorithm.name, payload["metadata"]["worker"]["config"].get("env_id", ""), time.time()
    )
    payloads = [with_seed(payload, seed, group) for seed in parse_seeds(seeds)]
    return submit_many(context, payloads, group, is_detached, lambda _: environment)


train = AlgorithmGroup(
    _submit_training,
    is_check=False,
    name="train",
    help="""Trains an agent and watches it. Ctrl-C stops the run with a checkpoint; a second Ctrl-C detaches.

    \b
    mosaic train ppo --env-id CartPole-v1 --total-timesteps 50000
    mosaic train ppo --env-id CartPole-v1 --seeds 1-5 --detach
    mosaic train cleanrl:ppo --cleanrl ~/cleanrl

    `mosaic train ALGORITHM --help` shows every setting. `cleanrl:NAME` is the script NAME.py of a CleanRL of your own,
    which needs no path where it is installed; `mosaic run` starts any other script.""",
)


# --- check


def _check_settings(
    context: CliContext, algorithm: Algorithm, payload: dict[str, Any], seeds: str | None, _: bool
) -> int:
    if seeds is not None:
        parse_seeds(seeds)
    return _print_verdict(context, payload, algorithm)


def _print_verdict(context: CliContext, payload: dict[str, Any], algorithm: Algorithm | None = None) -> int:
    environment = caller_environment() if algorithm is not None and algorithm.is_user_script else None
    verdict = context.trainer().check(payload, environment)
    if context.is_json:
        output.print_json(verdict)
        return 0
    output.echo("The worker would run this. Nothing was started." if verdict.is_checked else UNCHECKED_MESSAGE)
    output.print_fields([*verdict_rows(verdict, algorithm), *_expectation_rows(context, verdict)], "  ")
    return 0


def _expectation_rows(context: CliContext, verdict: Verdict) -> list[tuple[str, str]]:
    """What earlier runs say about how long this one takes."""
    algo, steps = verdict.summary.algo, verdict.summary.total_timesteps
    if not algo or not steps:
        return []
    env_id = verdict.summary.environment.id or verdict.summary.env_id or ""
    estimate = estimate_run(earlier_runs(context.trainer().runs(algo=algo), algo, env_id), env_id, steps)
    return [("takes", estimate.format()), *([("warning", estimate.warning)] if estimate.warning else [])]


class CheckGroup(AlgorithmGroup):
    """Takes the name of a file where `train` takes an algorithm."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        is_file = cmd_name == "-" or cmd_name.endswith(".json") or Path(cmd_name).is_file()
        if not is_file or cmd_name in load_algorithms():
            return super().get_command(ctx, cmd_name)

        def check_file(is_trusted: bool) -> int:
            context = click.get_current_context().ensure_object(CliContext)
            return _print_verdict(context, read_payload(cmd_name, is_trusted))

        trust = click.Option(["--trust", "is_trusted"], is_flag=True, help=FILE_TRUST_HELP)
        return Command(cmd_name, params=[trust], callback=check_file, help=f"Checks the config in {cmd_name}.")


check = CheckGroup(
    _check_settings,
    is_check=True,
    name="check",
    help="""Asks the worker what it would do with a config; nothing is started.

    \b
    mosaic check ppo --env-id CartPole-v1 --learning-rate 0.001
    mosaic check config.json""",
)


# --- submit


def read_payload(path: str, is_trusted: bool = False) -> dict[str, Any]:
    """The config in a file; `-` is stdin. It may come from elsewhere: modules that it names need `is_trusted`."""
    name = "stdin" if path == "-" else path
    try:
        with nullcontext(sys.stdin) if path == "-" else open(path, encoding="utf-8") as file:
            text = file.read(MAX_BYTES + 1)  # a device such as /dev/zero has no end
        if len(text) > MAX_BYTES:
            raise BadInput(f"{name} has more than {MAX_BYTES:,} bytes; expected a config as JSON.")
        payload = json.loads(text)
    except OSError as error:
        raise BadInput(f"{name} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise BadInput(f"{name} is not a text file; expected a config as JSON.") from None
    except ValueError as error:
        raise BadInput(f"{name} is not valid JSON: {error}.") from None
    except RecursionError:
        raise BadInput(f"{name} is nested too deeply; expected a config as JSON.") from None
    if not isinstance(payload, dict):
        raise BadInput(f"{name} holds {type(payload).__name__}; expected a JSON object with metadata and artifacts.")
    if not is_trusted and (modules := imported_modules(payload)):
        raise NotTrusted.for_risk(f"{name} would import the module {modules[0]!r}.")
    return payload


@command()
@click.argument("config", metavar="CONFIG.json")
@click.option("--trust", "is_trusted", is_flag=True, help=FILE_TRUST_HELP)
@click.option("--follow", is_flag=True, help="Stay and watch the run until its end.")
@pass_context
def submit(context: CliContext, config: str, is_trusted: bool, follow: bool) -> int:
    """Submits a whole config from a JSON file; '-' reads it from stdin."""
    return submit_run(context, read_payload(config, is_trusted), is_detached=not follow)


# --- `mosaic run -- python script.py`: any script of the user's as a run.


@command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--env-id-from", metavar="FLAG", help="Which of the script's arguments names its environment.")
@click.option("--total-timesteps", metavar="N", type=COUNT, help="How many steps it will take, if known.")
@click.option("--compat", is_flag=True, help="It was written for gymnasium 0.29: give it that behavior on 1.x.")
@click.option(
    "--without",
    metavar="PART",
    multiple=True,
    type=click.Choice((*PROBE_PARTS, "probe")),
    help=f"Leave a part of the probe out: {', '.join(PROBE_PARTS)}, or the whole probe.",
)
@run_options("run_name", "tags", "notes", "group", "priority", "max_seconds", "memory_mb", "cpus", "gpus", "gpu")
@click.option("--detach", is_flag=True, help="Do not wait; the run continues in the background.")
@click.argument("argv", metavar="-- COMMAND…", nargs=-1, required=True, type=click.UNPROCESSED)
@pass_context
def run(
    context: CliContext,
    /,
    env_id_from: str | None,
    total_timesteps: int | None,
    compat: bool,
    without: tuple[str, ...],
    detach: bool,
    argv: tuple[str, ...],
    **options: Any,
) -> int:
    """Runs any script of yours as a run: queue, logs, limits, history, live frames and curves, without editing it.

    \b
    mosaic run -- python my_script.py --any args
    mosaic run -- /path/to/venv/bin/python -m package.module
    mosaic run -- torchrun --nproc-per-node 2 my_script.py

    It runs in this folder and with this shell's environment. `--without probe` runs it untouched.
    """

    _require_program(argv)
    is_bare = "probe" in without
    parts = {part: not is_bare and part not in without for part in PROBE_PARTS}
    environment = caller_environment()
    config = script_config(argv, os.getcwd(), environment, env_id_from)
    config["probe"] = {**parts, "compat": compat and not is_bare}
    if total_timesteps is not None:
        config["total_timesteps"] = total_timesteps
    payload = build_payload({"id": "script", "config": config}, options)
    return submit_run(context, payload, detach, environment)


def _require_program(argv: Sequence[str]) -> None:
    """Refuses `my_script.py` alone: a script that cannot be executed needs its interpreter."""
    if argv[0].endswith(".py") and shutil.which(argv[0]) is None:
        raise BadInput(
            f"{argv[0]} is not a program that can be executed. Put python before it: "
            f"mosaic run -- python {shlex.join(argv)}"
        )
