"""The code blocks of the documents, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from mosaic.cli.main import cli
from mosaic.contracts.errors import UnknownName

ROOT = Path(__file__).parents[2]
GUIDES = [ROOT / "docs" / "get-started.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
GUIDES_ALGORITHMS = ("hill_climb",)
"""Made by a guide itself."""
_BLOCK = re.compile(
    r"(?P<before>.*\n)\n?(?P<reason><!-- not run: .+ -->\n)?```(?P<language>\w*)\n(?P<text>(?:.*\n)*?)```\n"
)
_FILE = re.compile(r"file `([\w.-]+)`.*:$|^`([\w.-]+)`:$")
_SEPARATORS = {";", "|", "&&", "||", ">"}


class Block(NamedTuple):
    language: str
    text: str
    file: str | None
    """The file that it is, if the line before it says so: `The file my_envs.py:`"""
    is_run: bool
    """False after a comment `<!-- not run: REASON -->`."""


def read_blocks(document: Path) -> list[Block]:
    found = []
    for match in _BLOCK.finditer(document.read_text(encoding="utf-8")):
        named = _FILE.search(match["before"].strip())
        file = (named[1] or named[2]) if named else None
        found.append(Block(match["language"], match["text"], file, match["reason"] is None))
    return found


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command `mosaic …` in a block for a shell."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&>")
        lexer.whitespace_split = True
        words = list(lexer)
        while words:
            end = next((at for at, word in enumerate(words) if word in _SEPARATORS), len(words))
            command, words = words[:end], words[end + 1 :]
            while command and "=" in command[0]:
                command = command[1:]  # a variable for this command
            if command[:1] == ["mosaic"]:
                yield command[1:]


def find_problem(words: list[str]) -> str | None:
    """Return what is unknown in a command: its name, or one of its options."""
    command: click.Command = cli
    context = click.Context(cli)
    known = _flags(cli)
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        if rest[0].startswith("cleanrl:") or rest[0] in GUIDES_ALGORITHMS:
            return None  # its options are stated elsewhere
        if words[0] == "sweep" and rest[0].endswith(".yaml"):
            rest.insert(0, "run")  # the command without its name
        try:
            found = command.get_command(context, rest[0])
        except UnknownName as error:
            return str(error)
        if found is None:
            return f"no command {rest[0]!r}"
        command, rest = found, rest[1:]
        known |= _flags(command)
    options = rest[: rest.index("--")] if "--" in rest else rest
    unknown = [word for word in options if re.match(r"--?[a-zA-Z]", word) and word.split("=")[0] not in known]
    return f"no option {unknown[0]}" if unknown else None


def _flags(command: click.Command) -> set[str]:
    flags = {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)}
    return flags | {"--help", "-h"}
