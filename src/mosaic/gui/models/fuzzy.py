"""How well what was typed fits a title: letters in order, words' beginnings before middles. No Qt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

ItemT = TypeVar("ItemT")


def score(query: str, text: str) -> float | None:
    """Higher is better; None where the letters do not occur in this order. Every word typed must fit somewhere."""
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
    """The best first; as they came where nothing is typed or where they fit alike."""
    found = [(score(query, text), entry) for text, entry in entries]
    fitting = [(value, entry) for value, entry in found if value is not None]
    if query.strip():
        fitting.sort(key=lambda pair: -pair[0])
    return [entry for _, entry in fitting[:max_results]]
