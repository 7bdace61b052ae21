"""The lightweight consumer of the first coordinator design, as states and events in that document's own words.

In that design ("Kafka 0.9 consumer rewrite", later superseded) the coordinator calls the consumer over a channel that
the consumer opened: it asks for offsets, stops the fetchers, starts them. In the released protocol only clients send
requests, so each of these calls became a response to a parked or a periodic request. `RELEASED` maps them
(kafka-specification.md 6). No second client executes the document: `LightweightTrace` follows a group member of this
one, from its requests, their responses and its effects, through the document's states.

Components: a coordinator connector (one connection to the coordinator), and a list of fetchers. Kept information: the
server cluster info with the coordinator, and the consumed partition info.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from odradek.core.kafka.group_effects import Assign, Effect, Fail, GroupCoordinator, Lost, Revoke
from odradek.core.states import Machine
from odradek.errors import LocalProtocolError
from odradek.types import TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from odradek.wire.kafka.messages.metadata import MetadataRequest, MetadataResponse
from odradek.wire.kafka.schema import Request, Response

__all__ = [
    "LIGHTWEIGHT_CONSUMER",
    "RELEASED",
    "Action",
    "ConsumedPartition",
    "LightweightConsumer",
    "LightweightConsumerEvent",
    "LightweightConsumerState",
    "LightweightTrace",
    "Released",
    "event_of",
]


class LightweightConsumerState(Enum):
    """States of the consumer in the document's procedures."""

    NEW = "before onStart"
    CONSULTING = "onStart 2: consults known brokers, round robin"
    REGISTERING = "onStart 3: connects to the coordinator and registers"
    CONNECTED = "the coordinator connector runs, no fetcher does"
    FETCHING = "the coordinator connector and the fetchers run"
    STOPPED = "registration refused for good, or shut down"


class LightweightConsumerEvent(Enum):
    """The document's procedures and requests."""

    ON_START = "onStart"
    CHANNEL_FAILED = "channel cannot be created"
    CLUSTER_INFO = "cluster metadata received"
    REGISTRY_ACCEPTED = "registry accepted"
    REGISTRY_REJECTED = "registry rejected"
    LOST_CONNECTION = "lost connection"
    OFFSETS_WANTED = "offsets wanted"
    STOP_FETCHERS = "stop fetchers"
    START_FETCHERS = "start fetchers"
    SHUT_DOWN = "shut down"


_S, _E = LightweightConsumerState, LightweightConsumerEvent
_REGISTERED = (_S.CONNECTED, _S.FETCHING)

LIGHTWEIGHT_CONSUMER: Machine[LightweightConsumerState, LightweightConsumerEvent] = Machine(
    "lightweight consumer",
    _S.NEW,
    {
        (_S.NEW, _E.ON_START): _S.CONSULTING,
        (_S.CONSULTING, _E.CHANNEL_FAILED): _S.CONSULTING,
        (_S.CONSULTING, _E.CLUSTER_INFO): _S.REGISTERING,
        (_S.REGISTERING, _E.REGISTRY_ACCEPTED): _S.CONNECTED,
        (_S.REGISTERING, _E.REGISTRY_REJECTED): _S.CONSULTING,
        (_S.REGISTERING, _E.LOST_CONNECTION): _S.CONSULTING,
        **{(state, _E.LOST_CONNECTION): _S.CONSULTING for state in _REGISTERED},
        **{(state, _E.OFFSETS_WANTED): state for state in _REGISTERED},
        **{(state, _E.STOP_FETCHERS): _S.CONNECTED for state in _REGISTERED},
        **{(state, _E.START_FETCHERS): _S.FETCHING for state in _REGISTERED},
        **{(state, _E.SHUT_DOWN): _S.STOPPED for state in _S},
    },
)


class Action(Enum):
    """Actions of the consumer, in the order of the document's steps."""

    CONSULT_BROKER = "create a channel with the next known broker and send a cluster metadata request"
    REGISTER = "connect to the coordinator and send a register request"
    START_CONNECTOR = "start the coordinator connector with the channel"
    STOP_CONNECTOR = "shut down the coordinator connector"
    STOP_FETCHERS = "stop the fetchers"
    CLEAN_QUEUES = "clean the fetchers' queues"
    SEND_OFFSETS = "send the consumed offsets"
    REFRESH_PARTITIONS = "refresh the consumed partition info"
    START_FETCHERS = "start fetchers with the consumed partition info"
    RESPOND = "send the response"


