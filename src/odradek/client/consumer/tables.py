"""From the read-ahead to the user's `async for`, by Arrow table: many batches, of several partitions, in one.

As with batches, cancellation moves nothing: rows leave the read-ahead in the step in which their table is returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from odradek.batch import Batch
from odradek.client.consumer.streams import Stream
from odradek.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArrowTables"]

B = TypeVar("B", bound=Batch)
T = TypeVar("T")


class ArrowTables(Generic[T]):
    """`async for` over Arrow tables.

    Args:
        stream: Where the rows come from.
        make: Makes what is handed out of a table and the batches that are in it.
        max_bytes: Payload of a table, at most; one row at least (bytes).
        max_wait: How long a table may wait for more rows after its first (s).

    Raises:
        ConfigError: There is no pyarrow, or no room for anything.
    """

    def __init__(
        self, stream: Stream[B], make: Callable[[pa.Table, Sequence[B]], T], *, max_bytes: int, max_wait: float
    ) -> None:
        if max_bytes <= 0:
            raise ConfigError(f"max_bytes is a number of bytes, not {max_bytes}")
        from odradek.arrow import table  # asked for when somebody wants tables

        self._table = table
        self._stream: Stream[Any] = stream
        self._make: Callable[[pa.Table, Sequence[Any]], T] = make
        self._max_bytes, self._max_wait = max_bytes, max_wait

    def __aiter__(self) -> ArrowTables[T]:
        return self

    async def __anext__(self) -> T:
        if self._max_wait > 0:
            await self._stream.filled(self._max_bytes, self._max_wait)
        batches = await self._stream.next_batches(self._max_bytes)
        if not batches:
            raise StopAsyncIteration
        try:
            table = self._table([(batch.partition, batch.columns) for batch in batches], errors=self._stream.raw)
        except BaseException:  # no memory, for example: whoever asks again gets the same rows
            self._stream.put_back(batches)
            raise
        return self._make(table, batches)
