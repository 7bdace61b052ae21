"""All exceptions that odradek raises, in one tree.

    OdradekError
        ConfigError (ValueError)          an option, URL or file that cannot work; says which and why
        Unsupported                       the cluster cannot do this; says what it would need
        Closed                            used after its `async with` block ended
        UsageError (RuntimeError)         entered twice, or used from another task, thread or event loop
        InternalError                     a defect of odradek, or no memory left; its `__cause__` says where
        DeadlineError (TimeoutError)      a wait ran into its deadline
        ProtocolError
            LocalProtocolError            odradek was asked to write something the protocol has no bytes for
            RemoteProtocolError           the peer sent bytes that make no sense; the connection is closed
        CorruptMessage                    a message in a log that cannot be decoded, with partition and position
        MessageTooLarge                   a message larger than the limit in force, when read or written
        BrokerError                       the broker answered with an error code
            OffsetOutOfRange              the position is not in the log
        TransportError
            Unreachable                   no connection could be made; says at which step
            ConnectionLost                a connection died; says whether the request may have been applied
        ZooKeeperError                    ZooKeeper refused or cannot be reached
            NodeExists, NoNode, BadVersion, NotEmpty, SessionExpired
        AuthFailed                        the broker refused the credentials, or did not prove its own
        Fenced                            another producer or member took over this one's identity
        GroupError                        the consumer could not get or keep its partitions
        TransactionAborted                a transaction that was to be committed and is not
        ServerError                       a server that odradek.testing runs did not start or do what it was told
        DeliveryError
            Rejected                      one record will never be written, and is not
            NotWritten                    certainly not written; sending it again cannot duplicate it
            OutcomeUnknown                may or may not have been written
                CommitOutcomeUnknown      so for a whole transaction
            Undelivered                   records that a producer's exit could not deliver in time

Every error answers the questions of its caller by attributes, so that no code compares classes or names:

    retriable           The same request may succeed later, without a change by the user.
    refresh_metadata    The routing table may be out of date: read it again before the next attempt.
    fatal               The producer or consumer cannot continue: it ends with this error.
    fence               What this producer or consumer owned may belong to another one now: commit nothing more for it.
    sent                At least one byte of the failed request may have reached the peer: it may have been applied.
    hint                One sentence on what to do, or an empty string.

For a `BrokerError` the answers come from the error table of its protocol. Every error survives pickling: its
positional arguments and attributes are the whole state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

__all__ = [
    "AuthFailed",
    "BadVersion",
    "BrokerError",
    "Closed",
    "CommitOutcomeUnknown",
    "ConfigError",
    "ConnectionLost",
    "CorruptMessage",
    "DeadlineError",
    "DeliveryError",
    "DeserializationError",
    "Fenced",
    "GroupError",
    "InternalError",
    "LocalProtocolError",
    "LogTruncated",
    "MessageTooLarge",
    "NoNode",
    "NodeExists",
    "NotEmpty",
    "NotWritten",
    "OdradekError",
    "OffsetOutOfRange",
    "OutcomeUnknown",
    "ProtocolError",
    "Rejected",
    "RemoteProtocolError",
    "SerializationError",
    "ServerError",
    "SessionExpired",
    "TopicRecreated",
    "TransactionAborted",
    "TransportError",
    "Undelivered",
    "Unreachable",
    "Unsupported",
    "UsageError",
    "ZooKeeperError",
]


class OdradekError(Exception):
    """The root: catch this to catch everything odradek raises on purpose."""

    retriable: bool = False
    """The same request may succeed later."""
    refresh_metadata: bool = False
    """The routing table may be out of date."""
    fatal: bool = False
    """The producer or consumer cannot continue."""
    fence: bool = False
    """Another producer or consumer may own now what this one owned."""
    sent: bool = False
    """The failed request may have been applied."""
    hint: str = ""
    """One sentence on what to do, or an empty string."""

    def message(self) -> str:
        """Return what happened, without the hint."""
        return super().__str__()

    def __str__(self) -> str:
        return f"{self.message()} ({self.hint})" if self.hint else self.message()


class ConfigError(OdradekError, ValueError):
    """An option, URL or file that cannot work."""


class Unsupported(OdradekError):
    """The cluster cannot do this.

    Args:
        feature: The feature that was asked for.
        needs: The release or setting that it needs.
    """

    def __init__(self, feature: str, needs: str) -> None:
        super().__init__(feature, needs)
        self.feature, self.needs = feature, needs

    def message(self) -> str:
        return f"{self.feature} is not supported here: it needs {self.needs}"


class Closed(OdradekError):
    """Used after its `async with` block ended, or before it began."""


class UsageError(OdradekError, RuntimeError):
    """An object was used in a way that cannot work: entered twice, left in another task than it was entered in, or
    called from another thread or event loop."""


class DeadlineError(OdradekError, TimeoutError):
    """A wait ran into its deadline.

    Args:
        what: The thing that was waited for.
        seconds: Duration of the wait (s).
        sent: True if the wait was for a request and at least one byte of it may have reached the peer, so that it
            may have been applied.
    """

    retriable = True

    def __init__(self, what: str, seconds: float, sent: bool = False) -> None:
        super().__init__(what, seconds, sent)
        self.what, self.seconds, self.sent = what, seconds, sent

    def message(self) -> str:
        state = "; the request may have been applied" if self.sent else ""
        return f"{self.what}: no answer within {self.seconds:g} s{state}"


class InternalError(OdradekError):
    """A defect of odradek, or no memory left: `__cause__` is the exception it stands for. The connection on which it
    happened is closed, and the next request opens another one; all other connections are untouched."""

    fatal = True
    sent = True
    hint = "please report it with its cause"


class ProtocolError(OdradekError):
    """Bytes that are not the protocol."""


class LocalProtocolError(ProtocolError):
    """Odradek was asked to write something the protocol has no bytes for."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that is not the protocol; its connection is closed. A request that fails with it had
    been sent."""

    retriable = True
    refresh_metadata = True
    sent = True


SKIP_HINT = 'corrupt="skip" continues behind it, corrupt="raw" hands over its bytes'
"""Hint of a `CorruptMessage` behind which reading can go on."""


class CorruptMessage(OdradekError):
    """A stored message that cannot be decoded.

    Args:
        partition: `topic/partition` as text, or a file name.
        position: Byte position (0.7) or offset of the message.
        reason: The damage.
    """

    def __init__(self, partition: str, position: int, reason: str) -> None:
        super().__init__(partition, position, reason)
        self.partition, self.position, self.reason = partition, position, reason

    def message(self) -> str:
        return f"{self.partition} at {self.position}: {self.reason}"


class MessageTooLarge(OdradekError):
    """A message larger than the limit in force.

    Args:
        partition: `topic/partition` as text.
        position: Where it starts in the log, or -1 for a message not yet written.
        size: Its size in bytes if known, otherwise the smallest size it can have.
        limit: The limit in bytes.
        option: The option that sets the limit.
    """

    def __init__(self, partition: str, position: int, size: int, limit: int, option: str) -> None:
        super().__init__(partition, position, size, limit, option)
        self.partition, self.position, self.size, self.limit, self.option = (
            partition,
            position,
            size,
            limit,
            option,
        )
        self.hint = f"raise {option}" if option else ""

    def message(self) -> str:
        where = f" at {self.position}" if self.position >= 0 else ""
        return f"{self.partition}{where}: message of {self.size} bytes is larger than {self.limit}"


class SerializationError(OdradekError):
    """A key or value that its serializer cannot encode: the record was not accepted. `__cause__` is the error of the
    serializer, and decides whether this one is retriable.

    Args:
        topic: Where the record was to go.
        field: `key` or `value`.
        why: The reason, in words.
    """

    def __init__(self, topic: str, field: str, why: str) -> None:
        super().__init__(topic, field, why)
        self.topic, self.field, self.why = topic, field, why

    def message(self) -> str:
        return f"the {self.field} of a record for {self.topic} cannot be serialized: {self.why}"


class DeserializationError(OdradekError):
    """A record whose key or value its deserializer cannot decode. `__cause__` is the deserializer's own error.

    It is retriable if that error is, such as that of a schema registry that does not answer: the record is then
    delivered again. Otherwise the record counts as delivered, and reading on continues behind it.

    Args:
        record: The `Record` as it was read: `record.partition`, `record.position`, and the bytes.
        field: `key` or `value`.
        why: The reason, in words.
        schema: The id of the schema that the bytes name: a number, a GUID, or None if they name none.
    """

    def __init__(self, record: Any, field: str, why: str, schema: int | str | None = None) -> None:
        super().__init__(record, field, why, schema)
        self.record, self.field, self.why, self.schema = record, field, why, schema

    def message(self) -> str:
        where = f"{self.record.partition} at {self.record.position}"
        schema = "" if self.schema is None else f" with schema {self.schema}"
        return f"{where}: the {self.field} cannot be decoded{schema}: {self.why}"


class BrokerError(OdradekError):
    """The broker answered with an error code.

    Args:
        code: The number on the wire; an unknown code keeps its number.
        name: Its name in the protocol.
        context: The request, and the broker.
        retriable, refresh_metadata, fatal, fence: The entries of the protocol's error table for this code.
    """

    def __init__(
        self,
        code: int,
        name: str,
        context: str = "",
        *,
        retriable: bool = False,
        refresh_metadata: bool = False,
        fatal: bool = False,
        fence: bool = False,
    ) -> None:
        super().__init__(code, name, context)
        self.code, self.name, self.context = code, name, context
        self.retriable, self.refresh_metadata, self.fatal, self.fence = retriable, refresh_metadata, fatal, fence

    def message(self) -> str:
        return f"{self.context}: {self.name} (code {self.code})" if self.context else f"{self.name} (code {self.code})"


class OffsetOutOfRange(BrokerError):
    """The position is not in the log: it was deleted, or the log does not reach it. A new position has to be chosen,
    as the option `reset` says."""


class LogTruncated(OffsetOutOfRange):
    """Records before the position are no longer in the log: a leader without them was elected, and others may have
    taken their offsets. Reading continues at the end of what both logs have, unless the option `reset` says to fail.

    Args:
        partition: `topic/partition` as text.
        position: Where reading was.
        end: The end of what the log still has of the former one.
        leader_epoch: The epoch that ends there.
    """

    def __init__(self, partition: str, position: int, end: int, leader_epoch: int) -> None:
        super().__init__(1, "LOG_TRUNCATED", f"{partition} at {position}")
        self.args = (partition, position, end, leader_epoch)
        self.partition, self.position, self.end, self.leader_epoch = partition, position, end, leader_epoch

    def message(self) -> str:
        return (
            f"{self.partition}: the log was truncated to {self.end}, the end of leader epoch {self.leader_epoch},"
            f" and reading was at {self.position}"
        )


class TopicRecreated(OffsetOutOfRange):
    """The topic was deleted and made again (KIP-516): a position in its former log says nothing about the new one,
    which may have other records there. Reading continues as the option `reset` says.

    Args:
        partition: `topic/partition` as text.
        position: Where reading was, in the former log.
    """

    def __init__(self, partition: str, position: int) -> None:
        super().__init__(1, "TOPIC_RECREATED", f"{partition} at {position}")
        self.args = (partition, position)
        self.partition, self.position = partition, position

    def message(self) -> str:
        return (
            f"{self.partition}: the topic was deleted and made again; reading had come to {self.position} of the former"
        )


class TransportError(OdradekError):
    """The network, not the protocol."""

    retriable = True
    refresh_metadata = True


class Unreachable(TransportError):
    """A connection could not be made.

    Args:
        step: `dns`, `tcp`, `proxy`, `tls`, `sasl`, `zookeeper` or `listener`: how far it got.
        address: `host:port`.
        why: The reason, as the operating system puts it.
    """

    def __init__(self, step: str, address: str, why: str) -> None:
        super().__init__(step, address, why)
        self.step, self.address, self.why = step, address, why

    def message(self) -> str:
        return f"cannot connect to {self.address}: {self.step}: {self.why}"


class ConnectionLost(TransportError):
    """A connection died while this request was outstanding on it.

    Args:
        address: `host:port`.
        why: The observation.
        sent: True when at least one byte of the request may have reached the peer, so that it may have been
            applied; False when it was certainly not applied.
    """

    def __init__(self, address: str, why: str, sent: bool) -> None:
        super().__init__(address, why, sent)
        self.address, self.why, self.sent = address, why, sent

    def message(self) -> str:
        state = "the request may have been applied" if self.sent else "the request was not sent"
        return f"connection to {self.address} lost: {self.why}; {state}"


class ZooKeeperError(OdradekError):
    """ZooKeeper refused, or cannot be reached."""


class NodeExists(ZooKeeperError):
    """The node to be created exists already."""


class NoNode(ZooKeeperError):
    """The node, or its parent, does not exist."""


class BadVersion(ZooKeeperError):
    """The node was changed by another client in between."""


class NotEmpty(ZooKeeperError):
    """The node to be deleted has children."""


class SessionExpired(ZooKeeperError):
    """The session is gone, and with it every ephemeral node it made."""

    retriable = True
    fence = True


class GroupError(OdradekError):
    """The consumer could not get or keep its partitions."""

    fatal = True


class TransactionAborted(OdradekError):
    """A transaction that was to be committed was aborted: none of its records and positions counts. `__cause__` is the
    error because of which. The same work may be done again in another transaction.

    Args:
        transactional_id: The id of its producer.
        why: The reason, in words.
    """

    retriable = True

    def __init__(self, transactional_id: str, why: str) -> None:
        super().__init__(transactional_id, why)
        self.transactional_id, self.why = transactional_id, why

    def message(self) -> str:
        return f"the transaction of {self.transactional_id} was aborted: {self.why}"


class ServerError(OdradekError):
    """A server that `odradek.testing` runs did not start, or did not do what it was told; shows the end of its log."""


class AuthFailed(OdradekError):
    """The broker refused the credentials, or did not prove its own identity.

    Args:
        mechanism: The SASL mechanism.
        why: The reason, without any secret.
    """

    fatal = True

    def __init__(self, mechanism: str, why: str) -> None:
        super().__init__(mechanism, why)
        self.mechanism, self.why = mechanism, why

    def message(self) -> str:
        return f"authentication with {self.mechanism} failed: {self.why}"


class Fenced(OdradekError):
    """Another producer or group member took over this one's identity, and this one must stop.

    Args:
        what: The transactional id, group instance or producer that was fenced.
        why: The broker's own text.
    """

    fatal = True
    fence = True
    hint = "give each running process an id of its own, and stop this one"

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why)
        self.what, self.why = what, why

    def message(self) -> str:
        return f"{self.what} is fenced: {self.why}"


class DeliveryError(OdradekError):
    """Records that were not written, or not for certain.

    Args:
        records: The records, as `Failed` values or as the caller passed them.
        why: The reason, in words.
    """

    def __init__(self, records: Sequence[Any], why: str) -> None:
        super().__init__(records, why)
        self.records, self.why = records, why

    def message(self) -> str:
        n = len(self.records)
        return f"{n} record{'' if n == 1 else 's'} {self.state}: {self.why}"

    def __repr__(self) -> str:
        """Return the message. The records refer to this error: written out, each would repeat all of them."""
        return f"<{type(self).__name__} {self.message()}>"

    state: ClassVar[str] = "not delivered"


class Rejected(DeliveryError):
    """These records will never be written, and are not: too large, a bad topic name, no such partition."""

    state = "rejected"


class NotWritten(DeliveryError):
    """These records were certainly not written; sending them again cannot duplicate them."""

    state = "not written"
    retriable = True


class OutcomeUnknown(DeliveryError):
    """These records may or may not have been written; sending them again may duplicate them."""

    state = "in an unknown state"
    retriable = True


class CommitOutcomeUnknown(OutcomeUnknown):
    """A transaction whose commit was requested, and not answered in time: either all of it is committed or nothing.
    Positions that it stores tell which: a consumer of the group continues after the transaction if it was committed.

    Args:
        transactional_id: The id of its producer.
        why: The reason, in words.
    """

    retriable = False
    fatal = True
    sent = True
    hint = "open a new producer with this transactional id: it waits until the transaction has ended"

    def __init__(self, transactional_id: str, why: str) -> None:
        super().__init__((), why)
        self.args = (transactional_id, why)
        self.transactional_id = transactional_id

    def message(self) -> str:
        return f"the transaction of {self.transactional_id} was committed or will be aborted: {self.why}"


class Undelivered(DeliveryError):
    """Records that a producer could not deliver within `exit_within` at the end of its block."""

    state = "undelivered at exit"
