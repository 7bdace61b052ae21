"""Every option of the facade, declared once: name, type, default, allowed values, meaning and unit.

`Cluster.producer`, `Producer` and the rest take `**options: Unpack[ProducerOptions]`; Spark's options and the command
line read defaults and rules from here. `odradek.arguments` is the mechanism.

Annotations are evaluated here once, without `from __future__ import annotations`: as text each would be compiled again.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Annotated, Any, Literal, NoReturn, Required, TypedDict

from odradek import arguments
from odradek.arguments import REQUIRED, Option
from odradek.core.backoff import Backoff
from odradek.core.produce.partitioners import Partitioner
from odradek.errors import ConfigError
from odradek.types import EARLIEST, AtTime, MiB, PositionSpec, StartPosition, TopicPartition
from odradek.wire.compression import CompressionType, parse_compression

__all__ = [
    "BATCHES",
    "CALLBACK",
    "COMMIT_METADATA",
    "COMPRESSION",
    "DRIVER",
    "HEADERS",
    "LARGEST_MESSAGE",
    "MAX_POSITION",
    "TABLES",
    "TIMESTAMP",
    "TUNING",
    "Compression",
    "CompressionName",
    "ConsumerOptions",
    "HandlerArguments",
    "ProducerOptions",
    "ReaderOptions",
    "ShareConsumerOptions",
    "Tuning",
    "partition",
    "start_position",
]

CALLBACK = "a coroutine function that takes a list of partitions"

MAX_POSITION = (1 << 63) - 1
"""Positions are signed 64-bit numbers on the wire, in every Kafka version."""


# ---- rules for positions and partitions -----------------------------------------------------------------------


def start_position(*, times: bool = True, positions: bool = True) -> arguments.Rule:
    """Allow EARLIEST, LATEST, AtTime(seconds) if `times`, and a position if `positions`."""
    kinds = ["EARLIEST", "LATEST", *["AtTime(seconds)"] * times, *["a position"] * positions]
    allowed = f"{', '.join(kinds[:-1])} or {kinds[-1]}"
    moment = arguments.number(-1e12, 1e12, "seconds since the epoch")
    position = arguments.count(0, MAX_POSITION, "a position")

    def check(name: str, value: object) -> Any:
        if isinstance(value, PositionSpec):
            return value
        if value in ("earliest", "latest"):
            raise TypeError(f"{name} must be od.{value.upper()}, not str {value!r}")
        if isinstance(value, AtTime) and times:
            return AtTime(moment(f"{name}.seconds", value.seconds))
        if not positions or isinstance(value, tuple) or not hasattr(value, "__index__"):
            arguments.wrong_type(name, value, allowed)
        return position(name, value)

    return check


def partition() -> arguments.Rule:
    """Allow a TopicPartition whose fields a broker can have."""
    number = arguments.count(0, unit="a partition number")
    broker = arguments.count(-1, unit="a broker id, or -1")
    topic = arguments.text("a topic name")

    def check(name: str, value: object) -> TopicPartition:
        if not isinstance(value, TopicPartition):
            arguments.wrong_type(name, value, 'a TopicPartition, such as TopicPartition("orders", 3)')
        return TopicPartition(
            topic(f"{name}.topic", value.topic),
            number(f"{name}.partition", value.partition),
            broker(f"{name}.broker", value.broker),
        )

    return check


def _start_positions(bookmark_allowed: str) -> arguments.Rule:
    """Allow one position for all partitions, a mapping of partitions to positions, or a bookmark."""
    one = start_position()
    by_partition = arguments.mapping(partition(), one, "a mapping of partitions to positions")

    def check(name: str, value: object) -> Any:
        if isinstance(value, str):
            if not value.startswith("{"):
                raise ConfigError(
                    f"{name}={arguments.shown(value)}: not a bookmark; for a position use odradek.EARLIEST, "
                    f"odradek.LATEST, AtTime(seconds), a position{bookmark_allowed}"
                )
            return value
        return by_partition(name, value) if isinstance(value, Mapping) else one(name, value)

    return check


def _reset(*words: str) -> arguments.Rule:
    position_rule, allowed = start_position(times=False, positions=False), ", ".join(map(repr, words))

    def check(name: str, value: object) -> Any:
        if isinstance(value, str):
            return value if value in words else _refuse_word(name, value, f"{allowed}, EARLIEST or LATEST")
        return position_rule(name, value)

    return check


def _refuse_word(name: str, value: object, allowed: str) -> NoReturn:
    arguments.wrong_value(name, value, allowed)


def _partitioner() -> arguments.Rule:
    return arguments.optional(arguments.function("a partitioner: a callable (topic, key, count) -> index or None"))


COMMIT_METADATA = arguments.text("a text", at_least=0, at_most=4096)
"""Texts that are stored with committed positions."""

Compression = Literal[
    "none", "gzip", "snappy", "lz4", "zstd",
    "gzip:1", "gzip:2", "gzip:3", "gzip:4", "gzip:5", "gzip:6", "gzip:7", "gzip:8", "gzip:9",
    "lz4:1", "lz4:2", "lz4:3", "lz4:4", "lz4:5", "lz4:6", "lz4:7", "lz4:8", "lz4:9",
    "lz4:10", "lz4:11", "lz4:12", "lz4:13", "lz4:14", "lz4:15", "lz4:16", "lz4:17",
    "zstd:1", "zstd:2", "zstd:3", "zstd:4", "zstd:5", "zstd:6", "zstd:7", "zstd:8", "zstd:9",
    "zstd:10", "zstd:11", "zstd:12", "zstd:13", "zstd:14", "zstd:15", "zstd:16",
    "zstd:17", "zstd:18", "zstd:19", "zstd:20", "zstd:21", "zstd:22",
]  # fmt: skip
"""A compression, as type checkers know it; levels of zstd below 1 exist, too (see `COMPRESSION`)."""


CompressionName = Literal["none", "gzip", "snappy", "lz4", "zstd"]
_COMPRESSION_NAME = arguments.choice(*(kind.name.lower() for kind in CompressionType))


def _compression() -> arguments.Rule:
    names = [kind.name.lower() for kind in CompressionType]

    def check(name: str, value: object) -> Any:
        if not isinstance(value, str) or value.partition(":")[0] not in names:
            return _COMPRESSION_NAME(name, value)
        try:
            parse_compression(value)
        except ConfigError as error:
            raise ConfigError(f"{name}={arguments.shown(value)}: {error}") from None
        return value

    return check


COMPRESSION = _compression()
"""Compression types of all Kafka versions, with or without a level; a cluster refuses those it lacks
(`ProtocolDriver.compressions`)."""


# ---- tuning ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tuning:
    """Low-level limits, for `connect`. The defaults suit almost everyone.

    Args:
        connect_timeout: Time limit for opening one connection, address look-up included, and for one call of a token
            provider (s). Entering the block of a cluster of 0.8 or later takes at most twice as long, or 10 s if that
            is more.
        request_timeout: Time limit for one response of a broker (s). A connection without one is closed. Requests wait
            up to ten times as long while responses go on arriving, or their own bytes leave, at 1 KiB/s at least, while
            those before them are answered, or while the broker throttles this client.
        session_timeout: Time after which the coordinator of a group, in 0.7 ZooKeeper, counts a silent member as gone
            (s). The default, None, means 30 s, the maximum that all brokers accept by default; in 0.7 6 s, as its own
            clients. Where the brokers assign (KIP-848) it is a setting of theirs.
        backoff: Wait between attempts after a failure.
        batch_bytes: Size, uncompressed, at which a batch for one partition is full (bytes). The default, None, means
            960 KiB, a little less than what brokers store by default, or a quarter of `buffer_bytes`; in 0.7 256 KiB
            for compressed topics, since the wrapper of a larger one may be more than its consumers fetch. Of a topic
            whose limit is lower, batches get smaller when one has been refused.
        request_bytes: Batches for several partitions of a broker share a request up to this size (bytes). The
            broker's max.socket.request.bytes (100 MB) must not be less.
        in_flight: Maximum produce requests in flight to one broker. Of one partition an idempotent producer has at most
            five batches in flight, which is what brokers remember (KIP-98, KAFKA-5494).
        fetch_bytes: Maximum bytes of one partition in one fetch. From a broker that responds within 5 ms, 1 MiB is
            requested, and what is left of a batch; from a distant one, requests double up to this limit while the user
            waits for them, and while twice as many bytes take less than 1.75 times as long.
        fetch_idle: Longest pause before a broker that had nothing new is polled again (s). 0.7 has no long polling:
            this is the worst added latency on a quiet topic, and its inverse is the number of requests an idle
            consumer makes. With n > 1000 idle partitions, each is polled at most once every n x 50 us.
    """

    connect_timeout: float = 5.0
    request_timeout: float = 10.0
    session_timeout: float | None = None
    backoff: Backoff = Backoff()  # noqa: RUF009 - frozen
    batch_bytes: int | None = None
    request_bytes: int = 1 * MiB
    in_flight: int = 16
    fetch_bytes: int = 16 * MiB
    fetch_idle: float = 0.1

    def __post_init__(self) -> None:
        for option in fields(self):
            _TUNING_RULES[option.name](f"Tuning.{option.name}", getattr(self, option.name))


_DURATION = arguments.seconds(above=True)
_TUNING_RULES: dict[str, arguments.Rule] = {
    "connect_timeout": _DURATION,
    "request_timeout": _DURATION,
    "session_timeout": arguments.optional(_DURATION),
    "backoff": arguments.instance(Backoff, "a Backoff"),
    "batch_bytes": arguments.optional(arguments.size_bytes(at_most=1 << 30)),
    "request_bytes": arguments.size_bytes(at_most=1 << 30),
    "in_flight": arguments.count(at_most=10_000),
    "fetch_bytes": arguments.size_bytes(at_most=(1 << 31) - 1),
    "fetch_idle": _DURATION,
}
DRIVER = arguments.having("broker", "a driver, such as `Cluster.driver`")
HEADERS = arguments.sequence(
    arguments.pair(arguments.text("the name of a header", at_least=0), arguments.optional(arguments.binary())),
    "a sequence of pairs of a name (str) and a value (bytes or None)",
)
TIMESTAMP = arguments.optional(arguments.count(0, MAX_POSITION, "milliseconds since the epoch"))
TUNING = Option(None, arguments.optional(arguments.instance(Tuning, "a Tuning")), "Low-level limits; see `Tuning`.")


# ---- producer -------------------------------------------------------------------------------------------------

Acks = Literal["all", 1, 0]


class ProducerOptions(TypedDict, total=False):
    """Options of `Cluster.producer`."""

    latency: Annotated[
        float,
        Option(
            0.01,
            arguments.seconds(),
            "Maximum time (s) a record may wait for others to share its batch. If nothing is in flight to its "
            "broker, a record with a waiting caller (`send`, `send_many`) is sent immediately.",
        ),
    ]
    buffer_bytes: Annotated[
        int,
        Option(
            64 * MiB,
            arguments.size_bytes(at_least=121),
            "Memory (bytes) for unacknowledged records, including per-record Python overhead.",
        ),
    ]
    deliver_within: Annotated[
        float,
        Option(
            30.0,
            arguments.seconds(above=True),
            "Time limit (s) for delivering a record, from its acceptance on; then it fails. Waiting for space in the "
            "buffer has the same limit of its own.",
        ),
    ]
    exit_within: Annotated[
        float, Option(10.0, arguments.seconds(), "Time limit (s) for flushing when the block is left.")
    ]
    compression: Annotated[
        Compression,
        Option(
            "none",
            COMPRESSION,
            "`none`, `gzip`, `snappy`, `lz4` (0.8.2 and later) or `zstd` (2.1 and later), for all topics. 0.7 has gzip "
            "and, from 0.7.1 on, snappy. A level may follow (KIP-390): `gzip:9` (1 to 9), `lz4:9` (1 to 17), `zstd:9` "
            "(-131072 to 22). Without one it is 6 for gzip, 1 for lz4 and 3 for zstd.",
        ),
    ]
    compression_by_topic: Annotated[
        Mapping[str, Compression] | None,
        Option(
            None,
            arguments.optional(
                arguments.mapping(arguments.text("a topic name"), COMPRESSION, "a mapping of topics to compression")
            ),
            "Topic -> compression, where it differs from `compression`.",
        ),
    ]
    partitioner: Annotated[
        Partitioner | None,
        Option(
            None,
            _partitioner(),
            "Chooses a record's partition; by default murmur2 of the key, as Kafka's own producer does; in 0.7 crc32 "
            "(`KeyHash`, the rule of librdkafka for later Kafka). Records without a key fill the batch of one randomly "
            "chosen partition after the other.",
        ),
    ]
    acks: Annotated[
        Acks,
        Option(
            "all",
            arguments.choice("all", 1, 0),
            '"all": the broker acknowledges a batch once all replicas in sync have it. 1: once it has it itself. In '
            "0.7 no request is answered: for both, each is confirmed by a second one. 0: a record counts as written "
            "once it is handed to the network; a broker that refuses it or fails loses it silently.",
        ),
    ]
    reorder: Annotated[
        bool,
        Option(False, arguments.flag(), "Whether newer records of a partition may overtake those that are retried."),
    ]
    max_message_bytes: Annotated[
        int,
        Option(
            1_000_000,
            arguments.size_bytes(at_most=(1 << 31) - 1),
            "Size limit (bytes) of a record; with compression, of what is compressed together, which is split until it "
            "fits. Brokers refuse more than max.message.bytes of the topic; those of 0.7 silently drop what is larger "
            "than their max.message.size.",
        ),
    ]
    transactional_id: Annotated[
        str | None,
        Option(
            None,
            arguments.optional(arguments.text("a transactional id", at_most=249)),
            "Everything is written in transactions (Kafka 0.11 and later): see `Producer.transaction`. A producer that "
            "is opened with the same id, after a restart for example, ends what this one left open and fences it.",
        ),
    ]
    transaction_timeout: Annotated[
        float,
        Option(
            60.0,
            arguments.seconds(at_least=0.001, at_most=2_000_000.0),
            "The cluster aborts a transaction that is open for longer (s), and fences its producer. Brokers allow 15 "
            "minutes by default (transaction.max.timeout.ms).",
        ),
    ]
    tuning: Annotated[Tuning | None, TUNING]


LARGEST_MESSAGE = 100_000_000
"""A message that brokers of 0.8 and later take unless their largest request (socket.request.max.bytes, 100 MiB) was
changed (bytes): the limit of tools, which leave it to the topic to refuse less."""


# ---- reader and consumer --------------------------------------------------------------------------------------

_READ_AHEAD = Option(
    64 * MiB,
    arguments.size_bytes(),
    "Memory (bytes) for prefetched records, not counting one in-flight fetch and the batches the caller holds.",
)
_CORRUPT = Option(
    "fail",
    arguments.choice("fail", "skip", "raw"),
    "`fail` raises CorruptMessage; `skip` leaves the message out and keeps it in `reports`; `raw` delivers the "
    "undecoded entry, named in `Batch.corrupt`.",
)
_MAX_MESSAGE = Option(
    4 * MiB,
    arguments.size_bytes(at_most=(1 << 31) - 1),
    "Size limit (bytes) of one message; a larger one raises MessageTooLarge.",
)
Corrupt = Literal["fail", "skip", "raw"]
_ISOLATION = Option(
    "read_uncommitted",
    arguments.choice("read_uncommitted", "read_committed"),
    "`read_committed` leaves out records of transactions that were aborted, and waits for those that are open (Kafka "
    "0.11 and later; elsewhere there are no transactions).",
)
Isolation = Literal["read_uncommitted", "read_committed"]
StartPositions = StartPosition | Mapping[TopicPartition, StartPosition] | str


class ReaderOptions(TypedDict, total=False):
    """Options of `Cluster.reader`."""

    start: Annotated[
        StartPositions,
        Option(
            EARLIEST,
            _start_positions(", or a mapping of partitions to these"),
            "Where to begin: a position for all partitions, one for each, or a `bookmark()`. A partition that a "
            "mapping or a bookmark does not name begins at EARLIEST.",
        ),
    ]
    until: Annotated[
        StartPositions | None,
        Option(
            None,
            arguments.optional(_start_positions(", None, or a mapping of partitions to these")),
            "Where to end: None (never), a position for all partitions or for each, or a `bookmark()`; partitions it "
            "does not name end at LATEST, which is fixed when the block is entered. The last record is the last that "
            "starts before that position; if it is in a compressed message, all of that message. A topic that was "
            "deleted and made again does not have that end: TopicRecreated is raised, whatever `reset` says.",
        ),
    ]
    group: Annotated[
        str | None,
        Option(
            None,
            arguments.optional(arguments.text("a group name", at_most=255)),
            "Name of a group under which `commit` stores positions, without being a member of it (0.8.1 and later, and "
            "0.7 with ZooKeeper). Partitions begin at the positions that the group has committed; `start` is for those "
            "without one.",
        ),
    ]
    read_ahead_bytes: Annotated[int, _READ_AHEAD]
    corrupt: Annotated[Corrupt, _CORRUPT]
    max_message_bytes: Annotated[int, _MAX_MESSAGE]
    isolation: Annotated[Isolation, _ISOLATION]
    reset: Annotated[
        PositionSpec | Literal["fail"],
        Option(
            "fail",
            _reset("fail"),
            "Where to continue when the log no longer has a position, or the topic was deleted and made again: "
            "EARLIEST or LATEST; `fail` raises BrokerError OffsetOutOfRange.",
        ),
    ]
    keep_encoded: Annotated[
        CompressionName | None,
        Option(
            None,
            arguments.optional(_COMPRESSION_NAME),
            "Large record batches of this compression (Kafka 0.11 and later) are checked, but not decoded before their "
            "records are asked for, which raises CorruptMessage if they are damaged inside. `send_many` to one "
            "partition, by a producer of the same compression, passes such a batch on as it is.",
        ),
    ]
    tuning: Annotated[Tuning | None, TUNING]


class ConsumerOptions(TypedDict, total=False):
    """Options of `Cluster.consumer`."""

    group: Annotated[Required[str], Option(REQUIRED, arguments.text("a group name", at_most=255), "Name of the group.")]
    include: Annotated[
        str | None,
        Option(
            None,
            arguments.optional(arguments.pattern()),
            "Instead of topics: a regular expression (the common ground of Java's and Python's) of topics.",
        ),
    ]
    exclude: Annotated[
        str | None,
        Option(None, arguments.optional(arguments.pattern()), "Instead of topics: all topics but those."),
    ]
    start: Annotated[
        PositionSpec | AtTime,
        Option(
            EARLIEST,
            start_position(positions=False),
            "Where a partition begins for which the group has no position (auto.offset.reset): EARLIEST, LATEST or "
            "AtTime(seconds). It is stored like a position, so that the next owner begins there too.",
        ),
    ]
    reset: Annotated[
        PositionSpec | Literal["start", "fail"],
        Option(
            "start",
            _reset("start", "fail"),
            "Where a partition continues whose position the log no longer has, or whose topic was deleted and made "
            "again: `start` (as above), EARLIEST or LATEST, or `fail`, which raises BrokerError OffsetOutOfRange. The "
            "new position is stored at once.",
        ),
    ]
    streams: Annotated[int, Option(1, arguments.count(at_most=10_000), "Number of streams per topic; see `streams`.")]
    read_ahead_bytes: Annotated[int, _READ_AHEAD]
    commit_every: Annotated[
        float | None,
        Option(
            1.0,
            arguments.optional(arguments.seconds(at_least=0.001)),
            "Interval (s) at which processed positions are committed; None: only by `commit`, at rebalances and "
            "at exit.",
        ),
    ]
    commit_metadata: Annotated[
        str,
        Option(
            "",
            COMMIT_METADATA,
            "Text that is stored with every committed position, such as the name of this host (Kafka 0.9 and later; "
            "brokers take 4096 bytes by default).",
        ),
    ]
    revoke_within: Annotated[
        float,
        Option(
            3.0,
            arguments.seconds(),
            "How long (s) a rebalance waits for batches and handlers in progress. In 0.7 other members give up "
            "claiming partitions after 8 s with Scala's defaults (4 attempts, 2 s apart).",
        ),
    ]
    on_assigned: Annotated[
        Callable[[list[TopicPartition]], Awaitable[Mapping[TopicPartition, StartPosition] | None]] | None,
        Option(
            None,
            arguments.optional(arguments.function(CALLBACK)),
            "Called with partitions that this member is given in addition to those that it has, before anything of "
            "them is fetched. It may return where some of them begin, whatever the group has committed: a mapping of "
            "partitions to positions.",
        ),
    ]
    on_revoked: Annotated[
        Callable[[list[TopicPartition]], Awaitable[object]] | None,
        Option(
            None,
            arguments.optional(arguments.function(CALLBACK)),
            "Called with partitions that this member gives up, in a rebalance or because it leaves: after their "
            "delivery has stopped and their handlers have ended, before the last commit and their release.",
        ),
    ]
    on_lost: Annotated[
        Callable[[list[TopicPartition]], Awaitable[object]] | None,
        Option(
            None,
            arguments.optional(arguments.function(CALLBACK)),
            "Called with partitions that the group gave away without asking, because this member was not heard of for "
            "too long: nothing can be committed for them. None: `on_revoked` is called.",
        ),
    ]
    callback_within: Annotated[
        float,
        Option(
            10.0,
            arguments.seconds(above=True),
            "How long (s) each call of these three may take. A call that takes longer is cancelled; that, and an error "
            "that one raises, is raised from the next use of the consumer.",
        ),
    ]
    max_blocked: Annotated[
        float,
        Option(
            300.0,
            arguments.seconds(),
            "How long (s) this member stays in its group while code that does not await blocks the event loop: a "
            "thread sends its heartbeats meanwhile, and a line in the log names the blocking function. 0: no such "
            "thread. A rebalance in that time still waits no longer than the rebalance timeout (60 s), and nothing "
            "helps against code that keeps Python's global lock. In 0.7 ZooKeeper's client has a thread in any case.",
        ),
    ]
    join_within: Annotated[
        float, Option(60.0, arguments.seconds(above=True), "How long (s) entering waits for the first assignment.")
    ]
    exit_within: Annotated[float, Option(10.0, arguments.seconds(), "How long (s) leaving may take.")]
    consumer_id: Annotated[
        str | None,
        Option(
            None,
            arguments.optional(arguments.text("a consumer id", at_most=255)),
            "A fixed name for this member; None makes a unique one.",
        ),
    ]
    assignors: Annotated[
        Sequence[str] | None,
        Option(
            None,
            arguments.optional(arguments.sequence(arguments.text("the name of an assignor"), "a sequence of names")),
            "Names of the assignors this member supports, the preferred one first (Kafka 0.9 and later): range, "
            "roundrobin, sticky, cooperative-sticky. None: all of them, so that it can join any group. With "
            "cooperative-sticky alone, partitions that stay are delivered without a pause in a rebalance.",
        ),
    ]
    group_protocol: Annotated[
        Literal["classic", "consumer"] | None,
        Option(
            None,
            arguments.optional(arguments.choice("classic", "consumer")),
            "`consumer`: brokers assign (KIP-848, Kafka 4.0 and later); `classic`: one of the members does (0.9 and "
            "later). None: `consumer` where brokers have it and no assignors are named. A group may have members of "
            "both, unless its brokers are configured otherwise.",
        ),
    ]
    corrupt: Annotated[Corrupt, _CORRUPT]
    max_message_bytes: Annotated[int, _MAX_MESSAGE]
    isolation: Annotated[Isolation, _ISOLATION]
    dead_letter_producer: Annotated[
        Callable[[], AbstractAsyncContextManager[Any]] | None,
        Option(
            None,
            arguments.optional(arguments.function("a callable that makes a producer")),
            "Makes the producer for `each(dead_letter=...)`; by default the cluster's `producer`.",
        ),
    ]
    tuning: Annotated[Tuning | None, TUNING]


class ShareConsumerOptions(TypedDict, total=False):
    """Options of `Cluster.share_consumer`."""

    group: Annotated[
        Required[str], Option(REQUIRED, arguments.text("a group name", at_most=255), "Name of the share group.")
    ]
    acknowledge: Annotated[
        Literal["implicit", "explicit"],
        Option(
            "implicit",
            arguments.choice("implicit", "explicit"),
            "`implicit`: what has no acknowledgement is accepted when the next record or batch is asked for; "
            "`explicit`: only what the program accepts.",
        ),
    ]
    max_records: Annotated[
        int | None,
        Option(
            None,
            arguments.optional(arguments.count(at_most=100_000)),
            "Most records that one request acquires (Kafka 4.2 and later; whole batches before): no more than can be "
            "processed before their locks expire. None: the batches that have about 500.",
        ),
    ]
    max_message_bytes: Annotated[int, _MAX_MESSAGE]
    join_within: Annotated[
        float, Option(60.0, arguments.seconds(above=True), "How long (s) entering waits for the group.")
    ]
    exit_within: Annotated[float, Option(10.0, arguments.seconds(), "How long (s) leaving may take.")]
    tuning: Annotated[Tuning | None, TUNING]


# ---- calls ----------------------------------------------------------------------------------------------------


class BatchArguments(TypedDict, total=False):
    """Arguments of `batches`."""

    max_records: Annotated[
        int | None,
        Option(
            None,
            arguments.optional(arguments.count()),
            "Most records of a batch; None: as many as came together, 1 MiB at a time of more than 4 MiB.",
        ),
    ]
    max_wait: Annotated[
        float,
        Option(
            0.0,
            arguments.seconds(),
            "With `max_records`: how long (s) a batch may wait to be filled after its first record.",
        ),
    ]


class TableArguments(TypedDict, total=False):
    """Arguments of `arrow`."""

    max_bytes: Annotated[
        int,
        Option(
            16 * MiB,
            arguments.size_bytes(),
            "Most payload of a table (bytes); a single message that is larger makes a table of its own.",
        ),
    ]
    max_wait: Annotated[
        float,
        Option(
            0.0,
            arguments.seconds(),
            "How long (s) a table may wait to be filled after its first row; 0: what is available makes a table.",
        ),
    ]


class HandlerArguments(TypedDict, total=False):
    """Arguments of `Consumer.each`."""

    parallel: Annotated[
        int, Option(100, arguments.count(at_most=1_000_000), "Maximum handlers that run at the same time.")
    ]
    order: Annotated[
        Literal["key", "partition", "none"],
        Option(
            "partition",
            arguments.choice("key", "partition", "none"),
            "What is kept in order: records of one `key`, of one `partition`, or nothing.",
        ),
    ]
    key: Annotated[
        Callable[[Any], object] | None,
        Option(
            None,
            arguments.optional(arguments.function("a callable record -> key")),
            'Returns the key of a record; None: its own. Kafka 0.7 has none, so there `order="key"` needs this.',
        ),
    ]
    retries: Annotated[
        int, Option(0, arguments.count(0, unit="a number of retries"), "How often a handler that raised is retried.")
    ]
    backoff: Annotated[
        Backoff | None,
        Option(None, arguments.optional(arguments.instance(Backoff, "a Backoff")), "Wait between these retries."),
    ]
    dead_letter: Annotated[
        str | None,
        Option(
            None,
            arguments.optional(arguments.text("a topic name")),
            "Topic for records whose handler still raised, and for those that cannot be decoded (corrupt='raw'), with "
            "key, headers and timestamp; headers odradek.* say where a record was and why it is there. "
            "None: each() ends and raises that error.",
        ),
    ]
    retry_topics: Annotated[
        Mapping[str, float],
        Option(
            MappingProxyType({}),
            arguments.mapping(arguments.text("a topic name"), arguments.seconds(), "a mapping of topics to seconds"),
            "Topics for records whose handler still raised, each with the time (s) until they are handled again, in "
            "this order, before `dead_letter`. The consumer has to consume them, too. Needs headers (0.11).",
        ),
    ]


BATCHES = arguments.declared(BatchArguments)
TABLES = arguments.declared(TableArguments)
