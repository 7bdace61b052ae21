"""The pipeline file: reads TOML into checked values, and reports every mistake with its line and key.

    [source]
    zookeeper = "zk1:2181,zk2:2181/kafka"

    [flows.orders]
    topics = ["orders"]
    [flows.orders.decode]
    kind = "json"
    fields = "id bigint, user string"
    time = "ts"
    [flows.orders.sink]
    kind = "parquet"
    path = "tables/orders"
    partition_by = ["date", "hour"]

The models below are the reference: each field's description gives its meaning, unit and default.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias
from zoneinfo import ZoneInfo

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from odradek.client.connect import connect
from odradek.errors import ConfigError
from odradek.spark.values import parse_bytes

__all__ = [
    "Audit",
    "DeadLetterConfig",
    "Decode",
    "Flow",
    "Pipeline",
    "PipelineFileError",
    "RunConfig",
    "SinkConfig",
    "SourceConfig",
    "load",
]


class PipelineFileError(ConfigError):
    """The pipeline file has mistakes.

    Args:
        mistakes: All of them, each with file, line and key.
    """

    def __init__(self, *mistakes: str) -> None:
        super().__init__(*mistakes)
        self.mistakes = mistakes

    def message(self) -> str:
        return "\n".join(self.mistakes)


# ---- sizes --------------------------------------------------------------------------------------------------


def _size(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return parse_bytes(value, "")
    except ConfigError:
        raise ValueError('a size is a number of bytes, or like "64k", "128m", "2g"') from None


Size: TypeAlias = Annotated[int, BeforeValidator(_size), Field(gt=0)]


# ---- the file -----------------------------------------------------------------------------------------------


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SourceConfig(_Table):
    """The source of the flows: exactly one of the four."""

    kafka: str | None = Field(
        default=None,
        description="`kafka://host:port,...` of a cluster of 0.8 or later, also with `+ssl` and `+sasl`; secrets come "
        "from the environment (`ODRADEK_SASL_PASSWORD`)",
    )
    zookeeper: str | None = Field(default=None, description="`host:port,host:port/chroot` of a 0.7 cluster")
    brokers: str | None = Field(default=None, description="`id@host:port,...` of a 0.7 cluster without ZooKeeper")
    logs: list[str] | None = Field(
        default=None, description="log directories, read without a broker; globs are allowed"
    )
    fetchers_per_broker: int = Field(
        default=2, ge=1, description="maximum number of tasks that read from one broker at the same time"
    )
    max_message_bytes: Size = Field(
        default=1_000_000,
        le=1 << 30,
        description="size of the largest message: as the brokers' `max.message.size`; with `kafka` 64 MiB by default",
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(location is not None for location in (self.kafka, self.zookeeper, self.brokers, self.logs)) != 1:
            raise ValueError("give exactly one of kafka, zookeeper, brokers and logs")
        return self

    @field_validator("kafka")
    @classmethod
    def _url(cls, url: str | None) -> str | None:
        if url is None:
            return None
        try:
            connect(url)  # which opens nothing
        except ConfigError as error:
            raise ValueError(error.message()) from None
        if not url.startswith("kafka:") and not url.startswith("kafka+"):
            raise ValueError("a cluster of 0.7 is named by zookeeper or brokers")
        return url


class RunConfig(_Table):
    """Limits and settings of a run."""

    checkpoint: str = Field(default=".odradek", description="directory for Spark's checkpoints and the reports of runs")
    batch_bytes: Size = Field(default=1 << 30, description="maximum bytes of log in one batch, that is in one commit")
    max_bytes: Size | None = Field(
        default=None, description="end the run after this many bytes of log; the next run continues"
    )
    batch_records: int = Field(
        default=5_000_000, gt=0, description="the same as `batch_bytes`, for `kafka`: maximum records in one batch"
    )
    max_records: int | None = Field(
        default=None, gt=0, description="the same as `max_bytes`, for `kafka`: end the run after this many records"
    )
    max_minutes: float | None = Field(
        default=None, gt=0, description="end the run after the batch in which this time passes (min)"
    )
    max_error_percent: float = Field(
        default=0.0,
        ge=0,
        le=100,
        description="a batch with a larger share of dead records is not committed (percent)",
    )


class Decode(_Table):
    """The decoding of a record's bytes."""

    kind: Literal["raw", "json", "avro"] = Field(default="raw", description="raw keeps the bytes in a column `value`")
    fields: str | None = Field(
        default=None, description="json: the columns, as Spark writes them: `id bigint, user string`"
    )
    schema_file: str | None = Field(default=None, description="avro: the file of the writer's schema")
    time: str | None = Field(
        default=None, description="the column with the record's time; default: the time it was read"
    )
    time_format: Literal["s", "ms", "us", "iso"] = Field(
        default="ms", description="unit since the epoch, or ISO 8601 text"
    )
    time_behind_days: float | None = Field(
        default=None,
        gt=0,
        description="a record with a time more than this before its batch was planned is dead (days)",
    )
    time_ahead_days: float | None = Field(
        default=None, gt=0, description="a record with a time more than this after its batch was planned is dead (days)"
    )

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        for kind, name in (("json", "fields"), ("avro", "schema_file")):
            if (getattr(self, name) is not None) != (self.kind == kind):
                raise ValueError(f"kind {kind!r} needs {name}, and no other kind has it")
        if self.kind == "raw" and self.time is not None:
            raise ValueError("raw records have no columns to take a time from")
        if self.time is None and (self.time_behind_days or self.time_ahead_days):
            raise ValueError("time_behind_days and time_ahead_days need time")
        return self


