"""Error texts in one line; of a Java stack trace, its beginning."""

from __future__ import annotations

import re

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

from odradek.errors import OdradekError

__all__ = ["describe_error"]

_OURS = re.compile(r"\bodradek\.[a-z_.]+\.([A-Z]\w+): (.+)")

_CAUSE = re.compile(
    r"^(?:: |Caused by: )(?:[a-z]\w*\.)+([A-Z][\w$]*)(?:: (.+?))?(?=\n\t+(?:at |\.\.\. )|\Z)", re.M | re.S
)
"""In the text of a Java error: a class and what it said, which may be several lines, before the frames of its stack."""

_OF_PYTHON = "Traceback (most recent call last):"


def describe_error(error: BaseException) -> str:
    """Ours as they are, also where they come as a text inside of Spark's; of others the class, and one line."""
    if isinstance(error, OdradekError):
        return str(error)
    text = _safe_str(error)
    if _java_gone(error) and "Trace:" not in text:
        return f"Spark's Java process has ended: {text}"
    if ours := _OURS.findall(text):
        return str(ours[-1][1])
    causes = [(name, _first_line(message)) for name, message in _CAUSE.findall(text) if message]
    return ": ".join(filter(None, causes[-1] if causes else (type(error).__name__, _first_line(text))))


def _java_gone(error: BaseException) -> bool:
    """Py4j's own errors, unless they bring a trace of Java's, mean that there was no answer."""
    return isinstance(error, ConnectionError | Py4JError) and not isinstance(error, Py4JJavaError)


def _safe_str(error: BaseException) -> str:
    """Py4j asks Java for the text of its errors. Java may be gone."""
    try:
        return str(error)
    except Exception:
        return str(error.args[0]) if error.args else ""


def _first_line(message: str) -> str:
    """What a Python traceback in it ends with; else its first line."""
    _, traceback, frames = message.rpartition(_OF_PYTHON)
    lines = [line for line in frames.splitlines() if line.strip()]
    if traceback:
        lines = [line for line in lines if not line[0].isspace()]
    return lines[0].strip() if lines else ""
