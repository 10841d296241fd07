"""Payloads, errors and paths."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mosaic
from mosaic.contracts import events
from mosaic.contracts import names as semconv
from mosaic.contracts.errors import ConfigRefused, MosaicError, NotAllowed, error_class, unknown_name_error
from mosaic.contracts.events import EVENT_TYPES, Deleted, Event, HubPushed
from mosaic.contracts.folder import RunFolder, Workspace, to_file_name
from mosaic.contracts.payload import Payload

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda some: st.lists(some) | st.dictionaries(st.text(), some),
)


def payload(**changes: Any) -> dict[str, Any]:
    return {"metadata": {"worker": {"id": "cleanrl", "config": {"algo": "ppo"}}}, "artifacts": {}, **changes}


def test_what_was_not_set_stays_unset_and_false_stays_false() -> None:
    data = payload(artifacts={"tensorboard": {"enabled": False}}, schedule={})
    assert Payload.parse(data).to_json() == data
    assert Payload.parse(data).schedule.max_duration_seconds is None


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"artifacts": {}}, "metadata: missing"),
        ({"metadata": {"worker": {"id": "x", "config": {}}}}, "artifacts: missing"),
        (payload(extra=1), "extra: unknown key"),
        (payload(artifacts={"tensorboard": {"enable": True}}), "artifacts.tensorboard.enable: unknown key"),
        (payload(resources={"gpus": {"wanted": 1}}), "resources.gpus.wanted: unknown key"),
        (payload(schedule={"max_duration_seconds": 0}), "schedule.max_duration_seconds: "),
        (payload(run_name="../../etc/passwd"), "run_name: "),
        (payload(run_name="a\nb"), "run_name: "),
        ({**payload(), "metadata": {"worker": {"id": "/bin/sh", "config": {}}}}, "metadata.worker.id: "),
        (payload(metadata={"worker": {"id": "x", "config": {}}, "tags": ["$(touch x)"]}), "metadata.tags.0: "),
        ([], ""),
        ("text", ""),
    ],
)
def test_a_stray_key_is_refused_with_its_path_and_its_code(data: Any, path: str) -> None:
    with pytest.raises(ConfigRefused, match="LOG705") as refused:
        Payload.parse(data)
    assert path in str(refused.value)


@given(ANY_JSON)
def test_any_json_is_parsed_or_refused(data: Any) -> None:
    with pytest.raises(ConfigRefused, match="LOG705"):
        Payload.parse(data)


def test_the_closest_name_is_suggested() -> None:
    error = unknown_name_error("algorithm", "pppo", ["dqn", "ppo"], "worker 'cleanrl'")
    assert str(error) == "No algorithm 'pppo' in worker 'cleanrl'. Did you mean 'ppo'? Known: dqn, ppo."


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("sac", "sac_continuous_action"),
        ("Breakout-v5", "ALE/Breakout-v5"),
        ("breakout", "ALE/Breakout-v5"),
        ("sac_continous_action", "sac_continuous_action"),
    ],
)
def test_a_part_of_a_name_is_suggested_before_a_similar_one(name: str, suggestion: str) -> None:
    known = [f"a{number}" for number in range(20)]
    known += ["Breakout-v4", "ALE/Breakout-v5", "sac_atari", "sac_continuous_action"]
    hint = str(unknown_name_error("name", name, known)).partition(" Did you mean ")[2].partition("?")[0]
    assert repr(suggestion) in hint.split(" or ")


def test_every_error_that_users_see_has_a_log_number_of_its_own() -> None:
    """R6.2: refusals carry a LOG number, defined with their error class."""
    classes: list[type[MosaicError]] = [MosaicError]
    for each in classes:
        classes += each.__subclasses__()
    codes = [each.log_code for each in classes if each.__module__ == MosaicError.__module__]
    assert all(re.fullmatch(r"LOG7\d\d", code) for code in codes)
    assert len(set(codes)) == len(codes)
    assert ConfigRefused.log_code == "LOG705"


def test_errors_are_found_by_their_name() -> None:
    assert error_class("NotAllowed") is NotAllowed
    assert error_class("SystemExit") is MosaicError


def test_every_event_is_found_by_its_kind() -> None:
    defined = [item for item in vars(events).values() if isinstance(item, type) and issubclass(item, Event)]
    assert {event.KIND: event for event in defined if event is not Event} == EVENT_TYPES
    assert len(EVENT_TYPES) == len(defined) - 1, "two events have the same kind"
    assert EVENT_TYPES["hub_pushed"] is HubPushed
    assert EVENT_TYPES["deleted"] is Deleted


def test_paths_of_a_run_never_leave_its_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "R")
    for name in ("ALE/Pong-v5", "../../x", "/etc/passwd", "a\\b", "..", "\0"):
        assert folder.path in folder.model(name, name).resolve().parents
        assert "/" not in to_file_name(name)


def test_the_default_workspace_is_var(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOSAIC_VAR", raising=False)
    assert Workspace.resolve().root == Path("var").absolute()
    monkeypatch.setenv("MOSAIC_VAR", "/there")
    assert Workspace.resolve().root == Path("/there")
    assert Workspace.resolve("/here").root == Path("/here")


def test_names_of_events_are_stated_once() -> None:
    """R6.2: names that several parts use are in one module, and every line of a journal has its topic."""
    source = Path(mosaic.__file__).parent
    names = {value for name, value in vars(semconv).items() if name.isupper() and isinstance(value, str)}
    assert {"fastlane_connected", "fastlane_unavailable", "fastlane_header_invalid"} < names
    assert {"fastlane_frame_read_error", "fastlane_queue_depth"} < names
    assert [semconv.topic(name) for name in ("fastlane_queue_depth", "policy_eval_started", "ui_error")] == [
        "fastlane.queue_depth", "runbus.policy_eval_started", "ui.error",
    ]  # fmt: skip
    for path in source.rglob("*.py"):
        if path.name not in ("names.py", "trainer_pb2.py"):
            repeated = {name for name in names if f'"{name}"' in path.read_text()}
            assert not repeated, f"{path} writes {repeated} out: use contracts/names.py"
    files = [path for folder in (source, source.parent / "cleanrl_worker") for path in folder.rglob("*.py")]
    pattern = re.compile(r'\b(?:event|write_event|add_daemon_event)\(\s*(?:[\w.]+,\s*)?"(\w+)"')
    written = {kind for path in files for kind in pattern.findall(path.read_text())}
    assert {"hello", "progress", "record", "eval_summary_update", "policy_eval_completed"} <= written
    assert written - set(EVENT_TYPES) <= {"event_malformed"}, "every event of a run is declared in contracts/events.py"
