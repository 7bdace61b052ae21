"""Directives whose text comes from the code itself, so that the pages cannot say something else than it does.

{machine} NAME      a state machine of odradek.core.states, or module:NAME of odradek.core: picture and tables
{released}          the events of the lightweight consumer, and what stands for them in the released protocols
{errors}            every error, its attributes and its docstring
{options} NAME      the fields of a dataclass of odradek (module:class) with defaults and meaning
{commands}          the help of every command
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator

import click
from diagram import draw
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from odradek import errors
from odradek.cli.app import cli
from odradek.core import states
from odradek.core.kafka.lightweight_consumer import RELEASED


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
        lines = ["| error | means | retriable | stale routing | connection closed |", "|---|---|---|---|---|"]
        lines += [_error(getattr(errors, name)) for name in errors.__all__]
        lines += ["", "```{eval-rst}", ".. currentmodule:: odradek", ""]
        for name in errors.__all__:
            lines += [f".. autoexception:: {name}", "   :show-inheritance:", ""]
        return self.parse_text_to_nodes("\n".join([*lines, "```"]))


def _error(kind: type[errors.OdradekError]) -> str:
    meaning = _cell((inspect.getdoc(kind) or "").split("\n\n")[0])
    flags = [kind.retriable, kind.refresh_metadata, kind.fatal_to_connection]
    marks = " | ".join("yes" if flag else "" for flag in flags)
    return f"| {{class}}`~odradek.{kind.__name__}` | {meaning} | {marks} |"


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


class Commands(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        pages: list[nodes.Node] = []
        for name, command in [("", cli), *cli.commands.items()]:
            context = click.Context(command, info_name=f"odradek {name}".strip(), max_content_width=100)
            section = nodes.section(ids=[f"odradek-{name}".strip("-")])
            section += nodes.title(text=context.info_name)
            section += nodes.literal_block(text=command.get_help(context), language="none")
            pages.append(section)
        return pages


def _literals(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """The docstrings mark code with single backticks, as Markdown does."""
    lines[:] = [re.sub(r"(?<![`:\w])`([^`]+)`(?!`)", r"``\1``", line) for line in lines]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _literals, priority=400)  # before napoleon splits lines at colons
    directives = {
        "machine": Machine,
        "released": Released,
        "errors": Errors,
        "options": Options,
        "commands": Commands,
    }
    for name, directive in directives.items():
        app.add_directive(name, directive)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
