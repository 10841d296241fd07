"""Appends and follows JSON lines, and prepares what producers append. Standard library only, Python 3.8 and up: the
keeper and the probe use it too."""

from mosaic.journal.follow import Follower, Line, read_all
from mosaic.journal.outbox import Outbox
from mosaic.journal.write import EventSink, Journal

__all__ = ["EventSink", "Follower", "Journal", "Line", "Outbox", "read_all"]
