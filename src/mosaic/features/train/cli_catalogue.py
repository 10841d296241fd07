"""`mosaic algorithms`, `mosaic presets` and `mosaic envs`: what there is to train, how, and on what."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from mosaic.base import formatting
from mosaic.base.algorithm_schema import Algorithm, command_name, find_installed_scripts, get_algorithm, load_algorithms
from mosaic.base.packages import TORCH_COMMAND, has_torch
from mosaic.base.run_payloads import build_train_payload
from mosaic.base.user_presets import TUNED_PRESETS, Preset, read_presets
from mosaic.cli import output
from mosaic.cli.context import CliContext, command, pass_context
from mosaic.cli.following import report_end, submit_and_follow
from mosaic.cli.gui_command import open_workbench_detached
from mosaic.cli.output import print_settings
from mosaic.contracts.errors import BadInput, MissingExtra, unknown_name_error
from mosaic.features.evaluate.api import evaluation_payload
from mosaic.features.evaluate.cli import run_evaluation, summary_json
from mosaic.features.runs.cli import list_artifacts
from mosaic.features.runs.cli_files import save_curve

if TYPE_CHECKING:
    from rich.console import Console

    from mosaic.contracts.views import EnvironmentDetails, EnvironmentListing, EvaluationSummary, RunView
    from mosaic.trainer.client.trainer_client import TrainerClient

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


# --- `mosaic demo`: from nothing to an agent that balances a pole, in one command.


DEMO_SETTINGS: dict[str, Any] = {"env_id": "CartPole-v1", "total_timesteps": 399_872, "seed": 1}
"""CleanRL's defaults but for the steps, which are 781 whole updates; all of five seeds were above 488 after 300,000."""
EVAL_EPISODES = 20


@command()
@pass_context
def demo(context: CliContext) -> int:
    """Trains PPO on CartPole-v1, shows it learning, evaluates it on fresh seeds, and shows what to do next."""
    context.use_local()
    context.print_workspace()
    began_at = time.monotonic()
    output.print_message("Training PPO to balance a pole. A return of 500 is perfect.")
    view = submit_and_follow(context, build_train_payload("cleanrl", "ppo", {**DEMO_SETTINGS, "tags": ("demo",)}, {}))
    if view.stage != "finished" or view.outcome != "succeeded":
        return report_end(context, view)
    output.print_message(f"Evaluating it on {EVAL_EPISODES} fresh seeds.")
    options = {"eval_batch_size": EVAL_EPISODES, "eval_capture_video": find_spec("av") is not None}
    eval_view, evaluation = run_evaluation(context, evaluation_payload(context.trainer(), view.run_id, options))
    if evaluation is None:
        return report_end(context, eval_view)
    summary = evaluation.summary
    files = {"curve": _save_curve(context, view), **_list_made_files(context.trainer(), view, eval_view)}
    if context.is_json:
        output.print_json(
            {**view.model_dump(mode="json"), "evaluation": summary_json(eval_view.run_id, summary), "made": files}
        )
    else:
        _print_report(view, summary, files, time.monotonic() - began_at)
        if open_workbench_detached(context.workspace.root, view.run_id):
            output.echo("\nThe workbench opens on this run; close it whenever you like.")
        else:
            output.echo("\nThere is no display or no Qt here, so the workbench does not open. Elsewhere: mosaic gui")
    return 0


def _save_curve(context: CliContext, view: RunView) -> str | None:
    path = context.workspace.exports(view.run_id) / "curve.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        save_curve(context.trainer(), view, path)
    except MissingExtra as error:
        output.print_message(str(error))
        return None
    return str(path)


def _list_made_files(trainer: TrainerClient, view: RunView, eval_view: RunView) -> dict[str, str | None]:
    files = list_artifacts(trainer, view)
    videos = trainer.files(eval_view.run_id, "videos/*.mp4")
    video = f"{eval_view.run_dir}/{videos[0].name}" if videos else None
    return {"video": video, "checkpoint": files.get("checkpoint"), "tensorboard": files.get("tensorboard")}


def _print_report(view: RunView, summary: EvaluationSummary, artifacts: dict[str, str | None], took_s: float) -> None:
    short = formatting.short_id(view.run_id)
    console = output.console()
    console.print(
        "\nThe agent learned to balance the pole: its mean return was "
        f"{formatting.format_number(view.episodic_return)} at the end of training and "
        f"{formatting.format_number(summary.avg_return)} on {summary.episodes} fresh "
        f"seeds ({formatting.format_duration(took_s)} in all, {formatting.format_count(view.sps)} steps/s)."
    )
    output.echo("\nWhat it wrote:")
    output.print_fields(artifacts.items(), "  ")
    output.echo("\nTry next:")
    commands = [
        (f"show {short}", "everything about this run"),
        ("gui", "the workbench: train, watch and compare in a window"),
        ("train ppo --env-id Acrobot-v1", "another environment"),
    ]
    output.print_fields([(f"{_program_name()} {arguments}", effect) for arguments, effect in commands], "  ")


def _program_name() -> str:
    """How to call us from here: the virtual environment need not be on the path."""
    return "mosaic" if shutil.which("mosaic") else os.path.relpath(sys.argv[0])
