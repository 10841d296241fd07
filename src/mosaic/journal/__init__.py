"""Appends and follows JSON lines. Standard library only: the keeper and the probe use it too."""

from mosaic.journal.follow import Follower, Line, read_all
from mosaic.journal.write import EventSink, Journal

__all__ = ["EventSink", "Follower", "Journal", "Line", "read_all"]
