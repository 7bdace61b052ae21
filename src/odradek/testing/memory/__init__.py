"""An in-memory cluster for unit tests, behind the same interfaces as the protocols (`core.interfaces`).

Only `MemoryCluster`, `MemoryClock`, `MemoryRequest`, `MemoryBatch` and `StoredRecord` are public.
"""

from odradek.testing.memory.clock import MemoryClock
from odradek.testing.memory.cluster import MemoryCluster
from odradek.testing.memory.faults import MemoryBatch, MemoryRequest
from odradek.testing.memory.log import StoredRecord

__all__ = ["MemoryBatch", "MemoryClock", "MemoryCluster", "MemoryRequest", "StoredRecord"]
