"""One setting of a run or of an algorithm: its type, range and default, and how its text is parsed. No pydantic."""

from __future__ import annotations

import json
import math
import operator
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mosaic.contracts.arguments import ARGUMENTS_DESCRIPTION, EXAMPLES, parse_arguments, split_wrappers
from mosaic.contracts.errors import BadInput

_TYPE_DESCRIPTIONS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "file": "a file",
    "json": "JSON",
    "mapping": ARGUMENTS_DESCRIPTION,
    "duration": "a number of seconds, or a duration such as 90s, 30m, 2h or 1d",
    "name": "a name",
    "names": "a list of names",
    "label": "a line of text",
}
_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "int": int,
    "float": (int, float),
    "bool": bool,
    "str": str,
    "choice": str,
    "file": str,
    "text": str,
    "name": str,
    "label": str,
    "ints": (list, tuple),
    "mapping": dict,
    "duration": (int, float),
}
_WRITTEN_TYPES = ("int", "float", "ints", "file", "wrappers", "mapping", "duration")
"""Types whose values a file may state as the text that a flag takes, such as 3M."""
MAX_LABEL_LENGTH = 120
_NAME_CHARACTERS = "letters, digits and . _ @ + -"
_NAME_DESCRIPTIONS = {
    "name": f"{_NAME_CHARACTERS}, beginning with a letter or digit",
    "names": f"names of {_NAME_CHARACTERS}, separated by commas",
    "label": f"one line of text without / and \\, with at most {MAX_LABEL_LENGTH} characters",
    "wrappers": f"wrappers such as {EXAMPLES}, separated by commas",
}
_FACTORS = {"k": "e3", "K": "e3", "M": "e6", "G": "e9", "B": "e9"}
"""Of numbers such as 3M."""
_SECONDS_PER_UNIT = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "gt": ("above", operator.gt),
    "ge": ("of at least", operator.ge),
    "lt": ("below", operator.lt),
    "le": ("of at most", operator.le),
}


@dataclass(frozen=True)
class SettingField:
    """One setting."""

    name: str
    type: str
    default: Any = None
    help: str = ""
    constraints: Mapping[str, Any] | None = None
    group: str = "Settings"
    is_optional: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def parse(self, text: str, flag: str = "") -> Any:
        """Returns the value that a person wrote; BadInput names the flag and what was expected."""
        if self.is_optional and text.lower() in ("none", "null"):
            return None
        with suppress(ValueError):
            if (self.constraints or {}).get("is_range") and "," in text:
                value = _parse_ints(text.strip(" []()"))
                if self.accepts(value):
                    return value
            value = _PARSERS[self.type](text)
            if self._satisfies_constraints(value):
                return value
        raise BadInput(f"{flag or self.flag} must be {self.expected_values}, not {text!r}.")

    def parse_assigned(self, text: str, flag: str) -> Any:
        """Returns the value of `KEY=TEXT`: JSON where that is a value of this setting, else as its flag takes it."""
        with suppress(ValueError):
            value = json.loads(text)
            if value is None or self.accepts(value):
                return value
        return self.parse(text, flag)

    def convert(self, value: Any) -> Any:
        """Returns a value of a YAML file as its type has it: `3M` and 1e6 are whole numbers. Raises BadInput."""
        if isinstance(value, str) and self.type in _WRITTEN_TYPES:
            return self.parse(value)
        if self.type == "int" and isinstance(value, float) and value.is_integer():
            value = int(value)
        if self.type in ("float", "duration") and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not self.accepts(value):
            raise BadInput(f"{self.flag} must be {self.expected_values}, not {value!r}.")
        return value

    def accepts(self, value: Any) -> bool:
        """Return whether this is a value of it, as JSON has it: `"4"` is not a number."""
        if value is None:
            return self.is_optional
        if isinstance(value, list | tuple) and (self.constraints or {}).get("is_range"):
            return len(value) == 2 and all(map(self.accepts, value)) and value[0] < value[1]
        expected = _JSON_TYPES.get(self.type, object)
        if not isinstance(value, expected) or (isinstance(value, bool) and self.type in ("int", "float", "duration")):
            return False
        return self._satisfies_constraints(value)

    def _satisfies_constraints(self, value: Any) -> bool:
        rules = self.constraints or {}
        values = value if self.type == "ints" else (value,)
        is_within = all(holds(one, rules[key]) for key, (_, holds) in _BOUNDS.items() if key in rules for one in values)
        if self.type == "ints":
            return is_within and rules.get("min_length", 0) <= len(values) <= rules.get("max_length", len(values))
        return is_within and value in rules.get("choices", (value,))

    @property
    def expected_values(self) -> str:
        if self.type in _NAME_DESCRIPTIONS:
            return _NAME_DESCRIPTIONS[self.type]
        rules = self.constraints or {}
        if self.type == "ints":
            count = "{min_length} to {max_length} ".format_map(rules) if "max_length" in rules else ""
            limits = " from {ge} to {le}".format_map(rules) if "le" in rules else ""
            return f"{count}whole numbers{limits}, separated by commas"
        if "choices" in rules:
            return "one of " + ", ".join(map(str, rules["choices"]))
        bounds = [f"{words} {_format_bound(rules[key])}" for key, (words, _) in _BOUNDS.items() if key in rules]
        expected = " ".join([_TYPE_DESCRIPTIONS.get(self.type, "text"), " and ".join(bounds)]).strip()
        expected += ", or a range such as 2,5" if rules.get("is_range") else ""
        return f"{expected}, or none" if self.is_optional else expected


