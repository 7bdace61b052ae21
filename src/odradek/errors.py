"""Everything odradek raises, in one tree.

    OdradekError
        ConfigError (ValueError)          an option, URL or file that cannot work; says which and why
        Unsupported                       the cluster cannot do this; says what it would need
        Closed                            used after its `async with` block ended
        UsageError (RuntimeError)         entered twice, or used from another task, thread or event loop
        DeadlineError (TimeoutError)      a wait ran into its deadline
        ProtocolError
            LocalProtocolError            we were asked to write something the protocol has no bytes for
            RemoteProtocolError           the peer sent bytes that make no sense; the connection is closed
        CorruptMessage                    a message in a log that cannot be decoded, with partition and position
        MessageTooLarge                   a message larger than the limit in force, on its way in or out
        BrokerError                       the broker answered with an error code
        TransportError
            Unreachable                   no connection could be made; says at which step
            ConnectionLost                a connection died; says whether the request may have been applied
        ZooKeeperError                    ZooKeeper refused or cannot be reached
            NodeExists, NoNode, BadVersion, NotEmpty, SessionExpired
        GroupError                        the consumer could not get or keep its partitions
        DeliveryError
            Rejected                      one record will never be written, and is not
            NotWritten                    surely not written; sending it again cannot duplicate it
            Unknown                       may or may not have been written
            Undelivered                   what a producer's exit could not deliver in its budget

Five attributes answer the questions callers have, so that nobody needs a ladder of isinstance tests:
`retriable` (trying again may help), `refresh_metadata` (the routing table is probably stale),
`fatal_to_connection` (the connection is closed), `sent` (the failed request may have been applied) and `hint` (one
sentence on what to do). Of a fetch, `out_of_range` says that the log does not have the position, and
`unknown_partition` that the broker does not have the partition.
Every error survives pickling: positional arguments are the whole state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

__all__ = [
    "BadVersion",
    "BrokerError",
    "Closed",
    "ConfigError",
    "ConnectionLost",
    "CorruptMessage",
    "DeadlineError",
    "DeliveryError",
    "GroupError",
    "LocalProtocolError",
    "MessageTooLarge",
    "NoNode",
    "NodeExists",
    "NotEmpty",
    "NotWritten",
    "OdradekError",
    "OutcomeUnknown",
    "ProtocolError",
    "Rejected",
    "RemoteProtocolError",
    "SessionExpired",
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
    refresh_metadata: bool = False
    fatal_to_connection: ClassVar[bool] = False
    out_of_range: bool = False
    unknown_partition: bool = False
    sent: bool = False
    hint: str = ""

    def message(self) -> str:
        """What happened, without the hint."""
        return super().__str__()

    def __str__(self) -> str:
        return f"{self.message()} ({self.hint})" if self.hint else self.message()


class ConfigError(OdradekError, ValueError):
    """An option, URL or file that cannot work."""


class Unsupported(OdradekError):
    """The cluster cannot do this.

    Args:
        feature: What was asked for.
        needs: What it would take.
    """

    def __init__(self, feature: str, needs: str) -> None:
        super().__init__(feature, needs)
        self.feature, self.needs = feature, needs

    def message(self) -> str:
        return f"{self.feature} is not supported here: it needs {self.needs}"


class Closed(OdradekError):
    """Used after its `async with` block ended (or before it began)."""


class UsageError(OdradekError, RuntimeError):
    """An object was used in a way that cannot work: entered twice, left in another task than it was entered in, or
    called from another thread or event loop."""


class DeadlineError(OdradekError, TimeoutError):
    """A wait ran into its deadline.

    Args:
        what: What was waited for.
        seconds: How long (s).
        sent: True when it was about a request of which at least one byte may have reached the peer, so that it may
            have been applied.
    """

    retriable = True

    def __init__(self, what: str, seconds: float, sent: bool = False) -> None:
        super().__init__(what, seconds, sent)
        self.what, self.seconds, self.sent = what, seconds, sent

    def message(self) -> str:
        state = "; the request may have been applied" if self.sent else ""
        return f"{self.what}: no answer within {self.seconds:g} s{state}"


class ProtocolError(OdradekError):
    """Bytes that are not the protocol."""


class LocalProtocolError(ProtocolError):
    """We were asked to write something the protocol has no bytes for."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that is not the protocol; its connection is closed. A request that fails with it had
    been sent."""

    fatal_to_connection = True
    sent = True


class CorruptMessage(OdradekError):
    """A stored message that cannot be decoded.

    Args:
        partition: `topic/partition` as text, or a file name.
        position: Byte position (0.7) or offset of the message.
        reason: What is wrong with it.
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
        size: Its size in bytes, where known; else the smallest size it can have.
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


class BrokerError(OdradekError):
    """The broker answered with an error code.

    Args:
        code: The number on the wire; an unknown code keeps its number.
        name: Its name in the protocol.
        context: What was asked, of whom.
    """

    def __init__(self, code: int, name: str, context: str = "") -> None:
        super().__init__(code, name, context)
        self.code, self.name, self.context = code, name, context

    def message(self) -> str:
        return f"{self.context}: {self.name} (code {self.code})" if self.context else f"{self.name} (code {self.code})"


class TransportError(OdradekError):
    """The network, not the protocol."""

    retriable = True
    refresh_metadata = True
    fatal_to_connection = True


class Unreachable(TransportError):
    """No connection could be made.

    Args:
        step: `dns`, `tcp`, `tls`, `sasl`, `zookeeper` or `listener`: how far it got.
        address: `host:port`.
        why: The operating system's words.
    """

    def __init__(self, step: str, address: str, why: str) -> None:
        super().__init__(step, address, why)
        self.step, self.address, self.why = step, address, why

    def message(self) -> str:
        return f"cannot connect to {self.address}: {self.step}: {self.why}"


class ConnectionLost(TransportError):
    """A connection died with this request on it.

    Args:
        address: `host:port`.
        why: What was seen.
        sent: True when at least one byte of the request may have reached the peer, so that it may have been
            applied; False when it surely was not.
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
    """The node to be created is there already."""


class NoNode(ZooKeeperError):
    """The node (or its parent) is not there."""


class BadVersion(ZooKeeperError):
    """The node was changed by somebody else in between."""


class NotEmpty(ZooKeeperError):
    """The node to be deleted has children."""


class SessionExpired(ZooKeeperError):
    """The session is gone, and with it every ephemeral node it made."""

    retriable = True


class GroupError(OdradekError):
    """The consumer could not get or keep its partitions."""


class DeliveryError(OdradekError):
    """Records that were not (surely) written.

    Args:
        records: What it is about, as `client.producer.Failed` values or plain records.
        why: The reason, in words.
    """

    def __init__(self, records: Sequence[Any], why: str) -> None:
        super().__init__(records, why)
        self.records, self.why = records, why

    def message(self) -> str:
        n = len(self.records)
        return f"{n} record{'' if n == 1 else 's'} {self.state}: {self.why}"

    state: ClassVar[str] = "not delivered"


class Rejected(DeliveryError):
    """These records will never be written, and are not: too large, a bad topic name, no such partition."""

    state = "rejected"


class NotWritten(DeliveryError):
    """These records were surely not written; sending them again cannot duplicate them."""

    state = "not written"
    retriable = True


class OutcomeUnknown(DeliveryError):
    """These records may or may not have been written; sending them again may duplicate them."""

    state = "in an unknown state"
    retriable = True


class Undelivered(DeliveryError):
    """What a producer's exit could not deliver within its budget."""

    state = "undelivered at exit"
