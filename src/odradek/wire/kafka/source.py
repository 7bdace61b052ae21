"""Python source of one generated function, line by line, with the field that each line is about.

A generated function does no bookkeeping for errors: the line at which it failed says which field it was, and its local
variables say how far it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple

__all__ = ["Failure", "Fixed", "Source"]

INDENT = "    "


class Fixed(NamedTuple):
    """A field of fixed size that is read or written together with its neighbours.

    Args:
        path: With the names of the variables that count, in braces, for indexes.
        value: What is assigned to, or written.
        code: The format character.
    """

    path: str
    value: str
    code: str


class Failure(NamedTuple):
    """Location at which a generated function failed.

    Attributes:
        paths: The fields that the line is about, with the indexes of arrays: `topics[3].name`; empty: the message.
        codes: If they have a fixed size, the format character of each.
        values: If they are written, the expression of each.
        variables: The local variables of the function.
    """

    paths: list[str]
    codes: list[str]
    values: list[str]
    variables: dict[str, Any]


class Source:
    """Collects lines and compiles them.

    Args:
        title: Says in tracebacks what the function is for.
        signature: `name(parameters)`.
    """

    def __init__(self, title: str, signature: str, **scope: object) -> None:
        self._title, self._name = f"<{title}>", signature.partition("(")[0]
        self._lines = [f"def {signature}:"]
        self._sites: list[list[Fixed]] = [[], []]  # lines are counted from 1
        self._depth = 1
        self._scope = scope
        self._variables = 0
        self.path = ""

    def line(self, text: str, run: list[Fixed] | None = None) -> None:
        """Add a line; it is about the current field, or about a run of fields of fixed size."""
        self._lines.append(INDENT * self._depth + text)
        self._sites.append(run or [Fixed(self.path, "", "")])

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add a line that opens a block, and the lines added meanwhile to the block."""
        self.line(f"{head}:")
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def about(self, name: str) -> Iterator[None]:
        """Let the lines added meanwhile be about a field, or element, of what they are about now.

        Args:
            name: The field; for an element the variable that counts them, in braces: `[{i1}]`.
        """
        outer = self.path
        self.path = outer + name if name.startswith("[") else f"{outer}.{name}".lstrip(".")
        yield
        self.path = outer

    def variable(self, prefix: str) -> str:
        """Return the name of a variable that is not used yet."""
        self._variables += 1
        return f"{prefix}{self._variables}"

    def constant(self, prefix: str, value: object) -> str:
        """Return how the function refers to a value."""
        if value is None or isinstance(value, bool | int | str | bytes) or value == ():
            return repr(value)
        for name, known in self._scope.items():
            if known is value:
                return name
        name = self.variable(prefix)
        self._scope[name] = value
        return name

    @property
    def text(self) -> str:
        return "\n".join([*self._lines, ""])

    def compile(self) -> Callable[..., Any]:
        """Return the function."""
        exec(compile(self.text, self._title, "exec"), self._scope)
        function: Callable[..., Any] = self._scope[self._name]  # type: ignore[assignment]  # a scope holds anything
        return function

    def failure(self, trace: TracebackType | None) -> Failure:
        """Tell where it was, of the traceback that begins in the function."""
        assert trace is not None
        variables = trace.tb_frame.f_locals
        run = self._sites[trace.tb_lineno]
        paths = [re.sub(r"\{(\w+)\}", lambda index: str(variables[index[1]]), fixed.path) for fixed in run]
        return Failure(paths, [fixed.code for fixed in run], [fixed.value for fixed in run], variables)
