"""The values of a pipeline file, checked.

    [source]
    zookeeper = "zk1:2181,zk2:2181/kafka"

    [flows.orders]
    topics = ["orders"]
    [flows.orders.decode]
    kind = "json"
    fields = "id bigint, user string"
    time = "ts"
    [flows.orders.sink]
    path = "tables/orders"
    partition_by = ["date", "hour"]

Relative paths start from the directory of the file.

The models below are the reference: the text below each field gives its meaning and unit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    Field,
    ValidationInfo,
    model_validator,
)

from odradek.client.connect import connect
from odradek.config_file import ConfigFile, ConfigFileError, ConfigTable, RegularExpression, Size, parsed, read
from odradek.core.interfaces import RECORDS
from odradek.errors import ConfigError
from odradek.io.drivers import zookeeper_url
from odradek.pipeline.decode import Decoding, Kind, parse_ddl
from odradek.pipeline.layout import PartitionColumn, parse_columns, resolve_location
from odradek.ranges.directories import unit_of_directories
from odradek.ranges.request import Directory, numbered_brokers_url, parse_directory

__all__ = ["ConfigTable", "Flow", "Pipeline", "PipelineFileError", "SourceConfig", "load"]


# ---- values; a ConfigError, which is a ValueError, is a mistake of the key -----------------------------------


def _folder(info: ValidationInfo) -> Path:
    """Return the directory that relative paths start from."""
    return Path((info.context or {}).get("folder", ""))


def _absolute(path: str, info: ValidationInfo) -> str:
    return str((_folder(info) / path).absolute())


def _log_directory(text: str, info: ValidationInfo) -> str:
    *broker, path = re.split(r"^([0-9]{1,9}@)", text)
    if not path:
        raise ValueError("a log directory is [id@]path")
    return "".join(broker) + _absolute(path, info)


def _location(path: str, info: ValidationInfo) -> str:
    return resolve_location(path, info.data.get("kind", "delta"), _folder(info))


def _columns(columns: list[str], info: ValidationInfo) -> list[str]:
    parse_columns(columns, info.data.get("kind", "delta"))
    return columns


# `connect` opens nothing. Addresses may have credentials: they are in no repr, and in no mistake.
KafkaUrl: TypeAlias = Annotated[
    str,
    parsed(re.compile("kafka[:+]").match, "a cluster of 0.7 is named by zookeeper or brokers"),
    parsed(re.compile("[^@]*").fullmatch, "no user here: ODRADEK_SASL_USERNAME and ODRADEK_SASL_PASSWORD have it"),
    parsed(connect),
]
ZooKeeperAddress: TypeAlias = Annotated[str, parsed(lambda text: connect(zookeeper_url(text)))]
BrokerList: TypeAlias = Annotated[str, parsed(lambda text: connect(numbered_brokers_url(text)))]
File: TypeAlias = Annotated[str, AfterValidator(_absolute)]
Location: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(_location)]
TableName: TypeAlias = Annotated[
    str, parsed(re.compile(r"\w[\w-]*(\.\w[\w-]*)+").fullmatch, "a table's identifier is `namespace.name`")
]
FlowName: TypeAlias = Annotated[
    str, parsed(re.compile(r"[\w-]{1,64}", re.ASCII).fullmatch, "a name has letters, digits, _ and -, at most 64")
]


class PipelineFileError(ConfigFileError):
    """The pipeline file has mistakes."""


# ---- the file ------------------------------------------------------------------------------------------------


class SourceConfig(ConfigTable):
    """The source of the flows: exactly one of the four."""

    kafka: KafkaUrl | None = Field(default=None, repr=False)
    """`kafka://host:port,...` of a cluster of 0.8 or later, also with `+ssl` and `+sasl`; secrets come from the
    environment (`ODRADEK_SASL_PASSWORD`)"""
    zookeeper: ZooKeeperAddress | None = Field(default=None, repr=False)
    """`host:port,host:port/chroot` of a 0.7 cluster"""
    brokers: BrokerList | None = Field(default=None, repr=False)
    """`id@host:port,...` of a 0.7 cluster without ZooKeeper"""
    logs: list[Annotated[str, AfterValidator(_log_directory)]] | None = None
    """log directories of 0.7 or later, read without a broker; globs are allowed"""
    fetchers_per_broker: int = Field(default=2, ge=1)
    """maximum number of tasks that read from one broker at the same time"""
    max_message_bytes: Size = Field(default=1_000_000, le=1 << 30)
    """size of the largest message: as the brokers' `max.message.size`; with `kafka` 64 MiB by default"""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(location is not None for location in (self.kafka, self.zookeeper, self.brokers, self.logs)) != 1:
            raise ValueError("give exactly one of kafka, zookeeper, brokers and logs")
        return self

    @cached_property
    def directories(self) -> tuple[Directory, ...]:
        """The log directories; none if the source is a cluster."""
        return tuple(filter(None, map(parse_directory, self.logs or ())))

    @cached_property
    def counts_records(self) -> bool:
        """True if positions are offsets: in clusters of 0.8 and later, and in directories with their logs."""
        return self.kafka is not None or (self.logs is not None and unit_of_directories(self.directories) is RECORDS)


