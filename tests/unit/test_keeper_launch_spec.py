from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mosaic.keeper.launch_spec import LaunchMalformed, keeper_command, parse_launch

VALID: dict[str, Any] = {
    "folder": "/runs/it's one",
    "argv": ["python", "-m", "worker"],
    "cwd": "/",
    "env": {"PATH": "/bin"},
    "log_name": "cleanrl",
    "limits": {"seconds": 60.0, "memory_mb": None},
    "inbox_offset": 0,
    "grace_s": {"stop": 8.0, "term": 4},
}


def parse(**changes: Any) -> Any:
    return parse_launch(json.dumps({**VALID, **changes}).encode())


def test_a_valid_launch_spec_is_returned_unchanged() -> None:
    assert parse() == VALID


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"argv": []}, "argv"),
        ({"argv": ["a", 3]}, "argv"),
        ({"argv": ["nul\0"]}, "argv"),
        ({"env": {"A": 1}}, "env"),
        ({"sidecar": {}}, "sidecar: missing: argv"),
        ({"sidecar": {"argv": [], "cwd": "/", "env": {}, "log_name": "s"}}, "sidecar.argv"),
        ({"cwd": ""}, "cwd"),
        ({"limits": {"seconds": 1}}, "memory_mb"),
        ({"limits": {"seconds": -1, "memory_mb": None}}, "limits.seconds"),
        ({"grace_s": {"stop": True, "term": 1}}, "grace_s.stop"),
        ({"grace_s": None}, "grace_s"),
        ({"inbox_offset": "0"}, "inbox_offset"),
        ({"color": "red"}, "color"),
    ],
)
def test_a_malformed_launch_spec_is_rejected_naming_the_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(LaunchMalformed, match=message):
        parse(**changes)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b"{}"])
def test_data_that_is_not_a_launch_spec_is_rejected(data: bytes) -> None:
    with pytest.raises(LaunchMalformed):
        parse_launch(data)


def test_the_error_shows_nothing_of_the_environment() -> None:
    with pytest.raises(LaunchMalformed) as raised:
        parse(env=["KEY=sesame"])
    assert "sesame" not in str(raised.value)


def test_the_command_names_a_file_that_exists() -> None:
    assert Path(keeper_command()[-1]).is_file()
