"""Declarations of messages: one class for all versions of a message.

    @message(key=22, side="request", versions=(0, 6), flexible=2)
    class InitProducerIdRequest(Request["InitProducerIdResponse"]):
        transactional_id: Annotated[Str | None, nullable()] = ""
        transaction_timeout_ms: I32 = 0
        producer_id: Annotated[I64, since(3)] = -1

An annotation gives the field's type, for mypy and on the wire: an alias of this module (`I32`, `Str`, ...), a struct,
or a tuple of either. These marks may be added:

- `since(n)`, `until(n)`: the first and the last version that have the field. Without them it exists as long as its
  struct does.
- `nullable(first, last)`: the versions in which null is legal.
- `tag(n)`: the field is a tagged field with this number (KIP-482).
- `IGNORABLE`: in a version without the field, its value is dropped. A field without this mark must have its default
  there.

The order of the fields is their order on the wire; names are Kafka's own in snake_case. Declarations are data:
`encode`, `decode` and the generator of the documentation derive everything from them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from inspect import get_annotations
from types import NoneType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    Self,
    TypeAlias,
    TypeVar,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
)

from odradek.engine import Buffer

__all__ = [
    "BOOL",
    "BYTES",
    "F64",
    "I8",
    "I16",
    "I32",
    "I64",
    "IGNORABLE",
    "PLAIN_STRING",
    "RECORDS",
    "STRING",
    "STRINGS",
    "U16",
    "UUID",
    "ZERO_UUID",
    "Array",
    "Bool",
    "Bytes",
    "Field",
    "Kind",
    "Message",
    "MessageSpec",
    "Nested",
    "PlainStr",
    "Primitive",
    "Records",
    "Request",
    "Response",
    "Str",
    "Struct",
    "UnknownTags",
    "Uuid",
    "fields_of",
    "message",
    "nullable",
    "response_of",
    "since",
    "struct",
    "tag",
    "title",
    "until",
]

T = TypeVar("T", bound="Struct")
R_co = TypeVar("R_co", bound="Response", covariant=True)

Side = Literal["request", "response", "data"]
UnknownTags: TypeAlias = tuple[tuple[int, bytes], ...]

LATEST = 0x7FFF
"""Higher than any version."""


# ---- types of fields ----------------------------------------------------------------------------------------


class Primitive(NamedTuple):
    """A type that is neither a struct nor an array.

    Args:
        name: Its name in the protocol guide.
        code: The format character of Python's `struct` if the size is fixed; else empty.
        size: The size if it is fixed (bytes); else 0.
    """

    name: str
    code: str = ""
    size: int = 0


class Array(NamedTuple):
    """An array of one kind of element."""

    element: Kind


class Nested(NamedTuple):
    """A struct as the type of a field."""

    type: type[Struct]


Kind: TypeAlias = Primitive | Array | Nested

BOOL = Primitive("boolean", "?", 1)
STRING, BYTES, RECORDS = Primitive("string"), Primitive("bytes"), Primitive("records")
PLAIN_STRING = Primitive("string with an int16 length in every version")
STRINGS = (STRING, PLAIN_STRING)
UUID = Primitive("uuid", "16s", 16)

Bool: TypeAlias = Annotated[bool, BOOL]
I8: TypeAlias = Annotated[int, Primitive("int8", "b", 1)]
I16: TypeAlias = Annotated[int, Primitive("int16", "h", 2)]
U16: TypeAlias = Annotated[int, Primitive("uint16", "H", 2)]
I32: TypeAlias = Annotated[int, Primitive("int32", "i", 4)]
I64: TypeAlias = Annotated[int, Primitive("int64", "q", 8)]
F64: TypeAlias = Annotated[float, Primitive("float64", "d", 8)]
Str: TypeAlias = Annotated[str, STRING]
PlainStr: TypeAlias = Annotated[str, PLAIN_STRING]
Bytes: TypeAlias = Annotated[bytes, BYTES]
Records: TypeAlias = Annotated[Buffer, RECORDS]
"""The bytes of record batches, not interpreted here. Decoded ones are a view of the message, not a copy."""
Uuid: TypeAlias = Annotated[bytes, UUID]
"""UUID, exactly 16 bytes."""

ZERO_UUID = bytes(16)


# ---- marks --------------------------------------------------------------------------------------------------


class _Mark(NamedTuple):
    """One property of a field: the attribute of `Field`, and its value."""

    attribute: str
    value: Any


IGNORABLE = _Mark("ignorable", True)


def since(version: int) -> _Mark:
    """The first version that has the field."""
    return _Mark("since", version)


def until(version: int) -> _Mark:
    """The last version that has the field."""
    return _Mark("until", version)


def nullable(first: int = 0, last: int = LATEST) -> _Mark:
    """The versions in which the field may be null."""
    return _Mark("nullable", (first, last))


def tag(number: int) -> _Mark:
    """The number of a tagged field."""
    return _Mark("tag", number)


# ---- structs ------------------------------------------------------------------------------------------------


@dataclass_transform(frozen_default=True, kw_only_default=True)
def struct(cls: type[T]) -> type[T]:
    """Declare a part of a message. Values have slots, are compared by value, and must not be changed once made."""
    names = [name for name in get_annotations(cls) if not name.isupper()]
    defaults = {name: cls.__dict__[name] for name in names}
    body = {k: v for k, v in cls.__dict__.items() if k not in defaults and k not in ("__dict__", "__weakref__")}
    defaults = {**getattr(cls, "DEFAULTS", {}), **defaults}
    body |= {"__slots__": tuple(names), "DEFAULTS": defaults, "__init__": _constructor(defaults)}
    return cast(type[T], type(cls.__name__, cls.__bases__, body))


def _constructor(defaults: dict[str, object]) -> object:
    """Return an `__init__` with one keyword argument a field. It is compiled when the first value is made: most structs
    of most programs are never used."""

    def compile_and_call(self: object, **fields: object) -> None:
        compiled = _compile_constructor(defaults)
        for cls in type(self).__mro__:
            if vars(cls).get("__init__") is compile_and_call:
                cls.__init__ = compiled  # type: ignore[misc]
        compiled(self, **fields)

    return compile_and_call


def _compile_constructor(defaults: dict[str, object]) -> Callable[..., None]:
    parameters = ", ".join(f"{name}=_{name}" for name in defaults)
    lines = "\n".join(f"    self.{name} = {name}" for name in defaults)
    scope: dict[str, object] = {f"_{name}": value for name, value in defaults.items()}
    exec(f"def __init__(self, *, {parameters}):\n{lines}", scope)
    return cast(Callable[..., None], scope["__init__"])


@struct
class Struct:
    """Base class of every part of a message.

    Attributes:
        unknown_tags: Tagged fields that the declaration does not know, as (number, bytes): they came from a newer peer
            and are encoded again.
    """

    DEFAULTS: ClassVar[dict[str, object]]
    """Every field's default, in declaration order."""

    unknown_tags: UnknownTags = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.DEFAULTS)

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in self.DEFAULTS))

    def __replace__(self, **changes: object) -> Self:
        """Return a copy with other values in some fields, as `copy.replace` of Python 3.13 does."""
        return type(self)(**{name: getattr(self, name) for name in self.DEFAULTS} | changes)

    def __repr__(self) -> str:
        """Show the fields that differ from their defaults; only the number of bytes, since they may be passwords."""
        shown = ((name, getattr(self, name)) for name, default in self.DEFAULTS.items())
        changed = ((name, value) for name, value in shown if value != self.DEFAULTS[name])
        return f"{type(self).__name__}({', '.join(f'{name}={_shown(value)}' for name, value in changed)})"


