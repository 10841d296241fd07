"""The SQLite index of the run folders. Only the daemon opens it; it can be deleted and is rebuilt without loss."""

from mosaic.base.store.index import BULK_KINDS, Index, encode_event
from mosaic.base.store.index_schema import IndexedEvent, RunProgress, find_damage, is_damage

__all__ = ["BULK_KINDS", "Index", "IndexedEvent", "RunProgress", "encode_event", "find_damage", "is_damage"]
