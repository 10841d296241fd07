"""`mosaic algorithms` and `mosaic envs`: what there is to train, and on what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mosaic.cli import output
from mosaic.cli.door import Door, command, pass_door
from mosaic.contracts.errors import unknown
from mosaic.plugins.schema import Algorithm, algorithm
from mosaic.plugins.schema import algorithms as known_algorithms

if TYPE_CHECKING:
    from rich.console import Console

Json = dict[str, Any]
MOST_LISTED = 40
_ACTION_WORDS = {"Discrete": "discrete", "Box": "continuous"}


def _complete_algorithm(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    return [name for name in known_algorithms() if name.startswith(incomplete)]


@command()
@click.argument("name", required=False, shell_complete=_complete_algorithm)
@pass_door
def algorithms(door: Door, name: str | None) -> None:
    """Lists the algorithms, or explains one and its settings."""
    if name is not None:
        found = algorithm(name)
        if door.is_json:
            output.print_json({"name": found.name, "worker": found.worker.id, **found.said, "help": found.help_page()})
        else:
            _explain(found, output.console())
        return
    known = known_algorithms()
    if door.is_json:
        output.print_json([{"name": key, "worker": one.worker.id, **one.said} for key, one in sorted(known.items())])
        return
    table = output.table("NAME", "ACTIONS", "SEES", "COMPUTES WITH", "WHAT IT IS", fold=("WHAT IT IS",))
    for key, one in sorted(known.items()):
        table.add_row(key, *_supported(one), one.title)
    output.console().print(table)
    output.say("One of them in detail: mosaic algorithms ppo    Its flags: mosaic train ppo --help")


def _supported(one: Algorithm) -> tuple[str, str, str]:
    """The actions, the observations and the backends that it is for, as far as its worker tells."""
    said = one.said.get("supports") or {}
    actions = [_ACTION_WORDS.get(space, space) for space in said.get("action_spaces", ())]
    backends = [name for name in said.get("backends", ()) if name != "auto"]
    return (
        ", ".join(actions) or output.NOTHING,
        said.get("sees") or output.NOTHING,
        ", ".join(backends) or output.NOTHING,
    )


def _explain(found: Algorithm, console: Console) -> None:
    from rich.markdown import Markdown

    page = found.help_page()
    console.print(Markdown(page or f"# {found.title}\n\n{found.summary}"), width=min(console.width, 100))
    console.print()
    table = output.table("SETTING", "DEFAULT", "WHAT IT DOES", fold=("WHAT IT DOES",))
    for field in found.fields:
        default = "" if field.default is None else str(field.default)
        table.add_row(field.name, default, field.help)
    console.print(table)


@command()
@click.argument("family", required=False)
@click.option("--worker", default="cleanrl", show_default=True, help="Whose environments.")
@click.option("--all", "is_all", is_flag=True, help="Those that are not installed, too.")
@pass_door
def envs(door: Door, family: str | None, worker: str, is_all: bool) -> None:
    """Lists the environments that can be trained on, all or those of one FAMILY."""
    question: Json = {"ask": "environments"} | ({"family": family} if family else {})
    found: list[Json] = door.trainer().ask_worker(worker, question)["environments"]
    if door.is_json:
        output.print_json(found)
        return
    families: dict[str, list[Json]] = {}
    for env in found:
        families.setdefault(env["family"], []).append(env)
    if family is not None and family not in families:
        raise unknown("environment family", family, families)
    if family is None and not is_all:
        _print_families(families)
    else:
        _print_envs(found)


def _print_families(families: dict[str, list[Json]]) -> None:
    table = output.table("FAMILY", "COUNT", "ENVIRONMENTS", right=("COUNT",), fold=("ENVIRONMENTS",))
    for name, envs in sorted(families.items(), key=lambda item: (not item[1][0]["is_installed"], item[0])):
        if envs[0]["is_installed"]:
            some = ", ".join(env["id"] for env in envs[:4]) + (", …" if len(envs) > 4 else "")
        else:
            some = f"not installed{_install(envs[0], ': ')}"
        table.add_row(name, str(len(envs)), some)
    output.console().print(table)
    output.say("All of a family: mosaic envs classic_control")


def _print_envs(envs: list[Json]) -> None:
    table = output.table("ENVIRONMENT", "FAMILY", "LONGEST EPISODE", "", right=("LONGEST EPISODE",), fold=("",))
    for env in envs:
        longest = env.get("max_episode_steps")
        hint = "" if env["is_installed"] else _install(env)
        table.add_row(env["id"], env["family"], f"{longest:,}" if longest else output.NOTHING, hint)
    output.console().print(table)


def _install(env: Json, lead: str = "") -> str:
    """The command that brings it; nothing where no extra does."""
    return f"{lead}pip install 'mosaic-rl[{env['extra']}]'" if env.get("extra") else ""
