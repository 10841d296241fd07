"""Search in runs (plain words, and `algo:ppo env:CartPole tag:x status:failed group:g seed:1`) and in titles."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from mosaic.contracts.views import RunView

ItemT = TypeVar("ItemT")
Matcher = Callable[[RunView, str], bool]

_TERM_PATTERN = re.compile(r'-?(?:\w+:)?"[^"]*"?|\S+')
"""A word, or several within quotes, with the key before them."""


def _contains(*names: str) -> Matcher:
    """The value is a part of one of these fields."""
    return lambda view, value: any(value in str(getattr(view, name) or "").lower() for name in names)


def _has_tag(view: RunView, value: str) -> bool:
    return any(tag.lower().startswith(value) for tag in view.tags or ())


def _has_status(view: RunView, value: str) -> bool:
    """A stage or an outcome, as far as it is written; `active` means all that have not ended."""
    states = [str(view.stage), str(view.outcome or ""), view.status]
    if view.stage != "finished":
        states.append("active")
    return any(state.startswith(value) for state in states if state)


def _has_seed(view: RunView, value: str) -> bool:
    """One seed, or a span such as 1-5."""
    seed = view.seed
    first, dash, last = value.partition("-")
    if seed is None or not first.isdecimal():
        return False
    if dash and last.isdecimal():
        return int(first) <= int(seed) <= int(last)
    return str(seed) == first


def _has_id(view: RunView, value: str) -> bool:
    run_id = str(view.run_id).lower()
    return run_id.startswith(value) or run_id.endswith(value)


SEARCH_KEYS: dict[str, Matcher] = {
    "algo": _contains("algo", "worker"),
    "env": _contains("env_id"),
    "tag": _has_tag,
    "status": _has_status,
    "group": _contains("group"),
    "seed": _has_seed,
    "id": _has_id,
    "name": _contains("run_name"),
    "note": _contains("notes"),
    "user": _contains("submitted_by"),
    "worker": _contains("worker"),
    "kind": _contains("kind"),
}


def _matches_any_field(view: RunView, value: str) -> bool:
    # One text: this is called for every run at each change of the search.
    text = f"{view.algo}\n{view.env_id}\n{view.group}\n{view.run_name}\n{view.notes}\n{view.worker}\n{view.run_id}"
    return value in text.lower() or _has_tag(view, value) or view.status.startswith(value)


@dataclass(frozen=True)
class Term:
    matcher: Matcher
    values: tuple[str, ...]
    """One of them must fit."""
    is_negated: bool = False

    def matches(self, view: RunView) -> bool:
        # Loops, here and below: with thousands of runs, generators take most of the time of a search.
        for value in self.values:
            if self.matcher(view, value):
                return not self.is_negated
        return self.is_negated


@dataclass(frozen=True)
class Query:
    """All terms must fit; without any, every run does."""

    terms: tuple[Term, ...] = ()
    since: float = 0.0
    """Only runs that were submitted after this time."""

    @property
    def is_empty(self) -> bool:
        return not self.terms and not self.since

    def matches(self, view: RunView) -> bool:
        if view.submitted_at < self.since:
            return False
        for term in self.terms:  # noqa: SIM110
            if not term.matches(view):
                return False
        return True


def parse_query(text: str) -> Query:
    """Parse the search text; a key without its value is skipped, so that typing hides nothing.

    `status:failed,lost` takes either; a minus before a term negates it.
    """
    terms = []
    for piece in _TERM_PATTERN.findall(text):
        is_negated = piece.startswith("-") and len(piece) > 1
        word = piece.removeprefix("-") if is_negated else piece
        key, colon, value = word.partition(":")
        match = SEARCH_KEYS.get(key.lower()) if colon else None
        if match is None:
            match, value = _matches_any_field, word
            values = [value.strip('"').lower()]
        else:
            values = value.strip('"').lower().split(",")
        values = [value for value in values if value]
        if values:
            terms.append(Term(match, tuple(values), is_negated))
    return Query(tuple(terms))


# --- filters beside the search


STATUSES_BY_CHIP = {
    "running": ("running", "stalled", "paused", "starting", "stopping"),
    "failed": ("failed", "lost", "rejected"),
}
"""The states that a filter of this name lets pass; several filters let pass the states of each."""


def with_chips(query: Query, chips: Iterable[str], midnight: float, user: str) -> Query:
    """Narrow a query down by filters: `running`, `failed`, `today` (since `midnight`), `mine` (submitted by `user`)."""
    names = set(chips)
    statuses = tuple(status for name in STATUSES_BY_CHIP if name in names for status in STATUSES_BY_CHIP[name])
    terms = (*query.terms, Term(_has_exact_status, statuses)) if statuses else query.terms
    if "mine" in names:
        terms = (*terms, Term(_is_submitted_by, (user,)))
    return Query(terms, midnight if "today" in names else 0.0)


def _has_exact_status(view: RunView, value: str) -> bool:
    return view.status == value


def _is_submitted_by(view: RunView, user: str) -> bool:
    return view.submitted_by == user


# --- fuzzy search in titles


def score(query: str, text: str) -> float | None:
    """Return how well each word of the query matches; None if the letters of one do not occur in this order."""
    total = 0.0
    for word in query.lower().split():
        best = _score_word(word, text.lower())
        if best is None:
            return None
        total += best
    return total - 0.01 * len(text)


def _score_word(word: str, text: str) -> float | None:
    at = text.find(word)
    if at >= 0:
        starts = at == 0 or not text[at - 1].isalnum()
        return len(word) * (3.0 if starts else 2.0) - 0.02 * at
    total, position, before = 0.0, 0, -2
    for letter in word:
        position = text.find(letter, position)
        if position < 0:
            return None
        starts = position == 0 or not text[position - 1].isalnum()
        total += 1.0 if starts else 0.7 if position == before + 1 else 0.1
        before, position = position, position + 1
    return total


def rank(query: str, entries: Iterable[tuple[str, ItemT]], max_results: int = 50) -> list[ItemT]:
    """Return the matching entries, best first; equal ones, or all without a query, in the given order."""
    scored = [(score(query, text), entry) for text, entry in entries]
    fitting = [(value, entry) for value, entry in scored if value is not None]
    if query.strip():
        fitting.sort(key=lambda pair: -pair[0])
    return [entry for _, entry in fitting[:max_results]]