_ACTIONS: Mapping[LightweightConsumerEvent, tuple[Action, ...]] = {
    _E.ON_START: (Action.CONSULT_BROKER,),
    _E.CHANNEL_FAILED: (Action.CONSULT_BROKER,),
    _E.CLUSTER_INFO: (Action.REGISTER,),
    _E.REGISTRY_ACCEPTED: (Action.START_CONNECTOR,),
    _E.REGISTRY_REJECTED: (Action.STOP_FETCHERS, Action.CLEAN_QUEUES, Action.STOP_CONNECTOR, Action.CONSULT_BROKER),
    _E.LOST_CONNECTION: (Action.STOP_FETCHERS, Action.CLEAN_QUEUES, Action.STOP_CONNECTOR, Action.CONSULT_BROKER),
    _E.OFFSETS_WANTED: (Action.SEND_OFFSETS,),
    _E.STOP_FETCHERS: (Action.STOP_FETCHERS, Action.CLEAN_QUEUES, Action.SEND_OFFSETS),
    _E.START_FETCHERS: (Action.REFRESH_PARTITIONS, Action.START_FETCHERS, Action.RESPOND),
    _E.SHUT_DOWN: (Action.STOP_FETCHERS, Action.CLEAN_QUEUES, Action.STOP_CONNECTOR),
}


@dataclass(frozen=True, slots=True)
class Released:
    """Counterparts of an event in the released protocols.

    Args:
        classic: Requests and responses of classic groups (from 0.9 on).
        consumer_group: The requests are those of KIP-848 (from 4.0 on).
    """

    classic: str
    consumer_group: str


RELEASED: Mapping[LightweightConsumerEvent, Released] = {
    _E.ON_START: Released("the configured addresses, in a random order", "the same"),
    _E.CHANNEL_FAILED: Released("the next address; a back-off after each round", "the same"),
    _E.CLUSTER_INFO: Released("Metadata, then FindCoordinator of the group", "the same"),
    _E.REGISTRY_ACCEPTED: Released("JoinGroup response with a generation", "the response to a heartbeat of epoch 0"),
    _E.REGISTRY_REJECTED: Released(
        "a JoinGroup response with 14, 15 or 16; after 22, 25, 79 it rejoins, after 23, 24, 26, 30, 81, 82 it stops",
        "a heartbeat response with 14, 15 or 16; after 110 and 25 it rejoins, after 35, 42, 82, 111, 112 it stops",
    ),
    _E.LOST_CONNECTION: Released(
        "22 or 25. After a lost connection, or without a Heartbeat response within the session timeout, the member "
        "finds its coordinator again; until that says that the member is gone, the fetchers run",
        "110 or 25; after a lost connection as in classic groups",
    ),
    _E.OFFSETS_WANTED: Released("OffsetCommit: at intervals, and before each JoinGroup", "OffsetCommit: at intervals"),
    _E.STOP_FETCHERS: Released(
        "a Heartbeat response with 27; the OffsetCommit and JoinGroup that follow are the document's response",
        "an assignment that lacks partitions; the next heartbeat, with the owned ones, is the document's response",
    ),
    _E.START_FETCHERS: Released(
        "the SyncGroup response, then OffsetFetch; the first Heartbeat of the generation is the document's response",
        "an assignment with new partitions, then OffsetFetch; the next heartbeat is the document's response",
    ),
    _E.SHUT_DOWN: Released("OffsetCommit, LeaveGroup", "OffsetCommit, ConsumerGroupHeartbeat with epoch -1 or -2"),
}
"""The document's events in the released protocols. Numbers are error codes."""

_REJECTED = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


@dataclass(frozen=True, slots=True)
class ConsumedPartition:
    """The consumed partition info.

    Args:
        fetched_offset: The next offset to fetch.
        consumed_offset: The next offset to consume, which is sent and committed.
        fetch_size: Limit of one fetch (bytes).
    """

    fetched_offset: int
    consumed_offset: int
    fetch_size: int