class SinkConfig(_Table):
    """The table to write."""

    kind: Literal["parquet", "delta"] = Field(default="parquet", description="parquet with a ledger, or a Delta table")
    path: str = Field(min_length=1, description="directory of the table")
    partition_by: list[Literal["topic", "date", "hour"]] = Field(
        default=["topic", "date"], description="directories of the table, outermost first"
    )
    zone: str = Field(default="UTC", description="time zone of date and hour")
    file_bytes: Size = Field(default=256 << 20, description="approximate size of the files that `compact` writes")
    compression: Literal["zstd", "snappy", "gzip", "none"] = Field(
        default="zstd", description="compression of the Parquet files"
    )

    @field_validator("zone")
    @classmethod
    def _known(cls, zone: str) -> str:
        try:
            ZoneInfo(zone)
        except (KeyError, ValueError, OSError):
            raise ValueError("no such time zone") from None
        return zone

    @field_validator("partition_by")
    @classmethod
    def _once(cls, columns: list[str]) -> list[str]:
        if len(set(columns)) < len(columns):
            raise ValueError("a column is named twice")
        return columns


class DeadLetterConfig(_Table):
    """The table of records that could not be decoded."""

    path: str = Field(
        min_length=1, description="directory; each row has the raw bytes, the reason, and the record's position"
    )


class Audit(_Table):
    """Counts of records by time."""

    bucket_minutes: int = Field(default=10, ge=1, le=1440, description="length of a bucket (min)")
    topic: str | None = Field(default=None, description="also send the counts of each batch to this topic")


class Flow(_Table):
    """Topics that are written to one table."""

    topics: list[str] | None = Field(default=None, min_length=1, description="the topics; or use `pattern`")
    pattern: str | None = Field(default=None, description="all topics that this regular expression matches as a whole")
    exclude: list[str] = Field(default=[], description="topics to leave out")
    start: Literal["earliest", "latest"] = Field(
        default="earliest",
        description="where the first run begins; topics and partitions that appear later are read from their beginning",
    )
    data_loss: Literal["fail", "skip"] = Field(
        default="fail",
        description="what to do when the log no longer has the next messages: `skip` records the gap",
    )
    corrupt: Literal["fail", "skip", "dead"] = Field(default="fail", description="what to do about corrupt messages")
    decode: Decode = Decode()
    sink: SinkConfig
    dead: DeadLetterConfig | None = None
    audit: Audit = Audit()

    @model_validator(mode="after")
    def _chosen(self) -> Self:
        if (self.topics is None) == (self.pattern is None):
            raise ValueError("give either topics or pattern")
        if self.dead is None and (self.corrupt == "dead" or self.decode.kind != "raw"):
            raise ValueError("a flow that decodes, or has corrupt = 'dead', needs a table [dead] with a path")
        return self

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return pattern


