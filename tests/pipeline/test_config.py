from __future__ import annotations

from pathlib import Path

import pytest

from odradek.errors import ConfigError
from odradek.pipeline.config import Audit, Pipeline, PipelineFileError, load

SMALL = """
[source]
zookeeper = "zk:2181"

[flows.orders]
topics = ["orders"]
[flows.orders.sink]
path = "tables/orders"
"""

FULL = """
[source]
logs = ["/var/kafka-*/"]
fetchers_per_broker = 1

[run]
checkpoint = "state"
batch_bytes = "128m"
max_bytes = 1000
max_minutes = 50
max_error_percent = 0.1

[flows.events]
pattern = "events_.*"
exclude = ["events_test"]
start = "latest"
data_loss = "skip"
corrupt = "dead"
[flows.events.decode]
kind = "json"
fields = "id bigint, ts bigint"
time = "ts"
time_format = "s"
[flows.events.sink]
kind = "delta"
path = "tables/events"
partition_by = ["topic", "date", "hour"]
zone = "Europe/Berlin"
file_bytes = "1 GiB"
compression = "snappy"
[flows.events.dead]
path = "dead/events"
[flows.events.audit]
bucket_minutes = 5
topic = "audit"
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return tmp_path / "pipeline.toml"


def read(path: Path, text: str) -> Pipeline:
    path.write_text(text, "utf-8")
    return load(path)


def mistakes(path: Path, text: str) -> list[str]:
    with pytest.raises(PipelineFileError) as caught:
        read(path, text)
    assert isinstance(caught.value, ConfigError)
    assert str(caught.value) == "\n".join(caught.value.mistakes)
    return [mistake.removeprefix(str(path)) for mistake in caught.value.mistakes]


def test_a_minimal_file_is_valid(written: Path) -> None:
    pipeline = read(written, SMALL)
    flow = pipeline.flows["orders"]
    assert (flow.decode.kind, flow.sink.kind, flow.start, flow.data_loss) == (
        "raw",
        "parquet",
        "earliest",
        "fail",
    )
    assert flow.sink.partition_by == ["topic", "date"]
    assert flow.audit == Audit()


def test_every_key_is_read(written: Path) -> None:
    pipeline = read(written, FULL)
    assert (pipeline.run.batch_bytes, pipeline.run.max_bytes, pipeline.run.max_minutes) == (
        128 << 20,
        1000,
        50,
    )
    flow = pipeline.flows["events"]
    assert (flow.sink.file_bytes, flow.dead and flow.dead.path, flow.audit.topic) == (
        1 << 30,
        "dead/events",
        "audit",
    )


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            'zookeeper = "zk:2181"',
            "",
            ":2: source: give exactly one of kafka, zookeeper, brokers and logs",
        ),
        (
            'zookeeper = "zk:2181"',
            'zookeper = "zk:2181"',
            ":3: source.zookeper: unknown key; known here: brokers, ",
        ),
        ("[source]", "[sorce]", ":2: sorce: unknown key; known here: flows, run, source"),
        ('topics = ["orders"]', "", ":5: flows.orders: give either topics or pattern"),
        ('topics = ["orders"]', 'pattern = "("', ":6: flows.orders.pattern: not a regular expression"),
        (
            'topics = ["orders"]',
            "topics = 3",
            ":6: flows.orders.topics: Input should be a valid list (it is 3)",
        ),
        ('path = "tables/orders"', "", ":7: flows.orders.sink.path: it is missing"),
        (
            'path = "tables/orders"',
            'path = "t"\nzone = "Mars"',
            ":9: flows.orders.sink.zone: no such time zone",
        ),
        (
            'path = "tables/orders"',
            'path = "t"\nkind = "orc"',
            ":9: flows.orders.sink.kind: Input should be 'parquet'",
        ),
        (
            'path = "tables/orders"',
            'path = "t"\npartition_by = ["date", "date"]',
            ":9: flows.orders.sink.partition_by: a column is named twice",
        ),
        (
            'path = "tables/orders"',
            'path = "t"\nfile_bytes = "big"',
            ":9: flows.orders.sink.file_bytes: a size is",
        ),
        (
            'path = "tables/orders"',
            'path = "t"\nfile_bytes = 0',
            ":9: flows.orders.sink.file_bytes: Input should be",
        ),
        ("flows.orders", "flows.'a b'", ":5: flows: the flow 'a b': a name has letters"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_key(written: Path, old: str, new: str, expected: str) -> None:
    assert old in SMALL
    errors = mistakes(written, SMALL.replace(old, new))
    assert any(each.startswith(expected) for each in errors), errors


def test_all_mistakes_come_at_once_in_the_order_of_the_file(written: Path) -> None:
    text = FULL.replace("128m", "12 parsecs").replace("50", '"long"').replace('"s"', '"year"')
    errors = mistakes(written, text)
    assert [each.split(": ")[1] for each in errors] == [
        "run.batch_bytes",
        "run.max_minutes",
        "flows.events.decode.time_format",
    ]


@pytest.mark.parametrize(
    ("decode", "expected"),
    [
        ('kind = "json"', "kind 'json' needs fields, and no other kind has it"),
        ('kind = "avro"', "kind 'avro' needs schema_file, and no other kind has it"),
        ('fields = "a int"', "kind 'json' needs fields, and no other kind has it"),
        ('time = "ts"', "raw records have no columns to take a time from"),
        ("time_ahead_days = 1", "time_behind_days and time_ahead_days need time"),
        ('kind = "json"\nfields = "a int"', "needs a table [dead] with a path"),
    ],
)
def test_keys_must_fit_together(written: Path, decode: str, expected: str) -> None:
    errors = mistakes(written, f"{SMALL}[flows.orders.decode]\n{decode}\n")
    assert len(errors) == 1
    assert expected in errors[0]


def test_two_flows_do_not_share_a_table(written: Path) -> None:
    other = SMALL[SMALL.index("[flows") :].replace("flows.orders", "flows.more").replace('s/orders"', 's//orders/"')
    (errors,) = mistakes(written, SMALL + other)
    assert "flows 'orders' and 'more' both write to 'tables//orders/'" in errors


def test_a_file_that_cannot_be_read_says_why(written: Path) -> None:
    with pytest.raises(PipelineFileError, match=r"pipeline\.toml: No such file"):
        load(written)
    assert mistakes(written, "[source\n") == [
        ": not TOML: Expected ']' at the end of a table declaration (at line 1, column 8)"
    ]
    written.write_bytes(b'a = "\xff"')
    with pytest.raises(PipelineFileError, match="not UTF-8"):
        load(written)
