from __future__ import annotations

import os
from pathlib import Path

import pytest

from mosaic.keeper.tree import anonymous_memory_mb, descendants, read_memory, read_process, read_tree

PAGES_PER_MB = 2**20 // os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
KEEPER = 100


class FakeProc:
    """A /proc folder with the given processes."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)

    def put(
        self,
        pid: int,
        parent: int,
        *,
        name: str = "python",
        state: str = "S",
        own_s: int = 0,
        waited_s: int = 0,
        resident_mb: int = 0,
        shared_mb: int = 0,
        children: list[int] | None = None,
        anonymous_mb: int | None = None,
    ) -> None:
        folder = Path(self.root, str(pid))
        folder.mkdir()
        ticks = f"{own_s * TICKS} 0 {waited_s * TICKS} 0"
        (folder / "stat").write_text(f"{pid} ({name}) {state} {parent} 1 1 0 -1 0 0 0 0 0 {ticks} 20 0 1 0 4242 0 0\n")
        (folder / "statm").write_text(f"99999 {resident_mb * PAGES_PER_MB} {shared_mb * PAGES_PER_MB} 0 0 0 0\n")
        if children is not None:
            (folder / "task" / str(pid)).mkdir(parents=True)
            (folder / "task" / str(pid) / "children").write_text("".join(f"{child} " for child in children))
        if anonymous_mb is not None:
            (folder / "smaps_rollup").write_text(f"0-f ---p 0 00:00 0 [rollup]\nPss_Anon: {anonymous_mb * 1024} kB\n")


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def pids(proc: FakeProc) -> list[int]:
    return [process.pid for process in descendants(proc.root, KEEPER)]


def test_all_descendants_of_the_keeper_are_returned_parents_first(proc: FakeProc) -> None:
    proc.put(1, 0)
    proc.put(KEEPER, 1)
    proc.put(300, 200)
    proc.put(200, KEEPER)
    proc.put(201, KEEPER)
    proc.put(50, 300)
    proc.put(400, 1)
    order = pids(proc)
    assert sorted(order) == [50, 200, 201, 300]
    assert order.index(200) < order.index(300) < order.index(50)


def test_the_kernels_list_of_children_is_used_where_it_exists(proc: FakeProc) -> None:
    proc.put(KEEPER, 1, children=[200])
    proc.put(200, KEEPER, children=[300, 301])
    proc.put(300, 200, children=[])
    # 301 has vanished, and 302 would only be found by scanning all of /proc.
    proc.put(302, 200)
    assert pids(proc) == [200, 300]


def test_a_name_may_contain_spaces_and_parentheses(proc: FakeProc) -> None:
    proc.put(KEEPER, 1)
    proc.put(200, KEEPER, name="a) R 1 (b")
    assert pids(proc) == [200]


def test_a_process_that_vanished_or_cannot_be_read_is_left_out(proc: FakeProc) -> None:
    proc.put(KEEPER, 1)
    Path(proc.root, "200").mkdir()
    Path(proc.root, "201").mkdir()
    Path(proc.root, "201", "stat").write_text("201 (torn", encoding="utf-8")
    assert pids(proc) == []
    assert read_process(proc.root, 201) is None
    assert read_memory(proc.root, 200) == (0.0, 0.0)


def test_without_a_proc_folder_the_tree_is_empty(tmp_path: Path) -> None:
    assert descendants(str(tmp_path / "none"), KEEPER) == []


def test_memory_leaves_shared_pages_out_and_zombies_do_not_count(proc: FakeProc) -> None:
    proc.put(KEEPER, 1, resident_mb=500)
    proc.put(200, KEEPER, resident_mb=300, shared_mb=100)
    proc.put(201, 200, resident_mb=50, shared_mb=20)
    proc.put(202, 200, state="Z")
    reading = read_tree(proc.root, KEEPER)
    assert reading.private_mb == pytest.approx(230)
    assert reading.processes == 2


def test_cpu_time_of_exited_processes_is_not_lost(proc: FakeProc) -> None:
    proc.put(KEEPER, 1, own_s=7, waited_s=5)
    proc.put(200, KEEPER, own_s=10, waited_s=3)
    proc.put(201, 200, own_s=1, state="Z")
    assert read_tree(proc.root, KEEPER).cpu_s == pytest.approx(5 + 10 + 3 + 1)


def test_pages_that_a_fork_shares_are_counted_once_in_the_exact_figure(proc: FakeProc) -> None:
    proc.put(KEEPER, 1)
    proc.put(200, KEEPER, resident_mb=300, anonymous_mb=160)
    proc.put(201, 200, resident_mb=300, anonymous_mb=160)
    proc.put(202, 200, resident_mb=30, shared_mb=10)
    assert read_tree(proc.root, KEEPER).private_mb == pytest.approx(620)
    assert anonymous_memory_mb(proc.root, KEEPER) == pytest.approx(160 + 160 + 20)
