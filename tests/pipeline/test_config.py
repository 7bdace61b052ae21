from __future__ import annotations

from pathlib import Path

import pytest

from odradek.errors import ConfigError, MessageTooLarge
from odradek.pipeline import monitoring
from odradek.pipeline.config import Pipeline, PipelineFileError, load
from odradek.pipeline.flow import open_flow
from odradek.pipeline.source import LogReader, cluster_url, read_request
from odradek.ranges.planning import Range
from odradek.types import TopicPartition
from odradek.wire.kafka07.message_set import encode_set

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
state = "state"
batch_bytes = "128m"
max_bytes = 1000
max_minutes = 50
max_error_percent = 0.1
prometheus_file = "odradek.prom"
openlineage = { type = "http", url = "http://127.0.0.1:8080" }

[flows.events]
pattern = "events_.*"
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
        "delta",
        "earliest",
        "fail",
    )
    assert flow.sink.partition_by == ["topic", "date"]


def test_every_key_is_read(written: Path) -> None:
    pipeline = read(written, FULL)
    assert (pipeline.run.batch_bytes, pipeline.run.max_bytes, pipeline.run.max_minutes) == (
        128 << 20,
        1000,
        50,
    )
    flow = pipeline.flows["events"]
    assert (flow.sink.file_bytes, flow.dead and flow.dead.path) == (1 << 30, str(written.parent / "dead" / "events"))
    assert pipeline.run.prometheus_file == str(written.parent / "odradek.prom")
    assert pipeline.run.openlineage == {"type": "http", "url": "http://127.0.0.1:8080"}


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
            ":9: flows.orders.sink.kind: Input should be 'delta' or 'iceberg'",
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
        ("flows.orders", "flows.'a b'", ":5: flows.a b: a name has letters"),
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
        ('kind = "json"', "kind 'json' needs fields"),
        ('kind = "avro"', "kind 'avro' needs schema_file"),
        ('fields = "a int"', "kind 'raw' has no fields"),
        ('kind = "protobuf"\nmessage = "a.B"', "kind 'protobuf' needs descriptors"),
        ('kind = "confluent"\nschema_file = "a"', "kind 'confluent' needs registry"),
        ('kind = "json"\nfields = "a bigin"', "at character 3: unknown type 'bigin'; did you mean bigint?"),
        ('time = "ts"', "raw records have no columns to take a time from"),
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
    assert f"flows 'orders' and 'more' both write to '{written.parent}/tables/orders'" in errors


def test_a_table_is_not_inside_another_one(written: Path) -> None:
    text = SMALL + '[flows.orders.dead]\npath = "tables/orders/dead"\n'
    assert any("are inside one another" in each for each in mistakes(written, text))


def test_a_file_that_cannot_be_read_says_why(written: Path) -> None:
    with pytest.raises(PipelineFileError, match=r"pipeline\.toml: No such file"):
        load(written)
    assert mistakes(written, "[source\n") == [":1: not TOML: Expected ']' at the end of a table declaration"]
    written.write_bytes(b'a = "\xff"')
    with pytest.raises(PipelineFileError, match="not UTF-8"):
        load(written)


def test_paths_start_from_the_directory_of_the_file(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written.parent
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    text = SMALL.replace('zookeeper = "zk:2181"', 'logs = ["1@kafka-logs", "/var/kafka-*"]')
    pipeline = read(written, text)
    assert pipeline.flows["orders"].sink.path == str(folder / "tables" / "orders")
    assert pipeline.run.state == str(folder / ".odradek")
    assert pipeline.source.logs == [f"1@{folder / 'kafka-logs'}", "/var/kafka-*"]


@pytest.mark.parametrize(
    ("path", "kind", "expected"),
    [
        ("s3://bucket/orders/", "delta", "s3://bucket/orders"),
        ("s3://bucket/orders", "iceberg", "s3://bucket/orders"),
        ("file:///data/my%20orders", "delta", "/data/my orders"),
        ("/data/orders", "iceberg", "/data/orders"),
    ],
)
def test_tables_are_at_paths_and_urls(written: Path, path: str, kind: str, expected: str) -> None:
    text = SMALL.replace('path = "tables/orders"', f'kind = "{kind}"\npath = "{path}"')
    assert read(written, text).flows["orders"].sink.path == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("hdfs://namenode/orders", "delta tables cannot be at hdfs:; use a path, or one of abfs://, abfss://, adl://"),
        ("s4://bucket/orders", "delta tables cannot be at s4:"),
        ("s3:bucket/orders", "the URL has no bucket, as in s3://bucket/orders"),
        ("file://host/orders", "a file URL has an absolute path"),
    ],
)
def test_an_unknown_scheme_is_refused(written: Path, path: str, expected: str) -> None:
    (error,) = mistakes(written, SMALL.replace("tables/orders", path))
    assert error.startswith(":8: flows.orders.sink.path: ") and expected in error


