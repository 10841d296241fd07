"""Whose a workspace is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mosaic.base.workspace_trust import Origin, decide_origin, find_origin, has_mark, mark_own, sign_place, unmark
from mosaic.contracts.folder import TRUST_VARIABLE, Workspace


@pytest.mark.parametrize(
    ("is_named", "has_own_mark", "has_content", "origin"),
    [
        (False, False, False, Origin.NEW),
        (False, False, True, Origin.FOREIGN),
        (False, True, False, Origin.OWN),
        (False, True, True, Origin.OWN),
        (True, False, False, Origin.OWN),
        (True, False, True, Origin.OWN),
        (True, True, True, Origin.OWN),
    ],
)
def test_a_workspace_is_foreign_if_it_has_content_and_neither_mark_nor_name(
    is_named: bool, has_own_mark: bool, has_content: bool, origin: Origin
) -> None:
    """R2.9."""
    assert decide_origin(is_named, has_own_mark, has_content) is origin


def write(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "make", "origin"),
    [
        ("runs", Path.mkdir, Origin.NEW),
        ("configs/.gitkeep", write(""), Origin.NEW),
        ("daemon.lock", write("{}"), Origin.NEW),
        ("index.sqlite", write("of somebody else's runs"), Origin.NEW),
        ("owner-0123456789abcdef", write("of another key"), Origin.NEW),
        ("runs/X/record.json", write("{}"), Origin.FOREIGN),
        ("runs/daemon.lock", write("{}"), Origin.FOREIGN),
        ("probe/0123/sitecustomize.py", write("import os"), Origin.FOREIGN),
        ("remote_token", write("known"), Origin.FOREIGN),
        ("runs/X", lambda path: path.symlink_to("/tmp"), Origin.FOREIGN),
        ("sweeps", lambda path: path.symlink_to("/nowhere"), Origin.FOREIGN),
    ],
)
def test_a_workspace_is_new_while_nothing_in_it_would_be_read(
    tmp_path: Path, name: str, make: Callable[[Path], object], origin: Origin
) -> None:
    workspace = Workspace(tmp_path / "var")
    path = workspace.trainer / name
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)
    assert find_origin(workspace) is origin


def test_a_name_or_a_mark_makes_a_workspace_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace(tmp_path / "var")
    assert find_origin(workspace) is Origin.NEW
    workspace.runs.mkdir(parents=True)
    (workspace.runs / "record.json").write_text("{}", encoding="utf-8")
    assert find_origin(workspace) is Origin.FOREIGN
    with monkeypatch.context() as patch:
        patch.setenv(TRUST_VARIABLE, f"/elsewhere:{workspace.root}")
        assert find_origin(workspace) is Origin.OWN
    unmark(workspace)  # there is no key yet
    mark_own(workspace)
    key = tmp_path / "con fig" / "mosaic" / "workspace_key"
    assert (key.stat().st_mode & 0o777, find_origin(workspace)) == (0o600, Origin.OWN)
    text = key.read_text(encoding="utf-8")
    other = Workspace(tmp_path / "other")
    mark_own(other)
    assert key.read_text(encoding="utf-8") == text
    unmark(workspace)
    assert (find_origin(workspace), has_mark(other)) == (Origin.FOREIGN, True)
    key.write_text("not a key", encoding="utf-8")
    assert not has_mark(other)


def test_a_signature_depends_on_key_folder_and_time() -> None:
    assert len({sign_place(key, inode, time) for key in (b"a", b"b") for inode in (1, 2) for time in (10, 12)}) == 8
