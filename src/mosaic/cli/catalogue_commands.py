"""`mosaic algorithms`, `mosaic presets` and `mosaic envs`: what there is to train, how, and on what."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from mosaic import formatting
from mosaic.cli import output
from mosaic.cli.cli_context import CliContext, command, pass_context
from mosaic.common.packages import TORCH_COMMAND, has_torch
from mosaic.contracts.errors import BadInput, unknown_name_error
from mosaic.submission.algorithm_schema import (
    Algorithm,
    command_name,
    find_installed_scripts,
    get_algorithm,
    load_algorithms,
)
from mosaic.submission.tuned_presets import TUNED_PRESETS
from mosaic.submission.user_presets import Preset, read_presets

if TYPE_CHECKING:
    from rich.console import Console

    from mosaic.contracts.setting_field import SettingField
    from mosaic.contracts.views import EnvironmentDetails, EnvironmentListing

_ACTION_SPACE_NAMES = {
    "Discrete": "discrete", "MultiDiscrete": "multi-discrete", "MultiBinary": "multi-discrete", "Box": "continuous",
}  # fmt: skip


def _complete_algorithm(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    scripts = find_installed_scripts()
    names = (*load_algorithms(), *(scripts.names if scripts else ()))
    return [name for name in names if name.startswith(incomplete)]


@command()
@click.argument("name", required=False, shell_complete=_complete_algorithm)
@pass_context
def algorithms(context: CliContext, name: str | None) -> None:
    """Lists the algorithms, or explains one and its settings."""
    if name is not None:
        algorithm = get_algorithm(name)
        if context.is_json:
            output.print_json(_to_json(algorithm.name, algorithm))
        else:
            _print_algorithm(algorithm, output.console())
        return
    scripts = find_installed_scripts()
    known = sorted((load_algorithms() | (scripts.load_readable() if scripts else {})).items())
    if context.is_json:
        output.print_json([_to_json(key, algorithm) for key, algorithm in known])
        return
    table = output.create_table("NAME", "ACTIONS", "SEES", "COMPUTES WITH", "WHAT IT IS", wrap=("WHAT IT IS",))
    for key, algorithm in known:
        table.add_row(key, *_support_cells(algorithm), algorithm.title)
    output.console().print(table)
    if not has_torch():
        output.print_message(f"Those that compute with torch alone need it: {TORCH_COMMAND}")
    output.print_message("One of them in detail: mosaic algorithms ppo    Its flags: mosaic train ppo --help")


@command()
@pass_context
def presets(context: CliContext) -> None:
    """Lists presets: settings that learn faster than the defaults, with what was measured, and your own.

    Your own are saved by the train form, and by sweeps with their best settings.
    """
    own = sorted(read_presets().items())
    if context.is_json:
        tuned: list[dict[str, Any]] = [{"is_tuned": True, **asdict(preset)} for preset in TUNED_PRESETS]
        output.print_json([*tuned, *({"is_tuned": False, "name": name, **asdict(preset)} for name, preset in own)])
        return
    table = output.create_table(
        "TUNED", "ALGO", "ENV", "STEPS", "RETURN [95 %]", "DEFAULTS [95 %]", "SEEDS", "SETTINGS", wrap=("SETTINGS",)
    )
    for preset in TUNED_PRESETS:
        changes = ", ".join(f"{name} {value:g}" for name, value in preset.changes.items())
        table.add_row(
            *(preset.name, preset.algorithm, preset.env_id, f"{preset.total_timesteps:,}"),
            *(str(preset.tuned), str(preset.default), str(preset.seeds), changes),
        )
    output.console().print(table)
    if own:
        _print_own_presets(own)
    output.print_message(
        "Train with one: mosaic train ppo --preset cartpole-ppo    Flags change single settings of it."
    )


def _print_own_presets(own: Sequence[tuple[str, Preset]]) -> None:
    table = output.create_table("YOUR OWN", "ALGO", "SETTINGS", wrap=("SETTINGS",))
    for name, preset in own:
        shown = {**preset.settings, **({} if preset.seeds is None else {"seeds": preset.seeds})}
        settings = (f"{key} {value if isinstance(value, str) else json.dumps(value)}" for key, value in shown.items())
        table.add_row(name, command_name(preset.worker, preset.algorithm), ", ".join(settings))
    output.console().print(table)


def _to_json(name: str, algorithm: Algorithm) -> dict[str, object]:
    """Its entry in the schema file, with the help page instead of the page's path."""
    return {"name": name, "worker": algorithm.worker.id, **algorithm.schema_entry, "help": algorithm.help_page()}


def _support_cells(algorithm: Algorithm) -> tuple[str, ...]:
    """The action spaces, observations and backends that it supports, as far as its worker reports them."""
    supports = algorithm.schema_entry.get("supports") or {}
    actions = [_ACTION_SPACE_NAMES.get(space, space) for space in supports.get("action_spaces", ())]
    backends = [name for name in supports.get("backends", ()) if name != "auto"]
    cells = (", ".join(dict.fromkeys(actions)), supports.get("sees"), ", ".join(backends))
    return tuple(cell or formatting.PLACEHOLDER for cell in cells)


