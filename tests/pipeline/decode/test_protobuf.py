"""Protobuf messages: types, presence, what makes a message dead, and what google.protobuf writes."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st

from odradek.errors import ConfigError
from odradek.pipeline.decode import Decoder, Decoding, parse_ddl
from odradek.pipeline.decode.protobuf import ProtobufDecoder

from .records import dead_of, outcomes

Field = descriptor_pb2.FieldDescriptorProto
SCALARS = ("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64",
           "sfixed32", "sfixed64", "bool", "string", "bytes")  # fmt: skip


def field(name: str, number: int, kind: str, *, repeated: bool = False, optional: bool = False) -> Field:
    label = Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL
    made = Field(name=name, number=number, label=label)
    if kind.startswith("."):
        made.type_name = kind
        made.type = Field.TYPE_ENUM if kind.endswith("Color") else Field.TYPE_MESSAGE
    else:
        made.type = Field.Type.Value(f"TYPE_{kind.upper()}")
    if optional:
        made.proto3_optional, made.oneof_index = True, 0
    return made


def files() -> list[descriptor_pb2.FileDescriptorProto]:
    """The files of a message type with a field of each kind."""
    color = descriptor_pb2.EnumDescriptorProto(name="Color")
    color.value.add(name="RED", number=0)
    color.value.add(name="GREEN", number=5)
    item = descriptor_pb2.DescriptorProto(name="Item", field=[field("sku", 1, "string"), field("n", 2, "int32")])
    entry = descriptor_pb2.DescriptorProto(
        name="PricesEntry", field=[field("key", 1, "string"), field("value", 2, ".shop.Item")]
    )
    entry.options.map_entry = True
    order = descriptor_pb2.DescriptorProto(name="Order", nested_type=[entry])
    order.field.extend(field(f"a_{kind}", number, kind) for number, kind in enumerate(SCALARS, 1))
    order.field.extend([
        field("color", 20, ".shop.Color"), field("item", 21, ".shop.Item"),
        field("items", 22, ".shop.Item", repeated=True),
        field("numbers", 23, "int64", repeated=True), field("at", 24, ".google.protobuf.Timestamp"),
        field("prices", 25, ".shop.Order.PricesEntry", repeated=True), field("maybe", 26, "int32", optional=True),
        field("wrapped", 27, ".google.protobuf.StringValue"), field("colors", 28, ".shop.Color", repeated=True),
        field("times", 29, ".google.protobuf.Timestamp", repeated=True),
    ])  # fmt: skip
    order.oneof_decl.add(name="_maybe")
    loop = descriptor_pb2.DescriptorProto(name="Loop", field=[field("next", 1, ".shop.Loop")])
    holder = descriptor_pb2.DescriptorProto(
        name="Holder", field=[field("id", 1, "int32"), field("loop", 2, ".shop.Loop")]
    )
    shop = descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package="shop", syntax="proto3", message_type=[order, item, loop, holder], enum_type=[color],
        dependency=["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"],
    )  # fmt: skip
    old = descriptor_pb2.DescriptorProto(name="Old", field=[field("id", 1, "int32"), field("note", 2, "string")])
    old.field[0].label = Field.LABEL_REQUIRED
    legacy = descriptor_pb2.FileDescriptorProto(name="old.proto", package="old", syntax="proto2", message_type=[old])
    known = [descriptor_pb2.FileDescriptorProto.FromString(each.DESCRIPTOR.serialized_pb)
             for each in (timestamp_pb2, wrappers_pb2)]  # fmt: skip
    return [*known, shop, legacy]


FILES = files()
DESCRIPTORS = descriptor_pb2.FileDescriptorSet(file=FILES).SerializeToString()
POOL = descriptor_pool.DescriptorPool()
for _file in FILES:
    POOL.Add(_file)
ORDER: Any = message_factory.GetMessageClass(POOL.FindMessageTypeByName("shop.Order"))
OLD: Any = message_factory.GetMessageClass(POOL.FindMessageTypeByName("old.Old"))
STAMP: Any = message_factory.GetMessageClass(POOL.FindMessageTypeByName("google.protobuf.Timestamp"))


def decoder(message: str = "shop.Order", fields: str | None = None) -> Decoder:
    chosen = None if fields is None else parse_ddl(fields)
    return Decoding("protobuf", chosen, descriptors=DESCRIPTORS, message=message).decoder()


EMPTY: dict[str, Any] = {
    **{f"a_{kind}": 0 for kind in SCALARS}, "a_uint64": Decimal(0), "a_fixed64": Decimal(0), "a_bool": False,
    "a_string": "", "a_bytes": b"", "a_double": 0.0, "a_float": 0.0, "color": "RED", "item": None, "items": [],
    "numbers": [], "at": None, "prices": [], "maybe": None, "wrapped": None, "colors": [], "times": [],
}  # fmt: skip

MESSAGES: list[tuple[dict[str, Any], dict[str, Any] | str]] = [
    ({}, {}), ({"a_int32": -(2**31)}, {"a_int32": -(2**31)}), ({"a_uint32": 2**32 - 1}, {"a_uint32": 2**32 - 1}),
    ({"a_uint64": 2**64 - 1}, {"a_uint64": Decimal(2**64 - 1)}), ({"a_sint64": -(2**63)}, {"a_sint64": -(2**63)}),
    ({"a_bool": True, "a_bytes": b"\xff"}, {"a_bool": True, "a_bytes": b"\xff"}),
    ({"color": 5}, {"color": "GREEN"}), ({"color": 6}, "range"), ({"colors": [0, 5]}, {"colors": ["RED", "GREEN"]}),
    ({"colors": [0, 7]}, "range"), ({"item": {}}, {"item": {"sku": "", "n": 0}}),
    ({"items": [{"sku": "x"}, {"n": 1}]}, {"items": [{"sku": "x", "n": 0}, {"sku": "", "n": 1}]}),
    ({"numbers": [1, 2]}, {"numbers": [1, 2]}), ({"maybe": 0}, {"maybe": 0}),
    ({"wrapped": {"value": ""}}, {"wrapped": ""}),
    ({"prices": {"a": {"n": 1}}}, {"prices": [("a", {"sku": "", "n": 1})]}),
    ({"at": STAMP(seconds=-1, nanos=1000)}, {"at": datetime(1969, 12, 31, 23, 59, 59, 1, UTC)}),
    ({"at": STAMP(seconds=253402300799, nanos=999999000)}, {"at": datetime.max.replace(tzinfo=UTC)}),
    ({"at": STAMP(seconds=253402300800)}, "range"), ({"at": STAMP(seconds=-62135596801)}, "range"),
    ({"at": STAMP(nanos=-1000)}, "range"), ({"at": STAMP(nanos=10**9)}, "range"), ({"at": STAMP(nanos=1)}, "precision"),
    ({"at": STAMP(seconds=2**62)}, "range"), ({"times": [STAMP(), STAMP(nanos=7)]}, "precision"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "expected"), MESSAGES)
def test_a_message(values: dict[str, Any], expected: dict[str, Any] | str) -> None:
    value = ORDER(**values).SerializeToString()
    for records in ([value], [b"\xff", value]):
        got = outcomes(decoder(), records)[-1]
        if isinstance(expected, str):
            assert got[0] == expected
        else:
            assert got == {**EMPTY, **expected}


def test_types_of_columns() -> None:
    schema = decoder().schema
    assert schema.field("a_uint32").type == pa.int64()
    assert schema.field("a_fixed64").type == pa.decimal128(20, 0)
    assert schema.field("prices").type == parse_ddl("x map<string, struct<sku: string, n: int>>").field("x").type
    assert schema.field("times").type == pa.list_(pa.timestamp("us", tz="UTC"))


def test_fields_choose_columns_and_keep_nanoseconds() -> None:
    fields = "at struct<seconds: bigint, nanos: int>, a_int32 int, times array<struct<nanos: int>>, item struct<n: int>"
    value = ORDER(at=STAMP(seconds=1, nanos=7), a_int32=3, times=[STAMP(nanos=1)], item={"sku": "x", "n": 2})
    assert outcomes(decoder(fields=fields), [value.SerializeToString()]) == [
        {"at": {"seconds": 1, "nanos": 7}, "a_int32": 3, "times": [{"nanos": 1}], "item": {"n": 2}}
    ]


def test_fields_that_are_not_null_must_be_set() -> None:
    made = decoder(fields="maybe int not null, item struct<n: int>")
    got = outcomes(made, [b"", ORDER(maybe=1).SerializeToString()])
    assert got == [("missing", "maybe", "int", None), {"maybe": 1, "item": None}]


def test_unknown_fields_are_ignored_and_the_last_of_two_values_counts() -> None:
    two = ORDER(a_int32=1).SerializeToString() + ORDER(a_int32=2).SerializeToString()
    unknown = b"\xc2\x3e\x03abc"  # field 1000, three bytes
    assert outcomes(decoder(fields="a_int32 int"), [two + unknown]) == [{"a_int32": 2}]


def test_an_empty_value_is_a_message_and_null_is_not() -> None:
    assert outcomes(decoder(), [b"", None]) == [EMPTY, ("tombstone", None, None, None)]


def test_required_fields_must_be_set() -> None:
    made = decoder("old.Old")
    assert outcomes(made, [OLD(id=1).SerializeToString(), OLD(note="x").SerializePartialToString()]) == [
        {"id": 1, "note": None}, ("missing", "id", None, None)
    ]  # fmt: skip


DAMAGED: list[tuple[bytes, tuple[Any, ...]]] = [
    (b"\xff", ("syntax", None, None, None)), (b"\x07", ("syntax", None, None, None)),
    (b"\x18", ("syntax", None, None, None)), (b"\x18" + b"\xff" * 11, ("syntax", None, None, None)),
    (b"\x72\x05ab", ("syntax", None, None, None)), (b"\x72\x02a\xff", ("unicode", "a_string", "string", None)),
    (b"\xaa\x01\x04\x0a\x09ab", ("syntax", "item", None, None)), (b"\x09\x00", ("syntax", None, None, None)),
    (b"\xaa\x01\x03\x0a\x01\xff", ("unicode", "item.sku", "string", None)),
    (b"\x0c", ("syntax", None, None, None)), (b"\xfb\x07", ("syntax", None, None, None)),
]  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), DAMAGED)
def test_damage_has_the_field_around_it(value: bytes, expected: tuple[Any, ...]) -> None:
    assert outcomes(decoder(), [b"", value])[1] == expected


def test_messages_say_what_to_do() -> None:
    letter = dead_of(decoder(), ORDER(times=[STAMP(), STAMP(seconds=3, nanos=5)]).SerializeToString())
    assert (letter["field"], letter["expected"]) == ("times[1]", "timestamp")
    assert letter["message"] == (
        "times[1] is 3 s and 5 ns: a timestamp keeps six digits; "
        "declare the field as struct<seconds: bigint, nanos: int>"
    )
    letter = dead_of(decoder(), ORDER(prices={"a": {}}, color=9).SerializeToString())
    assert letter["message"] == "color is 9, which the enum does not have; use a newer descriptor file"


@pytest.mark.parametrize(
    ("descriptors", "message", "fields", "expected"),
    [
        (b"\xff", "shop.Order", None, "not a descriptor file of protoc: "),
        (DESCRIPTORS, "shop.Nothing", None, "the descriptor file does not define shop.Nothing, or what it needs"),
        (
            descriptor_pb2.FileDescriptorSet(file=FILES[2:]).SerializeToString(),
            "shop.Order",
            None,
            "the descriptor file does not define shop.Order, or what it needs: use --include_imports",
        ),
        (DESCRIPTORS, "shop.Loop", None, "shop.Loop.next: the message shop.Loop contains itself"),
        (DESCRIPTORS, "shop.Order", "b int", "shop.Order has no field b"),
        (DESCRIPTORS, "shop.Order", "at string", "shop.Order.at is timestamp, not string"),
        (DESCRIPTORS, "shop.Order", "item struct<x: int>", "shop.Order.item has no field x"),
    ],
)
def test_what_cannot_be_decoded_is_refused(descriptors: bytes, message: str, fields: str | None, expected: str) -> None:
    chosen = None if fields is None else parse_ddl(fields)
    with pytest.raises(ConfigError) as caught:
        Decoding("protobuf", chosen, descriptors=descriptors, message=message).decoder()
    assert caught.value.message().startswith(expected)


# ---- generated messages --------------------------------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
ITEMS = st.fixed_dictionaries({"sku": TEXT, "n": st.integers(-(2**31), 2**31 - 1)})
MICROSECONDS = st.datetimes(timezones=st.just(UTC))
GENERATED = st.fixed_dictionaries(
    {
        "a_double": st.floats(allow_nan=False), "a_float": st.floats(allow_nan=False, width=32),
        "a_int64": st.integers(-(2**63), 2**63 - 1), "a_uint64": st.integers(0, 2**64 - 1).map(Decimal),
        "a_fixed32": st.integers(0, 2**32 - 1), "a_string": TEXT, "a_bytes": st.binary(max_size=5),
        "color": st.sampled_from(["RED", "GREEN"]), "items": st.lists(ITEMS, max_size=3),
        "numbers": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
        "prices": st.dictionaries(TEXT, ITEMS, max_size=3), "at": st.none() | MICROSECONDS, "item": st.none() | ITEMS,
        "maybe": st.none() | st.integers(-5, 5), "times": st.lists(MICROSECONDS, max_size=2),
    }
)  # fmt: skip


def stamp(time: datetime) -> Any:
    made = STAMP()
    made.FromDatetime(time)
    return made


def serialized(values: dict[str, Any]) -> bytes:
    copy = {name: value for name, value in values.items() if value is not None}
    copy["a_uint64"] = int(copy["a_uint64"])
    copy["times"] = [stamp(time) for time in copy["times"]]
    if "at" in copy:
        copy["at"] = stamp(copy["at"])
    value: bytes = ORDER(**copy).SerializeToString()
    return value


@given(st.lists(GENERATED, max_size=4))
def test_what_protobuf_writes_is_read_back(messages: list[dict[str, Any]]) -> None:
    got = outcomes(decoder(), [serialized(each) for each in messages])
    for each in got:
        each["prices"] = dict(each["prices"])  # which protobuf writes in any order
    assert got == [{**EMPTY, **each} for each in messages]


@given(st.lists(GENERATED, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_damage_never_raises_and_depends_on_the_record_alone(
    messages: list[dict[str, Any]], chance: random.Random
) -> None:
    values = [serialized(each) for each in messages]
    values += [damaged(value, chance) for value in values * 8]
    made = ProtobufDecoder(DESCRIPTORS, "shop.Order")
    rows, dead = made.decode(pa.array(values, pa.binary()))
    rows.validate(full=True)
    good = iter(rows.to_pylist())
    for index, value in enumerate(values):
        alone = made.decode(pa.array([value], pa.binary()))
        if index in dead:
            assert alone.dead == {0: dead[index]}
        else:
            assert repr(alone.rows.to_pylist()) == repr([next(good)])
    assert next(good, None) is None


def damaged(value: bytes, chance: random.Random) -> bytes:
    data = bytearray(value)
    for _ in range(chance.randint(1, 3)):
        at = chance.randint(0, len(data))
        data[at : at + chance.choice((0, 1, 1, 3))] = bytes(
            chance.choices([0, 1, 2, 8, 10, 127, 128, 255], k=chance.randint(0, 2))
        )
    return bytes(data)


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def test_a_million_levels_are_a_dead_letter() -> None:
    groups = b"\xab\x01" * 1_000_000  # groups in groups, in an unknown field
    loop = b""
    for _ in range(1000):  # a field that is its own message type
        loop = b"\x0a" + varint(len(loop)) + loop
    assert dead_of(decoder(), groups)["reason"] == "syntax"
    assert dead_of(decoder("shop.Holder", "id int"), b"\x12" + varint(len(loop)) + loop)["reason"] == "syntax"
