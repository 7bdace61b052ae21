"""The `odradek` command, one module per verb. Without the extra `cli`, it prints what to install."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command with `arguments` (default: those of the process) and exit with its code.

    Exit codes: 0 success; 1 failure, a difference, or a limit exceeded; 2 wrong usage; 130 and 143 ended by Ctrl-C and
    SIGTERM.

    """
    _open_closed_streams()
    atexit.register(gc.freeze)  # or the collector would look at every object, several times, before the process ends
    try:
        from odradek.cli.app import run

        code = run(arguments)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("click", "rich"):
            raise
        sys.stderr.write(f"odradek: {missing} is not installed; the command needs: pip install 'odradek[cli]'\n")
        sys.exit(2)
    sys.exit(code)


def _open_closed_streams() -> None:
    """Open standard streams that were closed before this process began, so that no file gets their numbers. To read
    from such an input is an error; what is written to such an output is lost."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_WRONLY)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", errors="backslashreplace"))
