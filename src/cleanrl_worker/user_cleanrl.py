"""A CleanRL of the user's own: its scripts as algorithms, with the settings that their `Args` state.

Nothing of it is run or imported to find that out: the files are read as text. Standard library only, because the
command line asks, too.
"""

from __future__ import annotations

import ast
import json
import operator
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mosaic.contracts.errors import BadInput, ConfigRefused, unknown_name_error

Json = dict[str, Any]
USER_CLEANRL_PREFIX = "cleanrl:"
"""`cleanrl:ppo` is the script ppo.py of the user's CleanRL; `ppo` is ours."""
EXTRA_TO_FLAG = {
    "track_wandb": "track",
    "wandb_project_name": "wandb_project_name",
    "wandb_entity": "wandb_entity",
    "capture_video": "capture_video",
    "save_model": "save_model",
    "upload_model": "upload_model",
    "hf_entity": "hf_entity",
}
"""Extras that are flags of the script itself."""
_COMPUTED_AT_RUNTIME = "computed in runtime"
_SIMPLE_TYPES = ("int", "float", "bool", "str")
_BINARY_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class _NotConstant(Exception):
    """An expression that only running it would tell."""


@dataclass(frozen=True)
class CleanrlCheckout:
    """Where a CleanRL lies, and which interpreter runs it."""

    root: Path
    """What its scripts expect on their path, for `cleanrl_utils`."""
    scripts: dict[str, Path]
    python: str

    def script(self, name: str) -> Path:
        try:
            return self.scripts[name]
        except KeyError:
            raise unknown_name_error("script", name, self.scripts, str(self.root)) from None


def find_checkout(path: str, python: str | None = None) -> CleanrlCheckout:
    """A checkout, an installed `cleanrl` package, or a virtual environment that has one."""
    place = Path(path).expanduser().absolute()
    if not place.is_dir():
        raise BadInput(f"cleanrl: {path!r} is no folder. Expected a CleanRL checkout, or an environment with CleanRL.")
    packages = [place / "cleanrl", place, *sorted(place.glob("lib/python3*/site-packages/cleanrl"))]
    for package in packages:
        scripts = {file.stem: file for file in sorted(package.glob("*.py")) if _has_args(file)}
        if scripts:
            return CleanrlCheckout(package.parent, scripts, python or _find_interpreter(place))
    raise BadInput(f"cleanrl: no CleanRL script was found in {place}. Expected files such as cleanrl/ppo.py.")


def _find_interpreter(place: Path) -> str:
    for candidate in (place / "bin" / "python", place / ".venv" / "bin" / "python"):
        if candidate.is_file():
            return str(candidate)
    return sys.executable


def _has_args(file: Path) -> bool:
    try:
        return "\nclass Args" in file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


# --- what can be set


def script_algorithms(path: str) -> dict[str, Json]:
    """By name (`cleanrl:ppo`): an entry as in schemas.json for each script that can be read."""
    found = {}
    for name, script in find_checkout(path).scripts.items():
        try:
            found[USER_CLEANRL_PREFIX + name] = describe_script(script)
        except BadInput:
            continue  # one file that cannot be read does not take the others away
    return found


def describe_script(script: Path) -> Json:
    tree = _parse_script(script)
    settings = script_fields(script)
    return {
        "module": str(script),
        "title": f"CleanRL's own {script.name}",
        "summary": ast.get_docstring(tree) or f"The script {script} as it stands.",
        "help": "",
        "fields": settings,
        "supports": {"action_spaces": [], "observation_spaces": [], "resume": False, "evaluation": False},
    }


def script_fields(script: Path) -> list[Json]:
    """The settings that the script's `Args` states, in the form of schemas.json."""
    for node in _parse_script(script).body:
        if isinstance(node, ast.ClassDef) and node.name == "Args":
            return [
                _describe_field(script, statement, said)
                for statement, said in _documented_fields(node)
                if _is_setting(said)
            ]
    raise BadInput(f"{script}: no class Args was found, so its settings are not known.")


def _parse_script(script: Path) -> ast.Module:
    try:
        return ast.parse(script.read_text(encoding="utf-8"), str(script))
    except (OSError, ValueError, SyntaxError) as error:
        raise BadInput(f"{script} cannot be read: {error}.") from None


def _documented_fields(node: ast.ClassDef) -> list[tuple[ast.AnnAssign, str]]:
    """Each annotated name with the string behind it."""
    found = []
    for at, statement in enumerate(node.body):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        behind = node.body[at + 1] if at + 1 < len(node.body) else None
        said = ""
        if (
            isinstance(behind, ast.Expr)
            and isinstance(behind.value, ast.Constant)
            and isinstance(behind.value.value, str)
        ):
            said = " ".join(behind.value.value.split())
        found.append((statement, said))
    return found


def _is_setting(doc: str) -> bool:
    return _COMPUTED_AT_RUNTIME not in doc


