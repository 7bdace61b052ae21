"""The commands against old brokers: mostly one of 0.8.2, which has no groups and no administration."""

from __future__ import annotations

import pytest

from odradek.cli.app import run
from odradek.testing import KafkaBroker

from ..conftest import Command, jsons
from .conftest import Run

pytestmark = [pytest.mark.releases("0.8.2.2"), pytest.mark.timeout(300)]


@pytest.fixture
def default_broker(any_kafka: KafkaBroker) -> KafkaBroker:
    return any_kafka


@pytest.fixture
def created(any_kafka: KafkaBroker, cluster: str, topic: str) -> str:
    """A topic with one partition."""
    any_kafka.create_topic(topic, 1)
    return topic


@pytest.mark.parametrize(
    ("command", "needs"),
    [
        ("topic delete {topic}", "Kafka 0.10.1"),
        ("group delete {topic}", "Kafka 1.1"),
        ("cluster elect", "Kafka 2.2"),
        ("cluster elect {topic}", "Kafka 2.2"),
    ],
)
def test_what_brokers_cannot_do_is_not_announced_by_a_dry_run(
    call: Run, created: str, command: str, needs: str
) -> None:
    code, output, errors = call(*command.format(topic=created).split())
    assert (code, output) == (1, "") and f"is not supported here: it needs {needs}" in errors


def test_a_dry_run_says_that_a_position_cannot_be_deleted(call: Run, created: str) -> None:
    assert call("seek", created, "--topic", created, "--to", "end", "--apply")[0] == 0
    for options in ([], ["--apply"], ["--json"], ["--json", "--apply"]):
        code, output, errors = call("seek", created, "--to", "none", *options)
        assert (code, output) == (1, "") and "needs Kafka 2.4" in errors and "add --apply" not in errors


def test_a_position_is_undone_only_by_another_one(call: Run, created: str) -> None:
    seek = ("seek", created, "--topic", created, "--apply", "--to")
    code, output, errors = call(*seek, "0")
    assert code == 0 and "undo: " not in output and "cannot be undone" in errors and "needs Kafka 2.4" in errors
    code, output, errors = call(*seek, "end")
    assert code == 0 and f"undo: odradek seek {created} --to {created}/0=0 --apply" in output and not errors


def test_headers_that_records_do_not_have_cannot_be_chosen(call: Run, created: str) -> None:
    code, output, errors = call("cat", created, "--header", "h")
    assert (code, output) == (1, "") and "--header is not supported here: it needs Kafka 0.11" in errors


def test_whether_a_broker_is_the_controller_is_not_known(odradek: Command, created: str) -> None:
    (row,) = jsons(odradek("cluster", "describe", "--json"))
    assert row["controller"] is None


def test_the_doctor_says_what_it_could_not_ask_and_only_then_that_it_was_asked(call: Run, created: str) -> None:
    code, output, errors = call("doctor", "--topic", created, "--seconds", "1")
    assert (code, output.split("checked: ")[1]) == (
        0,
        f"servers of the URL, advertised addresses, partitions, topic {created}\n",
    )
    assert "not checked: transactions: " in errors


def test_a_group_without_positions_is_missing_although_members_are_not_known(call: Run, created: str) -> None:
    code, output, errors = call("doctor", "--group", created, "--seconds", "1")
    assert code == 1 and f"error: group-missing\n  {created} has no positions\n" in output
    assert "not checked: members of the group: describing a group is not supported here" in errors


@pytest.mark.releases("0.10.1.1")
def test_a_created_topic_has_the_numbers_that_were_asked_for(odradek: Command, topic: str) -> None:
    assert jsons(odradek("topic", "create", topic, "-p", "2", "-r", "1", "--json")) == [
        {"topic": topic, "partitions": 2, "replicas": 1}
    ]


@pytest.mark.slow
def test_a_group_without_members_that_is_not_described_can_have_positions(capfd: pytest.CaptureFixture[str]) -> None:
    with KafkaBroker("0.9.0.1") as broker:
        broker.create_topic("t", 1)
        url = ("-b", f"kafka://{broker.bootstrap}")
        assert run(["group", "describe", "g", *url]) == 1
        printed = capfd.readouterr()
        assert printed.out == "" and "group 'g': no such group" in printed.err
        assert run(["seek", "g", "--topic", "t", "--to", "end", "--apply", *url]) == 0
        capfd.readouterr()
        assert run(["group", "describe", "g", *url]) == 1
        printed = capfd.readouterr()
        assert printed.out == "" and "`odradek lag g` prints its positions" in printed.err
