"""Schemas and values that are serialized, by odradek and by others."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["AVRO", "AVRO_VALUES", "JSON", "JSON_VALUES", "Inner", "Order", "make_inner", "make_order"]

AVRO = json.dumps({
    "type": "record", "name": "Order", "namespace": "shop", "fields": [
        {"name": "id", "type": "long"}, {"name": "user", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]}},
        {"name": "extra", "type": {"type": "map", "values": "double"}},
    ],
})  # fmt: skip
AT = datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=UTC)
AVRO_VALUES: list[dict[str, Any]] = [
    {"id": 2**40, "user": "\u00e4nn", "at": AT, "price": Decimal("-12.34"), "tags": ["a", ""], "color": "GREEN",
     "extra": {"x": 0.5}},
    {"id": -1, "user": None, "at": AT, "price": Decimal("0.00"), "tags": [], "color": "RED", "extra": {}},
]  # fmt: skip

JSON = json.dumps({
    "$schema": "http://json-schema.org/draft-07/schema#", "title": "Order", "type": "object",
    "properties": {"id": {"type": "integer"}, "user": {"type": "string"}}, "required": ["id"],
})  # fmt: skip
JSON_VALUES: list[dict[str, Any]] = [{"id": 1, "user": "\u00e4nn"}, {"id": 2}]

Field = descriptor_pb2.FieldDescriptorProto


def _field(name: str, number: int, kind: str) -> Field:
    made = Field(name=name, number=number, label=Field.LABEL_OPTIONAL)
    if kind.startswith("."):
        made.type, made.type_name = Field.TYPE_MESSAGE, kind
    else:
        made.type = Field.Type.Value(f"TYPE_{kind.upper()}")
    return made


def _classes() -> tuple[Any, Any]:
    common = descriptor_pb2.FileDescriptorProto(name="common.proto", package="shop", syntax="proto3")
    common.message_type.add(name="Money", field=[_field("cents", 1, "int64")])
    file = descriptor_pb2.FileDescriptorProto(
        name="order.proto", package="shop", syntax="proto3", dependency=["common.proto"]
    )
    file.message_type.add(name="Order", field=[_field("id", 1, "int64"), _field("price", 2, ".shop.Money")])
    file.message_type.add(name="Outer").nested_type.add(name="Other", field=[_field("x", 1, "string")])
    file.message_type[1].nested_type.add(name="Inner", field=[_field("note", 1, "string")])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(common)
    pool.Add(file)
    names = ("shop.Order", "shop.Outer.Inner")
    order, inner = (message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names)
    return order, inner


Order, Inner = _classes()


def make_order() -> Any:
    order = Order(id=7)
    order.price.cents = -250
    return order


def make_inner() -> Any:
    return Inner(note="hi")
