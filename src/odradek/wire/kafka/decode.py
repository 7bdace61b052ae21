"""Decoders, generated from the declarations: one function for each message and version.

Fields of fixed size that follow each other, and the length behind them, are read at once; arrays of structs are loops
in the same function. Every length and count is compared with the bytes that are left before anything is made of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from odradek.codec import Buffer
from odradek.errors import RemoteProtocolError
from odradek.wire.kafka.primitives import (
    Malformed,
    UnpackTable,
    count_error,
    length_error,
    read_unknown_tags,
    read_uvarint,
    tag_error,
)
from odradek.wire.kafka.schema import (
    PLAIN_STRING,
    RECORDS,
    STRINGS,
    UUID,
    Array,
    Field,
    Kind,
    Message,
    Nested,
    Primitive,
    Struct,
    fields_of,
)
from odradek.wire.kafka.source import Source

__all__ = ["decode", "decoder", "decoder_source"]

M = TypeVar("M", bound=Message)

_TABLES = {code: UnpackTable(code) for code in "bhiq"}
_DECODERS: dict[tuple[type[Message], int], Callable[[Buffer, int], tuple[Any, int]]] = {}
_ERRORS = (struct.error, IndexError, UnicodeDecodeError, Malformed)


def decode(cls: type[M], version: int, data: Buffer, start: int = 0) -> M:
    """Decode a message that ends where `data` ends.

    Raises:
        RemoteProtocolError: The bytes are not this message in this version, or more of them follow.
    """
    value, end = decoder(cls, version)(data, start)
    if end != len(data):
        raise RemoteProtocolError(f"{_title(cls, version)}: {len(data) - end} bytes follow it at byte {end}")
    return value


def decoder(cls: type[M], version: int) -> Callable[[Buffer, int], tuple[M, int]]:
    """Return the function that decodes a message at a position, and also returns the position behind it.

    It raises RemoteProtocolError. Fields that the version lacks get their defaults.

    Raises:
        ValueError: There is no such version.
    """
    made = _DECODERS.get((cls, version))
    if made is None:
        made = _DECODERS[cls, version] = _decoder(cls, version)
    return made


def decoder_source(cls: type[Message], version: int) -> str:
    """Return the text of the generated function."""
    return _DecoderSource(cls, version).source.text


def _decoder(cls: type[Message], version: int) -> Callable[[Buffer, int], tuple[Any, int]]:
    cls.SPEC.check(version)
    source = _DecoderSource(cls, version).source
    read: Callable[[bytes, int], tuple[Any, int]] = source.compile()
    title = _title(cls, version)

    def decode(data: Buffer, start: int) -> tuple[Any, int]:
        data = bytes(data)  # no copy of what is bytes already
        try:
            return read(data, start)
        except _ERRORS as error:
            assert error.__traceback__ is not None
            failure = source.failure(error.__traceback__.tb_next)
            where = f"{failure.path or 'the message'} at byte {failure.variables['p']}"
            raise RemoteProtocolError(f"{title}: {where}: {_problem(error)}") from None

    return decode


def _title(cls: type[Message], version: int) -> str:
    return f"{cls.__name__} version {version}"


def _problem(error: Exception) -> str:
    if isinstance(error, Malformed):
        return str(error)
    return "not UTF-8" if isinstance(error, UnicodeDecodeError) else "the bytes end too early"


def least_size(kind: Kind, version: int, flexible: bool) -> int:
    """Return how many bytes a value takes at least; it may be null."""
    if isinstance(kind, Nested):
        fields = [field for field in fields_of(kind.type) if field.is_in(version) and field.tag is None]
        sizes = (
            1 if isinstance(f.kind, Nested) and f.nullable else least_size(f.kind, version, flexible) for f in fields
        )
        return sum(sizes) + flexible
    if isinstance(kind, Primitive) and kind.size:
        return kind.size
    if flexible and kind is not PLAIN_STRING:
        return 1
    return 2 if kind in STRINGS else 4


class _DecoderSource:
    """Writes the decoder of a message: `read(data, p)` returns the value and the position behind it.

    In the function `p` is the position and `end` that of the end; `n` is a length or count as it came, `q` the
    position behind a string; `t` is the number of tagged fields.
    """

    def __init__(self, cls: type[Message], version: int) -> None:
        self._version = version
        self._flexible = cls.SPEC.is_flexible(version)
        self._run: list[tuple[str, Primitive]] = []  # targets of fixed size not read yet
        self.source = Source(
            f"decoder of {_title(cls, version)}",
            "read(data, p)",
            new=object.__new__,
            read_uvarint=read_uvarint,
            read_unknown_tags=read_unknown_tags,
            length_error=length_error,
            count_error=count_error,
            tag_error=tag_error,
        )
        self.source.line("end = len(data)")
        self.source.line("view = memoryview(data)")
        value = self._struct(cls)
        self._flush()
        self.source.line(f"return {value}, p")

    # ---- structs ------------------------------------------------------------------------------------------

    def _struct(self, cls: type[Struct]) -> str:
        """Read a struct into a new variable, whose name is returned."""
        line, variable = self.source.line, self.source.variable("s")
        line(f"{variable} = new({self.source.constant('C', cls)})")
        fields = fields_of(cls)
        present = [field for field in fields if field.is_in(self._version) and field.tag is None]
        self._defaults(variable, [field for field in fields if field not in present])
        for field in present:
            self._field(field, f"{variable}.{field.name}")
        self._tags(variable, [field for field in fields if field.is_in(self._version) and field.tag is not None])
        return variable

    def _defaults(self, variable: str, fields: list[Field]) -> None:
        """Set what does not come, or need not."""
        targets: dict[str, str] = {} if self._flexible else {"()": f"{variable}.unknown_tags = "}
        for field in fields:
            default = self.source.constant("default", field.default)
            targets[default] = f"{variable}.{field.name} = {targets.get(default, '')}"
        for default, assignments in targets.items():
            self.source.line(f"{assignments}{default}")

    def _field(self, field: Field, target: str) -> None:
        with self.source.about(field.name):
            self._value(field.kind, target, field.is_nullable(self._version))

    def _tags(self, variable: str, tagged: list[Field]) -> None:
        line, block = self.source.line, self.source.block
        if not self._flexible:
            return
        self._prefix(Primitive("uvarint", "B", 1), "t")
        with block("if t"):
            if tagged:
                self._tag_loop(variable, tagged)
            else:
                line(f"{variable}.unknown_tags, p = read_unknown_tags(data, p - 1)")
        with block("else"):
            line(f"{variable}.unknown_tags = ()")

    def _tag_loop(self, variable: str, tagged: list[Field]) -> None:
        line, block = self.source.line, self.source.block
        number, size, start, unknown = (self.source.variable(prefix) for prefix in ("tag", "size", "start", "unknown"))
        line("t, p = read_uvarint(data, p - 1)")
        line(f"{unknown} = []")
        with block("if t > (end - p) // 2"):
            line("raise count_error(t, end - p)")
        with block("for _ in range(t)"):
            line(f"{number}, p = read_uvarint(data, p)")
            line(f"{size}, p = read_uvarint(data, p)")
            line(f"{start} = p")
            with block(f"if {size} > end - p"):
                line(f"raise length_error({size}, end - p)")
            for position, field in enumerate(tagged):
                with block(f"{'elif' if position else 'if'} {number} == {field.tag}"):
                    self._field(field, f"{variable}.{field.name}")
                    self._flush()
            with block("else"):
                line(f"{unknown}.append(({number}, data[p:p + {size}]))")
                line(f"p += {size}")
            with block(f"if p != {start} + {size}"):
                line(f"raise tag_error({size}, p - {start})")
        line(f"{variable}.unknown_tags = tuple({unknown})")

    # ---- values -------------------------------------------------------------------------------------------

    def _value(self, kind: Kind, target: str, nullable: bool) -> None:
        if isinstance(kind, Primitive) and kind.size:
            self._run.append((target, kind))
            return
        if isinstance(kind, Nested) and not nullable:
            self.source.line(f"{target} = {self._struct(kind.type)}")
            return
        null = self._length(kind)
        if not nullable:
            self._present(kind, target)
            return
        with self.source.block(f"if {null}"):
            self.source.line(f"{target} = None")
        with self.source.block("else"):
            self._present(kind, target)
            self._flush()

    def _length(self, kind: Kind) -> str:
        """Read the length, count or presence of a value into `n`; return the condition under which it is null."""
        if isinstance(kind, Nested):
            self._prefix(Primitive("int8", "b", 1), "n")
            return "n < 0"
        if self._is_compact(kind):
            self._prefix(Primitive("uvarint", "B", 1), "n")
            with self.source.block("if n > 127"):  # two bytes are frequent
                self.source.line("n += (data[p] - 1) << 7")
                self.source.line("p += 1")
                with self.source.block("if n >> 14"):
                    self.source.line("n, p = read_uvarint(data, p - 2)")
            return "n == 0"
        self._prefix(Primitive("int16", "h", 2) if kind in STRINGS else Primitive("int32", "i", 4), "n")
        return "n == -1"

    def _is_compact(self, kind: Kind) -> bool:
        return self._flexible and kind is not PLAIN_STRING

    def _present(self, kind: Kind, target: str) -> None:
        """Read a value of which `n` is known and which is not null."""
        if isinstance(kind, Nested):
            self.source.line(f"{target} = {self._struct(kind.type)}")
        elif isinstance(kind, Array):
            self._array(kind.element, target)
        else:
            self._bytes(kind, target)

    def _bytes(self, kind: Primitive, target: str) -> None:
        line = self.source.line
        line("q = p + n - 1" if self._is_compact(kind) else "q = p + n")
        with self.source.block("if not p <= q <= end"):
            line("raise length_error(q - p, end - p)")
        if kind in STRINGS:
            line(f"{target} = data[p:q].decode()")
        else:
            line(f"{target} = {'view' if kind is RECORDS else 'data'}[p:q]")
        line("p = q")

    def _array(self, element: Kind, target: str) -> None:
        line, block = self.source.line, self.source.block
        least = max(1, least_size(element, self._version, self._flexible))
        if self._flexible:
            line("n -= 1")
        with block(f"if not 0 <= n <= (end - p) // {least}"):
            line("raise count_error(n, end - p)")
        if isinstance(element, Primitive) and element.size:
            self._fixed_array(element, target)
            return
        with block("if n"):
            self._loop(element, target)
        with block("else"):
            line(f"{target} = ()")

    def _loop(self, element: Kind, target: str) -> None:
        line, block = self.source.line, self.source.block
        items, index = self.source.variable("items"), self.source.variable("i")
        line(f"{items} = []")
        with block(f"for {index} in range(n)"), self.source.about(f"[{{{index}}}]"):
            if isinstance(element, Nested):
                item = self._struct(element.type)
            else:
                item = self.source.variable("item")
                self._value(element, item, False)
            self._flush()
            line(f"{items}.append({item})")
        line(f"{target} = tuple({items})")

    def _fixed_array(self, element: Primitive, target: str) -> None:
        if element == UUID:
            self.source.line(f"{target} = tuple([data[i:i + 16] for i in range(p, p + 16 * n, 16)])")
        else:
            table = self.source.constant("unpack", _TABLES[element.code])
            self.source.line(f"{target} = {table}[n](data, p)")
        self.source.line(f"p += n * {element.size}")

    # ---- runs of fixed size -------------------------------------------------------------------------------

    def _prefix(self, kind: Primitive, target: str) -> None:
        self._run.append((target, kind))
        self._flush()

    def _flush(self) -> None:
        """Read what is of fixed size and not read yet, all at once."""
        if not self._run:
            return
        layout = struct.Struct(">" + "".join(kind.code for _, kind in self._run))
        unpack = self.source.constant("unpack", _unpack(layout.format))
        targets = ", ".join(target for target, _ in self._run)
        if layout.format == ">B":
            self.source.line(f"{targets} = data[p]")
        else:
            self.source.line(f"{targets}{',' if len(self._run) == 1 else ''} = {unpack}(data, p)")
        self.source.line(f"p += {layout.size}")
        self._run.clear()


@cache
def _unpack(layout: str) -> Callable[[bytes, int], tuple[Any, ...]]:
    return struct.Struct(layout).unpack_from
