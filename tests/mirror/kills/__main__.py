"""Kill a mirror, and the brokers on both of its sides, again and again, and check that all that is copied is right.

usage: python -m tests.mirror.kills --source 0.7|VERSION --records N --kills N [--seed S] [--brokers N] [--logs]

Prints one line of JSON. The exit code is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from .run import run

__all__ = ["main"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="0.7", help="0.7, embedded, or a release from 0.8.1 on")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=10, help="of the mirror and of brokers of both sides")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--target", default=None, help="release of the target")
    parser.add_argument("--brokers", type=int, default=3, help="of the target")
    parser.add_argument("--pause", type=float, default=4.0, help="maximum time between two faults (s)")
    parser.add_argument("--logs", action="store_true", help="copy the log directories of a cluster that has died")
    options = parser.parse_args()

    def show(text: str) -> None:
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")

    report = run(
        options.source, options.records, options.kills, options.seed,
        target=options.target, brokers=options.brokers, pause_s=options.pause, logs=options.logs, show=show,
    )  # fmt: skip
    sys.stdout.write(report.line() + "\n")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