def _print_algorithm(algorithm: Algorithm, console: Console) -> None:
    from rich.markdown import Markdown

    page = algorithm.help_page()
    backends = (algorithm.schema_entry.get("supports") or {}).get("backends", ())
    if "torch" in backends and "numpy" not in backends and not has_torch():
        output.print_message(f"{algorithm.name} needs torch, which is not installed: {TORCH_COMMAND}.")
    console.print(Markdown(page or f"# {algorithm.title}\n\n{algorithm.summary}"), width=min(console.width, 100))
    console.print()
    table = output.create_table("SETTING", "DEFAULT", "WHAT IT DOES", wrap=("WHAT IT DOES",))
    for field in algorithm.fields:
        default = "" if field.default is None else str(field.default)
        table.add_row(field.name, default, field.help)
    console.print(table)


@command()
@click.argument("name", metavar="[FAMILY|ENV]", required=False)
@click.option("--worker", default="cleanrl", show_default=True, help="Whose environments; `play`: games too.")
@click.option("--all", "is_all", is_flag=True, help="Those that are not installed, too.")
@pass_context
def envs(context: CliContext, name: str | None, worker: str, is_all: bool) -> None:
    """Lists the environments, all or those of one FAMILY; or explains one: its settings, actions and keys."""
    if name is not None and not _is_family_name(name):
        details = context.trainer().environment(name)
        if details.problem and not details.action_space and not details.has_settings_list:
            raise BadInput(details.problem)
        if context.is_json:
            output.print_json(details)
        else:
            _print_details(details)
        return
    family = name
    environments = context.trainer().environments(worker, family or "")
    if context.is_json:
        output.print_json(environments)
        return
    families: dict[str, list[EnvironmentListing]] = {}
    for env in environments:
        families.setdefault(env.family, []).append(env)
    if family is not None and family not in families:
        raise unknown_name_error("environment family", family, families)
    if family is None and not is_all:
        _print_families(families)
    else:
        _print_envs(environments)


def _is_family_name(name: str) -> bool:
    """Ids of environments have a version, a namespace or capital letters."""
    return name == name.lower() and not any(char in name for char in "-/:")


def _print_details(details: EnvironmentDetails) -> None:
    number = formatting.format_count
    rows = [
        ("environment", details.id),
        ("family", details.family_title),
        ("what it is", details.about),
        ("agents", ", ".join(details.agents)),
        ("observations", details.observation_space),
        ("actions", details.action_space),
        ("", ", ".join(details.action_names)),
        ("longest episode", number(details.max_episode_steps) if details.max_episode_steps else ""),
        ("missing", details.install_hint or details.problem),
    ]
    output.print_fields([(name, value) for name, value in rows if value])
    if details.settings:
        print_settings("SETTING", details.settings)
        first = details.settings[0].name
        output.print_message(f"Set one: --env-kwargs {first}=… of mosaic train and mosaic play")
    if details.keys:
        table = output.create_table("KEYS", "ACTION")
        for binding in details.keys:
            table.add_row(" + ".join(binding.keys), binding.text)
        output.console().print(table)


def print_settings(title: str, settings: Sequence[SettingField]) -> None:
    """Print settings with their defaults, what they accept and what they do."""
    table = output.create_table(title, "DEFAULT", "VALUES", "WHAT IT DOES", wrap=("VALUES", "WHAT IT DOES"))
    for field in settings:
        default = formatting.PLACEHOLDER if field.default is None else json.dumps(field.default)
        table.add_row(field.name, default, field.expected_values, field.help)
    output.console().print(table)


def _print_families(families: dict[str, list[EnvironmentListing]]) -> None:
    table = output.create_table("FAMILY", "COUNT", "ENVIRONMENTS", right_aligned=("COUNT",), wrap=("ENVIRONMENTS",))
    for name, envs in sorted(families.items(), key=lambda item: (not item[1][0].is_installed, item[0])):
        if envs[0].is_installed:
            some = ", ".join(env.id for env in envs[:4]) + (", …" if len(envs) > 4 else "")
        else:
            some = ": ".join(filter(None, ("not installed", envs[0].install_hint)))
        table.add_row(name, str(len(envs)), some)
    output.console().print(table)
    output.print_message("All of a family: mosaic envs classic_control")


def _print_envs(envs: list[EnvironmentListing]) -> None:
    table = output.create_table(
        "ENVIRONMENT", "FAMILY", "LONGEST EPISODE", "", right_aligned=("LONGEST EPISODE",), wrap=("",)
    )
    for env in envs:
        hint = "" if env.is_installed else env.install_hint
        table.add_row(env.id, env.family, formatting.format_count(env.max_episode_steps), hint)
    output.console().print(table)
