"""Strategies for malformed input: arbitrary JSON, and valid JSON or bytes with some changes."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

NUMBERS = st.one_of(
    st.integers(),
    st.sampled_from([0, -1, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**30]),
    st.floats(),
)
TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["", "last", "..", "/", "../../etc/passwd", "a\0b", "\ud800", "$(x)", "x" * 5000, "𝒳\n\r\t"]),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=8,
)
"""Anything that JSON can express, and numbers that it cannot."""


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in children for place in _paths(child, (*path, key)))]


@st.composite
def changed(draw: st.DrawFn, valid: Any) -> Any:
    """A valid value with some parts replaced, removed or added."""
    value = copy.deepcopy(valid)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(_paths(value)))
        if not path:
            return draw(VALUES)
        parent = value
        for key in path[:-1]:
            parent = parent[key]
        how = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
        if how == "remove":
            del parent[path[-1]]
        elif how == "add" and isinstance(parent, dict):
            parent[draw(TEXTS)] = draw(VALUES)
        else:
            parent[path[-1]] = draw(VALUES)
    return value


@st.composite
def damaged(draw: st.DrawFn, valid: bytes) -> bytes:
    """Valid bytes, cut, with some replaced, or with some inserted."""
    how = draw(st.sampled_from(["cut", "replace", "insert", "other"]))
    if how == "other":
        return draw(st.binary(max_size=200))
    at = draw(st.integers(0, max(0, len(valid) - 1)))
    if how == "cut":
        return valid[:at]
    extra = draw(st.binary(min_size=1, max_size=8))
    return valid[:at] + extra + valid[at + (len(extra) if how == "replace" else 0) :]
