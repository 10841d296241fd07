"""The user's CleanRL checkout: its scripts as algorithms, with the settings declared by their `Args`.

The scripts are parsed, not run or imported. Uses the standard library only, because the command line calls it too.
"""

from __future__ import annotations

import ast
import importlib.util
import itertools
import json
import operator
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mosaic.contracts.errors import BadInput, refuse_key, unknown_name_error
from mosaic.contracts.options import OPTIONS
from mosaic.contracts.setting_field import SettingField

USER_CLEANRL_PREFIX = "cleanrl:"
"""`cleanrl:ppo` is the script ppo.py of the user's CleanRL; `ppo` is MOSAIC's algorithm."""
SECTION_FLAGS = {
    "artifacts.wandb.enabled": "track",
    "artifacts.wandb.project": "wandb_project_name",
    "artifacts.wandb.entity": "wandb_entity",
    "artifacts.video.capture": "capture_video",
    "artifacts.model.save": "save_model",
    "artifacts.model.upload": "upload_model",
    "artifacts.model.hub_entity": "hf_entity",
}
"""By path in the payload: the flag of CleanRL's scripts that means the same."""
OPTIONS_WITHOUT_EFFECT = (
    *("tensorboard", "tensorboard_dir", "wandb_run_name", "grid_limit"),
    *("keep_checkpoints", "eval_batch_size", "eval_repeat", "eval_stochastic", "seed_override", "record_steps"),
)
"""Options of a run that a script of its own cannot follow: it writes event files and models, and logs, by itself."""
_COMPUTED_AT_RUNTIME = "computed in runtime"
_SIMPLE_TYPES = ("int", "float", "bool", "str")
_BINARY_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class _NotConstant(Exception):
    """The value of an expression is known only at run time."""


@dataclass(frozen=True)
class CleanrlCheckout:
    """The location of a CleanRL and the interpreter that runs it."""

    root: Path
    """The folder that its scripts expect in PYTHONPATH, for `cleanrl_utils`."""
    scripts: dict[str, Path]
    python: str

    def script(self, name: str) -> Path:
        try:
            return self.scripts[name]
        except KeyError:
            raise unknown_name_error("script", name, self.scripts, str(self.root)) from None


def find_checkout(path: str, python: str | None = None) -> CleanrlCheckout:
    """Find CleanRL in a checkout, an installed `cleanrl` package, or a virtual environment with it."""
    root = Path(path).expanduser().absolute()
    if not root.is_dir():
        raise BadInput(
            f"cleanrl: {path!r} is not a folder. Expected a CleanRL checkout or an environment with CleanRL."
        )
    packages = [root / "cleanrl", root, *sorted(root.glob("lib/python3*/site-packages/cleanrl"))]
    for package in packages:
        scripts = {file.stem: file for file in sorted(package.glob("*.py")) if _has_args(file)}
        if scripts:
            return CleanrlCheckout(package.parent, scripts, python or _find_interpreter(root))
    raise BadInput(f"cleanrl: no CleanRL script found in {root}. Expected files such as cleanrl/ppo.py.")


def find_installed(python: str | None = None) -> str | None:
    """Return where the package `cleanrl` is installed, which is not imported.

    It is searched in the environment of an interpreter; by default in the caller's virtual environment, then in ours.
    """
    if python is not None:
        return _find_installed_for(python)
    environment = os.environ.get("VIRTUAL_ENV")
    if environment and any(map(_has_args, Path(environment).glob("lib/python3*/site-packages/cleanrl/*.py"))):
        return environment
    spec = importlib.util.find_spec("cleanrl")
    return _first_with_scripts(list(spec.submodule_search_locations or ()) if spec is not None else [])


def _find_installed_for(python: str) -> str | None:
    code = (
        "import importlib.util, json; spec = importlib.util.find_spec('cleanrl'); "
        "print(json.dumps(list(spec.submodule_search_locations or ()) if spec else []))"
    )
    try:
        result = subprocess.run(
            [python, "-c", code], capture_output=True, encoding="utf-8", errors="replace", timeout=60, cwd=os.path.sep
        )
        return _first_with_scripts(json.loads(result.stdout))
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise BadInput(f"cleanrl_python: {python} is not a Python interpreter that can be run ({error}).") from None


