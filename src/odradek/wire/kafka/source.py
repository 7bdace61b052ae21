"""Python source of one generated function, line by line, with the field that each line is about.

A generated function does no bookkeeping for errors: the line at which it failed says which field it was, and its local
variables say how far it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

__all__ = ["Failure", "Source"]

INDENT = "    "


class Failure:
    """Where a generated function failed.

    Attributes:
        path: The field, with the indexes of arrays: `topics[3].name`; empty: the message itself.
        variables: The local variables of the function.
    """

    def __init__(self, path: str, variables: dict[str, Any]) -> None:
        self.path, self.variables = path, variables


class Source:
    """Collects lines and compiles them.

    Args:
        title: Says in tracebacks what the function is for.
        signature: `name(parameters)`.
    """

    def __init__(self, title: str, signature: str, **scope: object) -> None:
        self._title, self._name = f"<{title}>", signature.partition("(")[0]
        self._lines = [f"def {signature}:"]
        self._paths = ["", ""]  # lines are counted from 1
        self._depth = 1
        self._scope = scope
        self._variables = 0
        self.path = ""

    def line(self, text: str, path: str | None = None) -> None:
        """Add a line; it is about `path`, or about the current one."""
        self._lines.append(INDENT * self._depth + text)
        self._paths.append(self.path if path is None else path)

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
        path = re.sub(r"\{(\w+)\}", lambda index: str(variables[index[1]]), self._paths[trace.tb_lineno])
        return Failure(path, variables)
