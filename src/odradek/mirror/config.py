"""The file of a mirror, checked.

    name = "leave07"
    [source]
    url = "kafka07+zk://zk1:2181,zk2:2181/kafka"
    [target]
    url = "kafka://new1:9092,new2:9092"
    [topics]
    include = ["orders"]

The models below are the reference: the text below each field gives its meaning and unit.
"""

from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from odradek.client.cluster import Cluster
from odradek.client.connect import connect
from odradek.client.options import Compression
from odradek.config_file import ConfigFile, ConfigFileError, ConfigTable, RegularExpression, Size, parsed, read
from odradek.io.security import Security
from odradek.observe import Observer
from odradek.ranges.request import Directory, parse_directory
from odradek.types import MiB

__all__ = ["TOPICS", "CopyConfig", "GroupsConfig", "MirrorConfig", "MirrorFileError", "TopicsConfig", "load"]

TOPICS = "odradek.mirror."
"""Beginning of the names of the topics that mirrors store their state in."""

_SECURITY_OPTIONS = {field.name for field in dataclasses.fields(Security)} - {"ssl_context", "sasl_token_provider"}


class MirrorFileError(ConfigFileError):
    """The file of a mirror has mistakes."""


def _without_user(url: str) -> str:
    if "@" in url.partition("://")[2].partition("/")[0] and not url.startswith("kafka07"):  # ids, or ZooKeeper's user
        raise ValueError("no user here: [security] has sasl_username and sasl_password")
    return url


def _security(options: dict[str, Any]) -> dict[str, Any]:
    if unknown := sorted(options.keys() - _SECURITY_OPTIONS):
        raise ValueError(f"there is no option {unknown[0]}; known here: {', '.join(sorted(_SECURITY_OPTIONS))}")
    return options


def _log_directory(text: str, info: ValidationInfo) -> str:
    directory = parse_directory(text)
    if directory is None:
        raise ValueError("a log directory is [id@]path")
    folder = Path((info.context or {}).get("folder", "."))
    broker = f"{directory.broker}@" if directory.broker >= 0 else ""
    return broker + str((folder / directory.path).absolute())


def _template(text: str) -> str:
    if text.count("{topic}") != 1 or set(text.replace("{topic}", "")) & set("{}"):
        raise ValueError("it must have {topic} once, such as 'old.{topic}'")
    return text


def _partition_by(text: str) -> bool | None:
    """Return True if it is one of those that `partition_by` can be."""
    try:
        return text in ("source", "key") or (":" in text and callable(resolve_name(text))) or None
    except (ImportError, AttributeError):
        return None


Url: TypeAlias = Annotated[str, AfterValidator(_without_user)]


class ClusterConfig(ConfigTable):
    """A cluster."""

    url: Url = Field(repr=False)
    """URL, for `odradek.connect`"""
    security: Annotated[dict[str, str | bool], AfterValidator(_security)] | None = Field(default=None, repr=False)
    """options of `odradek.Security`; a text `env:NAME` is the value of that environment variable. Without this table
    the variables ODRADEK_SSL_... and ODRADEK_SASL_... count, for both clusters"""

    @model_validator(mode="after")
    def _connects(self) -> Self:
        self.connect()  # which opens nothing
        return self

    def connect(self, observer: Observer | None = None) -> Cluster:
        """Return the cluster, to be used as `async with`.

        Args:
            observer: As in `odradek.connect`.

        Raises:
            ConfigError: URL or security cannot work; a variable is not set.
        """
        security = None if self.security is None else Security(**{k: _value(k, v) for k, v in self.security.items()})
        return connect(self.url, security=security, client_id="odradek-mirror", observer=observer)


def _value(name: str, value: str | bool) -> Any:
    if not isinstance(value, str) or not value.startswith("env:"):
        return value
    variable = value.removeprefix("env:")
    if variable not in os.environ:
        raise ValueError(f"security.{name}: the environment has no variable {variable}")
    return os.environ[variable]


