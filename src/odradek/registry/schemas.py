"""Schemas of a registry, what they name, and errors about them."""

from __future__ import annotations

from collections.abc import Generator
from http import HTTPStatus
from typing import NamedTuple

from odradek.errors import OdradekError

__all__ = [
    "MISSING_CODES",
    "REFUSED_CREDENTIALS",
    "Dependency",
    "PayloadError",
    "Reference",
    "RegisteredSchema",
    "RegistryError",
    "Schema",
    "SchemaId",
    "complete",
    "passes_soon",
]

MISSING_CODES = (40401, 40402, 40403)
"""Error codes of a registry that has no such subject, version or schema. Whatever else answers 404 says nothing of it.
"""


REFUSED_CREDENTIALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
"""Statuses of a registry that refuses the credentials: they say nothing of a record, and may be renewed."""


def passes_soon(status: int | None) -> bool:
    """Return True if another attempt may succeed at once, after an answer with this status (None: no answer)."""
    return status is None or status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS) or status >= 500


class RegistryError(OdradekError):
    """A schema registry did not answer, or refused a request. It is retriable if it says nothing of a schema: also if
    the registry refused the credentials, which may be renewed, or something else answered, such as a proxy.

    Args:
        url: The registry, without credentials.
        why: What went wrong.
        status: The status of its response; None: there is none.
        schema: The id of the schema that was asked for, if there is one.
    """

    def __init__(self, url: str, why: str, status: int | None = None, schema: int | str | None = None) -> None:
        super().__init__(url, why, status, schema)
        self.url, self.why, self.status, self.schema = url, why, status, schema
        self.retriable = passes_soon(status) or status in REFUSED_CREDENTIALS

    def message(self) -> str:
        return f"schema registry {self.url}: {self.why}"


class PayloadError(OdradekError, ValueError):
    """A key or value that is not what its schema says, or whose schema there is not.

    Args:
        why: What is wrong.
        schema: The id or GUID of the schema; None: the bytes name none.
    """

    def __init__(self, why: str, schema: int | str | None = None) -> None:
        super().__init__(why, schema)
        self.why, self.schema = why, schema

    def message(self) -> str:
        return self.why


class Reference(NamedTuple):
    """A version of another schema, and the name by which a schema refers to it."""

    name: str
    subject: str
    version: int


class Schema(NamedTuple):
    """A schema as a registry stores it: `AVRO`, `JSON` or `PROTOBUF`, its text, and what it refers to."""

    kind: str
    text: str
    references: tuple[Reference, ...] = ()


class RegisteredSchema(NamedTuple):
    """A schema with everything that it needs.

    Args:
        kind: `AVRO`, `JSON` or `PROTOBUF`.
        text: The schema.
        references: Texts of schemas that it names, each after those that it names itself.
        names: The names of these.
    """

    kind: str
    text: str
    references: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


class Dependency(NamedTuple):
    """A file that a schema imports, with what that imports."""

    name: str
    text: str
    dependencies: tuple[Dependency, ...]


class SchemaId(NamedTuple):
    """The names of a schema in its registry. `guid` is None where it has none (Confluent Platform before 8.0)."""

    id: int
    guid: str | None = None


def complete(schema: Schema) -> Generator[Reference, Schema, RegisteredSchema]:
    """Return a schema with what it names. Yields each version that is needed, and is sent its schema. Of several
    versions by one name the first counts, as for registries and clients in Java."""
    known: dict[str, str] = {}

    def add(outer: Schema) -> Generator[Reference, Schema, None]:
        for each in outer.references:
            if each.name not in known:
                inner = yield each
                yield from add(inner)
                known[each.name] = inner.text

    yield from add(schema)
    return RegisteredSchema(schema.kind, schema.text, tuple(known.values()), tuple(known))
