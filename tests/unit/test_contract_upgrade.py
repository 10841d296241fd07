"""Files written by version 0.1 are still read."""

from __future__ import annotations

import json

from mosaic.contracts.errors import FieldProblem
from mosaic.contracts.events import Event, Metrics, decode_event
from mosaic.contracts.model import refuse
from mosaic.contracts.states import RunRecord, Stage
from mosaic.contracts.views import RunView


def test_a_record_of_version_0_1_is_read_with_its_history_and_final_report() -> None:
    record = RunRecord.model_validate_json(
        json.dumps(
            {
                "run_id": "01M7F4D1G10M14WJPB063GKCSW",
                "worker": "cleanrl",
                "submitted_at": 1.0,
                "queued_at": 1.0,
                "farewell": {"outcome": "stopped", "reason": None},
                "story": [{"at": 1.0, "stage": "queued", "said": "It waits."}],
            }
        )
    )
    assert record.final_report is not None
    assert record.final_report.outcome == "stopped"
    assert [(entry.stage, entry.message) for entry in record.history] == [(Stage.QUEUED, "It waits.")]
    assert "story" not in record.model_dump()


def test_a_record_with_modules_that_are_in_the_config_now_is_read() -> None:
    record = {"run_id": "01M7F4D1G10M14WJPB063GKCSW", "worker": "cleanrl", "submitted_at": 1.0, "queued_at": 1.0}
    report, modules = {"outcome": "stopped", "reason": None}, {"modules": ["maze"], "folders": ["/maze"]}
    for env_modules in (None, modules):
        earlier = {**record, "final_report": report, "env_modules": env_modules}
        assert RunRecord.model_validate(earlier) == RunRecord.model_validate({**record, "final_report": report})


def test_a_view_with_keys_of_a_newer_daemon_is_read() -> None:
    fields = RunView.placeholder("01M7F4D1G10M14WJPB063GKCSW").model_dump(mode="json")
    assert RunView.model_validate({**fields, "a_later_field": 1}).run_id == "01M7F4D1G10M14WJPB063GKCSW"


def test_an_event_is_decoded_to_its_own_type_and_an_unfit_one_to_a_plain_event() -> None:
    line = {"seq": 1, "at": 1.0, "kind": "metrics", "run_id": "R", "source": "journal"}
    assert isinstance(decode_event({**line, "series": {"loss": [[1, 1.0, None]]}}), Metrics)
    for odd in ({**line, "series": 5}, {**line, "kind": "unknown"}):
        event = decode_event(odd)
        assert type(event) is Event
        assert (event.run_id, event.kind) == ("R", odd["kind"])


def test_a_refusal_carries_its_fields() -> None:
    error = refuse([FieldProblem("schedule.priority", "expected at most 100")], "The config was")
    assert str(error) == "LOG705 The config was refused: schedule.priority: expected at most 100."
    assert error.problems == (("schedule.priority", "expected at most 100"),)
