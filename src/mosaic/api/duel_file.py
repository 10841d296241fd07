"""Reads the config of a duel from a YAML file or a mapping."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from mosaic.common.limited_json import MAX_BYTES, decode_limited
from mosaic.contracts.duel import DuelConfig
from mosaic.contracts.errors import BadInput, ConfigRefused
from mosaic.contracts.model import parse_contract

_SUBJECT = "The duel was"


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Refuses what would change or repeat values silently: keys that occur twice, and aliases."""

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


def read_duel_file(path: Path) -> DuelConfig:
    try:
        data = path.read_bytes()[: MAX_BYTES + 1]
    except OSError as error:
        raise BadInput(f"The duel {path} cannot be read: {error.strerror}.") from None
    if len(data) > MAX_BYTES:
        raise ConfigRefused(f"LOG705 The duel {path} has more than {MAX_BYTES:,} bytes.")
    try:
        return parse_duel(yaml.load(data, _Loader))
    except yaml.MarkedYAMLError as error:
        line = 1 if error.problem_mark is None else error.problem_mark.line + 1
        raise ConfigRefused(f"LOG705 The duel {path} is not valid YAML: line {line}: {error.problem}.") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigRefused(f"LOG705 The duel {path} is not valid YAML: {' '.join(str(error).split())}.") from None


def parse_duel(data: Any) -> DuelConfig:
    """Return the duel that a mapping describes; raises ConfigRefused naming the keys that do not fit."""
    if not isinstance(data, Mapping):
        raise ConfigRefused("LOG705 The duel was refused: expected keys such as env, actors and seeds.")
    try:
        text = json.dumps(dict(data))
    except TypeError as error:
        raise ConfigRefused(
            f"LOG705 The duel was refused: a value is not a text, number, list or map ({error})."
        ) from None
    return parse_contract(DuelConfig, decode_limited(text, "The duel"), _SUBJECT)
