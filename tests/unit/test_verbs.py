"""The verbs of trainer.proto: what is stated of them there, and what answers them."""

from __future__ import annotations

from mosaic.contracts import trainer_pb2 as pb
from mosaic.trainer.daemon import HANDLERS

VERBS = {verb.name: verb.GetOptions().Extensions[pb.verb] for verb in pb.DESCRIPTOR.services_by_name["Trainer"].methods}


def test_every_verb_has_a_handler() -> None:
    assert HANDLERS.keys() == VERBS.keys()


def test_what_starts_or_changes_something_is_refused_in_a_read_only_workspace() -> None:
    """All that were not meant to be answered there: a new verb is refused until it says otherwise."""
    assert {name for name, facts in VERBS.items() if not facts.is_allowed_read_only} == {
        *("SubmitRun", "CheckRun", "CancelRun", "PauseRun", "ResumeRun", "AnnotateRun", "DeleteRun", "ImportRun"),
        *("SendCommands", "PruneRuns", "RegisterWorker", "Heartbeat", "PublishTelemetry", "SetCap", "ContinueQueue"),
    }


def test_what_waits_for_a_checker_or_unpacks_files_keeps_no_control_call_waiting() -> None:
    slow = {name for name, facts in VERBS.items() if facts.is_slow}
    assert slow == {"SubmitRun", "CheckRun", "ResumeRun", "ImportRun", "AskWorker"}