def _shown(value: object) -> str:
    return f"<{len(value)} bytes>" if isinstance(value, bytes | bytearray | memoryview) else repr(value)


class MessageSpec(NamedTuple):
    """Properties of a message besides its fields.

    Args:
        name: Name of the API; of the message itself if it belongs to none.
        key: Key of the API; -1 for none.
        side: `data` is neither request nor response.
        versions: First and last version.
        flexible: First version with compact lengths and tagged fields; None if no version has them.
        stable: First and last version that any release declared final.
    """

    name: str
    key: int
    side: Side
    versions: tuple[int, int]
    flexible: int | None
    stable: tuple[int, int]

    def is_flexible(self, version: int) -> bool:
        return self.flexible is not None and version >= self.flexible

    def check(self, version: int) -> None:
        """Raise ValueError for a version that does not exist."""
        first, last = self.versions
        if not first <= version <= last:
            raise ValueError(f"{self.name} has no version {version}: there are {first} to {last}")


class Message(Struct):
    """A struct that stands on its own."""

    __slots__ = ()
    SPEC: ClassVar[MessageSpec]


class Response(Message):
    __slots__ = ()


class Request(Message, Generic[R_co]):
    """A request whose response is an `R_co`."""

    __slots__ = ()


M = TypeVar("M", bound=Message)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def message(
    *,
    key: int = -1,
    side: Side = "data",
    versions: tuple[int, int],
    flexible: int | None,
    stable: tuple[int, int] | None = None,
) -> Callable[[type[M]], type[M]]:
    """Declare a message; see `MessageSpec` for the arguments. Without `stable` every version is stable."""

    def declare(cls: type[M]) -> type[M]:
        made = struct(cls)
        name = cls.__name__.removesuffix("Request").removesuffix("Response") if key >= 0 else cls.__name__
        made.SPEC = MessageSpec(name, key, side, versions, flexible, stable or versions)
        return made

    return declare


