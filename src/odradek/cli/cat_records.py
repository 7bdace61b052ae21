"""Records as `odradek cat` selects, decodes and prints them."""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import click

import odradek as od
from odradek.cli.output import Render, argument_bytes
from odradek.errors import DeserializationError
from odradek.types import Record

__all__ = ["FILTERS", "RecordFilter", "RecordPrinter", "record_filter"]


def FILTERS(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options that say which records are printed."""
    for option in (
        click.option("--header", "headers", multiple=True, metavar="NAME[=VALUE]", help="Only those with this header."),
        click.option("--key", metavar="TEXT", help="Only messages with this key."),
        click.option("--grep", metavar="REGEX", help="Only messages in whose value this regular expression is found."),
    ):
        command = option(command)
    return command


class RecordFilter(NamedTuple):
    """Conditions for a record to be printed, all of which must hold."""

    grep: re.Pattern[bytes] | None
    key: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    """Names and values; None: any value."""

    def check(self, k: od.Cluster) -> None:
        """Raise Unsupported if records of this cluster have no keys or headers, so that none could match."""
        if self.key is not None and k.driver.logs.values_only:
            raise od.Unsupported("--key", "Kafka 0.8: records of 0.7 have no keys")
        if self.headers and not k.driver.has_headers:
            raise od.Unsupported("--header", "Kafka 0.11: records of older brokers have no headers")

    def matches(self, record: Record) -> bool:
        """Return whether a record has it all."""
        return (
            (self.key is None or record.key == self.key)
            and all(_has_header(record, *header) for header in self.headers)
            and (self.grep is None or self.grep.search(record.value or b"") is not None)
        )


def _has_header(record: Record, name: str, value: bytes | None) -> bool:
    return any(each == name and value in (None, content) for each, content in record.headers)


def record_filter(grep: str | None, key: str | None, headers: Sequence[str]) -> RecordFilter | None:
    """Return the filter of these options; None: there is none. Raises click.BadParameter."""
    if grep is None and key is None and not headers:
        return None
    try:
        pattern = None if grep is None else re.compile(argument_bytes(grep))
    except (re.error, RecursionError, OverflowError) as error:
        raise click.BadParameter(f"{grep!r}: not a regular expression: {error}", param_hint="--grep") from None
    pairs = [text.partition("=") for text in headers]
    wanted = [(name, argument_bytes(value) if mark else None) for name, mark, value in pairs]
    return RecordFilter(pattern, None if key is None else argument_bytes(key), wanted)


@dataclass
class RecordPrinter:
    """Prints records.

    Args:
        render: Makes bytes of a record.
        limit: Maximum number of records, or None for all.
        unbuffered: Flush after each.
        chosen: Which are printed; None: all.
    """

    render: Render
    limit: int | None
    unbuffered: bool
    chosen: RecordFilter | None
    decode: Callable[[Record], Awaitable[Record]] | None = None
    """A function that makes texts of keys and values."""
    printed: int = 0
    undecoded: int = 0
    """Records that could not be decoded."""

    @property
    def is_done(self) -> bool:
        """True if no more may be printed."""
        return self.limit is not None and self.printed >= self.limit

    async def write(self, records: Iterable[Record]) -> None:
        """Print records up to the limit. One that cannot be decoded is named on standard error instead."""
        out = sys.stdout.buffer
        for record in records:
            if self.is_done:
                break
            if self.decode is not None:
                try:
                    record = await self.decode(record)
                except DeserializationError as error:
                    click.echo(f"odradek: {error}", err=True)
                    self.undecoded += 1
                    continue
            if self.chosen is None or self.chosen.matches(record):
                out.write(self.render(record))
                self.printed += 1
                if self.unbuffered:
                    out.flush()
        out.flush()