class RunConfig(ConfigTable):
    """Limits and settings of a run."""

    state: File = Field(default=".odradek", validate_default=True)
    """directory for the reports of the newest 200 runs, and for what is remembered of each table"""
    batch_bytes: Size = 1 << 30
    """maximum bytes of log in one batch, that is in one commit"""
    max_bytes: Size | None = None
    """end the run after this many bytes of log; the next run continues"""
    batch_records: int = Field(default=5_000_000, gt=0)
    """the same as `batch_bytes`, for sources of 0.8 and later: maximum records in one batch"""
    max_records: int | None = Field(default=None, gt=0)
    """the same as `max_bytes`, for sources of 0.8 and later: end the run after this many records"""
    max_minutes: float | None = Field(default=None, gt=0)
    """end the run after the batch in which this time passes (min)"""
    max_error_percent: float = Field(default=0.0, ge=0, le=100)
    """a batch with a larger share of dead records is not committed (percent)"""
    prometheus_file: Annotated[str, Field(pattern=r"\.prom$"), AfterValidator(_absolute)] | None = None
    """write the metrics of runs to this file, for node_exporter's textfile collector: `NAME.prom`"""
    openlineage: dict[str, Any] | None = Field(default=None, repr=False)
    """send lineage of runs there: the transport, as openlineage-python configures it, such as
    `{ type = "http", url = "http://host:5000" }`"""


DECODE_KEYS = ("fields", "schema_file", "descriptors", "message", "registry")

DECODE_KINDS: Mapping[Kind, tuple[set[str], set[str]]] = {
    "raw": (set(), set()),
    "json": ({"fields"}, set()),
    "avro": ({"schema_file"}, set()),
    "protobuf": ({"descriptors", "message"}, {"fields"}),
    "confluent": ({"registry"}, {"fields", "schema_file", "descriptors", "message"}),
}
"""Kind -> the keys that it needs, and those that it may have."""


