"""Errors as one line of text, Java stack traces included."""

from __future__ import annotations

import re

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

from odradek.errors import OdradekError

__all__ = ["describe_error"]

_OURS = re.compile(r"\bodradek\.[a-z_.]+\.([A-Z]\w+): (.+)")

_CAUSE = re.compile(
    r"^(?:: |Caused by: )(?:[a-z]\w*\.)+([A-Z][\w$]*)(?:: (.+?))?(?=\n\t+(?:at |\.\.\. )|\Z)", re.M | re.S
)
"""Matches, in the text of a Java error, a class and its message (one or more lines) before the stack frames."""


def describe_error(error: BaseException) -> str:
    """Return one line for an error.

    Odradek's own errors keep their text, also if it is inside an error of Spark; others give their class and one line.
    """
    if isinstance(error, OdradekError):
        return str(error)
    try:
        text = str(error)
    except Exception:  # py4j asks Java for it, which may be gone
        text = str(error.args[0]) if error.args else ""
    unanswered = isinstance(error, ConnectionError | Py4JError) and not isinstance(error, Py4JJavaError)
    if unanswered and "Trace:" not in text:  # which is Java's
        return f"Spark's Java process has ended: {text}"
    if ours := _OURS.findall(text):
        return str(ours[-1][1])
    causes = [(name, _first_line(message)) for name, message in _CAUSE.findall(text) if message]
    return ": ".join(filter(None, causes[-1] if causes else (type(error).__name__, _first_line(text))))


def _first_line(message: str) -> str:
    """Return the last line of a Python traceback in the message, or else the first line."""
    _, traceback, frames = message.rpartition("Traceback (most recent call last):")
    lines = (line for line in frames.splitlines() if line.strip() and not (traceback and line[0].isspace()))
    return next(lines, "").strip()
