"""An in-memory cluster for unit tests, behind the same interfaces as the protocols (`core.interfaces`).

Only `MemoryCluster`, `MemoryClock` and `StoredRecord` are public.
"""

from odradek.testing.memory.clock import MemoryClock
from odradek.testing.memory.cluster import MemoryCluster
from odradek.testing.memory.log import StoredRecord

__all__ = ["MemoryClock", "MemoryCluster", "StoredRecord"]
