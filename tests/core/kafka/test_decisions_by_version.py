"""What a request or response can have is decided by its version, in `core/kafka/versions.py`, and not by what is known.

Releases differ by one message at a time: 2.8 to 3.0 have topic ids in Metadata and not in Fetch, 2.1 to 2.3 have leader
epochs in Metadata that cannot be relied on. Code that asks "is the id known?" takes one message for the other. So each
comparison of an id or an epoch with the value that means "none" is listed here, with the reason why it decides nothing
about a feature.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src" / "odradek"
FOLDERS = ("core/kafka", "io/kafka", "client")
DECIDES = "core/kafka/versions.py"

ALLOWED = {
    "client/consumer/fetcher.py compare_topic": "an id that is not known says nothing about which topic it is",
    "client/consumer/reader.py _check_topics_of": "an end without an id is one in the topic of today",
    "client/consumer/reader.py _as_json": "how a bookmark without an id is written down",
    "client/consumer/reader.py _resolve": "a bookmark without an id is taken for one in the topic of today",
    "client/consumer/reader.py _positions_in_present_topics": "a position without an id is one in the topic of today",
    "core/kafka/admin_topics.py id_text": "shows an id to the user: None where the broker has sent none",
    "core/kafka/admin_transactions.py abort_request": "without a marker of a producer there is no epoch to compare",
    "core/kafka/consumer_group_member.py _tried_to_leave": "the epoch of a member that leaves is -1 or -2 (KIP-848)",
    "core/kafka/fetch_results.py fetch_step": "a broker names a diverging epoch where the log has diverged",
    "io/kafka/fetch_exchange.py position": "a leader whose epoch is not known may have another log than the last one",
    "io/kafka/log_decoder.py __init__": "the epoch of a record that was read says more than that of a leader",
    "io/kafka/log_decoder.py forget_start_epoch": "an epoch that was not sent is not what a log lacks",
    "core/kafka/leader_epochs.py to_commit": "the epoch of a record that was read says more than that of a leader",
    "core/kafka/metrics_push.py _subscribe": "a broker need not repeat the id that it gave to this client",
    "core/kafka/routing_snapshot.py topic_id": "shows an id to the client: None where no broker has sent one",
    "core/kafka/routing.py apply": "of a topic without an id that is gone there is nothing to be remembered",
    "core/kafka/routing.py _is_recreated": "an id that no broker has named yet is not another one",
    "core/kafka/routing.py _newer": "an epoch that no broker has named is neither newer nor older",
    "core/kafka/routing.py _topic": "the answer of a broker of another release, during an upgrade, keeps what is known",
    "io/kafka/broker_client.py _parts": "a position from before brokers had ids is taken for one in the topic of today",
    "io/kafka/epoch_check.py exclude_truncated": "records of formats 0 and 1 have no epoch to be compared",
    "io/kafka/producer_sequences.py identify": "an id that a broker must not give",
}
"""Functions that compare with "none" once, and why that is no decision about a feature."""

NONE = ("ZERO_UUID", "NO_EPOCH")


def name_of(node: ast.expr) -> str:
    """Return the last name of a variable, attribute or call."""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return node.attr
        case ast.Call():
            return name_of(node.func)
    return ""


def parts(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the operands of a comparison, those of collections one by one."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        for item in node.elts:
            yield from parts(item)
    else:
        yield node


def is_about(name: str) -> bool:
    """Return True for the names of ids and epochs; `new_epoch` and `leader_epochs` are flags."""
    if name.endswith("new_epoch"):
        return False
    return name in ("epoch", "ids") or name.endswith(("_epoch", "topic_id", "topic_ids"))


def means_none(node: ast.expr) -> bool:
    """Return True for the values that stand for "none", and for those next to them: `>= 0` is `!= -1`."""
    if name_of(node) in NONE:
        return True
    return ast.unparse(node) in ("-1", "0", "None", "bytes(16)")


def conditions(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions whose truth a node asks for."""
    match node:
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) | ast.Assert(test=test):
            yield test
        case ast.BoolOp(values=values):
            yield from values
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.comprehension(ifs=ifs):
            yield from ifs
        case ast.Call(func=ast.Name(id="bool" | "all" | "any"), args=[argument, *_]):
            yield argument


def decides(node: ast.AST) -> bool:
    """Return True if an id or an epoch is asked whether it is known."""
    if isinstance(node, ast.Compare):
        operands = [part for each in (node.left, *node.comparators) for part in parts(each)]
        if any(name_of(part) in NONE for part in operands):
            return True
        return any(is_about(name_of(part)) for part in operands) and any(map(means_none, operands))
    return any(is_about(name_of(test)) for test in conditions(node) if not isinstance(test, ast.Call))


def decisions(tree: ast.AST, function: str = "") -> Iterator[tuple[str, str]]:
    """Yield the function and the code of each decision by what is known."""
    for node in ast.iter_child_nodes(tree):
        inside = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if decides(node):
            yield inside, ast.unparse(node)
        yield from decisions(node, inside)


def all_decisions() -> dict[str, list[str]]:
    """Return all decisions by what is known: function -> their code."""
    by_function: dict[str, list[str]] = {}
    for file in (file for folder in FOLDERS for file in sorted((SOURCE / folder).rglob("*.py"))):
        name = file.relative_to(SOURCE).as_posix()
        for function, code in decisions(ast.parse(file.read_text("utf-8"))) if name != DECIDES else ():
            by_function.setdefault(f"{name} {function}", []).append(code)
    return by_function


def test_nothing_is_decided_by_what_is_known_of_ids_and_epochs() -> None:
    refused = {where: codes for where, codes in all_decisions().items() if where not in ALLOWED or len(codes) > 1}
    assert not refused, "ask the version of the request or response (core/kafka/versions.py), or say why in ALLOWED"


def test_every_exception_is_still_needed() -> None:
    assert ALLOWED.keys() <= all_decisions().keys()


@pytest.mark.parametrize(
    "code",
    [
        "x = all(p.topic_id != ZERO_UUID for p in parts)",
        "x = ZERO_UUID not in ids.values()",
        "x = bool(ids)",
        "if self.topic_ids: pass",
        "x = name if not topic.topic_id else None",
        "x = topic.topic_id or default",
        "x = [p for p in parts if p.topic_id]",
        "if where.leader_epoch >= 0: pass",
        "if epoch == -1: pass",
        "if NO_EPOCH in (a, b): pass",
        "while partition.leader_epoch > NO_EPOCH: pass",
        "x = schema.ZERO_UUID == topic_id",
        "x = a if leader_epoch is None else b",
    ],
)
def test_a_decision_by_what_is_known_is_found(code: str) -> None:
    assert list(decisions(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "if versions.names_topics_by_id(FetchRequest, topic_ids): pass",
        "if versions.has_leader_epochs: pass",
        "x = epoch if leader_epochs else NO_EPOCH",
        "x = epoch <= leader_epoch",
        "x = topic_id in names",
        "x = before.topic_id != after.topic_id",
        "x = NO_EPOCH if known is None else known.leader_epoch",
        "epoch = -1",
    ],
)
def test_other_uses_are_not(code: str) -> None:
    assert not list(decisions(ast.parse(code)))
