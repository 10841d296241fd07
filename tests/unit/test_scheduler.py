"""Which queued run starts next."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mosaic.contracts.options import RunKind
from mosaic.contracts.states import RunRecord
from mosaic.trainer.gpus import GpuPool
from mosaic.trainer.scheduler import PLAY_SLOTS, Slots, choose, describe_busy, start_order

SLOTS = Slots(runs=2, cpus=4, gpus=1)


def run(run_id: str, **facts: Any) -> RunRecord:
    return RunRecord(**{"run_id": run_id, "worker": "w", "submitted_at": 0.0, "queued_at": 0.0, **facts})


def test_first_come_first_served_up_to_the_cap() -> None:
    queued = [run(name) for name in "DBCA"]
    assert choose(queued, [], SLOTS) == ["A", "B"]
    assert choose(queued, [run("X")], SLOTS) == ["A"]
    assert choose(queued, [run("X"), run("Y")], SLOTS) == []


def test_higher_priority_goes_first() -> None:
    assert choose([run("A"), run("B", priority=5)], [], SLOTS) == ["B", "A"]


def test_one_groups_many_seeds_do_not_hold_up_another() -> None:
    queued = [run(f"A{number}", group="many") for number in range(9)] + [run("Z", group="one")]
    assert choose(queued, [], SLOTS) == ["A0", "Z"]


def test_a_run_waiting_for_a_gpu_is_passed_only_by_runs_without_gpu() -> None:
    holder = run("X", gpus=1)
    queued = [run("A", gpus=1), run("B", gpus=1), run("C")]
    assert choose(queued, [holder], Slots(runs=4, cpus=8, gpus=1)) == ["C"]
    assert choose([run("A", gpus=2), run("B", gpus=1)], [], Slots(runs=4, cpus=8, gpus=1)) == []


def test_a_waiting_run_names_what_is_used_up() -> None:
    slots = Slots(runs=4, cpus=8, gpus=1)
    assert describe_busy([run("X", gpus=1)], slots, has_waiting=True) == "1 of 1 GPUs busy"
    assert describe_busy([run("X", cpus=2)], slots, has_waiting=True) == "2 of 8 CPUs busy, 0 of 1 GPUs busy"
    assert describe_busy([run(name) for name in "WXYZ"], slots, has_waiting=True) == "4 of 4 slots busy"
    assert describe_busy([], slots, has_waiting=False) == ""


def test_a_run_with_many_cores_is_not_starved() -> None:
    assert choose([run("A", cpus=4), run("B")], [run("X")], Slots(runs=4, cpus=4, gpus=0)) == []


def test_a_run_that_wants_more_cores_than_there_are_gets_all_of_them() -> None:
    assert choose([run("A", cpus=64)], [], SLOTS) == ["A"]


def test_the_order_of_the_whole_queue_alternates_between_groups_after_what_runs() -> None:
    queued = [run(f"A{number}", group="many") for number in range(3)]
    queued += [run("Y", group="one"), run("Z", group="one"), run("U", priority=1, group="many")]
    order = start_order(queued, [run("X", group="many")])
    assert [record.run_id for record in order] == ["U", "Y", "Z", "A0", "A1", "A2"]
    order = start_order(queued, [])
    assert [record.run_id for record in order] == ["U", "Y", "A0", "Z", "A1", "A2"]


@given(st.lists(st.tuples(st.integers(-1, 1), st.sampled_from(["", "g", "h"]), st.integers(0, 2)), max_size=10))
def test_one_slot_at_a_time_starts_the_queue_in_its_order(requests: list[tuple[int, str, int]]) -> None:
    queued = [
        run(f"R{number:02}", priority=priority, group=group or None, queued_at=float(queued_at))
        for number, (priority, group, queued_at) in enumerate(requests)
    ]
    running: list[RunRecord] = []
    for record in start_order(queued, []):
        assert choose(queued, running, Slots(runs=len(running) + 1, cpus=99, gpus=0)) == [record.run_id]
        queued.remove(record)
        running.append(record)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 4), st.sampled_from([0, 0.3, 0.5, 1, 2]), st.integers(-2, 2), st.sampled_from(["", "g", "h"])
        ),
        max_size=12,
    ),
    st.integers(0, 4),
    st.integers(1, 6),
    st.integers(0, 2),
)
def test_no_limit_is_ever_exceeded(wishes: list[tuple[int, float, int, str]], runs: int, cpus: int, gpus: int) -> None:
    """R2.5: limits; a fair queue that survives a restart."""
    queued = [
        run(f"R{number:02}", cpus=wish[0], gpus=wish[1], priority=wish[2], group=wish[3] or None)
        for number, wish in enumerate(wishes)
    ]
    by_id = {record.run_id: record for record in queued}
    chosen = [by_id[run_id] for run_id in choose(queued, [], Slots(runs=runs, cpus=cpus, gpus=gpus))]
    assert len(chosen) <= runs
    assert sum(min(record.cpus, cpus) for record in chosen) <= cpus
    assert sum(record.gpus for record in chosen) <= gpus


def test_runs_of_a_group_share_a_gpu_up_to_their_limit() -> None:
    slots = Slots(runs=9, cpus=9, gpus=1)
    seeds = [run(f"S{number}", gpus=1, group="seeds", runs_per_gpu=3) for number in range(5)]
    assert choose(seeds, [], slots) == ["S0", "S1", "S2"]
    assert choose(seeds[2:], seeds[:2], slots) == ["S2"]
    assert describe_busy(seeds[:3], slots, has_waiting=True) == "1 of 1 GPUs busy"
    other = run("O", gpus=1, group="other", runs_per_gpu=3)
    alone = run("A", gpus=1, group="seeds")
    assert choose([other], seeds[:1], slots) == [], "another group"
    assert choose([alone], seeds[:1], slots) == [], "it does not share"
    assert choose([run("N", gpus=1, runs_per_gpu=3)], [run("M", gpus=1, runs_per_gpu=3)], slots) == [], "no group"
    assert choose([run("B", gpus=1, priority=1), *seeds[1:]], seeds[:1], slots) == [], "B waits and is not overtaken"


def test_a_free_gpu_is_used_before_one_is_shared() -> None:
    pool = GpuPool(2, [])
    seeds = [run(f"S{number}", gpus=1, group="seeds", runs_per_gpu=2) for number in range(5)]
    assert [pool.take(seed) for seed in seeds] == [(0,), (1,), (0,), (1,), None]
    assert pool.take(run("T", gpus=2, group="seeds", runs_per_gpu=9)) is None, "several GPUs are never shared"


def test_shares_fill_a_gpu_up_to_its_whole_before_another_is_used() -> None:
    pool = GpuPool(2, [])
    shares = (0.5, 0.25, 0.3, 0.25, 0.7, 0.1)
    taken = [pool.take(run(f"S{number}", gpus=share)) for number, share in enumerate(shares)]
    assert taken == [(0,), (0,), (1,), (0,), (1,), None]
    rounded_up = GpuPool(1, [])
    assert [rounded_up.take(run(f"T{share}", gpus=share)) for share in (0.05, 0.55, 0.3, 0.1)] == [(0,)] * 4


def test_a_share_and_a_whole_gpu_exclude_each_other() -> None:
    group = {"group": "seeds", "runs_per_gpu": 8}
    assert GpuPool(1, [run("A", gpus=1, **group)]).take(run("B", gpus=0.5, **group)) is None
    assert GpuPool(1, [run("A", gpus=0.5, **group)]).take(run("B", gpus=1, **group)) is None


def test_a_share_that_waits_is_not_overtaken_by_a_smaller_one() -> None:
    slots = Slots(runs=9, cpus=9, gpus=1)
    queued = [run("A", gpus=0.75), run("B", gpus=0.25), run("C")]
    assert choose(queued, [run("X", gpus=0.5)], slots) == ["C"]


def test_a_run_gets_the_gpu_that_it_asked_for_or_waits_for_it() -> None:
    slots = Slots(runs=9, cpus=9, gpus=2)
    assert GpuPool(2, []).take(run("A", gpus=1, gpu=1)) == (1,)
    assert GpuPool(2, []).take(run("A", gpus=0.5, gpu=1)) == (1,)
    holder = run("X", gpus=1, gpu=1)
    assert choose([run("A", gpus=1, gpu=1), run("B", gpus=1)], [holder], slots) == ["B"], "B needs another one"
    assert GpuPool(1, []).take(run("A", gpus=1, gpu=1)) is None


def test_a_resumed_run_gets_its_gpu_back_where_it_is_free() -> None:
    attempt = {"number": 1, "slot": 1, "started_at": 0.0, "gpus": [1]}
    resumed = run("A", gpus=1, attempts=[attempt])
    assert GpuPool(2, []).take(resumed) == (1,)
    assert GpuPool(2, [run("X", gpus=1, gpu=1)]).take(resumed) == (0,)
    assert GpuPool(1, []).take(resumed) == (0,), "the machine has fewer now"
    share = run("B", gpus=0.5, attempts=[attempt])
    assert GpuPool(2, [run("X", gpus=0.5, gpu=0)]).take(share) == (1,), "though the other one has room, too"
    assert GpuPool(3, []).take(run("A", gpus=2, attempts=[attempt])) == (1, 0)


def test_attached_runs_start_at_once_and_hold_no_slot() -> None:
    attached = run("A", is_attached=True)
    assert choose([attached, run("B")], [run("X"), run("Y")], SLOTS) == ["A"]
    assert choose([run("B")], [attached, run("X")], SLOTS) == ["B"]


def test_games_evaluations_and_trainings_do_not_wait_for_each_other() -> None:
    busy = [run(name) for name in "XY"]
    games = [run(f"P{number}", kind="play") for number in range(3)]
    evaluations = [run(f"E{number}", kind="policy_eval") for number in range(3)]
    assert choose([*games, *evaluations, run("A")], busy, SLOTS) == ["E0", "E1", "P0", "P1", "P2"]
    assert choose([run("A"), run("B")], [*games, *evaluations], SLOTS) == ["A", "B"]
    assert describe_busy([*busy, *games], SLOTS, has_waiting=True) == "2 of 2 slots busy"
    assert describe_busy([*busy, *games], SLOTS, True, RunKind.POLICY_EVAL).startswith("0 of 4 CPUs busy")
    many = [run(f"P{number:02}", kind="play") for number in range(20)]
    assert len(choose(many, [], SLOTS)) == PLAY_SLOTS
    assert choose(many[PLAY_SLOTS:], many[:PLAY_SLOTS], SLOTS) == []


def test_a_gpu_is_shared_by_no_two_kinds() -> None:
    assert choose([run("E", kind="policy_eval", gpus=1)], [run("X", gpus=1)], SLOTS) == []
