"""Python source of one generated function, line by line, with the field that each line handles.

A generated function does no bookkeeping for errors: the line at which it fails identifies the field, and its local
variables the position.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, TracebackType
from typing import Any, NamedTuple
from zlib import crc32

from odradek.wire.kafka import precompiled

__all__ = ["Failure", "Fixed", "Source"]

INDENT = "    "


class Fixed(NamedTuple):
    """A field of fixed size that is read or written together with adjacent ones.

    Args:
        path: The path of the field; for an index, the name of the loop variable in braces: `topics[{i1}].name`.
        value: The expression that is assigned to, or written.
        code: The format character.
    """

    path: str
    value: str
    code: str


class Failure(NamedTuple):
    """Location at which a generated function failed.

    Attributes:
        paths: The fields that the line handles, with the indexes of arrays: `topics[3].name`; empty: the message.
        codes: The format character of each, if they have a fixed size.
        values: The expression of each, if they are written.
        variables: The local variables of the function.
    """

    paths: list[str]
    codes: list[str]
    values: list[str]
    variables: dict[str, Any]


class Source:
    """Collects lines and compiles them.

    Args:
        title: Name of the function's file in tracebacks.
        signature: `name(parameters)`.
        scope: Names that the function can use.
    """

    def __init__(self, title: str, signature: str, **scope: object) -> None:
        self.title, self.name = f"<{title}>", signature.partition("(")[0]
        self._lines = [f"def {signature}:"]
        self._sites: list[list[Fixed]] = [[], []]  # lines are counted from 1
        self._depth = 1
        self._scope = scope
        self._variables = 0
        self.path = ""

    def line(self, text: str, run: list[Fixed] | None = None) -> None:
        """Add a line that handles the current field, or a run of fields of fixed size."""
        self._lines.append(INDENT * self._depth + text)
        self._sites.append(run or [Fixed(self.path, "", "")])

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add a line that opens a block; lines added in the `with` statement belong to the block."""
        self.line(f"{head}:")
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def about(self, name: str) -> Iterator[None]:
        """Make a part of the current field the current one; applies to lines added in the `with` statement.

        Args:
            name: The name of a field; for an element of an array, the loop variable in braces: `[{i1}]`.
        """
        outer = self.path
        self.path = outer + name if name.startswith("[") else f"{outer}.{name}".lstrip(".")
        yield
        self.path = outer

    def variable(self, prefix: str) -> str:
        """Return the name of an unused variable."""
        self._variables += 1
        return f"{prefix}{self._variables}"

    def constant(self, prefix: str, value: object) -> str:
        """Return an expression for a value, for use in the function."""
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

    @property
    def checksum(self) -> str:
        """The name in `precompiled` of a function with this text."""
        return f"f{crc32(self.text.encode()):08x}"

    def compile(self) -> Callable[..., Any]:
        """Compile the source, unless that was done when this package was built, and return the function."""
        compiled = getattr(precompiled, self.checksum, None)
        if compiled is None:
            exec(compile(self.text, self.title, "exec"), self._scope)
            function: Callable[..., Any] = self._scope[self.name]  # type: ignore[assignment]  # a scope holds anything
            return function
        code = compiled.__code__.replace(
            co_filename=self.title, co_name=self.name, co_qualname=self.name, co_firstlineno=1
        )
        return FunctionType(code, self._scope)

    def failure(self, trace: TracebackType | None) -> Failure:
        """Return the location of a failure from a traceback that begins in the function."""
        assert trace is not None
        variables = trace.tb_frame.f_locals
        run = self._sites[trace.tb_lineno]
        paths = [re.sub(r"\{(\w+)\}", lambda index: str(variables[index[1]]), fixed.path) for fixed in run]
        return Failure(paths, [fixed.code for fixed in run], [fixed.value for fixed in run], variables)
