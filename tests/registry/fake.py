"""A schema registry in a thread, which answers the requests that serializers make, as Confluent's does."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import NAMESPACE_URL, uuid5

from tests.http_server import HttpRequest, http_server

__all__ = ["FakeRegistry", "guid_of", "serving"]


def guid_of(text: str) -> str:
    return str(uuid5(NAMESPACE_URL, text))


@dataclass
class FakeRegistry:
    """Schemas, from id 1 on; versions of subjects; and what it was asked.

    Args:
        faults: Answers that come first: a status and a body each.
        has_guids: As Confluent Platform has them from 8.0 on.
        gate: Requests wait while it is not set.
    """

    url: str = ""
    schemas: list[dict[str, Any]] = field(default_factory=list)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    faults: list[tuple[int, bytes]] = field(default_factory=list)
    has_guids: bool = True
    gate: Event = field(default_factory=Event)
    lock: Any = field(default_factory=Lock)

    def add(self, subject: str, text: str, kind: str = "AVRO", references: Any = ()) -> int:
        """Register a schema; return its id."""
        body = {"schema": text, "schemaType": kind, "references": list(references)}
        if body not in self.schemas:
            self.schemas.append(body)
        number = self.schemas.index(body) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        parts = [unquote(part) for part in path.strip("/").split("/")]
        match [method, *parts]:
            case ["GET", "schemas", "ids", number]:
                known = int(number) if 0 < int(number) <= len(self.schemas) else None
                return self._schema(known)
            case ["GET", "schemas", "guids", guid]:
                guids = [guid_of(each["schema"]) for each in self.schemas]
                return self._schema(guids.index(guid) + 1 if guid in guids else None)
            case ["GET", "subjects", subject, "versions", version]:
                versions = self.subjects.get(subject, [])
                at = len(versions) if version == "latest" else int(version)
                return self._version(subject, at) if 0 < at <= len(versions) else (404, {"error_code": 40401})
            case ["POST", "subjects", subject, "versions"]:
                self.add(subject, body["schema"], body.get("schemaType", "AVRO"), body.get("references", ()))
                return self._find(subject, body)
            case ["POST", "subjects", subject]:
                return self._find(subject, body)
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _schema(self, number: int | None) -> tuple[int, Any]:
        if number is None:
            return 404, {"error_code": 40403, "message": "Schema not found"}
        return 200, self.schemas[number - 1] | self._guid(number)

    def _version(self, subject: str, version: int) -> tuple[int, Any]:
        number = self.subjects[subject][version - 1]
        answer = {"subject": subject, "version": version, "id": number, **self.schemas[number - 1]}
        return 200, answer | self._guid(number)

    def _find(self, subject: str, body: Any) -> tuple[int, Any]:
        for version, number in enumerate(self.subjects.get(subject, []), 1):
            if self.schemas[number - 1]["schema"] == body["schema"]:
                return self._version(subject, version)
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _guid(self, number: int) -> dict[str, str]:
        return {"guid": guid_of(self.schemas[number - 1]["schema"])} if self.has_guids else {}


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[FakeRegistry]:
    registry = FakeRegistry()
    registry.gate.set()

    def answer(request: HttpRequest) -> tuple[int, bytes]:
        method, path = request.method, urlsplit(request.path).path
        with registry.lock:
            registry.asked.append(f"{method} {path}")
            registry.headers.append(request.headers)
            status, content = registry.faults.pop(0) if registry.faults else (0, b"")
            if not status:
                status, value = registry.answer(method, path, json.loads(request.body) if method == "POST" else None)
                content = json.dumps(value).encode()
        return status, content

    with http_server(answer, registry.gate, tls) as url:
        registry.url = url
        yield registry
