"""What `mosaic disk` and `mosaic prune` say and send."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import click
import pytest
from tests.helpers.cli_trainer import FakeTrainer, call, finished, view

from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.disk_views import DiskKind, DiskUsage, PruneItem, PrunePart, RunUsage

RUN = "01M7F4D1G10M14WJPB063GKCSW"
OTHER = "01M7F4D1G10M14WJPB063GKCSX"
SIZES = {DiskKind.CHECKPOINTS: 3_000_000, DiskKind.INDEX: 1_000_000}


class DiskTrainer(FakeTrainer):
    def __init__(self) -> None:
        super().__init__(finished(view(RUN)), finished(view(OTHER)))
        self.requests: list[pb.PruneRequest] = []
        self.items = [
            PruneItem(run_id=RUN, kind=DiskKind.CHECKPOINTS, names=("100", "200"), size_bytes=2_000_000),
            PruneItem(run_id=OTHER, kind=DiskKind.TRASH, names=(), size_bytes=500_000),
        ]

    def read_disk_usage(self, runs: Sequence[str] = (), largest: int = 0) -> Iterator[DiskUsage]:
        self.calls.append(("disk_usage", tuple(runs), largest))
        yield DiskUsage(run_count=1, run_total=2, size_bytes={})
        top = RunUsage(run_id=RUN, size_bytes={DiskKind.CHECKPOINTS: 3_000_000}, status="succeeded", algo="ppo")
        yield DiskUsage(run_count=2, run_total=2, size_bytes=SIZES, free_bytes=7_000_000_000, largest=(top,))

    def prune_runs(self, runs: Sequence[str] = (), **fields: Any) -> Iterator[PrunePart]:
        self.requests.append(pb.PruneRequest(runs=runs, **fields))
        yield PrunePart(run_count=1, run_total=2, items=tuple(self.items[:1]), notes=("Run X keeps its files.",))
        yield PrunePart(run_count=2, run_total=2, items=tuple(self.items[1:]))


@pytest.fixture
def trainer() -> DiskTrainer:
    return DiskTrainer()


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A terminal, and what its user answers."""
    answers: list[bool] = []

    def confirm(*_: Any, **__: Any) -> None:
        if not answers.pop(0):
            raise click.Abort

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(click, "confirm", confirm)
    return answers


def test_disk_lists_kinds_by_size_and_the_largest_runs(trainer: DiskTrainer) -> None:
    shown = call(trainer, "disk")
    lines = [line.split() for line in shown.out.splitlines() if line]
    assert [line[0] for line in lines] == ["KIND", "checkpoints", "index", "all", "RUN", "3GKCSW"]
    assert lines[1][1:] == ["3.0", "MB", "75%"]
    assert "Free on this disk: 7.0 GB" in shown.err
    call(trainer, "disk", RUN)
    assert trainer.calls[-1] == ("disk_usage", (RUN,), 1)


def test_prune_is_a_dry_run_without_a_terminal(trainer: DiskTrainer) -> None:
    shown = call(trainer, "prune", "--checkpoints", "--keep", "3", "--older-than", "2d")
    (request,) = trainer.requests
    assert (request.is_dry_run, request.checkpoints, request.keep, request.older_than_s) == (True, True, 3, 172_800.0)
    assert "100, 200" in shown.out
    assert "Would remove 2.5 MB of 2 runs. Remove it: add --yes" in shown.err
    assert "Run X keeps its files." in shown.err


def test_prune_asks_and_removes_what_it_has_shown(trainer: DiskTrainer, answers: list[bool]) -> None:
    answers.append(True)
    shown = call(trainer, "prune", "--checkpoints", "--replay", "--videos", "--trash")
    plan, removal = trainer.requests
    assert (plan.is_dry_run, removal.is_dry_run) == (True, False)
    assert (list(plan.runs), list(removal.runs)) == ([], [RUN]), "no run that was not shown"
    assert (removal.checkpoints, removal.replay, removal.videos, removal.trash) == (True, False, False, True)
    assert "Removed 2.5 MB of 2 runs." in shown.err
    assert shown.out.count("100, 200") == 1, "the table is shown once"


def test_prune_removes_nothing_where_the_answer_is_no(trainer: DiskTrainer, answers: list[bool]) -> None:
    answers.append(False)
    assert call(trainer, "prune", "--checkpoints").code == 130
    assert [request.is_dry_run for request in trainer.requests] == [True]


def test_a_dry_run_does_not_ask_and_yes_does_not_either(trainer: DiskTrainer, answers: list[bool]) -> None:
    call(trainer, "prune", "--checkpoints", "--dry-run", "--yes")
    call(trainer, "prune", "--checkpoints", "--dry-run")
    call(trainer, "prune", "--checkpoints", "--yes")
    call(trainer, "prune", "--checkpoints", "--json")
    assert [request.is_dry_run for request in trainer.requests] == [True, True, False, True]


def test_json_has_every_item(trainer: DiskTrainer) -> None:
    result = json.loads(call(trainer, "prune", RUN, "--checkpoints", "--yes", "--json").out)
    assert result["by_kind"] == {"checkpoints": 2_000_000, "trash": 500_000}
    assert [item["run_id"] for item in result["items"]] == [RUN, OTHER]
    assert list(trainer.requests[0].runs) == [RUN]


@pytest.mark.parametrize("arguments", [[], ["--replay", "--keep", "2"], [RUN, "--trash"], ["--older-than", "soon"]])
def test_a_wrong_request_is_not_sent(trainer: DiskTrainer, arguments: list[str]) -> None:
    assert call(trainer, "prune", *arguments).code == 2
    assert trainer.requests == []
