"""Protobuf messages of one type, which google.protobuf parses, and their columns, from a descriptor file.

    protoc --descriptor_set_out=orders.desc --include_imports orders.proto

Nested messages are structs, enums strings, maps maps and repeated fields lists. `google.protobuf.Timestamp` is a
timestamp, and a wrapper such as `google.protobuf.Int64Value` its value or null. Fields with presence (optional, in a
oneof, messages) are null if they are not set; all others have their default then, as protobuf says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, empty_pb2, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from odradek.errors import ConfigError
from odradek.pipeline.decode.columns import Record, ValueDecoder
from odradek.pipeline.decode.dead import Convert, DeadReason, UndecodableError, list_of, map_of, struct_of
from odradek.pipeline.decode.fields import MICROSECONDS, TIME, type_name
from odradek.registry.framing import message_prefixes
from odradek.registry.protobuf import prefixes_in

__all__ = ["ProtobufDecoder"]

Column: TypeAlias = tuple[Any, Convert]  # a type or a field, and what makes its values

MAX_NANOS = 999_999_999
MAX_LEVELS = 100  # nesting that google.protobuf accepts
LENGTH_DELIMITED = 2  # wire type of texts, bytes and messages

_SCALARS: Mapping[int, pa.DataType] = {
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(), FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(), FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0), FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(), FieldDescriptor.CPPTYPE_STRING: pa.string(),
}  # fmt: skip


class ProtobufDecoder(ValueDecoder):
    """Decodes values that are messages of one type of a descriptor file.

    `fields` are the fields to take, and their types, where these are others: a Timestamp may be
    `struct<seconds: bigint, nanos: int>`, which has its nanoseconds. Payloads of Confluent's format are `indexed`: they
    begin with the position of the message type in the file of their writer (`of_writer`), or else in this one.

    Raises:
        ConfigError: The bytes are no descriptor file, the file does not have the message, or one of the
            message's fields has a type that no column can have.
    """

    def __init__(
        self, descriptors: bytes, message: str, fields: pa.Schema | None = None, *, indexed: bool = False
    ) -> None:
        self._descriptor = _find_message(descriptors, message)
        columns, self._convert = _message(self._descriptor, fields, message, ())
        super().__init__(pa.schema(list(columns)))
        self.parse: Any = message_factory.GetMessageClass(self._descriptor).FromString
        file: Any = descriptor_pb2.FileDescriptorProto.FromString(self._descriptor.file.serialized_pb)
        self._prefixes = message_prefixes(file, self._descriptor.full_name) if indexed else ()

    def of_writer(self, text: str) -> ProtobufDecoder:
        """Return the decoder of payloads under a registered schema, whose file may have further message types, in
        another order."""
        prefixes = prefixes_in(text, self._descriptor.full_name)
        if prefixes in ((), self._prefixes):
            return self
        made = copy(self)
        made._prefixes = prefixes
        return made

    def _read(self, value: bytes) -> Record:
        if self._prefixes:
            size = next((len(prefix) for prefix in self._prefixes if value.startswith(prefix)), 0)
            if not size:
                why = f"it is a message of another type than {self._descriptor.full_name}, or damaged"
                raise UndecodableError(DeadReason.SCHEMA, why, position=0)
            value = value[size:]
        try:
            message = self.parse(value)
        except DecodeError:
            raise _damage(value, self._descriptor, 0) from None
        if not message.IsInitialized():
            missing = ", ".join(message.FindInitializationErrors())
            raise UndecodableError(DeadReason.MISSING, "is required, and not set").inside(missing)
        record: Record = self._convert(message)
        return record


def _damage(value: bytes, descriptor: Any, level: int) -> UndecodableError:
    """Return which field of a message is damaged, as far as google.protobuf can say: as one that it does not know."""
    try:
        fields: Any = UnknownFieldSet(empty_pb2.Empty.FromString(value)) if level < MAX_LEVELS else ()
    except DecodeError:
        fields = ()
    for each in fields:
        field = descriptor.fields_by_number.get(each.field_number)
        if field is None or each.wire_type != LENGTH_DELIMITED:
            continue
        try:
            if field.type == FieldDescriptor.TYPE_STRING:
                each.data.decode()
            elif field.message_type is not None:
                message_factory.GetMessageClass(field.message_type).FromString(each.data)
        except UnicodeDecodeError as error:
            why = f"is not UTF-8: {error.reason}"
            return UndecodableError(DeadReason.UNICODE, why, "string").inside(field.name)
        except DecodeError:
            return _damage(each.data, field.message_type, level + 1).inside(field.name)
    return UndecodableError(DeadReason.SYNTAX, f"is no message of type {descriptor.full_name}")


# ---- columns -------------------------------------------------------------------------------------------------


def _find_message(descriptors: bytes, message: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
            pool.Add(file)
        return pool.FindMessageTypeByName(message)
    except DecodeError as error:
        raise ConfigError(f"not a descriptor file of protoc: {error}") from None
    except (KeyError, TypeError) as error:
        why = f"the descriptor file does not define {message}, or what it needs: use --include_imports ({error})"
        raise ConfigError(why) from None


def _message(descriptor: Any, wanted: Iterable[pa.Field[Any]] | None, path: str, open_: tuple[str, ...]) -> Column:
    """Return the struct of a message's fields, and what makes it of a message. Raises ConfigError."""
    if descriptor.full_name in open_:
        raise ConfigError(f"{path}: the message {descriptor.full_name} contains itself: no column has such a type")
    open_ = (*open_, descriptor.full_name)
    columns, getters = [], []
    for name, each in [(f.name, None) for f in descriptor.fields] if wanted is None else [(f.name, f) for f in wanted]:
        field = descriptor.fields_by_name.get(name)
        if field is None:
            raise ConfigError(f"{path} has no field {name}")
        column, get = _field(field, each, f"{path}.{name}", open_)
        if each is not None and column.type != each.type:
            raise ConfigError(f"{path}.{name} is {type_name(column.type)}, not {type_name(each.type)}")
        columns.append(column)
        getters.append((name, get))
    if not columns:
        raise ConfigError(f"{path}: the message {descriptor.full_name} has no fields, and no column has none")
    return pa.struct(columns), partial(struct_of, getters)


