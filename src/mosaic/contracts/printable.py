"""Text that others wrote, as it can be shown: none of it moves a cursor or reorders a line. Standard library only."""

from __future__ import annotations

import unicodedata

_JOINERS = "\u200c\u200d"
"""Of letters in Persian, and of the parts of an emoji."""


def make_printable(text: str, kept: str = "\n\t") -> str:
    """Return the text with its escape in place of each character that does not print: ESC becomes `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(char if _is_shown(char, kept) else char.encode("unicode_escape").decode() for char in text)


def _is_shown(char: str, kept: str) -> bool:
    return char.isprintable() or char in kept or char in _JOINERS or unicodedata.category(char) == "Zs"


def csv_text(text: str) -> str:
    """Return a cell of a table that a spreadsheet takes for text or a number, never for a formula."""
    shown = make_printable(text, kept="")
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) and not _is_number(shown) else shown


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ""))
    except ValueError:
        return False
    return True