class Decode(ConfigTable):
    """The decoding of a record's bytes."""

    kind: Kind = "raw"
    """raw keeps the bytes in a column `value`"""
    fields: Annotated[str, parsed(parse_ddl)] | None = None
    """json: the columns, as Spark writes them: `id bigint, user string`; protobuf: the fields to take"""
    schema_file: File | None = None
    """avro: the file of the writer's schema; confluent: that of the reader's; without it, the columns are those of the
    registry's newest schema of `TOPIC-value`"""
    descriptors: File | None = None
    """protobuf: the descriptor file that `protoc -o` writes"""
    message: str | None = None
    """protobuf: full name of the message, `shop.Order`"""
    registry: dict[str, str] | None = Field(default=None, repr=False)
    """confluent: the schema registry's `url`, and what else confluent-kafka's client takes"""
    time: str | None = None
    """the column with the record's time, or its date; default: the time it was read"""
    time_format: Literal["s", "ms", "us", "iso"] = "ms"
    """unit since the epoch, or ISO 8601 text"""

    def decoding(self) -> Decoding:
        """Return the decoding of values. Raises ConfigError if a schema cannot be read."""
        contents: dict[str, bytes] = {}
        for key in ("schema_file", "descriptors"):
            path: str | None = getattr(self, key)
            try:
                contents[key] = b"" if path is None else Path(path).read_bytes()
            except OSError as error:
                raise ConfigError(f"{key} = {path!r} cannot be read: {error.strerror}") from error
        return Decoding(
            self.kind, fields=None if self.fields is None else parse_ddl(self.fields),
            schema=contents["schema_file"].decode("utf-8", "replace"), descriptors=contents["descriptors"],
            message=self.message or "", registry=self.registry or {},
        )  # fmt: skip

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        named = {name for name in DECODE_KEYS if getattr(self, name) is not None}
        needed, allowed = DECODE_KINDS[self.kind]
        if missing := sorted(needed - named):
            raise ValueError(f"kind {self.kind!r} needs {' and '.join(missing)}")
        if wrong := sorted(named - needed - allowed):
            raise ValueError(f"kind {self.kind!r} has no {wrong[0]}")
        if self.kind == "raw" and self.time is not None:
            raise ValueError("raw records have no columns to take a time from")
        return self


class UniqueConfig(ConfigTable):
    """The rows of a table that has each id once."""

    field: str = Field(min_length=1)
    """the column with the id; rows without one are all kept"""
    hours: float = Field(gt=0)
    """rows with the same id are left out if their times differ by at most this"""


class SinkConfig(ConfigTable):
    """The table to write."""

    kind: Literal["delta", "iceberg"] = "delta"
    """Delta Lake, or Apache Iceberg"""
    path: Location
    """location of the table: a directory, or a URL such as `s3://bucket/orders`"""
    partition_by: Annotated[list[str], AfterValidator(_columns)] = Field(default=["topic", "date"])
    """columns that divide the table: `topic`, `date` and `hour` of the record's time, any decoded field; with iceberg
    also `bucket(16, field)` and `truncate(4, field)`"""
    zone: Annotated[str, parsed(ZoneInfo, "no such time zone")] = "UTC"
    """time zone of date and hour; with iceberg it is UTC"""
    file_bytes: Size = 256 << 20
    """approximate size of the files that `compact` writes"""
    compression: Literal["zstd", "snappy", "gzip", "none"] = "zstd"
    """compression of the Parquet files"""
    options: dict[str, str] = Field(default_factory=dict, repr=False)
    """options of the object store, as deltalake or pyiceberg name them"""
    last_by: list[str] = Field(default_factory=list)
    """delta: keep the last row of each value of these columns, such as `key`, whose tombstones delete"""
    unique: UniqueConfig | None = None
    """delta: keep one row of each id within a window"""
    table: TableName | None = None
    """iceberg: `namespace.name` in the catalog; default: `odradek.` and the flow's name"""
    catalog: dict[str, str] | None = Field(default=None, repr=False)
    """iceberg: the catalog, as pyiceberg configures it; default: a file in `run.state`"""

    @model_validator(mode="after")
    def _of_this_kind(self) -> Self:
        if self.kind != "iceberg" and (self.table or self.catalog):
            raise ValueError("table and catalog are for kind = 'iceberg'")
        if self.kind == "iceberg" and self.zone != "UTC":
            raise ValueError("Iceberg's days and hours are those of UTC: leave out zone")
        if self.kind == "iceberg" and (self.last_by or self.unique):
            raise ValueError("last_by and unique are for kind = 'delta': pyiceberg cannot merge a batch in one commit")
        if self.last_by and self.unique:
            raise ValueError("use either last_by or unique")
        return self

    @property
    def columns(self) -> tuple[PartitionColumn, ...]:
        """The partition columns."""
        return parse_columns(self.partition_by, self.kind)


