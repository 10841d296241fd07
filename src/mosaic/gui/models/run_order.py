"""The order of the list of runs: by a column, or what runs first; folded runs come below the rows of their groups.

Every row has a key that no other has, so that it is found by bisection.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cmp_to_key
from typing import Any

from mosaic.contracts.states import Stage
from mosaic.contracts.views import RunView
from mosaic.gui.models.run_columns import Column

Key = tuple[Any, ...]

GROUP_PREFIX = "group:"
"""Begins the ids of rows that stand for a group; those of runs have no colon."""


@cmp_to_key
def _descending_key(one: Any, other: Any) -> int:
    return int(one < other) - int(one > other)


class RunOrder:
    def __init__(self) -> None:
        self.sort_column: Column | None = None
        self.is_descending = False
        self.is_folding = False
        self.expanded: set[str] = set()
        """The groups whose runs have rows."""
        self.key_by_run: dict[str, Key] = {}
        """Of each run that is listed, whether it has a row or not."""
        self.key_by_row: dict[str, Key] = {}
        self.members: dict[str, set[str]] = {}
        """By group, where runs are folded: those of its runs that are listed."""
        self.group_by_run: dict[str, str] = {}
        self._key_by_group: dict[str, Key] = {}
        self._newness: dict[str, int] = {}
        self._known_keys: dict[str, tuple[RunView, Key]] = {}
        """Of each run, also of those that are not listed: its key, and the view that it was computed from."""

    def collect(self, views: Iterable[RunView]) -> None:
        """List these runs, and no others. One loop, and keys only of runs that have changed: there may be thousands."""
        known, is_folding = self._known_keys, self.is_folding
        keys: dict[str, Key] = {}
        rows: dict[str, Key] = {}
        groups: dict[str, str] = {}
        members: dict[str, set[str]] = {}
        firsts: dict[str, Key] = {}
        for view in views:
            run_id = view.run_id
            entry = known.get(run_id)
            if entry is None or entry[0] is not view:
                entry = known[run_id] = view, self._run_key(view)
            key = keys[run_id] = entry[1]
            group = view.group
            if not is_folding or not group:
                rows[run_id] = key
                continue
            groups[run_id] = group
            if group not in members:
                members[group], firsts[group] = {run_id}, key
                continue
            members[group].add(run_id)
            if key < firsts[group]:
                firsts[group] = key
        self.key_by_run, self.group_by_run, self.members, self._key_by_group = keys, groups, members, firsts
        rows |= {GROUP_PREFIX + group: key for group, key in firsts.items()}
        for group in self.expanded & members.keys():
            rows |= {run_id: self.row_key(run_id) for run_id in members[group]}
        self.key_by_row = rows

    def forget_column(self) -> None:
        """Use the default order from the next `collect` on."""
        self.sort_column = None
        self._known_keys.clear()

    def sort_by(self, column: Column | None, is_descending: bool, views: Iterable[RunView]) -> None:
        """Change the order of the listed runs, whose views these are."""
        self.sort_column, self.is_descending = column, is_descending
        self._known_keys.clear()
        self.collect(views)

    def _run_key(self, view: RunView) -> Key:
        """Newest first among equals; without a column, what runs comes first, then what waits."""
        newness = self._newness.get(view.run_id)
        if newness is None:  # numbers compare fast
            submitted_ms, run_id = view.age_key
            newness = self._newness[run_id] = -int.from_bytes(b"%020d%s" % (submitted_ms, run_id.encode().ljust(64)))
        if self.sort_column is None:
            stage = view.stage
            return (2 if stage is Stage.FINISHED else 1 if stage is Stage.QUEUED else 0, 0, newness)
        value = self.sort_column.key(view)
        if value is None:
            return (1, 0, newness)
        if self.is_descending:
            value = -value if isinstance(value, int | float) else _descending_key(value)
        return (0, value, newness)

    def _first_key(self, run_ids: Iterable[str]) -> Key:
        return min(map(self.key_by_run.__getitem__, run_ids))

    def row_key(self, row_id: str) -> Key:
        """A group has the key of its first run, and the longer keys of its runs come after it."""
        if row_id.startswith(GROUP_PREFIX):
            return self._key_by_group[row_id.removeprefix(GROUP_PREFIX)]
        group = self.group_by_run.get(row_id)
        own = self.key_by_run[row_id]
        return own if group is None else (*self._key_by_group[group], *own)

    def has_row(self, row_id: str) -> bool:
        """Whether it is to be shown."""
        if row_id.startswith(GROUP_PREFIX):
            return row_id.removeprefix(GROUP_PREFIX) in self.members
        group = self.group_by_run.get(row_id)
        return row_id in self.key_by_run and (group is None or group in self.expanded)

    def update_run(self, run_id: str, view: RunView | None) -> set[str]:
        """Update what is known of a run, None where it is not listed; return the groups that it was and is in."""
        touched = set()
        self._known_keys.pop(run_id, None)  # a value that it is sorted by may have been read, for the same view
        if (before := self.group_by_run.pop(run_id, None)) is not None:
            self.members[before].discard(run_id)
            touched.add(before)
        if view is None:
            self.key_by_run.pop(run_id, None)
            return touched
        self.key_by_run[run_id] = self._run_key(view)
        if self.is_folding and view.group:
            self.group_by_run[run_id] = view.group
            self.members.setdefault(view.group, set()).add(run_id)
            touched.add(view.group)
        return touched

    def update_group(self, group: str) -> bool:
        """Return whether its place has changed, and with it that of all of its runs."""
        if not self.members[group]:
            del self.members[group], self._key_by_group[group]
            return False
        key = self._first_key(self.members[group])
        has_moved = self._key_by_group.get(group) != key
        self._key_by_group[group] = key
        return has_moved
