"""Reads the config of a duel from a YAML file or a mapping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mosaic.api.yaml_file import read_yaml_file, to_plain_mapping
from mosaic.contracts.duel import DuelConfig
from mosaic.contracts.model import parse_contract

_SUBJECT = "The duel"


def read_duel_file(path: Path) -> DuelConfig:
    return parse_duel(read_yaml_file(path, _SUBJECT))


def parse_duel(data: Any) -> DuelConfig:
    """Return the duel that a mapping describes; raises ConfigRefused naming the keys that do not fit."""
    return parse_contract(DuelConfig, to_plain_mapping(data, _SUBJECT, "env, actors and seeds"), f"{_SUBJECT} was")
