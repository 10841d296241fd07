"""Which runs the list shows: those that a search finds, without archived ones, and those that are pinned."""

from __future__ import annotations

from collections.abc import Sequence

from mosaic.contracts.views import RunView
from mosaic.gui.models.search import Query


class RunFilter:
    def __init__(self) -> None:
        self.query = Query()
        self.shows_archived = False
        self.pinned: set[str] = set()
        """Runs that are shown whatever the search says."""

    def fits(self, view: RunView) -> bool:
        """Whether the search finds it."""
        if view.is_archived and not self.shows_archived:
            return False
        return self.query.is_empty or self.query.matches(view)

    def matches(self, view: RunView) -> bool:
        """Whether it is shown."""
        return view.run_id in self.pinned or self.fits(view)

    def select(self, views: Sequence[RunView], has_archived: bool) -> Sequence[RunView]:
        """Those that are shown, with as few calls as possible: there may be thousands."""
        pinned = self.pinned
        if has_archived and not self.shows_archived:
            views = [view for view in views if not view.is_archived or view.run_id in pinned]
        if self.query.is_empty:
            return views
        matches = self.query.matches
        return [view for view in views if matches(view) or view.run_id in pinned]
