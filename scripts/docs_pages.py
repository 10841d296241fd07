"""Text of the documentation site that is made from the code: commands, settings, events, files, errors, lifecycle."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import click
import docs_lifecycle

import mosaic
from mosaic.base.algorithm_schema import Algorithm, load_algorithms
from mosaic.base.run_payloads import TRAIN_OPTION_NAMES
from mosaic.cli.main import COMMANDS, SECTIONS, cli
from mosaic.cli.parameters import build_flag
from mosaic.contracts import commands, errors, events, folder
from mosaic.contracts import play as play_commands
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.options import OPTIONS
from mosaic.contracts.setting_field import SettingField

BY_ALGORITHM = ("train", "check")
"""Commands with a subcommand for each algorithm."""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *(list(map(_cell, row)) for row in rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def _cell(text: str) -> str:
    """A bar would end a cell, except in code."""
    return re.sub(r"(`[^`]*`)|\|", lambda match: match[1] or "\\|", text.replace("\n", " "))


def code(text: object) -> str:
    return f"`{text}`" if str(text) else ""


# --- commands


def command_tree(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands with their words; of those with a subcommand for each algorithm, the command alone."""
    if path:
        yield path, command
    if isinstance(command, click.Group) and path[:1] not in [(name,) for name in BY_ALGORITHM]:
        context = click.Context(command)
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            assert subcommand is not None
            yield from command_tree(subcommand, (*path, name))


def format_commands() -> str:
    found = dict(command_tree(cli))
    shared = {option.name for option in cli.params if option.name}
    parts = ["## Options of every command\n", _options_table(cli, set())]
    for title in SECTIONS:
        parts.append(f"## {title}\n")
        for path, command in found.items():
            if COMMANDS[path[0]][0].section == title:
                parts.append(_command_part(path, command, shared))
    return "\n".join(parts)


def _command_part(path: tuple[str, ...], command: click.Command, shared: set[str]) -> str:
    words = " ".join(("mosaic", *path))
    context = click.Context(command, info_name=words)
    if path[0] in BY_ALGORITHM:
        usage = f"{words} ALGORITHM [OPTIONS]"
        options = _train_options() if path == ("train",) else "With the options of [`mosaic train`](#mosaic-train).\n"
    else:
        usage, options = f"{words} {' '.join(command.collect_usage_pieces(context))}", _options_table(command, shared)
    text = inspect.cleandoc(command.help or command.short_help or "")
    text = re.sub(r"\x08\n(.*?)(?=\n\n|\Z)", r"```text\n\1\n```", text, flags=re.DOTALL)
    return "\n".join([f"{'#' * (2 + len(path))} {words}\n", text + "\n", f"```text\n{usage}\n```\n", options])


def _options_table(command: click.Command, left_out: set[str]) -> str:
    context = click.Context(command)
    rows = []
    for param in command.params:
        if isinstance(param, click.Option) and not param.hidden and param.name not in left_out:
            record = param.get_help_record(context)
            assert record is not None
            rows.append([code(record[0]), record[1]])
    return table(("option", "meaning"), rows) if rows else ""


def _train_options() -> str:
    rows = [_setting_row(OPTIONS[name]) for name in TRAIN_OPTION_NAMES]
    text = "Besides the settings of the [algorithm](algorithms.md), `--seeds 1-5` and `--detach`:\n"
    return f"{text}\n{table(_SETTING_HEAD, rows)}"


# --- algorithms

_SETTING_HEAD = ("flag", "meaning", "default", "expected")


@cache
def algorithms() -> dict[str, Algorithm]:
    return dict(sorted(load_algorithms().items()))


def format_algorithms() -> str:
    rows = [[f"[`{name}`](algorithms/{name}.md)", one.title, code(one.worker.id)] for name, one in algorithms().items()]
    return table(("algorithm", "", "worker"), rows)


def algorithm_page(name: str) -> str:
    """Its help page, and every setting as the schema has it."""
    algorithm = algorithms()[name]
    groups: dict[str, list[list[str]]] = {}
    for field in algorithm.fields:
        groups.setdefault(field.group, []).append(_setting_row(field))
    parts = [algorithm.help_page().rstrip(), "\n## Defaults and ranges\n", f"Flags of `mosaic train {name}`.\n"]
    for group, rows in groups.items():
        parts.append(f"### {group[:1].upper()}{group[1:]}\n\n{table(_SETTING_HEAD, rows)}")
    return "\n".join(parts)


def _setting_row(field: SettingField) -> list[str]:
    default = field.default
    if isinstance(default, (list, tuple)):
        default = ",".join(map(str, default))
    shown = "unset" if default is None else code(str(default).lower() if isinstance(default, bool) else default)
    flags = " ".join(map(code, (*(option := build_flag(field)).opts, *option.secondary_opts)))
    return [flags, field.help, shown, field.expected_values]


# --- Python


