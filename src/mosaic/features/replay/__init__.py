"""Replay: recorded episodes, simulated again, shown and exported."""

from mosaic.base.features import Feature

FEATURE = Feature()
