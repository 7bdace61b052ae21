"""Replay the corpus of the Kafka protocol, 0.8 to 4.3: `python tests/conformance/kafka/replay.py FILE...`

FILE is any `*.jsonl` or `*.jsonl.gz` of `corpus/`, whose README.md defines the format. One line is printed for each
difference, then the counts; the exit code is 1 when anything differs.

The beginning of the file's name says which module checks it: `check_<kind>.py` for `<kind>_*.jsonl.gz`, the longest
kind that there is a module for. Such a module has one function, `check(record)`, which returns None or what differs; it
may raise SkippedError with a reason, or NoCaseError for a line with nothing to compare.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PACKAGE = "tests.conformance.kafka"

if __name__ == "__main__":  # as a script: the directory above `tests` is not in the path then
    sys.path.insert(0, str(HERE.parents[2]))

from tests.conformance.kafka.case import NoCaseError, Record, SkippedError  # noqa: E402

Check = Callable[[Record], str | None]


def checker(path: Path) -> Check:
    """Return the function that checks the lines of a file."""
    kinds = (module.stem.removeprefix("check_") for module in HERE.glob("check_*.py"))
    matching = [kind for kind in kinds if path.name.startswith(f"{kind}_")]
    if not matching:
        raise SystemExit(f"{path}: there is no check_*.py for files of this name")
    module = importlib.import_module(f"{PACKAGE}.check_{max(matching, key=len)}")
    check: Check = module.check
    return check


def records(path: Path) -> Iterator[Record]:
    """Read the lines of a file, plain or .gz."""
    opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def replay(path: Path) -> Iterator[tuple[str, str]]:
    """Check a file; for each line that counts, one of `passed`, `failed` and `skipped`, and what there is to say."""
    check = checker(path)
    for number, record in enumerate(records(path), 1):
        try:
            differs = check(record)
        except SkippedError as reason:
            yield "skipped", str(reason)
        except NoCaseError:
            continue
        except Exception as error:
            yield "failed", f"{path.name}:{number}: {type(error).__name__}: {error}"
        else:
            yield ("passed", "") if differs is None else ("failed", f"{path.name}:{number}: {differs}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", metavar="FILE", type=Path, nargs="+")
    parser.add_argument("--reasons", action="store_true", help="say why lines are skipped")
    options = parser.parse_args(arguments)

    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for path in options.files:
        for result, text in replay(path):
            counts[result] += 1
            if result == "failed":
                print(text)
            reasons[text] += result == "skipped"
    if options.reasons:
        for reason, number in (+reasons).items():
            print(f"{number} skipped: {reason}")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