@dataclass(slots=True)
class LightweightConsumer:
    """The consumer of the document. Each method is one of its events, and returns the actions that follow.

    Args:
        unknown_brokers: The first addresses to try, `host:port`.
        fetch_size: Limit of one fetch of a partition (bytes).
    """

    unknown_brokers: Sequence[str]
    fetch_size: int = 1 << 20
    state: LightweightConsumerState = LightweightConsumerState.NEW
    coordinator: GroupCoordinator | None = None
    partitions: dict[TopicPartition, ConsumedPartition] = field(default_factory=dict)
    _known_brokers: tuple[str, ...] = ()
    _consulted: int = -1

    def on_start(self) -> tuple[Action, ...]:
        """Construct the initial cluster info from the unknown brokers, and begin to consult them."""
        if not self.unknown_brokers:
            raise LocalProtocolError("the lightweight consumer needs the address of at least one broker")
        self._known_brokers = tuple(self.unknown_brokers)
        return self._after(_E.ON_START)

    def channel_failed(self) -> tuple[Action, ...]:
        """Try another broker; after the last one, the first again."""
        return self._after(_E.CHANNEL_FAILED)

    def cluster_info(self, brokers: Iterable[str], coordinator: GroupCoordinator) -> tuple[Action, ...]:
        """Update the server cluster info, with the current coordinator."""
        self._known_brokers, self.coordinator = tuple(brokers) or self._known_brokers, coordinator
        return self._after(_E.CLUSTER_INFO)

    def registry_accepted(self) -> tuple[Action, ...]:
        """Start the coordinator connector with the channel."""
        return self._after(_E.REGISTRY_ACCEPTED)

    def registry_rejected(self) -> tuple[Action, ...]:
        """Take the lost-connection procedure: the coordinator may be another one by now."""
        return self._lose(_E.REGISTRY_REJECTED)

    def lost_connection(self) -> tuple[Action, ...]:
        """Close all fetchers, shut down the connector, and begin again with step 2 of onStart."""
        return self._lose(_E.LOST_CONNECTION)

    def offsets_wanted(self) -> tuple[Action, ...]:
        """Send the consumed offsets; the fetchers continue."""
        return self._after(_E.OFFSETS_WANTED)

    def stop_fetchers(self) -> tuple[Action, ...]:
        """Stop, and send the consumed offsets. Records that were fetched and not consumed are fetched again later."""
        self.partitions = {
            where: replace(info, fetched_offset=info.consumed_offset) for where, info in self.partitions.items()
        }
        return self._after(_E.STOP_FETCHERS)

    def start_fetchers(self, assigned: Mapping[TopicPartition, int]) -> tuple[Action, ...]:
        """Refresh the consumed partition info: partition -> offset to begin with."""
        actions = self._after(_E.START_FETCHERS)
        self.partitions = {where: ConsumedPartition(o, o, self.fetch_size) for where, o in assigned.items()}
        return actions

    def shut_down(self) -> tuple[Action, ...]:
        """Close all fetchers and the connector, for good."""
        return self._after(_E.SHUT_DOWN)

    def next_broker(self) -> str:
        """Return the broker to consult now, in a circle over the known ones."""
        self._consulted = (self._consulted + 1) % len(self._known_brokers)
        return self._known_brokers[self._consulted]

    def fetched(self, where: TopicPartition, next_offset: int) -> None:
        """Record how far a partition is fetched."""
        self.partitions[where] = replace(self.partitions[where], fetched_offset=next_offset)

    def consumed(self, where: TopicPartition, next_offset: int) -> None:
        """Record how far a partition is consumed. Raises LocalProtocolError if that was not fetched yet."""
        info = self.partitions[where]
        if next_offset > info.fetched_offset:
            raise LocalProtocolError(f"{where}: consumed up to {next_offset}, fetched up to {info.fetched_offset} only")
        self.partitions[where] = replace(info, consumed_offset=next_offset)

    def consumed_offsets(self) -> dict[TopicPartition, int]:
        """Return the consumed offsets of all partitions: the response to "offsets wanted"."""
        return {where: info.consumed_offset for where, info in self.partitions.items()}

    def _lose(self, event: LightweightConsumerEvent) -> tuple[Action, ...]:
        actions = self._after(event)
        self.coordinator, self.partitions = None, {}
        return actions

    def _after(self, event: LightweightConsumerEvent) -> tuple[Action, ...]:
        self.state = LIGHTWEIGHT_CONSUMER.after(self.state, event)
        return _ACTIONS[event]


