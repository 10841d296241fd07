"""Reads YAML files strictly: what would change or repeat values silently is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from mosaic.base.limited_json import MAX_BYTES, decode_limited
from mosaic.contracts.errors import BadInput, ConfigRefused


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Refuses keys that occur twice, and aliases."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not supported", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value]
        for key, _ in node.value:
            if keys.count(key.value) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} occurs twice", key.start_mark
                )
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


# YAML 1.1 takes 1e-3, which has no point, for text.
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789"))


def read_yaml_file(path: Path, subject: str) -> Any:
    """Return what a file contains; `subject` is such as `The duel`."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{subject} {path} cannot be read: {error.strerror}.") from None
    if len(data) > MAX_BYTES:
        raise ConfigRefused(f"LOG705 {subject} {path} has more than {MAX_BYTES:,} bytes.")
    try:
        return yaml.load(data, _Loader)
    except yaml.MarkedYAMLError as error:
        line = 1 if error.problem_mark is None else error.problem_mark.line + 1
        raise ConfigRefused(f"LOG705 {subject} {path} is not valid YAML: line {line}: {error.problem}.") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigRefused(f"LOG705 {subject} {path} is not valid YAML: {' '.join(str(error).split())}.") from None


def to_plain_mapping(data: Any, subject: str, keys: str) -> dict[str, Any]:
    """Return a mapping as JSON has it, within limits on its size; `keys` are some that are expected."""
    if not isinstance(data, Mapping):
        raise ConfigRefused(f"LOG705 {subject} was refused: expected keys such as {keys}.")
    try:
        text = json.dumps(dict(data))
    except TypeError as error:
        raise ConfigRefused(
            f"LOG705 {subject} was refused: a value is not a text, number, list or map ({error})."
        ) from None
    plain: dict[str, Any] = decode_limited(text, subject)
    return plain
