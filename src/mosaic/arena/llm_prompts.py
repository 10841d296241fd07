"""What a language model is sent about an environment, and how its answer is read. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from mosaic.arena.llm_client import ModelFailure, Reply
from mosaic.contracts.errors import BadInput, unknown_name_error

MAX_TEMPLATE_BYTES = 100_000
SEPARATOR = "---"
"""A line of a template file between what is sent once and what is sent at each turn."""
PLACEHOLDERS = ("env_id", "agent", "about", "notes", "actions", "state", "legal_actions", "step", "reward")
_SYSTEM = """You play $env_id$agent. $about
$notes
All actions: $actions
At each turn you get the state and the actions that are legal now. Think briefly, then choose one of them.
End your answer with one line of this form:
ACTION: name"""
_TURN = """Step $step. Reward since your last turn: $reward.
$state
Legal actions: $legal_actions
End with: ACTION: name"""
_MAX_LISTED_ACTIONS = 50
_THOUGHT = re.compile(r"<(think|thinking|reasoning)>.*?(</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_ANSWER = re.compile(r"\bACTION\W*[:=]\W*([^\n]*)", re.IGNORECASE)


@dataclass(frozen=True)
class PromptTemplate:
    system: str = _SYSTEM
    turn: str = _TURN

    def format_system(self, values: Mapping[str, str]) -> str:
        return Template(self.system).substitute({**dict.fromkeys(PLACEHOLDERS, ""), **values}).strip()

    def format_turn(self, values: Mapping[str, str]) -> str:
        return Template(self.turn).substitute({**dict.fromkeys(PLACEHOLDERS, ""), **values}).strip()


def read_template(path: Path) -> PromptTemplate:
    """Read a template file: the text sent once, a line `---`, and the text sent at each turn."""
    try:
        data = path.read_bytes()[: MAX_TEMPLATE_BYTES + 1]
        text = data.decode("utf-8")
    except OSError as error:
        raise BadInput(f"template: {path} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise BadInput(f"template: {path} is not UTF-8 text.") from None
    if len(data) > MAX_TEMPLATE_BYTES:
        raise BadInput(f"template: {path} has more than {MAX_TEMPLATE_BYTES:,} bytes.")
    for match in Template.pattern.finditer(text):
        if match["invalid"] is not None:
            raise BadInput(f"template: {path} has a $ without a name; write $$ for the character itself.")
        name = match["named"] or match["braced"]
        if name is not None and name not in PLACEHOLDERS:
            raise unknown_name_error("placeholder", f"${name}", [f"${known}" for known in PLACEHOLDERS], str(path))
    system, *turn = re.split(rf"^{SEPARATOR}[ \t]*$", text, maxsplit=1, flags=re.MULTILINE)
    return PromptTemplate(system, turn[0] if turn else _TURN)


def format_actions(names: Sequence[str]) -> str:
    return ", ".join(names)


def number_actions(names: Sequence[str]) -> dict[str, str]:
    """Return the names by the numbers that a model may give instead: their own, as in `column_3`, else their places."""
    if len(names) > _MAX_LISTED_ACTIONS:
        return {}
    own = [re.fullmatch(r"\D*(\d+)", name) for name in names]
    return {str(place) if match is None or None in own else match[1]: name
            for place, (name, match) in enumerate(zip(names, own, strict=True))}  # fmt: skip


def list_actions(names: Sequence[str]) -> str:
    """Return all actions, with their numbers unless the names have them."""
    numbers = number_actions(names)
    if not numbers:
        return "those that are legal, at each turn"
    if all(number in name for number, name in numbers.items()):
        return format_actions(names)
    return ", ".join(f"{name} ({number})" for number, name in numbers.items())


def format_repair(failure: ModelFailure, legal: Sequence[str]) -> str:
    """Return what a model is sent after an answer without a legal action."""
    return (
        f"{failure} The legal actions are: {format_actions(legal)}. "
        "Answer with one line and nothing else, of the form: ACTION: name"
    )


def parse_action(reply: Reply, names: Sequence[str], legal: Sequence[str]) -> str:
    """Return the legal action that a reply chooses, or raise what is wrong with it."""
    answer = _THOUGHT.sub("", reply.text).strip()
    stated = _ANSWER.findall(answer)
    if reply.tool_arguments is not None:
        answer = _read_arguments(reply.tool_arguments)
    elif stated:
        answer = stated[-1]
    elif reply.is_cut_off:
        raise ModelFailure("cut_off", "The answer was cut off before it named an action: raise max_tokens.")
    if not answer:
        only = "has only thoughts" if reply.thought or reply.text else "is empty"
        raise ModelFailure("empty", f"The answer {only}.")
    mentioned = _mentioned_names(answer, names, is_first_enough=bool(stated))
    if len(mentioned) != 1:
        what = "no action" if not mentioned else f"several actions ({', '.join(mentioned)})"
        raise ModelFailure("no_action", f"The answer names {what}.")
    if mentioned[0] not in legal:
        raise ModelFailure("illegal_action", f"The action {mentioned[0]} is not legal now.")
    return mentioned[0]


def _read_arguments(text: str) -> str:
    """Return the action in the arguments of a tool call; the text itself if it is not valid JSON."""
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(arguments, dict):
        arguments = arguments.get("action", next(iter(arguments.values()), ""))
    return str(arguments)


def _mentioned_names(text: str, names: Sequence[str], is_first_enough: bool) -> list[str]:
    """Return the names in a text, each once; spaces and case may differ, and a longer name hides a shorter one.

    With `is_first_enough`, a name at the beginning is the only one: what follows is a reason.
    """
    known = {_plain(name): name for name in names if name}
    longest_first = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
    pattern = re.compile(rf"(?<!\w)({longest_first})(?!\w)")
    plain = _plain(text)
    numbers = number_actions(names)
    number = re.match(r"\(?#?(\d+)\b", plain)
    is_number = number is not None and (is_first_enough or number.end() == len(plain.rstrip(")")))
    if number is not None and is_number and number[1] in numbers and not pattern.match(plain):
        return [numbers[number[1]]]
    if is_first_enough and (first := pattern.match(plain)):
        return [known[first[1]]]
    return list(dict.fromkeys(known[match] for match in pattern.findall(plain)))


def _plain(text: str) -> str:
    return re.sub(r"[\s_-]+", " ", text).strip(" .*`'\"").lower()
