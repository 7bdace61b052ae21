"""What the commands print: records in kcat's format language, tables, JSON lines, progress."""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from odradek.types import Record

__all__ = ["Render", "as_json", "echo_json", "formatter", "json_line", "progress", "table"]

Render = Callable[[Record], bytes]
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_FIELDS: dict[str, Render] = {
    "%": lambda _: b"%",
    "s": lambda r: r.value or b"",
    "S": lambda r: b"%d" % (-1 if r.value is None else len(r.value)),
    "k": lambda r: r.key or b"",
    "K": lambda r: b"%d" % (-1 if r.key is None else len(r.key)),
    "t": lambda r: r.topic.encode(),
    "p": lambda r: r.partition.name.encode(),
    "o": lambda r: b"%d" % r.position,
    "n": lambda r: b"%d" % r.next_position,
    "i": lambda r: b"%d" % r.inner_index,
}


def unescape(text: str) -> str:
    r"""Turn \n, \t, \r, \0, \\ and \xHH of an option's value into what they mean."""

    def one(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if code[0] == "x" else _ESCAPES[code]

    return re.sub(r"\\(x[0-9a-fA-F]{2}|[ntr0\\])", one, text)


def formatter(text: str) -> Render:
    """Make a function that renders a record as `text` says (kcat's -f).

    Raises:
        click.BadParameter: A % is followed by a letter that means nothing.
    """
    pieces: list[Render] = []
    for piece in re.findall(r"%.?|[^%]+", unescape(text), re.DOTALL):
        pieces.append(_field(piece[1:]) if piece.startswith("%") else _constant(piece.encode()))
    return lambda record: b"".join([piece(record) for piece in pieces])


def _constant(value: bytes) -> Render:
    return lambda _: value


def _field(letter: str) -> Render:
    if letter not in _FIELDS:
        raise click.BadParameter(f"%{letter}: known are {' '.join('%' + known for known in _FIELDS)}")
    return _FIELDS[letter]


def json_line(record: Record) -> bytes:
    """One record as a JSON object on a line of its own."""
    told: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition.name,
        "position": record.position,
        "next_position": record.next_position,
        "inner_index": record.inner_index,
    }
    if record.key is not None:
        told |= _text("key", record.key)
    return as_json(told | _text("value", record.value)).encode() + b"\n"


def _text(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {name + "_base64": base64.b64encode(value).decode()}


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def echo_json(value: Any) -> None:
    """Print one value as a line of JSON."""
    click.echo(as_json(value))


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Text in aligned columns, numbers to the right. No rows: just the head."""
    cells = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = [bool(rows) and all(isinstance(row[i], int) for row in rows) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if numeric else cell.ljust(width)
            for cell, width, numeric in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in cells
    )


@contextmanager
def progress(what: str, total: int | None, *, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """A bar on standard error while it is a terminal, else nothing; yields the function that moves it on."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda steps: bar.advance(task, steps)
