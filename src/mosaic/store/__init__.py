"""The SQLite index of the run folders. Only the daemon opens it; it can be deleted and is rebuilt without loss."""

from mosaic.store.index import Index, IndexedEvent, PointSeries, RunProgress

__all__ = ["Index", "IndexedEvent", "PointSeries", "RunProgress"]
