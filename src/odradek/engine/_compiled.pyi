"""The engine built from `rust/`; `interface` says what everything means."""

from collections.abc import Callable, Sequence
from typing import final

from odradek.engine.interface import NO_LIMIT, Buffer, RecordColumns
from odradek.engine.packed import Headers, PackedBytes

NAME: str

@final
class PayloadBuilder:
    @property
    def payload_bytes(self) -> int: ...
    def __len__(self) -> int: ...
    def decode_run(self, data: Buffer, start: int, stop: int) -> int: ...
    def append(self, value: Buffer) -> None: ...
    def tolist(self) -> list[bytes]: ...

@final
class ColumnBuilder:
    def __len__(self) -> int: ...
    def decode_run(self, data: Buffer, start: int, stop: int, base: int = 0, max_entry: int = NO_LIMIT) -> int: ...
    def append(self, value: Buffer, position: int, next_position: int, inner_index: int = 0) -> None: ...
    def add_wrapper(self, values: PayloadBuilder, position: int, next_position: int) -> None: ...
    def take(self) -> tuple[PackedBytes, memoryview, memoryview, memoryview | None]: ...

@final
class RecordBuilder:
    def __len__(self) -> int: ...
    def decode_batch(
        self,
        data: Buffer,
        start: int,
        stop: int,
        count: int,
        base_offset: int,
        last_delta: int,
        first_offset: int,
        timestamp: int,
        append_time: bool,
    ) -> tuple[int, int, int]: ...
    def decode_batches(
        self, data: Buffer, start: int, stop: int, first_offset: int, max_entry: int = NO_LIMIT
    ) -> tuple[int, int]: ...
    def decode_messages(
        self,
        data: Buffer,
        start: int,
        stop: int,
        first_offset: int,
        shift: int = 0,
        append_time: int | None = None,
        max_entry: int = NO_LIMIT,
    ) -> tuple[int, int]: ...
    def append(self, value: Buffer, position: int, next_position: int) -> None: ...
    def take(self) -> RecordColumns: ...

def check_run(data: Buffer, start: int, stop: int, max_entry: int = NO_LIMIT) -> tuple[int, int]: ...
def crc32(data: Buffer, before: int = 0, /) -> int: ...
def crc32c(data: Buffer, before: int = 0, /) -> int: ...
def encode_batch(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers] | None = None,
    timestamps: Sequence[int] | None = None,
    attributes: int = 0,
    base_offset: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    compress: Callable[[bytes], bytes] | None = None,
) -> bytes: ...
def encode_messages(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    timestamps: Sequence[int] | None = None,
    magic: int = 1,
    attributes: int = 0,
    offset: int = 0,
) -> bytes: ...
def encode_run(values: Sequence[bytes | None], attributes: int = 0) -> bytes: ...
def fit(
    values: Sequence[object],
    start: int,
    stop: int,
    max_bytes: int,
    row_bytes: int,
    max_row: int,
    nullable: bool = False,
) -> tuple[int, int]: ...
def scan_messages(data: Buffer) -> tuple[int, int, int]: ...
def unpack(offsets: Buffer, data: Buffer, validity: Buffer | None = None) -> list[bytes | None]: ...
