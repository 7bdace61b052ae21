"""Consumers and readers of keys and values that are not bytes.

A record is decoded while it is still in its stream, and leaves it in the step in which it is handed out: cancelling a
wait for a deserializer loses nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack

from odradek import arguments
from odradek.batch import Batch
from odradek.client.consumer.each import HANDLER
from odradek.client.consumer.group_batches import GroupBatch
from odradek.client.consumer.reader import Reader
from odradek.client.consumer.streams import Batches, Stream
from odradek.client.options import HandlerArguments
from odradek.core.backoff import Backoff
from odradek.errors import DeserializationError
from odradek.io.retry import retry
from odradek.serde import DecodedRecord, Deserializer, SerdeContext, deserialize
from odradek.types import Record

if TYPE_CHECKING:  # a program that reads with one has imported it
    from odradek.client.consumer.consumer import Consumer

__all__ = ["DecodedConsumer", "DecodedReader", "DecodedStream"]

K = TypeVar("K")
V = TypeVar("V")

log = logging.getLogger("odradek.consumer")

_HANDLER = arguments.function(HANDLER)


class DecodedStream(Generic[K, V]):
    """`async for` over decoded records; for one task at a time.

    A record that cannot be decoded is raised as DeserializationError in its place. Iterating further continues behind
    it; or with the same record, if the error is retriable.
    """

    def __init__(self, stream: Stream[Any], decode: Callable[[Record], Awaitable[DecodedRecord[K, V]]]) -> None:
        self._stream, self._decode = stream, decode

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> DecodedRecord[K, V]:
        return await self._stream.next_decoded(self._decode)


class _Decoded(Generic[K, V]):
    """Base of both: iterates over what `raw` reads, and enters and leaves it."""

    def __init__(self, raw: Consumer | Reader, keys: Deserializer[K], values: Deserializer[V]) -> None:
        self._entered, self._keys, self._values = raw, keys, values
        self._stream = DecodedStream(raw.__aiter__(), self.decode)

    async def __aenter__(self) -> Self:
        """Enter `raw`."""
        await self._entered.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._entered.__aexit__(kind, error, trace)

    def __aiter__(self) -> DecodedStream[K, V]:
        """Iterate by record: see `DecodedStream`."""
        return self._stream

    async def __anext__(self) -> DecodedRecord[K, V]:
        return await self._stream.__anext__()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._entered!r}>"

    async def decode(self, record: Record) -> DecodedRecord[K, V]:
        """Decode one record, such as one of a batch.

        Raises:
            DeserializationError: With the record, and whether another attempt may succeed.
        """
        context = SerdeContext(record.topic, "key", [*record.headers])
        key = await deserialize(self._keys, record, "key", context)
        return DecodedRecord(record, key, await deserialize(self._values, record, "value", context))


class DecodedConsumer(_Decoded[K, V]):
    """A member of a consumer group whose records are decoded. Made by `Cluster.consumer` with `value_deserializer`, and
    used as `async with`, like the `Consumer` that it reads with.

    Args:
        raw: That consumer, which has the rest: `raw.arrow`, `raw.pause`, `raw.seek`, `raw.commit`, `raw.assignment` ...
        keys, values: The deserializers.
    """

    def __init__(self, raw: Consumer, keys: Deserializer[K], values: Deserializer[V]) -> None:
        super().__init__(raw, keys, values)
        self.raw = raw
        self.streams = tuple(DecodedStream(stream, self.decode) for stream in raw.streams)
        """The streams: see `Consumer.streams`."""
        self._waits = False

    def batches(self, *, max_records: int | None = None, max_wait: float = 0.0) -> Batches[GroupBatch]:
        """Iterate by batch of records as they were read, see `Consumer.batches`; `decode` decodes one of them."""
        return self.raw.batches(max_records=max_records, max_wait=max_wait)

    @arguments.with_options(HandlerArguments)
    async def each(
        self, handle: Callable[[DecodedRecord[K, V]], Awaitable[object]], **options: Unpack[HandlerArguments]
    ) -> None:
        """Call `handle` for every record, decoded, as `Consumer.each` does.

        Decoding is part of handling: a DeserializationError is retried, sent to `dead_letter` or raised as an error of
        the handler is. If it is retriable, such as that of a registry that does not answer, decoding is attempted until
        it succeeds. `key` gets the record as it was read.

        Args:
            handle: A coroutine function. It may be cancelled, and called again for the same record.
        """
        _HANDLER("handle", handle)

        @wraps(handle)
        async def handle_decoded(record: Record) -> None:
            await handle(await retry(partial(self._decode_or_log, record), Backoff()))

        await self.raw.each(handle_decoded, **options)

    async def _decode_or_log(self, record: Record) -> DecodedRecord[K, V]:
        """Decode a record. Logs the first of the errors that pass."""
        try:
            decoded = await self.decode(record)
        except DeserializationError as error:
            if error.retriable and not self._waits:
                self._waits = True
                log.warning("decoding waits: %s", error)
            raise
        self._waits = False
        return decoded


class DecodedReader(_Decoded[K, V]):
    """A reader whose records are decoded. Made by `Cluster.reader` with `value_deserializer`, and used as `async with`,
    like the `Reader` that it reads with.

    Args:
        raw: That reader, which has the rest: `raw.arrow`, `raw.bookmark`, `raw.pause`, `raw.seek` ...
        keys, values: The deserializers.
    """

    def __init__(self, raw: Reader, keys: Deserializer[K], values: Deserializer[V]) -> None:
        super().__init__(raw, keys, values)
        self.raw = raw

    def batches(self, *, max_records: int | None = None, max_wait: float = 0.0) -> Batches[Batch]:
        """Iterate by batch of records as they were read, see `Reader.batches`; `decode` decodes one of them."""
        return self.raw.batches(max_records=max_records, max_wait=max_wait)
