"""Directives that generate pages from the code, so that the two cannot differ.

{machine} NAME      a state machine of odradek.core.states, or module:NAME of odradek.core: picture and tables
{released}          the events of the lightweight consumer, and what stands for them in the released protocols
{errors}            every error, its attributes and its docstring
{options} NAME      the fields of a dataclass of odradek (module:class) with defaults and meaning
{pipelinefile}      the keys of a pipeline file
{mirrorfile}        the keys of the file of a mirror
{metrics}           the metrics of a pipeline for Prometheus
{commands}          the help of every command
{otherclient} NAME  the options of another client, and what they are called here
{messages}          every log line and every error text, by module
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import get_args

import click
from diagram import draw
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import odradek
from odradek import errors
from odradek.cli.app import cli
from odradek.core import states
from odradek.core.kafka.lightweight_consumer import RELEASED
from odradek.mirror.config import MirrorConfig
from odradek.pipeline import monitoring
from odradek.pipeline.config import ConfigTable, Pipeline


class Machine(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].rpartition(":")
        machine = getattr(importlib.import_module(f"odradek.core.{module or 'states'}"), name)
        drawn = nodes.raw("", draw(machine), format="html")
        return [drawn, *self.parse_text_to_nodes("\n".join(_machine(machine)))]


def _machine(machine: states.Machine) -> Iterator[str]:
    yield from ("| state | meaning |", "|---|---|")
    yield from (f"| {state.name} | {state.value} |" for state in type(machine.start))
    yield from ("", "| in | when | then |", "|---|---|---|")
    for (state, event), target in machine.transitions.items():
        yield f"| {state.name} | {event.value} | {target.name} |"


class Released(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        lines = ["| event | classic groups | groups of KIP-848 |", "|---|---|---|"]
        lines += [f"| {event.value} | {now.classic} | {now.consumer_group} |" for event, now in RELEASED.items()]
        return self.parse_text_to_nodes("\n".join(lines))


class Errors(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        lines = ["| error | means | retriable | refresh metadata | fatal | fence |", "|---|---|---|---|---|---|"]
        lines += [_error(getattr(errors, name)) for name in errors.__all__]
        lines += ["", "```{eval-rst}", ""]
        for name in errors.__all__:
            lines += [f".. autoexception:: {_public(name)}", "   :show-inheritance:", ""]
        return self.parse_text_to_nodes("\n".join([*lines, "```"]))


def _error(kind: type[errors.OdradekError]) -> str:
    meaning = _cell((inspect.getdoc(kind) or "").split("\n\n")[0])
    flags = [kind.retriable, kind.refresh_metadata, kind.fatal, kind.fence]
    marks = " | ".join("yes" if flag else "" for flag in flags)
    return f"| {{class}}`~{_public(kind.__name__)}` | {meaning} | {marks} |"


def _public(name: str) -> str:
    """Return the path by which users reach an error."""
    return f"odradek.{name}" if hasattr(odradek, name) else f"odradek.errors.{name}"


class Options(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].partition(":")
        kind = getattr(importlib.import_module(module), name)
        meanings = _arguments(inspect.getdoc(kind) or "")
        lines = ["| option | default | meaning |", "|---|---|---|"]
        for field in dataclasses.fields(kind):
            if field.name not in meanings:
                raise self.error(f"{name}.{field.name} is not described in its docstring")
            lines.append(f"| `{field.name}` | `{_default(field)}` | {_cell(meanings[field.name])} |")
        return self.parse_text_to_nodes("\n".join(lines))


def _arguments(doc: str) -> dict[str, str]:
    """The entries of a docstring's Args section: name -> text."""
    section = re.search(r"^Args:\n((?: .*\n?|\n)+)", doc, re.MULTILINE)
    entries = re.findall(r"^    (\w+): ((?:.*\n?)(?:^     +.*\n?)*)", section[1] if section else "", re.MULTILINE)
    return dict(entries)


def _default(field: dataclasses.Field[object]) -> str:
    if field.default is dataclasses.MISSING:
        return "required" if field.default_factory is dataclasses.MISSING else repr(field.default_factory())
    return repr(field.default)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _models(name: str, model: type[ConfigTable]) -> Iterator[tuple[str, type[ConfigTable]]]:
    """A table of a file and those in it, with their names."""
    yield name, model
    for key, field in model.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, ConfigTable):
                inner = f"{name}.{key}".removeprefix(".") + (".NAME" if str in kinds else "")
                yield from _models(inner, kind)


def _field_docs(model: type[ConfigTable]) -> dict[str, str]:
    """The texts below the fields of a class, and of those that it extends. Pydantic would read the sources for them
    whenever a file is loaded (`use_attribute_docstrings`)."""
    docs = {}
    for kind in reversed(model.__mro__[: model.__mro__.index(ConfigTable)]):
        (body,) = (each.body for each in ast.parse(inspect.getsource(kind)).body if isinstance(each, ast.ClassDef))
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(field.target, ast.Name):
                docs[field.target.id] = ast.literal_eval(text.value)
    return docs


