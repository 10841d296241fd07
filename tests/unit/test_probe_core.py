"""One source per tag, and every episode once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.helpers.probe_scripts import episodes, events, points

from mosaic.base.console_parser import ConsoleParser
from mosaic.base.journal import Journal, Outbox
from mosaic.contracts.events import EVENT_TYPES
from mosaic.contracts.folder import RunFolder
from mosaic.probe.inside import core
from mosaic.probe.inside.core import CONSOLE, WANDB, WRITER, Probe


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("MOSAIC_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("MOSAIC_PROBE", "frames=1 metrics=1 console=1 wandb=1 total_timesteps=1000")
    return RunFolder(tmp_path)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The current time, in a list with one element."""
    now = [1000.0]
    monkeypatch.setattr(core, "_now", lambda: now[0])
    monkeypatch.setattr(core, "_monotonic", lambda: now[0])
    return now


def feed_console(probe: Probe, text: str) -> None:
    for reading in ConsoleParser().feed(text + "\n"):
        probe.add_console_reading(reading)


def test_scalars_reach_the_journal_as_tensorboard_stores_them(run: RunFolder) -> None:
    probe = Probe()
    probe.add_scalar(WRITER, "losses/x", 0.1, 5)
    probe.add_scalar(WRITER, "losses/x", float("nan"), 6)
    probe.close()
    (first, second) = points(run)["losses/x"]
    assert (first[0], round(first[2], 9)) == (5, 0.100000001)
    assert second[2] is None
    for event in events(run):
        EVENT_TYPES[event["kind"]].model_validate(event)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_a_return_that_is_not_finite_is_null(run: RunFolder, monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    probe = Probe()
    probe.add_episode(0, value, 5, 0)
    with monkeypatch.context() as broken:
        broken.setattr(Journal, "append", full_disk)
        probe.flush(0.0)
    probe.close()
    assert [row[4] for row in episodes(run)] == [None]


def full_disk(*_: object, **__: object) -> None:
    raise OSError("No space left on device")


def test_the_better_source_of_a_tag_wins(run: RunFolder, clock: list[float]) -> None:
    probe = Probe()
    probe.flush(clock[0])
    for source, value in ((CONSOLE, 1.0), (WANDB, 2.0), (WRITER, 3.0)):
        probe._points.append((source, "losses/x", 1, clock[0], value))
        probe._points.append((source, f"only/{source}", 1, clock[0], value))
    clock[0] += 10
    probe.close()
    assert [point[2] for point in points(run)["losses/x"]] == [3.0]
    assert sorted(points(run)) == ["losses/x", "only/0", "only/2", "only/3"]


def test_a_tag_of_the_console_waits_for_a_better_source(run: RunFolder, clock: list[float]) -> None:
    probe = Probe()
    probe._points.append((CONSOLE, "rollout/x", 1, clock[0], 1.0))
    probe.flush(clock[0])
    assert "rollout/x" not in points(run)
    probe._points.append((WRITER, "rollout/x", 1, clock[0], 2.0))
    probe.flush(clock[0] + 0.5)
    probe.close()
    assert [point[2] for point in points(run)["rollout/x"]] == [2.0]


def test_a_return_and_a_length_logged_by_a_script_are_one_episode(run: RunFolder) -> None:
    probe = Probe()
    probe.add_episode(3, 21.0, 21, 0)
    probe.add_scalar(WRITER, "charts/episodic_return", 21.0, 100)
    probe.add_scalar(WRITER, "charts/episodic_length", 21, 100)
    probe.add_scalar(WRITER, "charts/episodic_return", 30.0, 200)
    probe.close()
    rows = [(row[0], row[1], row[2], row[4], row[5]) for row in episodes(run)]
    assert rows == [(1, 3, 100, 21.0, 21), (2, 0, 200, 30.0, 0)]
    assert "charts/episodic_return" not in points(run)


def test_only_the_episodes_that_a_script_logs_count(run: RunFolder, clock: list[float]) -> None:
    probe = Probe()
    probe.has_writer = True
    probe.add_episode(0, 5.0, 5, 0)
    probe.flush(clock[0])
    assert episodes(run) == []
    probe.add_scalar(WRITER, "charts/episodic_return", 5.0, 5)
    feed_console(probe, "global_step=5, episodic_return=5")
    clock[0] += 60
    probe.close()
    assert len(episodes(run)) == 1


def test_our_own_episodes_count_if_the_script_logs_none(run: RunFolder, clock: list[float]) -> None:
    probe = Probe()
    probe.has_writer = True
    probe.add_episode(0, 5.0, 5, 0)
    clock[0] += core.EPISODE_HOLD_S + 1
    probe.flush(clock[0])
    assert [row[4] for row in episodes(run)] == [5.0]
    for _ in range(40):
        probe.add_episode(0, 5.0, 5, 0)
    probe.flush(clock[0])
    probe.add_scalar(WRITER, "charts/episodic_return", 5.0, 5)
    probe.close()
    assert len(episodes(run)) == 41, "one that the script logs is a summary of them"
    assert not events(run, "episodes_revoked")


def test_episodes_of_the_console_count_without_another_source(run: RunFolder) -> None:
    probe = Probe()
    feed_console(probe, "global_step=8, episodic_return=[4.]")
    probe.close()
    assert [(row[2], row[4]) for row in episodes(run)] == [(8, 4.0)]
    assert events(run, "progress")[-1]["global_step"] == 8


def test_processes_of_one_run_agree_on_the_source_of_episodes(run: RunFolder, clock: list[float]) -> None:
    parent, child = Probe(), Probe()
    child._outbox = Outbox(Journal(run.path / "journal.77.jsonl"))
    child.is_child = True
    child.num_envs = 2
    child.steps = 10
    child.add_episode(1, 9.0, 9, 0)
    parent.add_scalar(WRITER, "charts/episodic_return", 9.0, 20)
    parent.close()
    clock[0] += 60
    child.close()
    assert len(episodes(run)) == 1


def test_children_number_their_episodes_by_the_clock(run: RunFolder, clock: list[float]) -> None:
    child = Probe()
    child.is_child = True
    child.num_envs = 4
    child.add_episode(1, 9.0, 9, 40)
    child.close()
    (row,) = episodes(run)
    assert (row[0], row[2]) == (1_000_000_000, 40)
    assert events(run, "progress") == []


def test_parallel_processes_do_not_repeat_episode_numbers(run: RunFolder, clock: list[float]) -> None:
    for pid in (1, 2):
        probe = Probe()
        probe._outbox = Outbox(Journal(run.path / f"journal.{pid}.jsonl"))
        probe.add_episode(0, 9.0, 9, 0)
        probe.close()
    assert [row[0] for row in episodes(run)] == [1, 1_000_000_000]


def test_the_step_is_counted_at_the_environments_not_taken_from_what_a_script_logs(
    run: RunFolder, clock: list[float]
) -> None:
    probe = Probe()
    probe.has_environments = True
    probe.steps = 100
    probe.flush(clock[0])
    probe.add_scalar(WRITER, "reward", 1.0, 7)  # an episode number, say
    probe.steps = 640
    probe.close()
    reported = [(event["global_step"], event["total_timesteps"]) for event in events(run, "progress")]
    assert reported == [(100, 1000), (640, 1000)]


def test_the_step_that_a_script_logs_counts_if_no_environment_is_seen(run: RunFolder, clock: list[float]) -> None:
    probe = Probe()
    probe.add_scalar(WRITER, "losses/x", 1.0, 640)
    probe.close()
    assert {event["global_step"] for event in events(run, "progress")} == {640}


def test_the_episodes_of_an_evaluation_that_a_script_logs_itself_are_not_added(
    run: RunFolder, clock: list[float]
) -> None:
    probe = Probe()
    probe.has_writer = True
    probe.add_evaluation_episode(7.0, 7, 100)
    probe.flush(clock[0])
    probe.add_scalar(WRITER, "eval/episodic_return", 7.0, 0)
    probe.close()
    assert [point[::2] for point in points(run)["eval/episodic_return"]] == [[0, 7.0]]
    assert [point[::2] for point in points(run)["eval/episodic_length"]] == [[100, 7.0]]


def test_a_full_disk_neither_stops_the_script_nor_loses_values(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    probe = Probe()
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", full_disk)
        probe.add_scalar(WRITER, "losses/x", 1.0, 1)
        probe.add_scalar(WRITER, "charts/episodic_return", 2.0, 1)
        probe.write_event("warning", text="x", code="y")
        clock[0] += 10
        probe.flush(clock[0])
        clock[0] += 10
        probe.flush(clock[0])
    probe.close()
    assert [point[2] for point in points(run)["losses/x"]] == [1.0]
    assert [(row[0], row[4]) for row in episodes(run)] == [(1, 2.0)]


def test_a_signal_in_the_middle_of_a_flush_neither_blocks_nor_writes_twice(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "LOCK_TIMEOUT_S", 0.01)
    probe = Probe()
    original_append = Journal.append

    def interrupted(journal: Journal, kind: str, /, **fields: object) -> int:
        probe.flush(0.0, is_last=True)
        probe.write_event("artifact", what="checkpoint_file", path="x")
        return original_append(journal, kind, **fields)

    monkeypatch.setattr(Journal, "append", interrupted)
    probe.add_scalar(WRITER, "losses/x", 1.0, 1)
    probe.close()
    assert len(points(run)["losses/x"]) == 1
    assert events(run, "artifact") == []


def test_episodes_that_the_script_logs_late_replace_ours(run: RunFolder, clock: list[float]) -> None:
    """As of games of several lives, whose environment ends an episode with each."""
    probe, other = Probe(), Probe()
    other._outbox = Outbox(Journal(run.path / "journal.77.jsonl"))
    for at in range(3):
        probe.add_episode(0, float(at), 10, 10 * at, is_cut=at == 1)
        other.add_episode(1, 5.0, 5, 10 * at)
        clock[0] += 0.1
    probe.add_scalar(WRITER, "losses/x", 1.0, 1)
    clock[0] += 6
    probe.flush(clock[0])
    other.flush(clock[0])
    assert (probe.episode_count, probe.cut_count, other.episode_count) == (3, 1, 3)
    probe.add_scalar(WRITER, "charts/episodic_return", 3.0, 30)
    probe.add_scalar(WRITER, "charts/episodic_length", 30, 30)
    probe.add_episode(0, 3.0, 10, 40)
    other.add_episode(1, 5.0, 5, 40)
    for one in (probe, other):
        one.flush(clock[0] + 1)
        one.close()
    assert [row[4:] for row in episodes(run)][-1] == [3.0, 30]
    assert len(episodes(run)) == 7
    revoked = events(run, "episodes_revoked")
    assert {number for event in revoked for number in event["numbers"]} == {row[0] for row in episodes(run)[:6]}
    assert sum(event["cut"] for event in revoked) == 1
    assert (probe.episode_count, probe.cut_count, other.episode_count) == (1, 0, 0)
    for event in revoked:
        EVENT_TYPES[event["kind"]].model_validate(event)
