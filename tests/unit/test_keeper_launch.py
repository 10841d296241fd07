from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mosaic.keeper.launch_spec import LaunchMalformed, keeper_command, parse_launch

GOOD: dict[str, Any] = {
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
    return parse_launch(json.dumps({**GOOD, **changes}).encode())


def test_a_good_launch_is_taken_as_it_is() -> None:
    assert parse() == GOOD


@pytest.mark.parametrize(
    ("changes", "said"),
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
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_malformed_launch_is_refused_naming_the_key(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(LaunchMalformed, match=said):
        parse(**changes)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b"{}"])
def test_what_is_no_launch_at_all_is_refused(data: bytes) -> None:
    with pytest.raises(LaunchMalformed):
        parse_launch(data)


def test_a_refusal_shows_nothing_of_the_environment() -> None:
    with pytest.raises(LaunchMalformed) as refused:
        parse(env=["KEY=sesame"])
    assert "sesame" not in str(refused.value)


def test_the_command_names_a_file_that_exists() -> None:
    assert Path(keeper_command()[-1]).is_file()
