"""Output of the commands: records in kcat's format language, tables, JSON lines, progress."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import click

from odradek.errors import OdradekError
from odradek.types import Record

__all__ = [
    "Render",
    "argument_bytes",
    "as_json",
    "echo_failures",
    "echo_json",
    "echo_rows",
    "formatter",
    "iso_time",
    "progress",
    "table",
    "unescape",
]

Render = Callable[[Record], bytes]
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}
_FIELDS: dict[str, Render] = {
    "%": lambda _: b"%",
    "S": lambda r: b"%d" % _size(r.value),
    "R": lambda r: _size(r.value).to_bytes(4, "big", signed=True),
    "K": lambda r: b"%d" % _size(r.key),
    "T": lambda r: b"%d" % (-1 if r.timestamp is None else r.timestamp),
    "t": lambda r: r.topic.encode(),
    "p": lambda r: r.partition.name.encode(),
    "o": lambda r: b"%d" % r.position,
    "n": lambda r: b"%d" % r.next_position,
    "i": lambda r: b"%d" % r.inner_index,
}


def _contents(encode: Callable[[bytes], bytes], null: bytes) -> dict[str, Render]:
    """Return the fields that are contents of a record."""

    def text(value: bytes | None, null: bytes) -> bytes:
        return null if value is None else encode(value)

    return {
        "s": lambda r: text(r.value, null),
        "k": lambda r: text(r.key, null),
        "h": lambda r: b",".join([b"%s=%s" % (name.encode(), text(value, b"NULL")) for name, value in r.headers]),
    }


def _size(value: bytes | None) -> int:
    return -1 if value is None else len(value)


def argument_bytes(text: str) -> bytes:
    """Return an argument as the shell passed it, which need not be UTF-8."""
    return text.encode(errors="surrogateescape")


def unescape(text: str) -> bytes:
    r"""Return an argument with the bytes of its escapes \n, \t, \r, \0, \\ and \xHH."""

    def one(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes.fromhex(code[1:].decode()) if code[:1] == b"x" else _ESCAPES[code]

    return re.sub(rb"\\(x[0-9a-fA-F]{2}|[ntr0\\])", one, argument_bytes(text))


def formatter(text: str, *, show_null: bool = False, encode: Callable[[bytes], bytes] = bytes) -> Render:
    """Make a function that renders a record in the format `text` (kcat's -f).

    Args:
        text: The format.
        show_null: Render a value or key that is null as NULL (kcat's -Z), not as nothing.
        encode: Makes of keys, values and headers what is printed.

    Raises:
        click.BadParameter: A % is followed by an unknown letter.
    """
    fields = _FIELDS | _contents(encode, b"NULL" if show_null else b"")
    parts: list[Render] = []
    for part in re.findall(rb"%.?|[^%]+", unescape(text), re.DOTALL):
        parts.append(_field(part[1:].decode("latin-1"), fields) if part.startswith(b"%") else _constant(part))
    return lambda record: b"".join([part(record) for part in parts])


def _constant(value: bytes) -> Render:
    return lambda _: value


def _field(letter: str, fields: dict[str, Render]) -> Render:
    if letter not in fields:
        raise click.BadParameter(f"%{letter}: unknown field; choose from {' '.join('%' + known for known in fields)}")
    return fields[letter]


def as_json(value: Any) -> str:
    """Return a value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False)


def echo_json(value: Any) -> None:
    """Print a value as a line of JSON."""
    click.echo(as_json(value))


def echo_failures(failed: Mapping[Any, OdradekError]) -> int:
    """Print the errors of single items to standard error, one that several have once; return the exit code."""
    for text in dict.fromkeys(map(str, failed.values())):
        click.echo(f"odradek: {text}", err=True)
    return 1 if failed else 0


def echo_rows(head: Sequence[str], rows: Sequence[Sequence[object]], as_lines: bool) -> None:
    """Print rows as an aligned table, or as lines of JSON with the names of `head` as keys."""
    if not as_lines:
        click.echo(table(head, [[_cell(cell) for cell in row] for row in rows]))
        return
    for row in rows:
        echo_json(dict(zip(head, row, strict=True)))


def iso_time(seconds: float | None) -> str | None:
    """Return a time (s since the epoch) as text, in local time with its zone."""
    return None if seconds is None else datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def _cell(value: object) -> object:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "-" if value is None else value


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return text in aligned columns, columns of integers to the right. Without rows, only the head."""
    cells = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = [bool(rows) and all(type(row[i]) is int for row in rows) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if numeric else cell.ljust(width)
            for cell, width, numeric in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in cells
    )


@contextmanager
def progress(what: str, total: int | None, *, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a progress bar if standard error is a terminal; yield the function that advances it."""

    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda steps: bar.advance(task, steps)
