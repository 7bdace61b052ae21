"""One worker in a process of its own: `worker.main(ROLE, ARGUMENTS as JSON)`. The roles are the producer, members of
groups by three clients, and services that consume, transform and produce."""

from __future__ import annotations

import importlib
import json
import logging
import signal
import sys
from pathlib import Path

from .journal import Journal

__all__ = ["main"]

ROLES = {
    "produce": "produce",
    "odradek": "members",
    "librdkafka": "foreign_members",
    "aiokafka": "foreign_members",
    "transform": "transform",
}
"""Role -> the module that has it, as a function of the same name."""


def main() -> None:
    """Run the role that the command line names, until SIGTERM: one that comes before the role listens ends it, too."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    role, arguments = sys.argv[1], json.loads(sys.argv[2])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message).400s", datefmt="%H:%M:%S")
    module = importlib.import_module(f"tests.faults.chaos.{ROLES[role]}")
    with Journal(Path(arguments.pop("journal"))) as journal:
        journal.write("started")
        getattr(module, role)(journal, **arguments)
