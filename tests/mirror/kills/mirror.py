"""A mirror that follows the file that the command line names; its log has the traceback of an error that ends it."""

from __future__ import annotations

import logging
import sys

import odradek as od
from odradek.mirror.config import load
from odradek.mirror.run import run

__all__ = ["main"]


def main() -> None:
    """Copy until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message).400s", datefmt="%H:%M:%S")
    od.run(lambda: run(load(sys.argv[1]), follow=True))
