"""Directives for the protocol of Kafka 0.8 to 4.3, made of the declarations of odradek.wire.kafka.

{kafka-index}           all APIs by key: versions, the first release that offers them, what they do
{kafka-apis} FAMILY     every API of a module of odradek.wire.kafka.messages: versions by release, fields
{kafka-schemas} MODULE  messages that belong to no API, of a module of odradek.wire.kafka
{kafka-errors}          the table of error codes
"""

from __future__ import annotations

import csv
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, NamedTuple

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.schema import (
    Array,
    Field,
    Kind,
    Message,
    MessageSpec,
    Nested,
    Primitive,
    Request,
    Struct,
    fields_of,
    response_of,
)

MODULES = "odradek.wire.kafka.messages"
VERSIONS = Path(__file__).parents[2] / "tests" / "conformance" / "kafka" / "corpus" / "api_versions.csv"
INDENT = "&nbsp;&nbsp;&nbsp;"
STYLE = nodes.raw("", "<style>td, th {font-size: 75%; padding: .1rem .4rem !important}</style>", format="html")


# ---- what odradek declares ----------------------------------------------------------------------------------


def requests(family: str) -> list[type[Request[Any]]]:
    """The requests of a module, by API key."""
    declared = vars(importlib.import_module(f"{MODULES}.{family}")).values()
    classes = [cls for cls in declared if isinstance(cls, type) and issubclass(cls, Request) and cls is not Request]
    return sorted(classes, key=lambda cls: cls.SPEC.key)


def all_requests() -> list[type[Request[Any]]]:
    """The requests of all modules, by API key."""
    families = iter_modules(importlib.import_module(MODULES).__path__)
    return sorted(chain.from_iterable(requests(each.name) for each in families), key=lambda cls: cls.SPEC.key)


# ---- what brokers offer -------------------------------------------------------------------------------------


class Offer(NamedTuple):
    """The versions of an API that a release offers."""

    release: str
    first: int
    last: int
    mode: str


@cache
def offers() -> dict[int, list[Offer]]:
    """By API key, oldest release first."""
    table: dict[int, list[Offer]] = {}
    with VERSIONS.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            offer = Offer(row["release"], int(row["min"]), int(row["max"]), row["broker_mode"])
            table.setdefault(int(row["api_key"]), []).append(offer)
    for listed in table.values():
        listed.sort(key=lambda offer: tuple(map(int, offer.release.split("."))))
    return table


def history(key: int) -> str:
    """The releases in which the versions on offer changed, as a sentence."""
    changes, before = [], ""
    for offer in offers().get(key, []):
        if (versions := _range(offer.first, offer.last)) != before:
            changes.append(f"{offer.release} ({versions})")
            before = versions
    return f"Brokers offer, from each release on: {', '.join(changes)}."


def first_release(key: int, versions: tuple[int, int]) -> str:
    """The oldest release that offers one of the versions."""
    first, last = versions
    return next((offer.release for offer in offers().get(key, []) if offer.first <= last and first <= offer.last), "")


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


# ---- tables -------------------------------------------------------------------------------------------------


def field_table(cls: type[Message], key: int) -> Iterator[str]:
    """The fields of a message, those of its structs below them."""
    rows = list(_rows(cls, cls.SPEC.versions, 0, key))
    if not rows:
        yield "No fields."
        return
    since = "| since " if key >= 0 else ""
    yield f"| field | type | versions {since}| default | other versions |"
    yield "|---|---|---" + "|---" * (2 + bool(since)) + "|"
    yield from rows


def _rows(cls: type[Struct], inside: tuple[int, int], depth: int, key: int) -> Iterator[str]:
    for field in fields_of(cls):
        first, last = max(field.since, inside[0]), min(field.until, inside[1])
        if first > last:
            continue
        cells = [
            f"{INDENT * depth}`{field.name}`",
            _type_name(field.kind) + _nulls(field, first, last),
            _range(first, last) + ("" if field.tag is None else f", tag {field.tag}"),
            *([first_release(key, (first, last))] if key >= 0 else []),
            _default(field),
            "" if (first, last) == inside else "ignored" if field.ignorable else "refused",
        ]
        yield f"| {' | '.join(cells)} |"
        kind = field.kind.element if isinstance(field.kind, Array) else field.kind
        if isinstance(kind, Nested):
            yield from _rows(kind.type, (first, last), depth + 1, key)


