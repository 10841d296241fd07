"""The base of everything that is written down or sent: strict, frozen, documented."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, GetPydanticSchema, ValidationError

from mosaic.contracts.errors import ConfigRefused
from mosaic.contracts.processes import ProcessIdentity

AnyContract = TypeVar("AnyContract", bound="Contract")


# pydantic takes the standard library's TypedDict only from Python 3.12 on; its shape is a plain dict.
ProcessFacts = Annotated[ProcessIdentity, GetPydanticSchema(lambda _, handler: handler(dict[str, int | str]))]


class Contract(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def format_validation_error(
    error: ValidationError, prefix: str = "", written_paths: Mapping[str, str] | None = None
) -> str:
    """One sentence a problem, each beginning with the path of the key it is about, as the user wrote it."""
    return "; ".join(_sentence(dict(problem), prefix, written_paths or {}) for problem in error.errors()) + "."


def _sentence(problem: dict[str, Any], prefix: str, written_paths: Mapping[str, str]) -> str:
    path = ".".join(str(part) for part in (prefix, *problem["loc"]) if part != "")
    path = written_paths.get(path, path)
    if problem["type"] == "extra_forbidden":
        return f"{path}: unknown key"
    if problem["type"] == "missing":
        return f"{path}: missing"
    said = str(problem["msg"]).removeprefix("Value error, ")
    shown = problem.get("input")
    is_plain = isinstance(shown, (str, int, float, bool)) or shown is None
    given = f" (given: {str(shown)[:60]!r})" if is_plain else ""
    return f"{path}: {said[:1].lower()}{said[1:]}{given}"


def parse_contract(
    kind: type[AnyContract], data: Any, what: str, written_paths: Mapping[str, str] | None = None
) -> AnyContract:
    """`data` as a contract, or ConfigRefused saying which keys do not fit."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        sentences = format_validation_error(error, written_paths=written_paths)
        raise ConfigRefused(f"LOG705 {what} refused: {sentences}") from None