def _first_with_scripts(packages: list[str]) -> str | None:
    folders = (Path(package) for package in packages)
    return next((str(folder.parent) for folder in folders if any(map(_has_args, folder.glob("*.py")))), None)


def _find_interpreter(root: Path) -> str:
    for candidate in (root / "bin" / "python", root / ".venv" / "bin" / "python"):
        if candidate.is_file():
            return str(candidate)
    return sys.executable


def _has_args(file: Path) -> bool:
    try:
        return "\nclass Args" in file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


# --- settings


def script_names(path: str) -> tuple[str, ...]:
    """Return the names of the scripts, such as `cleanrl:ppo`, without parsing them."""
    return tuple(USER_CLEANRL_PREFIX + name for name in find_checkout(path).scripts)


def script_algorithms(path: str) -> dict[str, dict[str, Any]]:
    """Return an entry as in schemas.json for each readable script, by name."""
    algorithms = {}
    for name in script_names(path):
        try:
            algorithms[name] = script_algorithm(path, name)
        except BadInput:
            continue  # an unreadable file must not hide the others
    return algorithms


def script_algorithm(path: str, name: str) -> dict[str, Any]:
    """Return the entry of one script, by its name in `script_names`."""
    return describe_script(find_checkout(path).script(name.removeprefix(USER_CLEANRL_PREFIX)))


def describe_script(script: Path) -> dict[str, Any]:
    """Return the script's entry as in schemas.json."""
    module = _parse_script(script)
    fields = [asdict(field) for field in script_fields(script, module)]
    if any(field["name"] == "save_model" for field in fields):  # the script evaluates the model that it saves
        option = OPTIONS["eval_capture_video"]
        fields.append({name: getattr(option, name) for name in SettingField.__dataclass_fields__})
    return {
        "module": str(script),
        "title": f"CleanRL's own {script.name}",
        "summary": ast.get_docstring(module) or f"The script {script}, unchanged.",
        "help": "",
        "fields": fields,
        "options_without_effect": OPTIONS_WITHOUT_EFFECT,
        "supports": {"action_spaces": [], "observation_spaces": [], "resume": False, "evaluation": False},
    }


def script_fields(script: Path, module: ast.Module | None = None) -> list[SettingField]:
    """Return the settings declared by the script's `Args`; `module` is the parsed script, if it was parsed."""
    for node in (module or _parse_script(script)).body:
        if isinstance(node, ast.ClassDef) and node.name == "Args":
            return [
                _setting_field(script, name, statement, doc)
                for name, statement, doc in _documented_fields(node)
                if _COMPUTED_AT_RUNTIME not in doc
            ]
    raise BadInput(f"{script}: it has no class Args, so its settings are unknown.")


def _parse_script(script: Path) -> ast.Module:
    try:
        return ast.parse(script.read_text(encoding="utf-8"), str(script))
    except (OSError, ValueError, SyntaxError) as error:
        raise BadInput(f"{script} cannot be read: {error}.") from None


def _documented_fields(node: ast.ClassDef) -> Iterator[tuple[str, ast.AnnAssign, str]]:
    """Yield the name of each annotated assignment, the assignment, and the docstring after it."""
    for statement, following in itertools.zip_longest(node.body, node.body[1:]):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            value = following.value if isinstance(following, ast.Expr) else None
            doc = value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""
            yield statement.target.id, statement, " ".join(doc.split())


