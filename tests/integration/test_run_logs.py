"""The logs of real runs: both streams in the order of their writing, and the search in the whole file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.helpers import shared_daemon
from tests.helpers.commands import mosaic
from tests.helpers.daemons import ended
from tests.helpers.probe_scripts import start_script

from mosaic.contracts.errors import BadInput
from mosaic.contracts.folder import Workspace
from mosaic.trainer.client.trainer_client import TrainerClient

plugins, workspace, live, trainer = shared_daemon.FIXTURES

ALTERNATING = """
    import sys, time
    for number in range(3):
        print("out", number, flush=True)
        time.sleep(0.5)
        print("err", number, file=sys.stderr, flush=True)
        time.sleep(0.5)
    {}["missing"]
"""
LONG = """
    import sys
    for number in range(200_000):
        print(f"{number}: " + ("a Needle in it" if number % 20_000 == 7 else "nothing but hay"))
"""


@pytest.mark.may_log("queue_paused")
def test_both_streams_are_read_in_the_order_of_their_writing(
    trainer: TrainerClient, workspace: Workspace, tmp_path: Path
) -> None:
    run_id = start_script(trainer, tmp_path, ALTERNATING)
    followed = b"".join(chunk.data for chunk in trainer.log(run_id, follow=True, is_both=True))
    ended(trainer, run_id)
    chunks = list(trainer.log(run_id, is_both=True))
    assert followed == b"".join(chunk.data for chunk in chunks)
    lines = followed.decode().splitlines()
    assert lines[:6] == [f"{name} {number}" for number in range(3) for name in ("out", "err")]
    assert lines[-1] == "KeyError: 'missing'"
    assert [chunk.is_stderr for chunk in chunks[:6]] == [False, True] * 3
    errors = trainer.find_log_errors(run_id, is_both=True).lines
    assert [error.text for error in errors] == ["Traceback (most recent call last):", "KeyError: 'missing'"]
    at_error = b"".join(chunk.data for chunk in trainer.log(run_id, offset=errors[0].offset, is_both=True))
    assert at_error.startswith(b"Traceback")
    printed = mosaic(workspace, "logs", run_id, "--both").out
    assert printed.splitlines() == lines
    shown = mosaic(workspace, "logs", run_id, "--search", "ERR", "--stderr").out.splitlines()
    assert shown[:3] == ["1:err 0", "2:err 1", "3:err 2"]
    assert re.fullmatch(r"\d:KeyError: 'missing'", shown[3])


def test_a_long_log_is_searched_as_a_whole(trainer: TrainerClient, workspace: Workspace, tmp_path: Path) -> None:
    run_id = start_script(trainer, tmp_path, LONG)
    ended(trainer, run_id)
    found = trainer.search_log(run_id, "needle")
    assert not found.is_limited
    assert [match.line for match in found.lines] == [number * 20_000 + 8 for number in range(10)]
    for match in found.lines:
        data = next(iter(trainer.log(run_id, offset=match.offset))).data
        assert data.startswith(f"{match.line - 1}: a Needle in it\n".encode())
    assert trainer.search_log(run_id, "hay").is_limited
    assert trainer.search_log(run_id, "pitchfork").lines == []
    with pytest.raises(BadInput, match="must be one line"):
        trainer.search_log(run_id, "two\nlines")
    result = mosaic(workspace, "logs", run_id, "--search", "pitchfork")
    assert result.code == 0
    assert re.search(r"No line of stdout contains 'pitchfork'", result.err)
    as_json = mosaic(workspace, "--json", "logs", run_id, "--search", "needle").json
    assert as_json["matches"][0] == {"line": 8, "stream": "stdout", "text": "7: a Needle in it"}