class DeadLetterConfig(ConfigTable):
    """The table of records that could not be decoded."""

    path: Location
    """location of the table, as `sink.path`; each row has the raw bytes, the reason, and the record's position"""


class Flow(ConfigTable):
    """Topics that are written to one table."""

    topics: list[Annotated[str, Field(min_length=1)]] | None = Field(default=None, min_length=1)
    """the topics; or use `pattern`"""
    pattern: RegularExpression | None = None
    """all topics that this regular expression matches as a whole"""
    start: Literal["earliest", "latest"] = "earliest"
    """position where the first run begins; topics and partitions that appear later are read from their beginning"""
    data_loss: Literal["fail", "skip"] = "fail"
    """policy for messages that the log no longer has: `skip` records the gap"""
    corrupt: Literal["fail", "skip", "dead"] = "fail"
    """policy for corrupt messages: `skip` is for 0.7 only, and records the gap"""
    decode: Decode = Decode()
    sink: SinkConfig
    dead: DeadLetterConfig | None = None

    @model_validator(mode="after")
    def _chosen(self) -> Self:
        if (self.topics is None) == (self.pattern is None):
            raise ValueError("give either topics or pattern")
        if self.dead is None and (self.corrupt == "dead" or self.decode.kind != "raw"):
            raise ValueError("a flow that decodes, or has corrupt = 'dead', needs a table [dead] with a path")
        return self


class Pipeline(ConfigFile):
    """The whole file."""

    source: SourceConfig
    run: RunConfig = RunConfig()
    flows: dict[FlowName, Flow] = Field(min_length=1)

    @property
    def unit(self) -> str:
        """Unit of positions: `bytes` of log in 0.7, or `records`."""
        return "records" if self.source.counts_records else "bytes"

    @property
    def batch_size(self) -> int:
        """Maximum size of a batch, in the unit of positions."""
        run, by_records = self.run, self.source.counts_records
        maximum, whole = (run.batch_records, run.max_records) if by_records else (run.batch_bytes, run.max_bytes)
        return min(maximum, whole or maximum)

    @property
    def run_size(self) -> int | None:
        """Maximum size of a run, in the unit of `batch_size`; None: no limit."""
        return self.run.max_records if self.source.counts_records else self.run.max_bytes

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        by_records = self.source.counts_records
        wrong = {"batch_bytes", "max_bytes"} if by_records else {"batch_records", "max_records"}
        if named := sorted(wrong & self.run.model_fields_set):
            unit, right = ("records", "records") if by_records else ("bytes of log", "bytes")
            raise ValueError(f"run.{named[0]}: this source counts {unit}: use batch_{right} and max_{right}")
        owners: dict[str, str] = {}
        for name, flow in self.flows.items():
            if by_records and flow.corrupt == "skip":
                what = "corrupt = 'skip' is for 0.7: use 'dead', which keeps the bytes of a batch"
                raise ValueError(f"flow {name!r}: {what}")
            for path in (flow.sink.path, *([flow.dead.path] if flow.dead else [])):
                if path in owners:
                    raise ValueError(f"flows {owners[path]!r} and {name!r} both write to {path!r}")
                for other in owners:
                    if path.startswith(f"{other}/") or other.startswith(f"{path}/"):
                        raise ValueError(f"{path!r} and {other!r} are inside one another: `clean` would mix them up")
                owners[path] = name
        return self


# ---- reading the file ----------------------------------------------------------------------------------------


def load(path: str | Path) -> Pipeline:
    """Read and check a pipeline file.

    Raises:
        PipelineFileError: The file is missing, not TOML, or has mistakes; the message names each with line and key.
    """
    defaults: dict[str, object] = {"run": {}}  # whose default has a path that starts from the file's directory
    return read(path, Pipeline, PipelineFileError, defaults)
