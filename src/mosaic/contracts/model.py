"""The base of all models that are stored or sent: strict, frozen, documented."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetPydanticSchema, ValidationError

from mosaic.contracts.errors import ConfigRefused, FieldProblem
from mosaic.contracts.folder import validate_run_id
from mosaic.contracts.names import MAX_TIME
from mosaic.contracts.printable import make_printable
from mosaic.contracts.process_identity import ProcessIdentity

AnyContract = TypeVar("AnyContract", bound="Contract")


# pydantic supports the standard library's TypedDict only from Python 3.12 on; its schema is a plain dict.
StoredProcess = Annotated[
    ProcessIdentity,
    GetPydanticSchema(lambda _, handler: handler(dict[str, int | str])),
    AfterValidator(lambda process: _check_process(process)),
]
Int64 = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
"""What the index can store."""
Count64 = Annotated[int, Field(ge=0, lt=1 << 63)]
Time = Annotated[float, Field(ge=0, le=MAX_TIME)]
RunId = Annotated[str, AfterValidator(validate_run_id)]
MAX_TEXT_LENGTH = 20_000
ShownText = Annotated[str, AfterValidator(lambda text: make_printable(text[:MAX_TEXT_LENGTH]))]
"""What others wrote, to be shown: its escape stands for each character that does not print. Never refused."""

MAX_LISTED = 20
"""Problems that a refusal names."""
_MAX_PATH_LENGTH = 200
_EXPECTED = {
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": 'a mapping, such as {"name": 1}',
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
}
"""By pydantic's type of error: what a person who wrote JSON or YAML calls it."""


def _check_process(process: ProcessIdentity) -> ProcessIdentity:
    if not isinstance(process.get("pid"), int) or not all(
        isinstance(process.get(key), str) for key in ("start", "boot_id")
    ):
        raise ValueError("expected `pid`, `start` and `boot_id`")
    return process


class Contract(BaseModel):
    # Each process validates a few of the models: their schemas are built on first use, not at import.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


def field_problems(
    error: ValidationError, prefix: str = "", written_paths: Mapping[str, str] | None = None
) -> list[FieldProblem]:
    """What is wrong, by the path of each key as the user wrote it."""
    problems = error.errors()
    inner = {problem["loc"][:-1] for problem in problems}
    return [
        _field_problem(dict(problem), prefix, written_paths or {})
        for problem in problems
        # A list with an invalid item counts as too short, too.
        if not (problem["type"] == "too_short" and problem["loc"] in inner)
    ]


def _field_problem(problem: dict[str, Any], prefix: str, written_paths: Mapping[str, str]) -> FieldProblem:
    path = ".".join(str(part) for part in (prefix, *problem["loc"]) if part != "")
    outer, dot, last = path.rpartition(".")
    path = written_paths.get(path) or f"{written_paths.get(outer, outer)}{dot}{last}"
    path = path[:_MAX_PATH_LENGTH]
    if problem["type"] == "extra_forbidden":
        return FieldProblem(path, "unknown key")
    if problem["type"] == "missing":
        return FieldProblem(path, "missing")
    expected = _EXPECTED.get(problem["type"])
    raised = problem.get("ctx", {}).get("error")  # by a validator of ours
    message = f"expected {expected}" if expected else str(raised or problem["msg"])
    value = problem.get("input")
    is_plain = isinstance(value, (str, int, float, bool)) or value is None
    given = f" (given: {str(value)[:60]!r})" if is_plain else ""
    return FieldProblem(path, f"{message[:1].lower()}{message[1:]}{given}")


def format_problems(problems: Iterable[FieldProblem]) -> str:
    """All of them as one sentence, each with its path; of very many, the first."""
    listed = [f"{path}: {problem}" if path else problem for path, problem in problems]
    if len(listed) > MAX_LISTED:
        listed[MAX_LISTED:] = [f"and {len(listed) - MAX_LISTED:,} more"]
    text = "; ".join(listed)
    return text if text.endswith("?") else f"{text}."


def format_validation_error(
    error: ValidationError, prefix: str = "", written_paths: Mapping[str, str] | None = None
) -> str:
    return format_problems(field_problems(error, prefix, written_paths))


def refuse(problems: Sequence[FieldProblem], subject: str) -> ConfigRefused:
    """The error for a config that does not fit its contract; `subject` is such as `The config was`."""
    return ConfigRefused(f"LOG705 {subject} refused: {format_problems(problems)}", problems[:MAX_LISTED])


def parse_contract(
    kind: type[AnyContract], data: Any, subject: str, written_paths: Mapping[str, str] | None = None
) -> AnyContract:
    """`data` as a contract; raises ConfigRefused naming the keys that do not fit."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise refuse(field_problems(error, written_paths=written_paths), subject) from None