# ---- reading declarations -----------------------------------------------------------------------------------


def response_of(request: type[Request[R_co]]) -> type[R_co]:
    """Return the response that belongs to a request."""
    response: type[R_co] | None = _responses.get(request)
    if response is None:
        (declared,) = get_args(vars(request)["__orig_bases__"][0])
        response = _responses[request] = vars(sys.modules[request.__module__])[declared.__forward_arg__]
    return response


_responses: dict[type[Request[Any]], Any] = {}


class Field(NamedTuple):
    """One field of a struct, over all versions."""

    name: str
    kind: Kind
    default: Any
    since: int = 0
    until: int = LATEST
    nullable: tuple[int, int] | None = None
    tag: int | None = None
    ignorable: bool = False

    def is_in(self, version: int) -> bool:
        return self.since <= version <= self.until

    def is_nullable(self, version: int) -> bool:
        return self.nullable is not None and self.nullable[0] <= version <= self.nullable[1]


_FIELDS: dict[type[Struct], tuple[Field, ...]] = {}


def fields_of(cls: type[Struct]) -> tuple[Field, ...]:
    """Return the declared fields of a struct in wire order, without `unknown_tags`."""
    if cls not in _FIELDS:
        hints = _hints(cls)
        declared = ((name, default) for name, default in cls.DEFAULTS.items() if name != "unknown_tags")
        _FIELDS[cls] = tuple(_field(name, hints[name], default) for name, default in declared)
    return _FIELDS[cls]


def _hints(cls: type[Struct]) -> Mapping[str, Any]:
    """Return the types of the fields as declared. `typing.get_type_hints` takes longer for the same."""
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        scope = vars(sys.modules[base.__module__])
        hints |= {name: eval(hint, scope) for name, hint in get_annotations(base).items() if not name.isupper()}
    return hints


def _field(name: str, hint: object, default: object) -> Field:
    marks = {mark.attribute: mark.value for mark in _marks(hint) if isinstance(mark, _Mark)}
    return Field(name, _kind(hint), default, **marks)


def _marks(hint: object) -> Iterator[object]:
    if get_origin(hint) is Annotated:
        yield from get_args(hint)[1:]


def _kind(hint: object) -> Kind:
    for mark in _marks(hint):
        if isinstance(mark, Primitive):
            return mark
    arguments = get_args(hint)
    if get_origin(hint) is Annotated:
        return _kind(arguments[0])
    if get_origin(hint) is tuple:
        return Array(_kind(arguments[0]))
    if NoneType in arguments:
        (present,) = (argument for argument in arguments if argument is not NoneType)
        return _kind(present)
    if isinstance(hint, type) and issubclass(hint, Struct):
        return Nested(hint)
    raise TypeError(f"{hint} cannot be the type of a field")


def title(cls: type[Message], version: int) -> str:
    """Return the name of a message in errors."""
    return f"{cls.__name__} version {version}"