def _field(field: Any, wanted: pa.Field[Any] | None, path: str, open_: tuple[str, ...]) -> Column:
    """Return a field as a column, and what takes it from a message."""
    kind = None if wanted is None else wanted.type
    if not field.is_repeated:
        column, convert = _value(field, kind, path, open_)
    elif field.message_type is not None and field.message_type.GetOptions().map_entry:
        inner = field.message_type.fields_by_name
        key, _ = _value(inner["key"], None, path, open_)
        item, convert = _value(inner["value"], kind.item_type if isinstance(kind, pa.MapType) else None, path, open_)
        column, convert = pa.map_(key, item), partial(_pairs, convert)
    else:
        item, convert = _value(field, kind.value_type if isinstance(kind, pa.ListType) else None, path, open_)
        column, convert = pa.list_(item), list if convert is _same else partial(list_of, convert)
    made = pa.field(field.name, column, wanted is None or wanted.nullable)
    return made, _getter(field, convert, made)


def _value(field: Any, wanted: Any, path: str, open_: tuple[str, ...]) -> Column:
    """Return the type of a field's value, or of one of many, and what converts it."""
    kind = field.message_type
    if kind is not None and not isinstance(wanted, pa.StructType) and kind.file.package == "google.protobuf":
        if kind.name == "Timestamp":
            return TIME, _microseconds
        if kind.file.name.endswith("wrappers.proto"):
            return _value(kind.fields_by_name["value"], None, path, open_)[0], attrgetter("value")
    if kind is not None:
        return _message(kind, wanted if isinstance(wanted, pa.StructType) else None, path, open_)
    if field.enum_type is not None:
        symbols = {value.number: value.name for value in reversed(field.enum_type.values)}
        return pa.string(), partial(_symbol, symbols)
    return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else _SCALARS[field.cpp_type], _same


# ---- values --------------------------------------------------------------------------------------------------


def _getter(field: Any, convert: Convert, column: pa.Field[Any]) -> Convert:
    name, has_presence, nullable = field.name, field.has_presence, column.nullable
    if convert is _same and not has_presence:
        return attrgetter(name)

    def get(message: Any) -> Any:
        if not has_presence or message.HasField(name):
            return convert(getattr(message, name))
        if nullable:
            return None
        why = "is not set, and the field is not null"
        raise UndecodableError(DeadReason.MISSING, why, type_name(column.type))

    return get


def _same(value: Any) -> Any:
    return value


def _pairs(convert: Convert, pairs: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    return map_of(convert, pairs.items())


def _symbol(symbols: Mapping[int, str], number: int) -> str:
    symbol = symbols.get(number)
    if symbol is None:
        why = f"is {number}, which the enum does not have; use a newer descriptor file"
        raise UndecodableError(DeadReason.RANGE, why, "string")
    return symbol


def _microseconds(stamp: Any) -> int:
    seconds, nanos = int(stamp.seconds), int(stamp.nanos)
    microseconds = seconds * 1_000_000 + nanos // 1000
    reason, rule = DeadReason.RANGE, "timestamps are of the years 1 to 9999, with 0 to 999999999 nanoseconds"
    if 0 <= nanos <= MAX_NANOS and MICROSECONDS[0] <= microseconds <= MICROSECONDS[1]:
        if not nanos % 1000:
            return microseconds
        reason = DeadReason.PRECISION
        rule = "a timestamp keeps six digits; declare the field as struct<seconds: bigint, nanos: int>"
    raise UndecodableError(reason, f"is {seconds} s and {nanos} ns: {rule}", type_name(TIME))
