"""TOML files that pydantic checks: all mistakes at once, with their lines and keys, and without secrets."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar, get_args

import tomlkit
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError
from tomlkit.items import AoT, Table

from odradek import arguments
from odradek.errors import ConfigError

__all__ = ["ConfigFile", "ConfigFileError", "ConfigTable", "RegularExpression", "Size", "parsed", "read"]

Lines: TypeAlias = dict[tuple[str, ...], int]
"""Key of the file -> its line."""


class ConfigFileError(ConfigError):
    """A file has mistakes.

    Args:
        mistakes: All of them, each with file, line and key.
    """

    def __init__(self, *mistakes: str) -> None:
        super().__init__(*mistakes)
        self.mistakes = mistakes

    def message(self) -> str:
        return "\n".join(self.mistakes)


class ConfigTable(BaseModel):
    """A table of a file. A key with `repr=False` may have secrets: no error shows its value."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


class ConfigFile(ConfigTable):
    """A whole file."""

    _file: str = PrivateAttr(default="")
    _lines: Lines = PrivateAttr(default_factory=dict)

    def at(self, *key: str) -> str:
        """Return where a key is, for messages: `pipeline.toml:3: source.logs`. One that is not there has the line of
        its table."""
        return f"{self._file}:{_line_of(self._lines, key)}: {'.'.join(key)}"


# ---- values that keys may have -------------------------------------------------------------------------------


def _size(value: object) -> object:
    size = arguments.bytes_of_text(value) if isinstance(value, str) else value
    if size is None:
        raise ValueError('a size is a number of bytes, or like "64k", "128m", "2g"')
    return size


def parsed(parse: Callable[[str], object], mistake: str = "{}") -> AfterValidator:
    """Return a validator of texts: a mistake is what a function returns None for, or an error of it."""

    def check(text: str) -> str:
        try:
            result = parse(text)
        except (ValueError, KeyError, OSError, re.error) as error:
            raise ValueError(mistake.format(error)) from None
        if result is None:
            raise ValueError(mistake)
        return text

    return AfterValidator(check)


Size: TypeAlias = Annotated[int, BeforeValidator(_size), Field(gt=0)]
RegularExpression: TypeAlias = Annotated[str, parsed(re.compile, "not a regular expression: {}")]


# ---- reading -------------------------------------------------------------------------------------------------

F = TypeVar("F", bound=ConfigFile)


def read(
    path: str | Path, model: type[F], error: type[ConfigFileError], defaults: Mapping[str, Any] | None = None
) -> F:
    """Read and check a file. Validators find its directory as `context["folder"]`.

    Args:
        path: The file.
        model: What it has to look like.
        error: What is raised if it does not.
        defaults: Values of keys that the file leaves out, which are checked like its own.

    Raises:
        ConfigFileError: The file is missing, not TOML, or has mistakes; the message names each with line and key.
    """
    file = Path(path)
    try:
        text = file.read_text("utf-8")
        body = {**(defaults or {}), **tomllib.loads(text)}
        lines = _key_lines(text)
        checked = model.model_validate(body, context={"folder": file.absolute().parent})
    except OSError as missing:
        raise error(f"{file}: {missing.strerror}") from missing
    except UnicodeDecodeError as damaged:
        raise error(f"{file}: not UTF-8: {damaged.reason} at byte {damaged.start}") from damaged
    except tomllib.TOMLDecodeError as malformed:
        raise error(f"{file}:{_not_toml(text, str(malformed))}") from None
    except ValidationError as wrong:
        mistakes = sorted(_describe(dict(each), model, lines) for each in wrong.errors())
        raise error(*(f"{file}:{line}: {text}" for line, text in mistakes)) from None
    checked._file, checked._lines = str(file), lines
    return checked


_TWICE = ("Cannot overwrite a value", "Cannot declare", "Cannot mutate immutable namespace")
"""Beginnings of tomllib's messages about a key, or a table, that the file has already."""


def _not_toml(text: str, why: str) -> str:
    """Return line and mistake of a text that is not TOML; tomllib says why and where, and nothing of a value."""
    match = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", why, re.DOTALL)
    line = int((match and match[2]) or text.count("\n") + 1)
    if why.startswith(_TWICE):
        return f"{line}: the file has this key or table already: each comes once"
    return f"{line}: not TOML: {match[1] if match else why}"


def _describe(mistake: Mapping[str, Any], file: type[BaseModel], lines: Lines) -> tuple[int, str]:
    """Return the line of a mistake that pydantic has found, and its key with what is wrong."""
    key = tuple(part for part in mistake["loc"] if isinstance(part, str) and part != "[key]")
    text = mistake["msg"].removeprefix("Value error, ")
    match mistake["type"], mistake.get("input"):
        case "extra_forbidden", _:
            text = f"unknown key; known here: {', '.join(_known_keys(file, key[:-1]))}"
        case "missing", _:
            text = "it is missing"
        case _, str() | int() | float() as value if not _may_be_secret(file, key):
            text += f" (it is {value!r})"
    return _line_of(lines, key), f"{'.'.join(key) or 'the file'}: {text}"


def _line_of(lines: Lines, key: tuple[str, ...]) -> int:
    """Return the line of a key, or of the table that it would be in."""
    return next((lines[key[:length]] for length in range(len(key), 0, -1) if key[:length] in lines), 1)


def _may_be_secret(file: type[BaseModel], key: tuple[str, ...]) -> bool:
    """Return True for a key that may have secrets, for one inside of it, and for a table."""
    fields = [field for model, part in _models(file, key) if (field := model.model_fields.get(part)) is not None]
    return not fields or not all(field.repr for field in fields) or bool(_tables(fields[-1].annotation))


def _known_keys(file: type[BaseModel], table: tuple[str, ...]) -> list[str]:
    """Return the keys of a table of the file."""
    *_, (model, _) = _models(file, (*table, ""))
    return sorted(model.model_fields)


def _models(model: type[BaseModel], key: tuple[str, ...]) -> Iterator[tuple[type[BaseModel], str]]:
    """Yield each part of a key, without the name of a flow, with the table that it is in; none inside of a value."""
    for part in (*key[:1], *key[2:]) if key[:1] == ("flows",) else key:
        yield model, part
        field = model.model_fields.get(part)
        kinds = () if field is None else _tables(field.annotation)
        if not kinds:
            return
        model = kinds[0]


def _tables(annotation: Any) -> list[type[BaseModel]]:
    """Return the tables in the type of a key."""
    kinds = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
    return [kind for kind in kinds if issubclass(kind, BaseModel)]


def _key_lines(text: str) -> Lines:
    """Return the line of each key of a TOML file."""
    lines: Lines = {}
    _note_lines(tomlkit.parse(text), (), 1, lines)
    return lines


def _note_lines(container: Any, table: tuple[str, ...], line: int, lines: Lines) -> int:
    """Add the lines of a container's keys; return the line after it."""
    for key, item in container.body:
        if key is None:  # a comment, or blank lines
            line += item.as_string().count("\n")
            continue
        path = (*table, key.key)
        if isinstance(item, Table):
            has_header = not (item.is_super_table() or key.is_dotted())
            line += item.trivia.indent.count("\n")
            lines.setdefault(path, line)
            line = _note_lines(item.value, path, line + has_header, lines)
        elif isinstance(item, AoT):
            line += item.as_string().count("\n")
        else:
            lines.setdefault(path, line)
            line += (item.trivia.indent + item.as_string() + item.trivia.trail).count("\n")
    return line
