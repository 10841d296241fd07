"""Generates the settings of each algorithm as JSON: `python -m cleanrl_worker.schema_generator --write`.

Command line, forms and validation share this file; its types are simple (`int`, `float`, `bool`, `str`, `choice`) so
that it can be used without importing the worker.
"""

from __future__ import annotations

import inspect
import json
import sys
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from cleanrl_worker import describe
from cleanrl_worker.registry import ALGORITHMS, load_algorithm
from cleanrl_worker.worker_config import WORKER_NAME, WorkerConfig
from mosaic.contracts.options import OPTIONS

_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length")
_PACKAGE = Path(__file__).parent


def build_schema() -> dict[str, Any]:
    """Return the content of schemas.json."""
    description = describe()
    return {
        "generated_by": "python -m cleanrl_worker.schema_generator --write",
        "worker": WORKER_NAME,
        "version": description.version,
        "algorithms": {name: _describe_algorithm(name) for name in sorted(ALGORITHMS)},
        "worker_fields": describe_fields(WorkerConfig),
        "options": [option.name for option in OPTIONS.values() if option.is_worker_option],
    }


def _describe_algorithm(name: str) -> dict[str, Any]:
    entry, module = ALGORITHMS[name], load_algorithm(name)
    settings = describe_fields(module.Config)
    title, _, rest = inspect.cleandoc(module.__doc__ or name).partition("\n")
    paragraph = (rest.strip() or title).partition("\n\n")[0]
    page = f"docs/{name}.md"
    return {
        "module": module.__name__,
        "title": title.rstrip("."),
        "summary": " ".join(paragraph.split()),
        "help": page if (_PACKAGE / page).exists() else "",
        "fields": settings,
        "supports": {
            "action_spaces": list(entry.action_spaces),
            "observation_spaces": list(entry.observation_spaces),
            "sees": "images" if entry.is_for_atari else "vectors",
            "resume": True,
            "evaluation": hasattr(module, "load_policy"),
            "backends": next(field["constraints"]["choices"] for field in settings if field["name"] == "backend"),
        },
    }


def describe_fields(model: type[BaseModel]) -> list[dict[str, Any]]:
    return [_describe_field(name, info) for name, info in model.model_fields.items()]


def _describe_field(name: str, info: FieldInfo) -> dict[str, Any]:
    kind, choices, constraints, is_optional = _parse_annotation(info.annotation)
    for rule in info.metadata:
        constraints |= _constraints_of(rule)
    if choices:
        constraints["choices"] = choices
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    return {
        "name": name,
        "type": kind,
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
    simple = {int: "int", float: "float", bool: "bool", str: "str"}
    return simple.get(annotation, "json"), [], {}, False


def _to_json_value(value: Any) -> Any:
    return value if isinstance(value, (int, float, bool, str, type(None), list, dict)) else str(value)


def render_schema() -> str:
    return _render(build_schema()) + "\n"


def _render(value: Any, newline: str = "\n") -> str:
    """JSON in which each setting is one line."""
    if not _has_rows(value):
        return json.dumps(value, ensure_ascii=False)
    inner = newline + " "
    if isinstance(value, list):
        return "[" + inner + f",{inner}".join(_render(row, inner) for row in value) + newline + "]"
    items = (f"{json.dumps(key)}: {_render(item, inner)}" for key, item in value.items())
    return "{" + inner + f",{inner}".join(items) + newline + "}"


def _has_rows(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_rows, value.values()))
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def main() -> int:
    target = describe().schemas
    assert target is not None
    if "--write" in sys.argv[1:]:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(render_schema())
        print(target)
    else:
        sys.stdout.write(render_schema())
    return 0


if __name__ == "__main__":
    sys.exit(main())