class MirrorSourceConfig(ClusterConfig):
    """The cluster that is copied, or what is left of it."""

    url: Url = Field(default="", repr=False)
    """the URL that `odradek.connect` takes"""
    logs: list[Annotated[str, AfterValidator(_log_directory)]] | None = Field(default=None, min_length=1)
    """instead of it: log directories of a cluster that does not start, of any release, those of 0.7 with the ids of
    their brokers, as in `2@/data/kafka`; patterns such as `/data*/kafka` are allowed"""

    @model_validator(mode="after")
    def _connects(self) -> Self:
        if bool(self.url) == bool(self.logs):
            raise ValueError("give exactly one of url and logs")
        if self.url:
            self.connect()  # which opens nothing
        elif self.security is not None:
            raise ValueError("security is of clusters: logs are files")
        return self

    @property
    def directories(self) -> tuple[Directory, ...]:
        """The log directories; none if the source is a cluster."""
        return tuple(filter(None, map(parse_directory, self.logs or ())))


class TargetConfig(ClusterConfig):
    """The cluster that is copied to: of Kafka 0.11 or later exactly once, of 0.10.1 and 0.10.2 at least once."""

    replicas: int | None = Field(default=None, gt=0)
    """number of replicas of each partition of new topics; by default what the brokers are configured to make"""

    @model_validator(mode="after")
    def _is_kafka(self) -> Self:
        if not re.match(r"kafka[:+]|[^:/]+:\d", self.url):
            raise ValueError("a target is named by kafka://")
        return self


class TopicsConfig(ConfigTable):
    """The topics that are copied, and rules for that."""

    include: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """names of topics"""
    pattern: RegularExpression | None = None
    """all topics that this regular expression matches as a whole, too, also those that are made later"""
    exclude: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """names of topics that `pattern` matches, and that are not copied"""
    rename: dict[str, Annotated[str, Field(min_length=1)]] = Field(default_factory=dict)
    """name on the source -> name on the target"""
    target: Annotated[str, AfterValidator(_template)] = "{topic}"
    """name on the target of topics that `rename` does not name, such as `old.{topic}`"""
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    """read_committed leaves out records of transactions that were aborted, and waits for the end of open ones"""
    origin_headers: bool = False
    """add four headers to each record: odradek.cluster, odradek.topic, odradek.partition, odradek.position"""
    append: bool = False
    """copy also to topics that have records already"""
    partition_by: Annotated[
        str,
        parsed(_partition_by, "neither source, key, nor a function that can be imported, such as rules:by_customer"),
    ] = "source"
    """partition of a record on the target. `source`: that of its source partition. `key`: by the hash of its key, as
    Kafka's own producer does; records without a key, of one source partition, stay together. `MODULE:FUNCTION`: what
    this function of Python returns for the record (`odradek.Record`) and the number of partitions. With the latter two
    verify compares counts and sums of hashes, and positions of groups are not translated. Fixed by the first run"""
    partitions: int | None = Field(default=None, gt=0)
    """number of partitions of new topics on the target, unless `partition_by` is `source`; by default as many as on the
    source. Fixed by the first run"""
    key_field: str | None = Field(default=None, min_length=1)
    """field of JSON values that becomes the key of records, a text or a number, unless `partition_by` is `source`:
    `customer`, or `customer.id` in an object; a run ends at a value without it. By default records keep their keys, and
    those of 0.7 have none. Fixed by the first run"""
    lost: Literal["fail", "continue"] = "fail"
    """policy for records that the source deleted before they were copied: `continue` begins at the oldest there is"""

    @model_validator(mode="after")
    def _chosen(self) -> Self:
        if not self.include and self.pattern is None:
            raise ValueError("give include, pattern, or both")
        if unknown := sorted(name for name in self.rename if not self.takes(name)):
            raise ValueError(f"rename.{unknown[0]}: include and pattern do not name this topic")
        if self.by_source and (self.partitions is not None or self.key_field is not None):
            raise ValueError("partitions and key_field are of partition_by = 'key' and of functions")
        return self

    @property
    def read_committed(self) -> bool:
        """True if only records of committed transactions are copied."""
        return self.isolation == "read_committed"

    @property
    def by_source(self) -> bool:
        """True if each partition of the source has one on the target."""
        return self.partition_by == "source"

    def takes(self, topic: str) -> bool:
        """Return True if a topic is to be copied."""
        if topic in self.include:
            return True
        return self.pattern is not None and topic not in self.exclude and bool(re.fullmatch(self.pattern, topic))

    def target_name(self, topic: str) -> str:
        """Return the name on the target."""
        return self.rename.get(topic) or self.target.replace("{topic}", topic)