def event_of(effect: Effect) -> LightweightConsumerEvent | None:
    """Return the document's event for an effect of a group member; None if the document has none."""
    match effect:
        case Revoke():
            return _E.STOP_FETCHERS
        case Assign():
            return _E.START_FETCHERS
        case Lost():
            return _E.LOST_CONNECTION
        case Fail():
            return _E.SHUT_DOWN
    return None


class LightweightTrace:
    """The states of the document that a member of a classic group goes through.

    Call it with each request that got a response or failed, and with each effect, in their order. Events without a
    counterpart in the document are left out, such as a heartbeat that changes nothing.

    Args:
        unknown_brokers: The addresses that the client begins with, `host:port`.
    """

    def __init__(self, unknown_brokers: Sequence[str]) -> None:
        self.consumer = LightweightConsumer(unknown_brokers)
        self.steps: list[tuple[LightweightConsumerEvent, tuple[Action, ...]]] = []
        """The events so far, with the actions that the document wants."""
        self._known: tuple[str, ...] = ()
        self._coordinator: GroupCoordinator | None = None

    @property
    def state(self) -> LightweightConsumerState:
        """The state of the document's consumer."""
        return self.consumer.state

    @property
    def events(self) -> list[LightweightConsumerEvent]:
        """The events so far."""
        return [event for event, _ in self.steps]

    def start(self) -> None:
        """Begin: before the first request."""
        self._step(_E.ON_START, self.consumer.on_start())

    def answered(self, request: Request[Any], response: Response | None) -> None:
        """Follow a request and its response; None: it failed without one."""
        error = 0 if response is None else getattr(response, "error_code", 0)
        match request, response:
            case ((MetadataRequest() | FindCoordinatorRequest()), None) if self.state is _S.CONSULTING:
                self._step(_E.CHANNEL_FAILED, self.consumer.channel_failed())
            case MetadataRequest(), MetadataResponse():
                self._known = tuple(f"{broker.host}:{broker.port}" for broker in response.brokers)
            case FindCoordinatorRequest(), FindCoordinatorResponse() if not error:
                self._coordinator = GroupCoordinator(response.node_id, response.host, response.port)
                self._register()
            case JoinGroupRequest(), _:
                self._join_answered(response, error)
            case OffsetCommitRequest(), OffsetCommitResponse() if self.state in _REGISTERED:
                self._step(_E.OFFSETS_WANTED, self.consumer.offsets_wanted())
            case LeaveGroupRequest(), _:
                self._step(_E.SHUT_DOWN, self.consumer.shut_down())

    def carried_out(self, effect: Effect, positions: Mapping[TopicPartition, int] | None = None) -> None:
        """Follow an effect of the member.

        Args:
            effect: The effect.
            positions: For `Assign`: where fetching begins.
        """
        event = event_of(effect)
        if event is _E.STOP_FETCHERS:
            self._step(event, self.consumer.stop_fetchers())
        elif event is _E.START_FETCHERS:
            self._step(event, self.consumer.start_fetchers(positions or {}))
        elif event is _E.LOST_CONNECTION:
            self._step(event, self.consumer.lost_connection())
        elif event is _E.SHUT_DOWN:
            self._step(event, self.consumer.shut_down())

    def _register(self) -> None:
        if self.state is _S.CONSULTING and self._coordinator is not None:
            self._step(_E.CLUSTER_INFO, self.consumer.cluster_info(self._known, self._coordinator))

    def _join_answered(self, response: Response | None, error: int) -> None:
        """Follow JoinGroup: the registry, or after "stop fetchers" the reply to that."""
        self._register()  # a member that was removed, or rejected while groups load, asks the same coordinator again
        if self.state is not _S.REGISTERING:
            return
        if response is None or error in _REJECTED:
            self._step(_E.REGISTRY_REJECTED, self.consumer.registry_rejected())
        elif not error:
            self._step(_E.REGISTRY_ACCEPTED, self.consumer.registry_accepted())

    def _step(self, event: LightweightConsumerEvent, actions: tuple[Action, ...]) -> None:
        self.steps.append((event, actions))
