"""The SQLite index of the run folders. Only the daemon opens it; it can be deleted and is rebuilt without loss."""

from mosaic.store.index import (
    BULK_KINDS,
    Index,
    IndexedEvent,
    MetricsCursor,
    PointSeries,
    RunProgress,
    encode_event,
)

__all__ = ["BULK_KINDS", "Index", "IndexedEvent", "MetricsCursor", "PointSeries", "RunProgress", "encode_event"]