@pytest.mark.parametrize(
    ("sink", "expected"),
    [
        ('partition_by = ["bucket(4, user)"]', "Delta tables have no transforms"),
        ('partition_by = ["year(time)"]', "expected a column, bucket(16, column) or truncate(4, column)"),
        ('table = "a.b"', "table and catalog are for kind = 'iceberg'"),
        ('kind = "iceberg"\nlast_by = ["key"]', "pyiceberg cannot merge a batch in one commit"),
        ('last_by = ["key"]\nunique = { field = "id", hours = 1.0 }', "use either last_by or unique"),
        ('kind = "iceberg"\ntable = "orders"', "a table's identifier is `namespace.name`"),
        ('kind = "iceberg"\nzone = "Europe/Berlin"', "Iceberg's days and hours are those of UTC"),
    ],
)
def test_a_format_is_asked_for_what_it_has(written: Path, sink: str, expected: str) -> None:
    text = SMALL.replace('path = "tables/orders"', f'{sink}\npath = "t"')
    assert any(expected in each for each in mistakes(written, text))


def test_lines_are_found_in_every_way_to_write_keys(written: Path) -> None:
    text = """# comment

source.zookeeper = "zk:2181"
[flows]
[flows.orders]
decode.kind = "nothing"
topics = [
    "a",  # with a comment
    "b",
]

sink = { path = "t", zone = "Mars" }
"""
    errors = mistakes(written, text)
    assert [each.split(": ")[0] for each in errors] == [":6", ":12"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('zookeeper = "localhost:2181//x"', "source.zookeeper: invalid chroot //x"),
        ('zookeeper = "a:b"', "source.zookeeper: invalid ZooKeeper server 'a:b'"),
        ('brokers = "a:9092"', "source.brokers: each broker needs its id, as in 1@host:9092"),
        ('brokers = "1@a:99999999"', "source.brokers: invalid broker '1@a:99999999'"),
        ('logs = ["1@"]', "source.logs: a log directory is [id@]path"),
        ('kafka = "kafka07://1@a:9092"', "source.kafka: a cluster of 0.7 is named by zookeeper or brokers"),
        ('kafka = "kafka://a:x"', "source.kafka: invalid broker 'a:x'"),
    ],
)
def test_a_mistake_of_the_source_has_its_line_and_the_key_of_the_file(written: Path, line: str, expected: str) -> None:
    (mistake,) = mistakes(written, SMALL.replace('zookeeper = "zk:2181"', line))
    assert mistake.startswith(f":3: {expected}")
    assert "option" not in mistake


def test_log_directories_that_there_are_not_are_a_mistake_of_their_key(written: Path) -> None:
    pipeline = read(written, SMALL.replace('zookeeper = "zk:2181"', 'logs = ["nowhere"]'))
    with pytest.raises(ConfigError) as caught:
        open_flow(pipeline, "orders")
    assert str(caught.value) == f"{written}:3: source.logs: '{written.parent}/nowhere': no such file or directory"


def write_segment(directory: Path, start: int, *values: bytes) -> int:
    """Write a segment; return where it ends."""
    directory.mkdir(parents=True, exist_ok=True)
    data = encode_set(list(values))
    (directory / f"{start:020}.kafka").write_bytes(data)
    return start + len(data)


def test_directories_of_one_partition_are_a_mistake_of_their_key(written: Path) -> None:
    for name in "ab":
        write_segment(written.parent / name / "orders-0", 0, b"v")
    pipeline = read(written, SMALL.replace('zookeeper = "zk:2181"', 'logs = ["a", "b"]'))
    with pytest.raises(ConfigError) as caught:
        open_flow(pipeline, "orders")
    assert str(caught.value).startswith(f"{written}:3: source.logs: orders/0 is both {written.parent}/a/orders-0 and ")