class Pipeline(_Table):
    """The whole file."""

    _file: str = PrivateAttr("")
    _lines: Mapping[tuple[str, ...], int] = PrivateAttr({})

    source: SourceConfig
    run: RunConfig = RunConfig()
    flows: dict[str, Flow] = Field(min_length=1)

    def where(self, *key: str) -> str:
        """Return file, line and name of a key, or of the nearest enclosing table in the file, for errors."""
        return _where(self._file, self._lines, key)

    @property
    def unit(self) -> str:
        """Unit of positions: `bytes` of log, or `records` if the source is `kafka`."""
        return "records" if self.source.kafka else "bytes"

    @property
    def batch_size(self) -> int:
        """Maximum size of a batch: bytes of log, or records if the source is `kafka`."""
        run = self.run
        most, whole = (run.batch_records, run.max_records) if self.source.kafka else (run.batch_bytes, run.max_bytes)
        return min(most, whole or most)

    @property
    def run_size(self) -> int | None:
        """Maximum size of a run, in the unit of `batch_size`; None: no limit."""
        return self.run.max_records if self.source.kafka else self.run.max_bytes

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        by_records = self.source.kafka is not None
        wrong = {"batch_bytes", "max_bytes"} if by_records else {"batch_records", "max_records"}
        if named := sorted(wrong & self.run.model_fields_set):
            unit, right = ("records", "records") if by_records else ("bytes of log", "bytes")
            raise ValueError(f"run.{named[0]}: this source counts {unit}: use batch_{right} and max_{right}")
        for name, flow in self.flows.items():
            if by_records and flow.corrupt == "skip":
                raise ValueError(f"flow {name!r}: corrupt = 'skip' is for 0.7: use 'dead', which keeps the bytes")
        return self

    @model_validator(mode="after")
    def _apart(self) -> Self:
        owners: dict[str, str] = {}
        for name, flow in self.flows.items():
            for path in (flow.sink.path, *([flow.dead.path] if flow.dead else [])):
                directory = str(Path(path))
                if directory in owners:
                    raise ValueError(f"flows {owners[directory]!r} and {name!r} both write to {path!r}")
                owners[directory] = name
        return self

    @field_validator("flows")
    @classmethod
    def _named(cls, flows: dict[str, Flow]) -> dict[str, Flow]:
        for name in flows:
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
                raise ValueError(f"the flow {name!r}: a name has letters, digits, _ and -, at most 64")
        return flows


# ---- reading it ---------------------------------------------------------------------------------------------


def load(path: str | Path) -> Pipeline:
    """Read and check a pipeline file.

    Raises:
        PipelineFileError: The file is missing, not TOML, or has mistakes; the message names each with line and key.
    """
    file = Path(path)
    try:
        text = file.read_text("utf-8")
        pipeline = Pipeline.model_validate(tomllib.loads(text))
    except OSError as error:
        raise PipelineFileError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PipelineFileError(f"{file}: not UTF-8: {error.reason} at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise PipelineFileError(f"{file}: not TOML: {error}") from error
    except ValidationError as error:
        lines = _lines(text)
        mistakes = sorted(_described(file, lines, dict(each)) for each in error.errors())
        raise PipelineFileError(*(words for _, words in mistakes)) from None
    pipeline._file, pipeline._lines = str(file), _lines(text)
    return pipeline


def _line(lines: Mapping[tuple[str, ...], int], key: tuple[str, ...]) -> int:
    while key and key not in lines:
        key = key[:-1]
    return lines.get(key, 1)


def _where(file: object, lines: Mapping[tuple[str, ...], int], key: tuple[str, ...]) -> str:
    return f"{file}:{_line(lines, key)}: {'.'.join(key) or 'the file'}"


def _described(file: Path, lines: Mapping[tuple[str, ...], int], mistake: Mapping[str, Any]) -> tuple[int, str]:
    key = tuple(part for part in mistake["loc"] if isinstance(part, str))
    text = mistake["msg"].removeprefix("Value error, ")
    value = mistake.get("input")
    shown = f" (it is {value!r})" if isinstance(value, str | int | float | bool) else ""
    match mistake["type"]:
        case "extra_forbidden":
            text, shown = f"unknown key; known here: {', '.join(_known_keys(key[:-1]))}", ""
        case "missing":
            text, shown = "it is missing", ""
    return _line(lines, key), f"{_where(file, lines, key)}: {text}{shown}"


def _known_keys(table: tuple[str, ...]) -> list[str]:
    model: type[BaseModel] = Pipeline
    for part in table:
        if model is Pipeline and part == "flows":
            model = Flow
        elif isinstance(inner := _model_of(model, part), type):
            model = inner
    return sorted(model.model_fields)


def _model_of(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    tables: dict[str, type[BaseModel]] = {
        "source": SourceConfig, "run": RunConfig, "decode": Decode, "sink": SinkConfig, "dead": DeadLetterConfig,
        "audit": Audit
    }  # fmt: skip
    return tables.get(name) if name in model.model_fields else None


_HEADER = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?")
_KEY = re.compile(r"\s*((?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'))*)\s*=")


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """Return the line of each key. Finds tables and keys that begin a line, as is usual."""
    numbers: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.fullmatch(line):
            table = tuple(_parts(header[1]))
            for depth in range(1, len(table) + 1):
                numbers.setdefault(table[:depth], number)
        elif key := _KEY.match(line):
            numbers.setdefault((*table, *_parts(key[1])), number)
    return numbers


def _parts(key: str) -> Iterator[str]:
    return (part.strip().strip("\"'") for part in key.split("."))
