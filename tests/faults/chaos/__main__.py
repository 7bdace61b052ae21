"""Break brokers, lines and clients for minutes, and check that nothing is lost, doubled or skipped.

usage: python -m tests.faults.chaos --kafka VERSION --minutes N [--seed S]

Prints one line of JSON. The exit code is 1 if anything was wrong; then journals, logs and the faults with their times
stay in the directory that `kept` names. The same seed makes the same faults.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from odradek.testing.kafka.releases import NEWEST

from .run import run

__all__ = ["main"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", default=NEWEST, help="release, from 0.10.2 on")
    parser.add_argument("--upgrade-to", metavar="VERSION", help="upgrade the brokers to this release, one by one")
    parser.add_argument("--mode", choices=("kraft", "zookeeper"), help="where the release has both")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--rate", type=int, default=400, help="records a second")
    options = parser.parse_args()

    def show(text: str) -> None:
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")

    report = run(
        options.kafka,
        options.minutes,
        options.seed,
        upgrade_to=options.upgrade_to,
        mode=options.mode,
        rate=options.rate,
        show=show,
    )
    sys.stdout.write(report.line() + "\n")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
