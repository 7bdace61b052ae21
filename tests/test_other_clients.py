"""The options of other clients: the table that their users read, and that errors quote, is complete."""

from __future__ import annotations

import ctypes
import importlib
import inspect
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.io.kafka.librdkafka import load_library

import odradek as od
from odradek import arguments
from odradek.testing import MemoryCluster

TABLE = Path(od.__file__).with_name("other_clients.md")
CLIENTS = ["aiokafka", "kafka-python", "librdkafka"]
OF_CONFLUENT = """
error_cb stats_cb throttle_cb oauth_cb on_commit logger
key.serializer value.serializer key.deserializer value.deserializer
key.serializer.builder value.serializer.builder key.deserializer.builder value.deserializer.builder
"""
"""What confluent-kafka takes besides librdkafka's options; its C module does not list them."""


def rows() -> Iterator[list[str]]:
    """What it is called here, the names in each of the three clients, and what differs."""
    for line in TABLE.read_text("utf-8").splitlines():
        if line.startswith("| ") and not line.startswith("| here"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(cells) == 5, line
            yield cells


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def options_of_librdkafka(folder: Path) -> set[str]:
    """The options of the installed one, as it prints them."""
    library, c, file = load_library(), ctypes.CDLL(None), folder / "options"
    c.fopen.restype, c.fopen.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_char_p]
    c.fclose.argtypes = library.rd_kafka_conf_properties_show.argtypes = [ctypes.c_void_p]
    library.rd_kafka_conf_properties_show.restype = None
    stream = c.fopen(bytes(file), b"w")
    library.rd_kafka_conf_properties_show(stream)
    c.fclose(stream)
    return set(re.findall(r"^([a-z_.]+) +\|", file.read_text("utf-8"), re.MULTILINE))


def options_of(client: str, folder: Path) -> set[str]:
    """The options that the installed client takes."""
    if client == "kafka-python":
        with warnings.catch_warnings():  # of its own imports
            warnings.simplefilter("ignore")
            kafka: Any = importlib.import_module("kafka")
        return {*kafka.KafkaProducer.DEFAULT_CONFIG, *kafka.KafkaConsumer.DEFAULT_CONFIG}
    if client == "librdkafka":
        return options_of_librdkafka(folder) | set(OF_CONFLUENT.split())
    aiokafka: Any = importlib.import_module("aiokafka")
    signatures = map(inspect.signature, (aiokafka.AIOKafkaProducer, aiokafka.AIOKafkaConsumer))
    return {name for each in signatures for name in each.parameters} - {"topics"}


@pytest.mark.parametrize("client", CLIENTS)
def test_every_option_that_the_installed_client_takes_is_in_the_table_and_no_other(client: str, tmp_path: Path) -> None:
    column = 1 + CLIENTS.index(client)
    listed = {name for row in rows() for name in names(row[column])}
    assert len(listed) > 40
    assert listed == options_of(client, tmp_path)


def exists(name: str) -> bool:
    """Whether `producer(acks)`, `Tuning.in_flight` or another name of ours exists."""
    called = re.fullmatch(r"([\w.]+)\((\w+)\)", name)
    if called is None:
        outer, _, inner = name.partition(".")
        return inner in inspect.signature(getattr(od, outer)).parameters or hasattr(getattr(od, outer), inner)
    function = od.connect if called[1] == "connect" else _method(called[1])
    return called[2] in inspect.signature(function).parameters


def _method(name: str) -> Any:
    owner, _, method = name.rpartition(".")
    return getattr(getattr(od, owner or "Cluster"), method)


def test_every_name_of_ours_in_the_table_exists() -> None:
    elsewhere = {"anyio.move_on_after", "ssl.SSLContext", "odradek"}
    ours = {name for row in rows() for name in names(row[0])} - elsewhere
    assert len(ours) > 50
    assert sorted(name for name in ours if not exists(name)) == []


def test_every_option_of_another_client_is_named_as_it_is_here() -> None:
    here: dict[str, str] = {}
    for row in rows():
        for name in (name for cell in row[1:4] for name in names(cell)):
            here.setdefault(name.replace(".", "_"), row[0].replace("`", ""))
    assert len(here) > 200
    assert {name: arguments.name_here(name) for name in here} == {name: f" (here: {own})" for name, own in here.items()}


@pytest.mark.parametrize(
    ("make", "option", "said"),
    [
        (
            "producer",
            {"linger_ms": 5},
            "unknown option 'linger_ms' (here: producer(latency), in s); choose from latency",
        ),
        ("producer", {"linger.ms": 5}, "(here: producer(latency), in s)"),
        ("producer", {"bootstrap_servers": "a:1"}, "(here: connect(url))"),
        ("producer", {"compression_type": "gzip"}, "(here: producer(compression))"),
        ("consumer", {"group_id": "g"}, "(here: consumer(group))"),
        ("consumer", {"group": "g", "auto_offset_reset": "earliest"}, "(here: consumer(start))"),
        ("consumer", {"group": "g", "max_poll_interval_ms": 1}, "(here: nothing to set)"),
        ("consumer", {"group": "g", "start": "earliest"}, "start must be od.EARLIEST, not str 'earliest'"),
        ("consumer", {"group": "g", "start": "latest"}, "start must be od.LATEST, not str 'latest'"),
        ("consumer", {"group": "g", "nonsense": 1}, "unknown option 'nonsense'; choose from group"),
        ("share_consumer", {"group": "g", "share.acknowledgement.mode": "x"}, "(here: share_consumer(acknowledge))"),
    ],
)
def test_an_error_says_what_to_write_instead(make: str, option: dict[str, object], said: str) -> None:
    cluster = MemoryCluster().connect()
    topics = [] if make == "producer" else ["t"]
    with pytest.raises(TypeError) as caught:
        getattr(cluster, make)(*topics, **option)
    assert said in str(caught.value)


def test_brokers_alone_are_a_url() -> None:
    assert repr(od.connect("localhost:9092")) == repr(od.connect("kafka://localhost:9092"))
    with pytest.raises(od.ConfigError, match=r"no scheme; it is .* or kafka\[\+sasl\]\[\+ssl\]://broker1"):
        od.connect("localhost")
