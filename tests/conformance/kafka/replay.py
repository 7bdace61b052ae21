"""Replay the corpus of the Kafka protocol, 0.8 to 4.3: `python tests/conformance/kafka/replay.py FILE...`

FILE is any file of the corpus, plain or compressed with gzip: one JSON object a line, in the format that its README.md
defines. The fields of a line say which module `check_<kind>.py` checks it; the name of the file does not matter.

One line is printed for each difference, and for each file or line that cannot be read; the last line has the counts.
The exit code is 1 if anything failed, else 0.

A module has one function, `check(record)`, which returns None or the difference; it may raise SkippedError with a
reason, or NoCaseError for a line with nothing to compare.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PACKAGE = "tests.conformance.kafka"
GZIP_MAGIC = b"\x1f\x8b"

if __name__ == "__main__":  # as a script: the directory above `tests` is not in the path then
    sys.path.insert(0, str(HERE.parents[2]))

from tests.conformance.kafka.case import NoCaseError, Record, SkippedError  # noqa: E402

Check = Callable[[Record], str | None]

KINDS: dict[str, tuple[frozenset[str], ...]] = {
    "conversations": (frozenset({"dir", "connection", "hex"}),),
    "messages": (frozenset({"api", "side", "version", "hex", "json"}),),
    "records_damaged": (frozenset({"batches", "batch_error", "hex"}),),
    "records": (frozenset({"batches", "valid_bytes", "hex"}),),
    "embedded": (frozenset({"schema", "version", "hex", "json"}),),
    "headers": (frozenset({"header", "version", "hex", "json"}),),
    "assignors": (frozenset({"assignor", "members", "assignment"}),),
    "sticky_user_data": (frozenset({"assignor", "owned", "generation", "hex"}),),
    "partitioner": (frozenset({"key", "murmur2", "partition"}),),
    "scram": (frozenset({"mechanism", "salt", "client_nonce"}), frozenset({"message", "text", "accepted"})),
    "sasl": (frozenset({"direction", "hex"}),),
}
"""Kind -> the fields that lines of this kind have, in one of its forms. The first kind that fits counts."""


class UnreadableError(Exception):
    """A line that is not a line of the corpus."""


def kind_of(record: object) -> str:
    """Return the kind of a line. Raises UnreadableError if it is of none."""
    if not isinstance(record, dict):
        raise UnreadableError("not a JSON object")
    for kind, forms in KINDS.items():
        if any(fields <= record.keys() for fields in forms):
            return kind
    raise UnreadableError(f"fields of no known kind: {', '.join(sorted(record))[:200]}")


@cache
def checker(kind: str) -> Check:
    """Return the function that checks lines of a kind."""
    check: Check = importlib.import_module(f"{PACKAGE}.check_{kind}").check
    return check


def lines_of(path: Path) -> Iterator[str]:
    """Read the lines of a file, plain or compressed with gzip."""
    with path.open("rb") as file:
        compressed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    opener: Callable[..., Any] = gzip.open if compressed else open
    with opener(path, "rt", encoding="utf-8") as lines:
        yield from lines


def check_line(line: str) -> str | None:
    """Check one line. Returns None or the difference; raises what its checker raises."""
    try:
        record = json.loads(line)
    except ValueError as error:
        raise UnreadableError(f"not JSON: {error}") from None
    return checker(kind_of(record))(record)


def replay(path: Path) -> Iterator[tuple[str, str]]:
    """Check a file. Yields for each line that counts one of `passed`, `failed` and `skipped`, and the text about it."""
    try:
        for number, line in enumerate(lines_of(path), 1):
            if not line.strip():
                continue
            try:
                differs = check_line(line)
            except SkippedError as reason:
                yield "skipped", str(reason)
            except NoCaseError:
                continue
            except UnreadableError as error:
                yield "failed", f"{path.name}:{number}: {error}"
            except Exception as error:
                yield "failed", f"{path.name}:{number}: {type(error).__name__}: {error}"
            else:
                yield ("passed", "") if differs is None else ("failed", f"{path.name}:{number}: {differs}")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        yield "failed", f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", metavar="FILE", type=Path, nargs="+")
    parser.add_argument("--reasons", action="store_true", help="say why lines are skipped")
    options = parser.parse_args(arguments)

    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for path in options.files:
        before = counts.total()
        for result, text in replay(path):
            counts[result] += 1
            if result == "failed":
                print(text)
            reasons[text] += result == "skipped"
        if counts.total() == before:
            print(f"{path}: nothing to compare", file=sys.stderr)
    if options.reasons:
        for reason, number in (+reasons).items():
            print(f"{number} skipped: {reason}")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
