"""Source of generated decoders.

Adjacent fields of fixed size, and the length after them, are read by one call. Arrays of structs are loops in the same
function.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

from odradek.wire.kafka.primitives import (
    DECODE_ERRORS,
    INTEGERS,
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
    title,
)
from odradek.wire.kafka.source import Fixed, Source

__all__ = ["DecoderSource", "min_size"]


def min_size(kind: Kind, version: int, flexible: bool) -> int:
    """Return the minimum size of an encoded value (bytes). The value may be null."""
    if isinstance(kind, Nested):
        fields = [field for field in fields_of(kind.type) if field.is_in(version) and field.tag is None]
        sizes = (
            1 if isinstance(f.kind, Nested) and f.nullable else min_size(f.kind, version, flexible) for f in fields
        )
        return sum(sizes) + flexible
    if isinstance(kind, Primitive) and kind.size:
        return kind.size
    if flexible and kind is not PLAIN_STRING:
        return 1
    return 2 if kind in STRINGS else 4


class DecoderSource:
    """Generates the decoder of a message: `read(data, p)` returns the value and the position after it.

    In the function `p` is the position and `end` the end of the data, `n` a length or count as encoded, `q` the
    position after a string, `t` the number of tagged fields.
    """

    def __init__(self, cls: type[Message], version: int, signature: str = "read(data, p)") -> None:
        self._version = version
        self._flexible = cls.SPEC.is_flexible(version)
        self._run: list[Fixed] = []  # targets of fixed size not read yet
        self._text = "str(data[p:q], 'utf-8')"
        self.source = Source(
            f"decoder of {title(cls, version)}",
            signature,
            new=object.__new__,
            read_uvarint=read_uvarint,
            read_unknown_tags=read_unknown_tags,
            length_error=length_error,
            count_error=count_error,
            tag_error=tag_error,
            errors=DECODE_ERRORS,
        )
        self.source.line("end = len(data)")

    def message(self, cls: type[Message]) -> Source:
        """Write `read(data, p)`, which returns the message and the position after it; `data` are bytes."""
        self._text = "data[p:q].decode()"  # which is faster, and only bytes have it
        self.source.line("view = memoryview(data)")
        value = self._struct(cls)
        self._flush()
        self.source.line(f"return {value}, p")
        return self.source

    def head(self, cls: type[Struct]) -> Source:
        """Write `read(data, p)` for the part of a struct before the content of its last plain field: it returns the
        struct, that field's length or count (-1: null) and the position after it. `data` may be any buffer."""
        value = self._new(cls)
        *before, last = self._plain(cls)
        for field in before:
            self._field(field, f"{value}.{field.name}")
        self._defaults(value, [last])
        self._length(last.kind)
        self.source.line(f"return {value}, {'n - 1' if self._flexible else 'n'}, p")
        return self.source

    def tail(self, cls: type[Struct]) -> Source:
        """Write `read(data, p, value)` for the tagged fields of a struct; it returns the position after them."""
        self._tags("value", self._tagged(cls))
        self.source.line("return p")
        return self.source

    def run(self, cls: type[Struct]) -> Source:
        """Write `read(data, p, left, items, spans)` for at most `left` structs, each with the content of its last plain
        field: it appends those that are whole to `items`, and (struct, start, stop) of each content that is not empty
        to `spans`. It returns the position after the last one and how many are left. `data` may be any buffer."""
        line, block = self.source.line, self.source.block
        line("start = p")
        with block("try"), block("while left"):
            value = self._new(cls)
            *before, last = self._plain(cls)
            for field in before:
                self._field(field, f"{value}.{field.name}")
            self._defaults(value, [last])
            self._length(last.kind)
            if self._flexible:
                line("n -= 1")
            line("begin = p")
            with block("if n > 0"):
                line("p += n")
                with block("if p > end"):
                    line("break")
            with block("elif n < -1"):
                line("break")
            line("stop = p")
            self._tags(value, self._tagged(cls))
            with block("if stop > begin"):
                line(f"spans.append(({value}, begin, stop))")
            line(f"items.append({value})")
            line("left -= 1")
            line("start = p")
        with block("except errors"):
            line("pass")
        line("return start, left")
        return self.source

    # ---- structs ------------------------------------------------------------------------------------------

    def _struct(self, cls: type[Struct]) -> str:
        """Read a struct into a new variable, whose name is returned."""
        variable = self._new(cls)
        for field in self._plain(cls):
            self._field(field, f"{variable}.{field.name}")
        self._tags(variable, self._tagged(cls))
        return variable

    def _plain(self, cls: type[Struct]) -> list[Field]:
        return [field for field in fields_of(cls) if field.is_in(self._version) and field.tag is None]

    def _tagged(self, cls: type[Struct]) -> list[Field]:
        return [field for field in fields_of(cls) if field.is_in(self._version) and field.tag is not None]

    def _new(self, cls: type[Struct]) -> str:
        """Make a struct in a new variable, with the defaults of absent and of tagged fields."""
        variable = self.source.variable("s")
        self.source.line(f"{variable} = new({self.source.constant('C', cls)})")
        plain = self._plain(cls)
        self._defaults(variable, [field for field in fields_of(cls) if field not in plain])
        return variable

    def _defaults(self, variable: str, fields: list[Field]) -> None:
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
        self._prefix("B", "t")
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
                line(f"{unknown}.append(({number}, bytes(data[p:p + {size}])))")
                line(f"p += {size}")
            with block(f"if p != {start} + {size}"):
                line(f"raise tag_error({size}, p - {start})")
        line(f"{variable}.unknown_tags = tuple({unknown})")

    # ---- values -------------------------------------------------------------------------------------------

    def _value(self, kind: Kind, target: str, nullable: bool) -> None:
        if isinstance(kind, Primitive) and kind.size:
            self._run.append(Fixed(self.source.path, target, kind.code))
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
            self._prefix("b", "n")
            return "n < 0"
        if self._is_compact(kind):
            self._prefix("B", "n")
            with self.source.block("if n > 127"):  # two bytes are frequent
                self.source.line("n += (data[p] - 1) << 7")
                self.source.line("p += 1")
                with self.source.block("if n >> 14"):
                    self.source.line("n, p = read_uvarint(data, p - 2)")
            return "n == 0"
        self._prefix("h" if kind in STRINGS else "i", "n")
        return "n == -1"

    def _is_compact(self, kind: Kind) -> bool:
        return self._flexible and kind is not PLAIN_STRING

    def _present(self, kind: Kind, target: str) -> None:
        """Read a value that is not null, after its length or count `n`."""
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
            line(f"{target} = {self._text}")
        else:
            line(f"{target} = {'view[p:q]' if kind is RECORDS else 'bytes(data[p:q])'}")
        line("p = q")

    def _array(self, element: Kind, target: str) -> None:
        line, block = self.source.line, self.source.block
        minimum = max(1, min_size(element, self._version, self._flexible))
        if self._flexible:
            line("n -= 1")
        with block(f"if not 0 <= n <= (end - p) // {minimum}"):
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
            self.source.line(f"{target} = tuple([bytes(data[i:i + 16]) for i in range(p, p + 16 * n, 16)])")
        else:
            table = self.source.constant("integers", INTEGERS[element.code])
            self.source.line(f"{target} = {table}[n].unpack_from(data, p)")
        self.source.line(f"p += n * {element.size}")

    # ---- runs of fixed size -------------------------------------------------------------------------------

    def _prefix(self, code: str, target: str) -> None:
        self._run.append(Fixed(self.source.path, target, code))
        self._flush()

    def _flush(self) -> None:
        """Read the pending run of fields of fixed size by one call."""
        if not self._run:
            return
        run, self._run = self._run, []
        layout = struct.Struct(">" + "".join(fixed.code for fixed in run))
        unpack = self.source.constant("unpack", _unpack(layout.format))
        targets = ", ".join(fixed.value for fixed in run)
        if layout.format == ">B":
            self.source.line(f"{targets} = data[p]", run)
        else:
            self.source.line(f"{targets}{',' if len(run) == 1 else ''} = {unpack}(data, p)", run)
        self.source.line(f"p += {layout.size}")


@cache
def _unpack(layout: str) -> Callable[[bytes, int], tuple[Any, ...]]:
    return struct.Struct(layout).unpack_from