def _format_bound(bound: Any) -> str:
    return f"{bound:,}" if isinstance(bound, int) else str(bound)


def validate_safe_name(value: str) -> str:
    if not re.fullmatch(r"[^\W_][\w.@+-]*", value) or ".." in value:
        raise ValueError(f"expected {_NAME_CHARACTERS} only, beginning with a letter or digit")
    return value


def validate_label(value: str) -> str:
    """A name for people, in any script and with spaces. It is never a path by itself: `to_file_name` derives one."""
    text = value.strip()
    is_path = not text.strip(".") or "/" in text or "\\" in text
    if is_path or not text.isprintable() or len(text) > MAX_LABEL_LENGTH:
        raise ValueError(f"expected {_NAME_DESCRIPTIONS['label']}")
    return text


def _parse_names(text: str) -> tuple[str, ...] | None:
    return tuple(validate_safe_name(part.strip()) for part in text.split(",") if part.strip()) or None


def _plain_number(text: str) -> str:
    """`3M`, `500k` and `3,000,000` as Python writes them."""
    if re.fullmatch(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?", text):
        text = text.replace(",", "")
    factor = _FACTORS.get(text[-1:])
    return f"{text[:-1].rstrip()}{factor}" if factor and re.fullmatch(r"[+-]?[\d_]*\.?\d+ ?[a-zA-Z]", text) else text


def _parse_int(text: str) -> int:
    """Also `1e6`, `1_000_000`, `1,000,000` and `1M`."""
    text = _plain_number(text)
    try:
        return int(text)
    except ValueError:
        value = float(text)
        if not value.is_integer():
            raise
        return int(value)


def _parse_ints(text: str) -> list[int]:
    return [_parse_int(part) for part in text.split(",")]


def _parse_float(text: str) -> float:
    value = float(_plain_number(text))
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def parse_duration(text: str) -> float:
    """Seconds: `90`, `90s`, `1.5h`, `1h 30m`. Raises ValueError."""
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.lower())
    if parts and re.fullmatch(r"(?:\s*\d+(?:\.\d+)?\s*[smhdw])+\s*", text.lower()):
        return sum(float(number) * _SECONDS_PER_UNIT[unit] for number, unit in parts)
    return _parse_float(text)


def parse_number(value: Any) -> Any:
    """Returns the number that a text such as `20k` or `3e-4` means; what is not a text stays as it is."""
    if not isinstance(value, str):
        return value
    for parse in (_parse_int, _parse_float):
        with suppress(ValueError, OverflowError):
            return parse(value)
    raise ValueError(f"expected a number such as 0.01, 20k or 3e-4, not {value!r}")


def parse_bool(text: str) -> bool:
    try:
        return {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}[text.lower()]
    except KeyError:
        raise ValueError(text) from None


def _parse_file(text: str) -> str:
    """A path of an existing file becomes absolute, as the run has another working directory; a name stays as it is."""
    path = Path(text).expanduser()
    return str(path.absolute()) if os.path.isfile(path) else text  # pathlib's raises where a name is too long


_PARSERS: dict[str, Any] = {
    "int": _parse_int,
    "ints": _parse_ints,
    "float": _parse_float,
    "bool": parse_bool,
    "str": str,
    "file": _parse_file,
    "choice": str,
    "json": json.loads,
    "mapping": parse_arguments,
    "duration": parse_duration,
    "text": str,
    "name": validate_safe_name,
    "names": _parse_names,
    "label": validate_label,
    "wrappers": split_wrappers,
}