class PipelineFile(SphinxDirective):
    model: type[ConfigTable] = Pipeline

    def run(self) -> list[nodes.Node]:
        lines: list[str] = []
        for table, model in _models("", self.model):
            meanings = _field_docs(model)
            fields = {key: field for key, field in model.model_fields.items() if key in meanings}
            lines += ["", f"**[{table}]**", "", "| key | default | meaning |", "|---|---|---|"] if fields else []
            for key, field in fields.items():
                value = field.get_default(call_default_factory=True)
                default = "required" if field.is_required() else f"`{json.dumps(value)}`"
                lines.append(f"| `{key}` | {default.replace('`null`', '')} | {_cell(meanings[key])} |")
        return self.parse_text_to_nodes("\n".join(lines))


class MirrorFile(PipelineFile):
    model = MirrorConfig


class Metrics(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        lines = ["| metric | labels | meaning |", "|---|---|---|"]
        for name, (text, _) in monitoring.METRICS.items():
            unit = ", `unit`" if name in monitoring.WITH_UNIT else ""
            lines.append(f"| `{monitoring.JOB}_{name}` | `pipeline`, `flow`{unit} | {text} |")
        return self.parse_text_to_nodes("\n".join(lines))


class Commands(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        pages: list[nodes.Node] = []
        groups = {name: command for name, command in cli.commands.items() if isinstance(command, click.Group)}
        verbs = [(f"{name} {verb}", each) for name, group in groups.items() for verb, each in group.commands.items()]
        for name, command in [("", cli), *cli.commands.items(), *verbs]:
            context = click.Context(command, info_name=f"odradek {name}".strip(), max_content_width=100)
            section = nodes.section(ids=[f"odradek-{name}".strip("-").replace(" ", "-")])
            section += nodes.title(text=context.info_name)
            section += nodes.literal_block(text=command.get_help(context), language="none")
            pages.append(section)
        return pages


class OtherClient(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        lines: list[str] = []
        column = ["aiokafka", "kafka-python", "librdkafka"].index(self.arguments[0]) + 1
        for row in Path(odradek.__file__).with_name("other_clients.md").read_text("utf-8").splitlines():
            cells = [cell.strip() for cell in row.strip("|").split("|")]
            if len(cells) < 5 or cells[column]:
                lines.append(row if len(cells) < 5 else f"| {cells[column]} | {cells[0]} | {cells[4]} |")
        return self.parse_text_to_nodes("\n".join(lines))


LEVELS = ("debug", "info", "warning", "error", "critical", "exception")


class Messages(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        root = Path(odradek.__file__).parent
        lines: list[str] = []
        for file in sorted(root.rglob("*.py")):
            texts = list(_messages(ast.parse(file.read_bytes())))
            if texts:
                name = ".".join(file.relative_to(root.parent).with_suffix("").parts)
                lines += ["", f"**{name.removesuffix('.__init__')}**", "", "| kind | text |", "|---|---|"]
                lines += [f"| {kind} | {_code(text)} |" for kind, text in dict.fromkeys(texts)]
        return self.parse_text_to_nodes("\n".join(lines))


def _messages(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The kind (log level or error) and text of each log line and each error that is raised with a text."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=level), args=[text, *_]) if level in LEVELS:
                yield f"log.{level}", _template(text)
            case ast.Raise(exc=ast.Call(func=ast.Name(id=kind) | ast.Attribute(attr=kind), args=[*arguments])):
                texts = [_template(part) for part in arguments if isinstance(part, ast.Constant | ast.JoinedStr)]
                if any(" " in text for text in texts):
                    yield kind, "; ".join(texts)


def _template(text: ast.expr) -> str:
    """The text with a placeholder in braces for every value."""
    match text:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=parts):
            return "".join(_template(part) for part in parts)
    return "{" + ast.unparse(text.value if isinstance(text, ast.FormattedValue) else text) + "}"


def _code(text: str) -> str:
    ticks = "``" if "`" in text else "`"
    return f"{ticks} {_cell(text)} {ticks}" if "`" in text else f"`{_cell(text)}`"


_ATTRIBUTES: dict[str, list[str]] = {}


def _literals(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """The docstrings mark code with single backticks, as Markdown does."""
    lines[:] = [re.sub(r"(?<![`:\w])`([^`]+)`(?!`)", r"``\1``", line) for line in lines]
    if what in ("attribute", "data", "property"):
        _ATTRIBUTES[name] = lines[:]


def _attributes(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Undo what napoleon does to the texts of attributes: it takes words before a colon for a type."""
    lines[:] = _ATTRIBUTES.pop(name, lines)


def _skip(app: Sphinx, what: str, name: str, obj: object, skip: bool, options: object) -> bool | None:
    """Skip fields of named tuples: the section Args of the class describes them."""
    return True if (getattr(obj, "__doc__", "") or "").startswith("Alias for field number") else None


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _literals, priority=400)  # before napoleon splits lines at colons
    app.connect("autodoc-process-docstring", _attributes, priority=600)  # after it
    app.connect("autodoc-skip-member", _skip)
    directives = {
        "machine": Machine,
        "released": Released,
        "errors": Errors,
        "options": Options,
        "pipelinefile": PipelineFile,
        "mirrorfile": MirrorFile,
        "metrics": Metrics,
        "commands": Commands,
        "otherclient": OtherClient,
        "messages": Messages,
    }
    for name, directive in directives.items():
        app.add_directive(name, directive)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