class GroupsConfig(ConfigTable):
    """The groups that continue on the target. Without `include` and `pattern`: all groups of the source."""

    include: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """names of groups; brokers before 0.10.1 do not list all groups: there every one has to be named"""
    pattern: RegularExpression | None = None
    """all groups that this regular expression matches as a whole, too"""
    exclude: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """names of groups that `pattern` matches, or that are among all, and whose positions are not written"""
    stored_in: Literal["brokers", "zookeeper"] = "brokers"
    """place of the positions of groups of a source of 0.8.2 and later: Scala consumers store them in `zookeeper`
    unless they are told otherwise (`offsets.storage`); every group has to be named then"""
    lost: Literal["fail", "earliest", "latest"] = "fail"
    """policy for a position whose records were deleted before they were copied, or on the target since: `earliest` is
    the first record there is, `latest` the end of what is mirrored, and `fail` writes no position"""

    def takes(self, group: str) -> bool:
        """Return True if a group is to continue on the target."""
        if group in self.include:
            return True
        pattern = ("" if self.include else ".*") if self.pattern is None else self.pattern
        return group not in self.exclude and bool(re.fullmatch(pattern, group, re.DOTALL))


class CopyConfig(ConfigTable):
    """Limits and settings of a run."""

    tasks: int = Field(default=4, gt=0, le=1000)
    """number of tasks that copy at the same time, each with its share of the partitions and a transaction of its own;
    fixed by the first run"""
    transaction_bytes: Size = 16 * MiB
    """a transaction is committed when it has records of this size, or less while the target is too slow for that, and
    once nothing more has come for `transaction_seconds`"""
    transaction_seconds: float = Field(default=0.5, gt=0, le=600)
    """maximum time that a transaction waits for records (s)"""
    compression: Compression = "none"
    """compression of the records on the target: none, gzip, snappy, lz4, zstd, with a level as in `zstd:9`. Large
    record batches that have it on the source already are passed on without being decoded, unless a level is given, or
    `topics` has rules for each record"""
    refresh_seconds: float = Field(default=30.0, gt=0, le=86400)
    """pause between two searches for new topics and partitions, in a run that goes on (s)"""
    source_bytes_per_second: Size | None = None
    """rate limit of a run on the source: bytes of keys, values and headers per second, or the size of record batches
    that are passed on; by default there is none"""
    target_bytes_per_second: Size | None = None
    """rate limit of a run on the target, counted likewise; by default there is none"""
    max_message_bytes: Size = Field(default=64 * MiB, le=1 << 30)
    """size of the largest message"""


class MirrorConfig(ConfigFile):
    """The whole file."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")
    """name of the mirror: its topic on the target is `odradek.mirror.NAME`, which says how far it is"""
    source: MirrorSourceConfig
    target: TargetConfig
    topics: TopicsConfig
    groups: GroupsConfig = GroupsConfig()
    run: CopyConfig = CopyConfig()

    @property
    def topic(self) -> str:
        """The topic of the mirror, on the target."""
        return TOPICS + self.name

    @property
    def group(self) -> str:
        """The group on the target whose members are the processes that share the tasks."""
        return f"odradek-mirror-{self.name}"

    def transactional_id(self, task: int | None = None) -> str:
        """Return the transactional id of a task, or (None) of what decides which partitions tasks have."""
        return f"odradek-mirror-{self.name}" + ("" if task is None else f"-{task}")


def load(path: str | Path) -> MirrorConfig:
    """Read and check the file of a mirror.

    Raises:
        MirrorFileError: The file is missing, not TOML, or has mistakes; the message names each with line and key.
    """
    return read(path, MirrorConfig, MirrorFileError)