def format_python_api() -> str:
    functions: list[str] = []
    classes: list[str] = []
    failures: list[str] = []
    for name in sorted(mosaic._MODULE_OF, key=str.lower):
        value = getattr(mosaic, name)
        if inspect.isclass(value):
            (failures if issubclass(value, errors.MosaicError) else classes).append(name)
        else:
            functions.append(name)
    client = mosaic.Client
    of_client = {name: f"{client.__module__}.Client.{name}" for name in functions if hasattr(client, name)}
    rows = [
        [
            f"[`mosaic.{name}`](#{of_client.get(name, _path_of(name))})",
            (inspect.getdoc(getattr(mosaic, name)) or "").split("\n\n")[0],
        ]
        for name in functions
    ]
    parts = [
        "## Functions\n",
        "Functions are those of a [`Client`](#mosaic.features.runs.api.Client) of the current workspace.\n",
    ]
    parts.append(table(("function", ""), rows))
    parts += [f"::: {_path_of(name)}\n" for name in functions if name not in of_client]
    parts.append("## Classes\n")
    parts += [f"::: {_path_of(name)}\n" for name in classes]
    parts.append(f"## Errors\n\n{', '.join(map(code, failures))}: see [Exit codes and errors](exit-codes.md#errors).\n")
    return "\n".join(parts)


def _path_of(name: str) -> str:
    return f"{mosaic._MODULE_OF[name]}.{name}"


# --- events, commands and files


def _syntax(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def _documented(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    """Each statement with the text that follows it."""
    for statement, following in zip(body, [*body[1:], None], strict=True):
        value = following.value if isinstance(following, ast.Expr) else None
        text = value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""
        yield statement, " ".join(inspect.cleandoc(text).split())


def _fields_table(node: ast.ClassDef) -> str:
    rows = []
    for statement, text in _documented(node.body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            kind = ast.unparse(statement.annotation).replace("Int64", "int")
            if "ClassVar" not in kind:
                default = "" if statement.value is None else ast.unparse(statement.value)
                rows.append([code(statement.target.id), code(kind), code(default), text])
    return table(("field", "type", "default", ""), rows) if rows else ""


def format_events() -> str:
    """By the file that they are in, as `contracts/events.py` lists them."""
    classes = {node.name: node for node in _syntax(events).body if isinstance(node, ast.ClassDef)}
    headings = {
        number: line.removeprefix("# --- ")
        for number, line in enumerate(inspect.getsource(events).splitlines(), 1)
        if line.startswith("# --- ")
    }
    parts = ["## Fields of every event\n", _fields_table(classes["Event"])]
    named = {event.__name__: kind for kind, event in events.EVENT_TYPES.items()}
    last = 0
    for name, kind in named.items():
        node = classes[name]
        above = max(number for number in headings if number < node.lineno)
        if above != last:
            parts.append(f"## {headings[above][:1].upper()}{headings[above][1:]}\n")
            last = above
        text = ast.get_docstring(node) or ""
        parts.append(f"### {kind}\n\n{text}\n\n{_fields_table(node)}")
    return "\n".join(parts)


def format_inbox() -> str:
    assert commands.__doc__ is not None
    text = inspect.cleandoc(commands.__doc__).split("\n\n")[1]
    nodes = [node for node in _syntax(play_commands).body if isinstance(node, ast.ClassDef)]
    kinds = {one.__name__: kind for kind, one in play_commands.COMMANDS.items()}
    parts = [text, "\nOf a play session also:\n"]
    for node in nodes:
        if node.name in kinds:
            parts.append(f"### {kinds[node.name]}\n\n{ast.get_docstring(node) or ''}\n\n{_fields_table(node)}")
    return "\n".join(parts)


def _paths(owner: type, example: RunFolder | Workspace, base: Path) -> Iterator[tuple[str, str, int]]:
    """Each path that a class states, with its sentence and line."""
    [node] = [one for one in _syntax(folder).body if isinstance(one, ast.ClassDef) and one.name == owner.__name__]
    [setup] = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    for statement, text in _documented(setup.body):
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Attribute):
            value = getattr(example, statement.targets[0].attr)
            if isinstance(value, Path) and value != base:
                yield value.relative_to(base).as_posix(), text, statement.lineno


def format_workspace_files() -> str:
    place = Workspace("/var")
    return table(("path", ""), [[code(path), text] for path, text, _ in _paths(Workspace, place, place.root)])


def format_run_files() -> str:
    place = RunFolder("/RUN")
    source = inspect.getsource(folder).splitlines()
    writers = {number: found[1] for number, line in enumerate(source, 1) if (found := re.match(r" +# (.+)", line))}
    rows = []
    for path, text, line in _paths(RunFolder, place, place.path):
        rows.append([code(path), text, writers[max(number for number in writers if number < line)]])
    return table(("path", "", "written by"), rows)


# --- errors


def error_classes() -> list[type[errors.MosaicError]]:
    found: list[type[errors.MosaicError]] = [errors.MosaicError]
    for kind in found:
        found.extend(one for one in kind.__subclasses__() if one.__module__ == errors.__name__)
    return found


def format_errors() -> str:
    assert errors.__doc__ is not None
    return f"```text\n{errors.__doc__.split(chr(10), 2)[2].rstrip()}\n```\n"


PARTS: dict[str, Callable[[], str]] = {
    "commands": format_commands,
    "algorithms": format_algorithms,
    "python-api": format_python_api,
    "events": format_events,
    "inbox": format_inbox,
    "workspace-files": format_workspace_files,
    "run-files": format_run_files,
    "errors": format_errors,
    "lifecycle-drawing": docs_lifecycle.draw,
    "lifecycle-table": lambda: table(("in stage", "when", "then"), docs_lifecycle.rows()),
}
"""By the name in a page's `<!-- from the code: NAME -->`."""
