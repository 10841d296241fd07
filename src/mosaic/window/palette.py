"""The command palette: finds every action and every run by typing some letters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from PySide6.QtCore import QEvent, QObject, QSize, Qt, QTimer
from PySide6.QtGui import QColor, QIcon, QKeyEvent, QKeySequence
from PySide6.QtWidgets import QApplication, QDialog, QHeaderView, QTreeWidget, QTreeWidgetItem

from mosaic.base.formatting import run_title
from mosaic.contracts.views import RunView
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.workbench import Workbench

if TYPE_CHECKING:
    from mosaic.window.main_window import MainWindow

# --- Search in runs (plain words, and `algo:ppo env:CartPole tag:x status:failed group:g seed:1`) and in titles.


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


# --- The command palette: finds every action and every run by typing some letters.


WIDTH, MAX_VISIBLE_ROWS, ROW_HEIGHT = 640, 12, 30
ENTRY_ROLE = Qt.ItemDataRole.UserRole
LIST_KEYS = (Qt.Key.Key_Down, Qt.Key.Key_Up, Qt.Key.Key_PageDown, Qt.Key.Key_PageUp)


@dataclass(frozen=True)
class PaletteEntry:
    title: str
    note: str
    """At the right: where it is in the menus, and its keys."""
    icon: QIcon
    run: Callable[[], None]
    is_enabled: bool = True


class CommandPalette(QDialog):
    def __init__(self, window: MainWindow, workbench: Workbench) -> None:
        super().__init__(window, Qt.WindowType.Popup | Qt.WindowType.FramelessWindowHint)
        self.setObjectName("palette")
        self.setAccessibleName("Command palette")
        self._workbench = workbench
        self._actions = [(f"{entry.title} {entry.note}", entry) for entry in _action_entries(window, workbench)]
        self._runs: list[tuple[str, RunView]] | None = None
        self._search = ui.search_field("palette.search", "Type an action, or a run's id or environment")
        self._list = ui.with_object_name(QTreeWidget(), "palette.list")
        self._list.setColumnCount(2)
        self._list.setHeaderHidden(True)
        self._list.setIndentation(0)
        self._list.setUniformRowHeights(True)
        self._list.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._list.header().setStretchLastSection(False)
        self._list.header().setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
        self._list.header().setSectionResizeMode(1, QHeaderView.ResizeMode.ResizeToContents)
        self._empty_label = ui.muted_label("No match. Runs are found by id, environment, algorithm, tag or state.")
        gap = theme.GAP
        ui.column(self._search, self._list, self._empty_label, parent=self, margins=(gap, gap, gap, gap))
        self.setFixedWidth(WIDTH)
        self._search.textChanged.connect(self._fill)
        self._search.installEventFilter(self)
        self._list.itemClicked.connect(lambda _: self._run_current())
        self._fill("")
        corner = window.mapToGlobal(window.rect().topLeft())
        self.move(corner.x() + (window.width() - WIDTH) // 2, corner.y() + 72)
        self._search.setFocus()

    def _fill(self, query: str) -> None:
        self._list.clear()
        matches: list[PaletteEntry | RunView] = rank(query, [*self._actions, *(self._all_runs() if query else ())])
        items = [self._create_item(match) for match in matches]
        self._list.addTopLevelItems(items)
        if first := next((item for item in items if not item.isDisabled()), None):
            self._list.setCurrentItem(first)
        self._list.setVisible(bool(items))
        self._empty_label.setVisible(not items)
        self._list.setFixedHeight(ROW_HEIGHT * min(MAX_VISIBLE_ROWS, max(1, len(items))) + 4)
        self.adjustSize()

    def _create_item(self, match: PaletteEntry | RunView) -> QTreeWidgetItem:
        entry = match if isinstance(match, PaletteEntry) else self._run_entry(match)
        item = QTreeWidgetItem([entry.title, entry.note])
        item.setIcon(0, entry.icon)
        item.setForeground(1, QColor(theme.tokens().muted))
        item.setTextAlignment(1, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        item.setSizeHint(0, QSize(0, ROW_HEIGHT))
        item.setData(0, ENTRY_ROLE, entry)
        item.setDisabled(not entry.is_enabled)
        return item

    def _all_runs(self) -> list[tuple[str, RunView]]:
        """All runs with their search text, built when the first letter is typed: there may be thousands."""
        if self._runs is None:
            runs = self._workbench.runs
            views = [view for view in map(runs.get, runs.ids()) if view is not None]
            self._runs = [(_search_text(view), view) for view in views]
        return self._runs

    def _run_entry(self, view: RunView) -> PaletteEntry:
        note = "   ".join([*view.tags[:3], view.status])
        icon = theme.state_icon(view.status)
        return PaletteEntry(run_title(view), note, icon, lambda: self._workbench.select(view.run_id))

    def _run_current(self) -> None:
        item = self._list.currentItem()
        if item is None or item.isDisabled():
            return
        entry: PaletteEntry = item.data(0, ENTRY_ROLE)
        self.close()
        # After the palette has closed, so that the focus stays with what opens now.
        QTimer.singleShot(0, entry.run)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self._search and isinstance(event, QKeyEvent) and event.type() is QEvent.Type.KeyPress:
            if event.key() in LIST_KEYS:
                QApplication.sendEvent(self._list, event)  # it skips disabled rows
                return True
            if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
                self._run_current()
                return True
        return False


def _action_entries(window: MainWindow, workbench: Workbench) -> list[PaletteEntry]:
    window.refresh_actions()
    entries = []
    for row in window.action_table:
        action = window.action(row.id)
        if row.id == "app.palette":
            continue
        if row.choices is not None:
            icon = theme.icon(row.icon)
            entries += [
                PaletteEntry(f"{row.title}: {title}", row.menu, icon, partial(run, workbench))
                for title, run in row.choices(workbench)
            ]
            continue
        keys = action.shortcut().toString(QKeySequence.SequenceFormat.NativeText)
        icon = action.icon() if row.icon else theme.icon("mdi6.chevron-right", "muted")
        note = "   ".join(part for part in (row.menu, keys) if part)
        entries.append(PaletteEntry(action.text(), note, icon, action.trigger, action.isEnabled()))
    return entries


def _search_text(view: RunView) -> str:
    return " ".join((run_title(view), *view.tags, view.status))
