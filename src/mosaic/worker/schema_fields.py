"""Describes the settings of a pydantic model as a worker's schema file does: with simple types, in JSON."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length")


def describe_fields(model: type[BaseModel]) -> list[dict[str, Any]]:
    return [_describe_field(name, info) for name, info in model.model_fields.items()]


def print_or_write(schema: str, target: Path | None, arguments: Sequence[str]) -> None:
    """Write a schema file with `--write` among the arguments; else print it."""
    if "--write" in arguments and target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(schema, encoding="utf-8")
        print(target)
    else:
        sys.stdout.write(schema)


def _describe_field(name: str, info: FieldInfo) -> dict[str, Any]:
    kind, choices, constraints, is_optional = _parse_annotation(info.annotation)
    for rule in info.metadata:
        constraints |= _constraints_of(rule)
    if choices:
        constraints["choices"] = choices
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    return {
        "name": name,
        "type": extra.get("type", kind),
        "default": None if info.is_required() else _to_json_value(info.get_default(call_default_factory=True)),
        "help": " ".join((info.description or "").split()),
        "constraints": constraints,
        "group": extra.get("group"),
        "is_optional": is_optional,
    }


def _constraints_of(rule: Any) -> dict[str, Any]:
    return {key: getattr(rule, key) for key in _CONSTRAINTS if getattr(rule, key, None) is not None}


def _parse_annotation(annotation: Any) -> tuple[str, list[Any], dict[str, Any], bool]:
    """Return the simple type, choices, constraints, and whether the value is optional."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        kind, choices, constraints, is_optional = _parse_annotation(parts[0])
        for rule in parts[1:]:
            for source in (rule, *getattr(rule, "metadata", ())):
                constraints |= _constraints_of(source)
        return kind, choices, constraints, is_optional
    if origin in (Union, types.UnionType):
        others = [part for part in parts if part is not type(None)]
        kind, choices, constraints, _ = _parse_annotation(others[0])
        return kind, choices, constraints, len(others) < len(parts)
    if origin is Literal:
        return "choice", list(parts), {}, False
    if origin is tuple and parts[1:] == (...,):
        kind, _, constraints, _ = _parse_annotation(parts[0])
        return ("ints" if kind == "int" else "json"), [], constraints, False
    simple = {int: "int", float: "float", bool: "bool", str: "str", dict: "mapping"}
    return simple.get(origin or annotation, "json"), [], {}, False


def _to_json_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, (int, float, bool, str, type(None), list, dict)) else str(value)


def render_json(value: Any, newline: str = "\n") -> str:
    """JSON in which each setting is one line."""
    if not _has_rows(value):
        return json.dumps(value, ensure_ascii=False)
    inner = newline + " "
    if isinstance(value, list):
        return "[" + inner + f",{inner}".join(render_json(row, inner) for row in value) + newline + "]"
    items = (f"{json.dumps(key)}: {render_json(item, inner)}" for key, item in value.items())
    return "{" + inner + f",{inner}".join(items) + newline + "}"


def _has_rows(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_rows, value.values()))
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)