def _setting_field(script: Path, name: str, statement: ast.AnnAssign, doc: str) -> SettingField:
    kind, choices, is_optional = _parse_annotation(statement.annotation)
    default: Any = None
    if statement.value is not None:
        try:
            default = _constant_value(statement.value, script)
        except _NotConstant:
            is_optional = True  # where it is not given, the script computes it
            doc = f"{doc} [default: {ast.unparse(statement.value)}]".strip()
    if isinstance(default, int) and not isinstance(default, bool) and kind == "float":
        default = float(default)
    return SettingField(
        name,
        kind,
        default,
        doc[:1].upper() + doc[1:] + ("." if doc and doc[-1] not in ".!?]" else ""),
        {"choices": choices} if choices else {},
        "settings",
        # CleanRL writes `target_kl: float = None` for an optional value.
        is_optional or (statement.value is not None and _is_none(statement.value)),
    )


def _parse_annotation(annotation: ast.expr) -> tuple[str, list[Any], bool]:
    """Return the simple type, choices, and whether the value is optional."""
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
    """Evaluate a default if that is possible without running the script."""
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
        convert = {"int": int, "float": float, "str": str, "bool": bool}.get(node.func.id)
        if convert is not None:
            return convert(_constant_value(node.args[0], script))
    raise _NotConstant


# --- running


def check_settings(name: str, fields: list[SettingField], given: Mapping[str, Any], paths: Mapping[str, str]) -> None:
    """Check the given settings against their fields; raise with the path of the first invalid one."""
    by_name = {field.name: field for field in fields}
    for key, value in given.items():
        if key not in by_name:
            raise refuse_key(paths.get(key, key), str(unknown_name_error("setting", key, by_name, name)))
        problem = _setting_problem(by_name[key], value)
        if problem:
            raise refuse_key(paths.get(key, key), f"{problem} (given: {str(value)[:60]!r}).")


def _setting_problem(field: SettingField, value: Any) -> str | None:
    if value is None:
        return None if field.is_optional else "expected a value, not None"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    fits = {
        "int": is_number and float(value).is_integer(),
        "float": is_number,
        "bool": isinstance(value, bool),
        "str": isinstance(value, str) and "\0" not in value,
        "choice": value in (field.constraints or {}).get("choices", ()),
        "json": True,
    }
    return None if fits[field.type] else f"expected {field.expected_values}"


def build_command(
    checkout: CleanrlCheckout, script: Path, fields: list[SettingField], settings: Mapping[str, Any]
) -> list[str]:
    """Return the command line of the script, in the form that its parser accepts."""
    argv = [checkout.python, str(script)]
    for field in fields:
        if field.name not in settings:
            continue
        value = settings[field.name]
        if field.type == "bool":
            argv.append(field.flag if value else field.flag.replace("--", "--no-"))
        elif isinstance(value, list):
            argv += [field.flag, *map(_format_argument, value)]
        elif value is not None or field.default is not None:
            argv += [field.flag, _format_argument(value)]
    return argv


def _format_argument(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return value if isinstance(value, str) else "None" if value is None else json.dumps(value)


def required_packages(script: Path) -> list[str]:
    """Return the packages that a script imports."""
    names = set()
    for node in _parse_script(script).body:
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return sorted(names)


def missing_package_problem(checkout: CleanrlCheckout, script: Path) -> str | None:
    """Return a message if the interpreter cannot run the script."""
    advice = "Choose another interpreter (Its Python in the form): --cleanrl-python /path/to/venv/bin/python"
    try:
        missing = missing_packages(checkout, required_packages(script))
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{checkout.python} cannot be run ({error}). {advice}"
    except subprocess.CalledProcessError as error:
        return f"{checkout.python} failed: {error.stderr.strip()[-200:]}. {advice}"
    if missing:
        return f"{checkout.python} lacks packages that {script.name} imports: {', '.join(missing)}. {advice}"
    return None


def missing_packages(checkout: CleanrlCheckout, names: Iterable[str]) -> list[str]:
    """Return those of the packages that the interpreter of a checkout does not find; raise if it cannot be run."""
    code = "import importlib.util as u, sys; print(*(name for name in sys.argv[1:] if not u.find_spec(name)))"
    return subprocess.run(
        [checkout.python, "-c", code, *names],
        capture_output=True,
        check=True,
        encoding="utf-8",
        errors="replace",
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(checkout.root)},
    ).stdout.split()
