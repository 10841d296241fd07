"""The verbs of trainer.proto: what is stated of them there, and what answers them."""

from __future__ import annotations

import inspect
import re

from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.trainer_pb2_verbs import Verbs
from mosaic.trainer.daemon import HANDLERS

METHODS = pb.DESCRIPTOR.services_by_name["Trainer"].methods_by_name
VERBS = {name: method.GetOptions().Extensions[pb.verb] for name, method in METHODS.items()}


def test_clients_have_a_method_for_each_verb_with_a_contract() -> None:
    """With the fields of the request as arguments, and the type that the .proto states."""
    for name, facts in VERBS.items():
        method = getattr(Verbs, re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(), None)
        if not facts.contract:
            assert method is None, f"{name}: nobody would check its answer"
            continue
        signature = inspect.signature(method)  # type: ignore[arg-type]
        assert list(signature.parameters)[1:] == [field.name for field in METHODS[name].input_type.fields]
        assert facts.contract.rpartition(".")[2] in signature.return_annotation


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
