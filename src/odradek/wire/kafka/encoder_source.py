"""Source of generated encoders.

Adjacent fields of fixed size, and the length after them, are written by one call. The parts of a message are joined
once, so that record bytes are copied at most once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache

from odradek.wire.kafka.primitives import INTEGERS, Unwritable, encode_uvarint, long_string, write_tags
from odradek.wire.kafka.schema import (
    PLAIN_STRING,
    STRING,
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

__all__ = ["EncoderSource"]


class EncoderSource:
    """Generates the encoder of a message: `write(value, append)` passes its parts to `append`."""

    def __init__(self, cls: type[Message], version: int) -> None:
        self._version = version
        self._flexible = cls.SPEC.is_flexible(version)
        self._run: list[Fixed] = []  # expressions of fixed size not written yet
        self._append = "append"
        self.source = Source(
            f"encoder of {title(cls, version)}",
            "write(value, append)",
            Unwritable=Unwritable,
            encode_uvarint=encode_uvarint,
            long_string=long_string,
            write_tags=write_tags,
        )
        self._struct(cls, "value")
        self._flush()

    # ---- structs ------------------------------------------------------------------------------------------

    def _struct(self, cls: type[Struct], variable: str) -> None:
        fields = fields_of(cls)
        self._absent([field for field in fields if not field.is_in(self._version) and not field.ignorable], variable)
        present = [field for field in fields if field.is_in(self._version)]
        for field in present:
            if field.tag is None:
                self._field(field, f"{variable}.{field.name}")
        self._tags([field for field in present if field.tag is not None], variable)

    def _field(self, field: Field, value: str) -> None:
        with self.source.about(field.name):
            self._value(field.kind, value, field.is_nullable(self._version))

    def _absent(self, fields: list[Field], variable: str) -> None:
        """Refuse values of fields that the version lacks."""
        for field in fields:
            with self.source.about(field.name), self.source.block(self._is_set(field, f"{variable}.{field.name}")):
                self.source.line('raise Unwritable("it is set, but this version does not have it")')
        if not self._flexible:
            with self.source.block(f"if {variable}.unknown_tags"):
                self.source.line('raise Unwritable("unknown tagged fields are set, but this version cannot have any")')

    def _tags(self, tagged: list[Field], variable: str) -> None:
        line, block = self.source.line, self.source.block
        if not self._flexible:
            return
        tags = f"{variable}.unknown_tags"
        if tagged:
            self._flush()
            tags = self.source.variable("tags")
            line(f"{tags} = [*{variable}.unknown_tags]")
            for field in tagged:
                self._tag(field, f"{variable}.{field.name}", tags)
        run = list(self._run)
        with block(f"if {tags}"):
            self._flush()
            line(f"write_tags({self._append}, {tags})")
        with block("else"):
            self._run = [*run, Fixed(self.source.path, "0", "B")]
            self._flush()

    def _tag(self, field: Field, value: str, tags: str) -> None:
        """Collect a tagged field, unless it has its default."""
        parts, outer = self.source.variable("parts"), self._append
        with self.source.block(self._is_set(field, value)):
            self.source.line(f"{parts} = []")
            self._append = f"{parts}.append"
            self._field(field, value)
            self._flush()
            self._append = outer
            self.source.line(f"{tags}.append(({field.tag}, b''.join({parts})))")

    def _is_set(self, field: Field, value: str) -> str:
        """Return the head of a block for values that are not the default."""
        default = self.source.constant("default", field.default)
        if isinstance(field.kind, Nested):  # comparing structs costs more than the rest
            return f"if {value} is not {default} and {value} != {default}"
        return f"if {value} != {default}"

    # ---- values -------------------------------------------------------------------------------------------

    def _value(self, kind: Kind, value: str, nullable: bool) -> None:
        if isinstance(kind, Primitive) and kind.size:
            self._fixed(kind, value)
            return
        if isinstance(kind, Nested) and not nullable:
            self._present(kind, value, counted=False)
            return
        if not nullable:
            self._present(kind, value)
            return
        self._flush()
        local = self.source.variable("v")
        self.source.line(f"{local} = {value}")
        with self.source.block(f"if {local} is None"):
            self.source.line(f"{self._append}({self._null(kind)!r})")
        with self.source.block("else"):
            self._present(kind, local)
            self._flush()

    def _null(self, kind: Kind) -> bytes:
        if isinstance(kind, Nested):
            return b"\xff"
        if self._flexible and kind is not PLAIN_STRING:
            return b"\0"
        return b"\xff\xff" if kind in STRINGS else b"\xff\xff\xff\xff"

    def _fixed(self, kind: Primitive, value: str) -> None:
        if kind == UUID:
            with self.source.block(f"if len({value}) != 16"):
                self.source.line('raise Unwritable("a uuid that is not 16 bytes")')
        self._run.append(Fixed(self.source.path, value, kind.code))

    def _present(self, kind: Kind, value: str, counted: bool = True) -> None:
        """Write a value that is not null, after its presence, length or count."""
        if isinstance(kind, Nested):
            if counted:
                self._run.append(Fixed(self.source.path, "1", "b"))
            local = self.source.variable("s")
            self._flush()
            self.source.line(f"{local} = {value}")
            self._struct(kind.type, local)
        elif isinstance(kind, Array):
            self._array(kind.element, value)
        else:
            local = self.source.variable("b")
            self.source.line(f"{local} = {value}.encode()" if kind in STRINGS else f"{local} = {value}")
            self._length(kind, f"len({local})")
            self.source.line(f"{self._append}({local})")

    def _array(self, element: Kind, value: str) -> None:
        line, local = self.source.line, self.source.variable("a")
        line(f"{local} = {value}")
        self._length(None, f"len({local})")
        if isinstance(element, Primitive) and element.size and element != UUID:
            table = self.source.constant("integers", INTEGERS[element.code])
            line(f"{self._append}({table}[len({local})].pack(*{local}))")
            return
        index, item = self.source.variable("i"), self.source.variable("s")
        with self.source.block(f"for {index}, {item} in enumerate({local})"), self.source.about(f"[{{{index}}}]"):
            if isinstance(element, Nested):
                self._struct(element.type, item)
            else:
                self._value(element, item, False)
            self._flush()

    def _length(self, kind: Kind | None, length: str) -> None:
        """Write the pending run, with a length or count at its end."""
        if not self._flexible or kind is PLAIN_STRING:
            self._run.append(Fixed(self.source.path, length, "h" if kind in STRINGS else "i"))
            self._flush()
            return
        run = list(self._run)
        self.source.line(f"n = {length}")
        with self.source.block("if n < 127"):
            self._run.append(Fixed(self.source.path, "n + 1", "B"))
            self._flush()
        with self.source.block("else"):
            self._run = run
            self._flush()
            self.source.line(f"{self._append}({'long_string(n)' if kind is STRING else 'encode_uvarint(n + 1)'})")

    # ---- runs of fixed size -------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Write the pending run of fields of fixed size by one call."""
        if not self._run:
            return
        run, self._run = self._run, []
        if all(fixed.value == "0" and fixed.code == "B" for fixed in run):  # the counts of tagged fields
            self.source.line(f"{self._append}({bytes(len(run))!r})", run)
            return
        pack = self.source.constant("pack", _pack(">" + "".join(fixed.code for fixed in run)))
        self.source.line(f"{self._append}({pack}({', '.join(fixed.value for fixed in run)}))", run)


@cache
def _pack(layout: str) -> Callable[..., bytes]:
    return struct.Struct(layout).pack
