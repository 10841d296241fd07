"""Appends and follows JSON lines. Standard library only: the keeper and the probe use it too."""

from mosaic.journal.follow import Follower, Line, read_all
from mosaic.journal.write import Journal

__all__ = ["Follower", "Journal", "Line", "read_all"]
