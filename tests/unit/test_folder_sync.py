"""Copying a run folder from a node: by offsets, whole, checkpoint by checkpoint, and nothing outside of the folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from mosaic.contracts.folder import RunFolder
from mosaic.trainer.executors.ray_cluster.folder_sync import (
    BadPath,
    FileEntry,
    Listing,
    LocalFolder,
    Plan,
    check_link,
    check_path,
    is_appended,
    is_needed_to_resume,
    list_folder,
    make_plan,
    read_chunk,
    split_before_exit,
    write_chunk,
)


def write(folder: Path, path: str, content: bytes = b"x") -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(content)


def copy_once(there: Path, local: LocalFolder, earlier: Listing | None = None, is_final: bool = True) -> Listing:
    """As the bridge does, without a network."""
    listing = list_folder(there)
    for path in filter(is_appended, listing.files):
        local.append(path, local.size(path), read_chunk(there, path, local.size(path)))
    plan = make_plan(listing, local.listing, earlier, is_final)
    for entry in (*plan.whole, *(entry for files in plan.checkpoints.values() for entry in files)):
        if (draft := local.begin_file(entry)) is not None:
            draft.write_bytes(read_chunk(there, entry.path, 0))
    for entry in plan.whole:
        local.put_file(entry)
    for unit, files in plan.checkpoints.items():
        local.put_checkpoint(unit, files)
    for unit in plan.removed_checkpoints:
        local.remove_checkpoint(unit)
    local.set_links(plan.links, plan.removed_links)
    return listing


def contents(folder: Path) -> dict[str, bytes | str]:
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() or path.is_symlink()
    }


def test_a_folder_is_copied_and_kept_equal(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    here.mkdir()
    for path in ("journal.jsonl", "logs/w.log", "checkpoints/5/manifest.json", "checkpoints/5/replay.1", "a/b.mp4"):
        write(there, path)
    (there / "checkpoints/last").symlink_to("5")
    local = LocalFolder(RunFolder(here))
    copy_once(there, local)
    assert contents(here) == contents(there)
    # The next checkpoint shares a file with this one, which is deleted then.
    (there / "checkpoints/9").mkdir()
    os.link(there / "checkpoints/5/replay.1", there / "checkpoints/9/replay.1")
    write(there, "checkpoints/9/manifest.json", b"9")
    write(there, "checkpoints/.11.tmp/manifest.json", b"incomplete")
    write(there, "journal.jsonl", b"xyz")
    (there / "checkpoints/last").unlink()
    (there / "checkpoints/last").symlink_to("9")
    listing = list_folder(there)
    plan = make_plan(listing, local.listing, listing, is_final=False)
    assert plan.appended == ("journal.jsonl",)
    assert list(plan.checkpoints) == ["checkpoints/9"]
    assert local.begin_file(listing.files["checkpoints/9/replay.1"]) is None, "an equal file is linked, not copied"
    copy_once(there, local)
    shutil.rmtree(there / "checkpoints/5")
    copy_once(there, local)
    shutil.rmtree(there / "checkpoints/.11.tmp")
    assert contents(here) == contents(there)
    # A bridge that is started again knows what is here by looking.
    again = LocalFolder(RunFolder(here))
    plan = make_plan(list_folder(there), again.listing, None, is_final=True)
    assert plan == Plan((), (), {}, {}, (), ())


def test_a_file_that_still_changes_is_not_copied_before_the_end(tmp_path: Path) -> None:
    entry, earlier = FileEntry("model.bin", 2, 20), FileEntry("model.bin", 1, 10)
    there, before = Listing({entry.path: entry}), Listing({entry.path: earlier})
    assert make_plan(there, Listing(), before, is_final=False).whole == ()
    assert make_plan(there, Listing(), there, is_final=False).whole == (entry,)
    assert make_plan(there, Listing(), before, is_final=True).whole == (entry,)


def test_the_newest_checkpoint_is_copied_first() -> None:
    paths = [f"checkpoints/{name}/manifest.json" for name in ("9", "10", "8.superseded", "100")]
    listing = Listing({path: FileEntry(path, 1, 1) for path in paths})
    plan = make_plan(listing, Listing(), None, is_final=False)
    assert [unit.rpartition("/")[2] for unit in plan.checkpoints] == ["100", "10", "9", "8.superseded"]


def test_a_part_that_does_not_start_at_the_end_changes_nothing(tmp_path: Path) -> None:
    assert write_chunk(tmp_path, "journal.jsonl", 0, b"abc") == 3
    assert write_chunk(tmp_path, "journal.jsonl", 0, b"abc") == 3
    assert write_chunk(tmp_path, "journal.jsonl", 7, b"x") == 3
    assert write_chunk(tmp_path, "journal.jsonl", 3, b"d") == 4
    assert (tmp_path / "journal.jsonl").read_bytes() == b"abcd"


def test_nothing_is_written_once_another_attempt_has_begun(tmp_path: Path) -> None:
    local = LocalFolder(RunFolder(tmp_path), lambda: False)
    entry = FileEntry("a.json", 1, 1)
    local.append("journal.jsonl", 0, b"late")
    draft = local.begin_file(entry)
    assert draft is not None
    draft.write_bytes(b"x")
    local.put_file(entry)
    local.set_links({"checkpoints/last": "5"}, ())
    assert list_folder(tmp_path) == Listing()


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", ".hidden", "a/.b", "a\0b", "a" * 2000]
)
def test_a_path_outside_of_the_folder_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(BadPath):
        check_path(path)
    with pytest.raises(BadPath):
        write_chunk(tmp_path / "run", path, 0, b"x")
    with pytest.raises(BadPath):
        check_link("checkpoints/last", path)


def test_a_link_leads_to_its_neighbour_only() -> None:
    assert check_link("checkpoints/last", "40") == "40"
    with pytest.raises(BadPath, match="not next to it"):
        check_link("checkpoints/last", "40/weights")


def test_the_exit_is_held_back_until_all_else_is_here() -> None:
    lines = b'{"kind":"sample"}\n{"kind":"exited"}\n'
    assert split_before_exit(lines) == (b'{"kind":"sample"}\n', b'{"kind":"exited"}\n')
    assert split_before_exit(b'{"kind":"sample"}\n{"ki') == (b'{"kind":"sample"}\n', b'{"ki')
    assert split_before_exit(b"") == (b"", b"")


def test_a_run_that_continues_gets_its_state_and_not_its_products() -> None:
    needed = ("journal.jsonl", "logs/w.log", "checkpoints/5/state.npz", "analytics.json", "tensorboard/e.tfevents.1")
    assert all(map(is_needed_to_resume, needed))
    assert not any(map(is_needed_to_resume, ("videos/a.mp4", "runs/x/ppo.cleanrl_model")))
