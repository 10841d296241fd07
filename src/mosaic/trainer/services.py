"""What the handlers of verbs use of the daemon."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mosaic.trainer.checkers import Checkers
from mosaic.trainer.event_feed import EventFeed
from mosaic.trainer.records import Records
from mosaic.trainer.server import CallThreads
from mosaic.trainer.submissions import Submissions

if TYPE_CHECKING:
    from mosaic.trainer.daemon import Daemon


@dataclass(frozen=True)
class Services:
    records: Records
    submissions: Submissions
    checkers: Checkers
    feed: EventFeed
    threads: CallThreads
    daemon: Daemon
    wake: Callable[[], object]
    """Lets the supervisor look at once."""