def _type_name(kind: Kind) -> str:
    if isinstance(kind, Array):
        return f"[{_type_name(kind.element)}]"
    return kind.name if isinstance(kind, Primitive) else _breakable(kind.type.__name__)


def _breakable(name: str) -> str:
    """Allow line breaks before the words of a name: narrow screens need them."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "<wbr>", name)


def _nulls(field: Field, first: int, last: int) -> str:
    if field.nullable is None:
        return ""
    low, high = max(first, field.nullable[0]), min(last, field.nullable[1])
    if low > high:
        return ""
    return " or null" if (low, high) == (first, last) else f" or null ({_range(low, high)})"


def _default(field: Field) -> str:
    if isinstance(field.default, Struct):
        return ""
    if isinstance(field.default, bytes):
        return "zeros" if field.default else "empty"
    return {"None": "null", "False": "false", "True": "true", "()": "empty", "''": "empty"}.get(
        repr(field.default), repr(field.default)
    )


# ---- directives ---------------------------------------------------------------------------------------------


class Directive(SphinxDirective):
    def part(self, name: str, title: str, *content: Iterable[str]) -> nodes.section:
        """A section with an anchor."""
        made = nodes.section(ids=[name])
        made += nodes.title(text=title)
        for lines in content:
            made += self.parse_text_to_nodes("\n".join(lines))
        return made


def _flexible(spec: MessageSpec) -> str:
    if spec.flexible is None:
        return "none is flexible"
    return "all are flexible" if spec.flexible <= spec.versions[0] else f"flexible from {spec.flexible} on"


def _stable(spec: MessageSpec) -> str:
    return "" if spec.stable == spec.versions else f" (final: {_range(*spec.stable)})"


class Index(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        lines = ["| key | API | purpose | versions | since |", "|---|---|---|---|---|"]
        for request in all_requests():
            spec, page = request.SPEC, request.__module__.rpartition(".")[2].replace("_", "-")
            # HTML, because MyST cannot see these sections.
            link = f'<a href="{page}.html#kafka-{spec.name.lower()}">{_breakable(spec.name)}</a>'
            since = first_release(spec.key, spec.versions)
            lines.append(f"| {spec.key} | {link} | {inspect.getdoc(request)} | {_range(*spec.versions)} | {since} |")
        return [STYLE.deepcopy(), *self.parse_text_to_nodes("\n".join(lines))]


class Apis(Directive):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        return [STYLE.deepcopy(), *map(self.api, requests(self.arguments[0]))]

    def api(self, request: type[Request[Any]]) -> nodes.section:
        spec = request.SPEC
        name = f"kafka-{spec.name.lower()}"
        about = [
            inspect.getdoc(request) or "",
            "",
            f"Versions {_range(*spec.versions)}{_stable(spec)}; {_flexible(spec)}. {history(spec.key)}",
        ]
        section = self.part(name, f"{spec.name} ({spec.key})", about)
        section += self.part(f"{name}-request", "Request", field_table(request, spec.key))
        section += self.part(f"{name}-response", "Response", field_table(response_of(request), spec.key))
        return section


class Schemas(Directive):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module = importlib.import_module(f"odradek.wire.kafka.{self.arguments[0]}")
        declared = [value for value in vars(module).values() if isinstance(value, type) and value is not Message]
        own = [cls for cls in declared if issubclass(cls, Message) and cls.__module__ == module.__name__]
        return [STYLE.deepcopy(), *map(self.schema, own)]

    def schema(self, cls: type[Message]) -> nodes.section:
        about = [inspect.getdoc(cls) or "", "", f"Versions {_range(*cls.SPEC.versions)}.", ""]
        return self.part(f"kafka-{cls.__name__.lower()}", cls.__name__, about, field_table(cls, -1))


class ErrorCodes(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        lines = ["| code | name | since | properties |", "|---|---|---|---|"]
        for code in ErrorCode:
            properties = {
                "retriable": code.retriable,
                "refresh metadata": code.refresh_metadata,
                "fatal": code.fatal,
                "fence": code.fence,
            }
            shown = ", ".join(name for name, has in properties.items() if has)
            lines.append(f"| {code.value} | `{code.name}` | {code.since} | {shown} |")
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Sphinx) -> dict[str, bool]:
    directives = {"kafka-index": Index, "kafka-apis": Apis, "kafka-schemas": Schemas, "kafka-errors": ErrorCodes}
    for name, directive in directives.items():
        app.add_directive(name, directive)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
