"""`mosaic actors`: who can act in an environment."""

from __future__ import annotations

import click

from mosaic import formatting
from mosaic.cli import output
from mosaic.cli.catalogue_commands import print_settings
from mosaic.cli.cli_context import CliContext, command, pass_context
from mosaic.contracts.errors import unknown_name_error
from mosaic.contracts.setting_field import SettingField
from mosaic.workers.actor_registry import ActorDescription, discover_actors


def _complete_kind(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [kind for kind in discover_actors() if kind.startswith(incomplete)]


@command()
@click.argument("kind", required=False, shell_complete=_complete_kind)
@pass_context
def actors(context: CliContext, kind: str | None) -> None:
    """Lists the kinds of actors, or explains one and its options."""
    known = discover_actors()
    if kind is None:
        if context.is_json:
            output.print_json([_to_json(description) for description in known.values()])
        else:
            _print_actors(list(known.values()))
        return
    if kind not in known:
        raise unknown_name_error("actor", kind, known)
    if context.is_json:
        output.print_json(_to_json(known[kind]))
    else:
        _print_actor(known[kind])


def _to_json(description: ActorDescription) -> dict[str, object]:
    return {
        "kind": description.kind,
        "title": description.title,
        "about": description.about,
        "target": description.target,
        "needs": list(description.needs),
        "is_multi_agent": description.is_multi_agent,
        "is_discrete_only": description.is_discrete_only,
        "is_installed": not missing(description),
        "install": missing(description) or None,
        "examples": list(description.examples),
        "options": [option_to_json(option) for option in description.options],
    }


def option_to_json(option: SettingField) -> dict[str, object]:
    return {
        "name": option.name,
        "type": option.type,
        "default": option.default,
        "help": option.help,
        "constraints": dict(option.constraints or {}),
    }


def missing(description: ActorDescription) -> str:
    """What to install, or why a plug-in cannot be loaded; empty where it can act."""
    return description.problem or description.install_hint


def _print_actors(descriptions: list[ActorDescription]) -> None:
    table = output.create_table("ACTOR", "NEEDS", "WHAT IT IS", "", wrap=("WHAT IT IS", ""))
    for description in descriptions:
        name = f"{description.kind}:…" if description.target else description.kind
        others = [need for need in description.needs if need not in description.target]
        needs = ", ".join(filter(None, (description.target, *others)))
        table.add_row(name, needs or formatting.PLACEHOLDER, description.about, missing(description))
    output.console().print(table)
    output.print_message("One of them in detail: mosaic actors llm    Let one act: mosaic play ENV --actor random")


def _print_actor(description: ActorDescription) -> None:
    output.print_fields(
        [
            ("actor", description.kind),
            ("what it is", description.about),
            ("target", description.target or "none"),
            ("acts with", description.capabilities),
            *([("examples", ", ".join(description.examples))] if description.examples else []),
            *([("missing", missing(description))] if missing(description) else []),
        ]
    )
    if description.options:
        print_settings("OPTION", description.options)
        output.print_message(f"Set one: mosaic play ENV --actor {description.kind} --actor-option NAME=VALUE")
