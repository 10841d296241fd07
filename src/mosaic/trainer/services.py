"""What the handlers of verbs use of the daemon."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mosaic.trainer.checkers import Checkers
from mosaic.trainer.event_feed import EventFeed
from mosaic.trainer.executors import Executor
from mosaic.trainer.records import Records
from mosaic.trainer.server import CallThreads

if TYPE_CHECKING:
    from mosaic.trainer.daemon import Daemon


@dataclass(frozen=True)
class Services:
    records: Records
    checkers: Checkers
    feed: EventFeed
    threads: CallThreads
    daemon: Daemon
    executors: Mapping[str, Executor]
    default_executor: str
    wake: Callable[[], object]
    """Lets the supervisor look at once."""
    creation_lock: threading.Lock = field(default_factory=threading.Lock)
    """Held so that a run that is submitted twice at the same time is created once."""