def _describe_field(script: Path, statement: ast.AnnAssign, doc: str) -> Json:
    assert isinstance(statement.target, ast.Name)
    kind, choices, is_optional = _parse_annotation(statement.annotation)
    default: Any = None
    if statement.value is not None:
        try:
            default = _constant_value(statement.value, script)
        except _NotConstant:
            doc = f"{doc} [default: {ast.unparse(statement.value)}]".strip()
    if isinstance(default, int) and not isinstance(default, bool) and kind == "float":
        default = float(default)
    is_none = isinstance(statement.value, ast.Constant) and statement.value.value is None
    return {
        "name": statement.target.id,
        "type": kind,
        "default": default,
        "help": doc[:1].upper() + doc[1:] + ("." if doc and doc[-1] not in ".!?]" else ""),
        "constraints": {"choices": choices} if choices else {},
        "group": "settings",
        # CleanRL writes `target_kl: float = None` where it means that there may be none.
        "is_optional": is_optional or is_none,
    }


def _parse_annotation(annotation: ast.expr) -> tuple[str, list[Any], bool]:
    """Simple type, choices, and whether it may be none."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    if isinstance(annotation, ast.Name) and annotation.id in _SIMPLE_TYPES:
        return annotation.id, [], False
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        sides = [side for side in (annotation.left, annotation.right) if not _is_none(side)]
        kind, choices, is_optional = _parse_annotation(sides[0])
        return kind, choices, is_optional or len(sides) == 1
    if isinstance(annotation, ast.Subscript):
        name = ast.unparse(annotation.value).rpartition(".")[2]
        parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        if name == "Optional":
            return (*_parse_annotation(parts[0])[:2], True)
        if name == "Union":
            others = [part for part in parts if not _is_none(part)]
            return (*_parse_annotation(others[0])[:2], len(others) < len(parts))
        if name == "Literal":
            return "choice", [part.value for part in parts if isinstance(part, ast.Constant)], False
    return "json", [], False


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _constant_value(node: ast.expr, script: Path) -> Any:
    """What a default is, where that can be told without running it."""
    if "__file__" in ast.unparse(node):
        return script.stem  # `os.path.basename(__file__)[: -len(".py")]`
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.Tuple, ast.List)):
        return [_constant_value(part, script) for part in node.elts]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_constant_value(node.operand, script)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY_OPERATORS:
        return _BINARY_OPERATORS[type(node.op)](_constant_value(node.left, script), _constant_value(node.right, script))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1 and not node.keywords:
        make = {"int": int, "float": float, "str": str, "bool": bool}.get(node.func.id)
        if make is not None:
            return make(_constant_value(node.args[0], script))
    raise _NotConstant


# --- what is run


def validate_settings(name: str, fields: list[Json], given: Mapping[str, Any], paths: Mapping[str, str]) -> Json:
    """The settings that were given, each judged by its field; refused with the key's path."""
    by_name = {field["name"]: field for field in fields}
    for key, value in given.items():
        if key not in by_name:
            raise ConfigRefused(f"LOG705 {paths.get(key, key)}: {unknown_name_error('setting', key, by_name, name)}")
        problem = _setting_problem(by_name[key], value)
        if problem:
            raise ConfigRefused(f"LOG705 {paths.get(key, key)}: {problem} (given: {str(value)[:60]!r}).")
    return dict(given)


def _setting_problem(field: Json, value: Any) -> str | None:
    kind = field["type"]
    if value is None:
        return None if field["is_optional"] else "expected a value, not none"
    if kind == "choice":
        choices = field["constraints"]["choices"]
        return None if value in choices else f"expected one of {', '.join(map(str, choices))}"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    fits = {
        "int": is_number and float(value).is_integer(),
        "float": is_number,
        "bool": isinstance(value, bool),
        "str": isinstance(value, str) and "\0" not in value,
        "json": True,
    }
    words = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
    return None if fits[kind] else f"expected {words[kind]}"


def build_command(
    checkout: CleanrlCheckout, script: Path, fields: list[Json], settings: Mapping[str, Any]
) -> list[str]:
    """The command line of the script, in the form that its parser takes."""
    argv = [checkout.python, str(script)]
    for field in fields:
        if field["name"] not in settings:
            continue
        value, flag = settings[field["name"]], field["name"].replace("_", "-")
        if field["type"] == "bool":
            argv.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list):
            argv += [f"--{flag}", *map(_format_argument, value)]
        elif value is not None or field["default"] is not None:
            argv += [f"--{flag}", _format_argument(value)]
    return argv


def _format_argument(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return value if isinstance(value, str) else "None" if value is None else json.dumps(value)


def required_packages(script: Path) -> list[str]:
    """The packages that a script cannot begin without."""
    names = set()
    for node in _parse_script(script).body:
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return sorted(names)


def missing_package_problem(checkout: CleanrlCheckout, script: Path) -> str | None:
    """A sentence where the interpreter cannot run the script."""
    ask = "import importlib.util as u, sys; print(*(name for name in sys.argv[1:] if not u.find_spec(name)))"
    advice = "Name another interpreter: --cleanrl-python /path/to/venv/bin/python"
    try:
        asked = subprocess.run(
            [checkout.python, "-c", ask, *required_packages(script)],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": str(checkout.root)},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{checkout.python} cannot be run ({error}). {advice}"
    missing = asked.stdout.split()
    if missing:
        return f"{checkout.python} lacks what {script.name} imports: {', '.join(missing)}. {advice}"
    return f"{checkout.python} failed: {asked.stderr.strip()[-200:]}. {advice}" if asked.returncode else None