def test_a_hole_in_a_log_directory_names_the_key_that_accepts_it(written: Path) -> None:
    end = write_segment(written.parent / "a" / "orders-0", 0, b"v")
    write_segment(written.parent / "a" / "orders-0", end + 7, b"v")
    text = SMALL.replace('zookeeper = "zk:2181"', 'logs = ["a"]')
    with pytest.raises(ConfigError, match=r'\(data_loss = "skip" reads the rest\)'):
        open_flow(read(written, text), "orders")
    accepted = open_flow(read(written, text.replace("[flows.orders]", '[flows.orders]\ndata_loss = "skip"')), "orders")
    assert [log.earliest for log in accepted.backlog] == [end + 7]


@pytest.mark.parametrize(("line", "at"), [("max_message_bytes = 300", 4), ("", 2)])
def test_a_message_that_is_too_large_names_the_key_of_the_limit(written: Path, line: str, at: int) -> None:
    size = 400 if line else 1_000_001
    end = write_segment(written.parent / "a" / "orders-0", 0, bytes(size))
    pipeline = read(written, SMALL.replace('zookeeper = "zk:2181"', f'logs = ["a"]\n{line}'))
    partition = TopicPartition("orders", 0)
    reader = LogReader(pipeline, [partition])
    reader.extents()
    with pytest.raises(MessageTooLarge) as caught:
        list(reader.read([Range(partition, 0, end)]))
    assert str(caught.value).endswith(f"(raise {written}:{at}: source.max_message_bytes)")


SECRET = "s3cr3t"


@pytest.mark.parametrize(
    "text",
    [
        SMALL.replace('zookeeper = "zk', f'kafka = "kafka+sasl://me:{SECRET}@zk'),
        SMALL.replace('zookeeper = "zk', f'kafka = "me:{SECRET}@zk'),
        SMALL.replace('"zk:2181"', f'"me:{SECRET}@zk:x"'),
        SMALL.replace('"zk:2181"', f'"me:a/{SECRET}@zk:2181"'),
        SMALL.replace('"zk:2181"', f'"{SECRET}@zk:2181"'),
        SMALL.replace('zookeeper = "zk', f'brokers = "me:{SECRET}@zk'),
        SMALL.replace("[source]\nzookeeper", f'source = "kafka+sasl://me:{SECRET}@zk"\n[sourc]\nzookeeper'),
        SMALL.replace('"zk:2181"', f'"zk:2181"\nzookeeper = "me:{SECRET}@zk:2181"'),
        SMALL.replace('"zk:2181"', f"{SECRET}@zk:2181"),
        SMALL + f'options = "{SECRET}"\n',
        SMALL + f"options = {{ AWS_SECRET_ACCESS_KEY = ['{SECRET}'] }}\n",
        SMALL + f'kind = "iceberg"\ncatalog = "postgresql://me:{SECRET}@host/db"\n',
        SMALL + f'[flows.orders.decode]\nkind = "confluent"\nregistry = "http://me:{SECRET}@host"\n',
        f'{SMALL}[run]\nopenlineage = "{SECRET}"\n',
    ],
)
def test_no_mistake_has_a_secret(written: Path, text: str) -> None:
    errors = mistakes(written, text)
    assert errors and SECRET not in "".join(errors)


def test_no_repr_and_no_lineage_has_a_secret(written: Path) -> None:
    text = (
        SMALL.replace('"zk:2181"', f'"me:{SECRET}@zk:2181"') + f'options = {{ AWS_SECRET_ACCESS_KEY = "{SECRET}" }}\n'
    )
    pipeline = read(written, text)
    assert cluster_url(pipeline) == f"kafka07+zk://me:{SECRET}@zk:2181"
    assert SECRET not in repr(pipeline) and SECRET not in repr(read_request(pipeline, "orders"))
    assert monitoring._namespace(pipeline.source) == "zookeeper://zk:2181"


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ('path = "u"\n', 9),
        ("[flows.orders]\n", 9),
        ('[flows.orders.dead]\npath = "d"\n\n[flows.orders.sink]\n', 12),
        ('sink.path = "u"\n[flows.orders]\ntopics = ["b"]\n', 10),
    ],
)
def test_a_key_that_comes_twice_is_named_with_its_line(written: Path, more: str, line: int) -> None:
    assert mistakes(written, SMALL + more) == [f":{line}: the file has this key or table already: each comes once"]
