"""Protobuf messages of one class. Their file is registered as Base64 of its descriptor, as confluent-kafka does."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError, Message

from odradek import arguments
from odradek.registry.framing import message_prefixes
from odradek.registry.schemas import Dependency, RegisteredSchema

__all__ = ["ProtobufFormat", "prefixes_in"]

BUILT_IN = ("google/protobuf/", "google/type/", "confluent/")
"""Files that every registry has."""


def _text(file: Any) -> str:
    return b64encode(file.serialized_pb).decode()


def _dependencies(file: Any) -> tuple[Dependency, ...]:
    own = (each for each in file.dependencies if not each.name.startswith(BUILT_IN))
    return tuple(Dependency(each.name, _text(each), _dependencies(each)) for each in own)


def prefixes_in(text: str, name: str) -> tuple[bytes, ...]:
    """Return what payloads of a message type begin with under a registered schema; empty if that is the source instead
    of a descriptor, or has no type of this name."""
    try:
        return message_prefixes(descriptor_pb2.FileDescriptorProto.FromString(b64decode(text, validate=True)), name)
    except (DecodeError, ValueError):
        return ()


class ProtobufFormat:
    """The format Protobuf."""

    kind = "PROTOBUF"

    def __init__(self, message: type[Any]) -> None:
        if not (isinstance(message, type) and issubclass(message, Message)):
            arguments.wrong_type("message", message, "a class of Protobuf messages")
        self._message: Any = message
        descriptor: Any = message.DESCRIPTOR
        self.name = str(descriptor.full_name)
        self.schema, self.dependencies = _text(descriptor.file), _dependencies(descriptor.file)

    def prefixes(self, schema: RegisteredSchema) -> tuple[bytes, ...]:
        """Return what payloads begin with (see `Format`): by the own file, where the schema is no descriptor, or has no
        type of this name."""
        return prefixes_in(schema.text, self.name) or prefixes_in(self.schema, self.name)

    def encoder(self, schema: RegisteredSchema) -> Callable[[Any], bytes]:
        return self._encode

    def decoder(self, schema: RegisteredSchema) -> Callable[[bytes], Any]:
        decode: Callable[[bytes], Any] = self._message.FromString
        return decode

    def _encode(self, value: Any) -> bytes:
        if not isinstance(value, self._message):
            arguments.wrong_type("value", value, f"a {self.name}")
        encoded: bytes = value.SerializeToString()
        return encoded
