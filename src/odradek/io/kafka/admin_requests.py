"""The way of administrative requests to the broker that has to get them: the controller, a coordinator, a leader."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

import anyio

from odradek.core.admin import GroupDescription, Results
from odradek.core.backoff import Backoff
from odradek.core.kafka.admin_topics import item_results
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import BrokerError, DeadlineError, OdradekError, Unsupported
from odradek.io.gather import gather_outcomes
from odradek.io.kafka.coordinators import CoordinatorType
from odradek.io.kafka.metadata import SILENCE_S, KafkaMetadata, metadata_request
from odradek.io.kafka.offsets import CoordinatorAccess
from odradek.io.retry import first_answer, may_be_of_one_broker, quickest_answer, retry
from odradek.types import Broker, TopicPartition
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.messages.metadata import MetadataRequest
from odradek.wire.kafka.schema import Request, Response

__all__ = ["AdminRequests", "each"]

K = TypeVar("K")
R = TypeVar("R", bound=Response)
T = TypeVar("T")

Build = Callable[[BrokerVersions], Request[R]]

PURPOSE = "admin"
"""Kind of work: these requests may take long, and have a connection of their own."""

BROKER_SHARE = 0.8
"""Part of the time-out in which a broker has to finish, so that its answer says what is not finished."""


class AdminRequests:
    """Sends requests to one cluster, and repeats those that reached the wrong broker.

    Args:
        access: The way to brokers and coordinators.
        metadata: Knows the controller and leaders.
    """

    def __init__(self, access: CoordinatorAccess, metadata: KafkaMetadata) -> None:
        self._access, self.metadata = access, metadata

    @property
    def timeout_ms(self) -> int:
        """Time that brokers have for a change (ms)."""
        return int(self._access.timeout_s * BROKER_SHARE * 1000)

    @property
    def backoff(self) -> Backoff:
        """Between two attempts."""
        return self._access.backoff

    async def require(self, api: type[Request[R]], feature: str, needs: str, version: int = 0) -> None:
        """Raise Unsupported if a broker is too old for a request. What is known of brokers may be from before their
        upgrade: each of them is asked once more."""
        if not self.has(api, version):
            with suppress(OdradekError), anyio.move_on_after(SILENCE_S):
                await gather_outcomes(self._meet, await self.brokers())
        if not self.has(api, version):
            raise Unsupported(feature, needs)

    async def _meet(self, broker: Broker) -> None:
        """Have a broker answer: it tells its versions on a new connection, which one that has restarted needs."""
        await self._access.connections.ask(
            broker, MetadataRequest, lambda versions: metadata_request(versions, (), False)
        )

    def has(self, api: type[Request[R]], version: int = 0) -> bool:
        """Return True if all brokers have this version of a request."""
        return self._access.versions().has(api, version)

    async def ask(self, broker: Broker, api: type[Request[R]], build: Build[R]) -> R:
        """Send a request to a broker. Raises what awaiting a request raises."""
        return await self._access.connections.get(broker, PURPOSE).submit_built(api, build)

    async def ask_any(
        self,
        api: type[Request[R]],
        build: Build[R],
        codes: Callable[[R], Iterable[int]] = lambda response: (),
        *,
        changes: bool = False,
        repeatable: bool = False,
    ) -> R:
        """Send a request to any broker: the next one if it does not answer, or does not have the request, until the
        time is over. A question goes to the next one, too, while one is silent; a change does not: a late one might
        undo what came after it.

        Args:
            codes: Returns the error codes of a response that concern it as a whole: the request is repeated while one
                of them is retriable.
            changes: True if it is a change, which must not be repeated if it may have been applied.
            repeatable: True if that change may be repeated.
        """
        once = changes and not repeatable

        async def attempt() -> R:
            if not self.metadata.table.brokers:  # 0.8.0 and 0.8.1 only list those that have a partition
                await self.metadata.all_topics()
            brokers = list(self.metadata.table.brokers.values())
            none = broker_error(ErrorCode.BROKER_NOT_AVAILABLE, "no broker is known")
            if changes:
                response = await first_answer(
                    brokers,
                    lambda broker: self.ask(broker, api, build),
                    none,
                    lambda error: may_be_of_one_broker(error) and not (once and error.sent),
                )
            else:
                response = await quickest_answer(brokers, lambda broker: self.ask(broker, api, build), none, SILENCE_S)
            _raise_passing(codes(response), api)
            return response

        return await self.until_accepted(api.SPEC.name, attempt, changes=changes, once=once)

    async def ask_broker(
        self,
        number: int,
        api: type[Request[R]],
        build: Build[R],
        codes: Callable[[R], Iterable[int]] = lambda response: (),
        *,
        changes: bool = False,
    ) -> R:
        """Send a request to the broker with this id (see `ask_any`), as a change one that may be repeated. Raises
        BrokerError if there is none."""
        if number not in self.metadata.table.brokers:  # it may have joined since they were read
            await self.metadata.refresh()
        known = self.broker(number)

        async def attempt() -> R:
            response = await self.ask(self.metadata.table.brokers.get(number, known), api, build)
            _raise_passing(codes(response), api)
            return response

        return await self.until_accepted(api.SPEC.name, attempt, changes=changes)

    async def ask_leader(
        self,
        partition: TopicPartition,
        api: type[Request[R]],
        build: Build[R],
        read: Callable[[R], T],
        what: str,
        *,
        changes: bool = False,
    ) -> T:
        """Send a request to the leader of a partition, and return what `read` makes of the response; again, to the new
        leader, while that raises a retriable error. The topic must have been looked up before (`read_topics_of`).

        Args:
            what: What is done to the partition, for errors.
            changes: True if it is a change, which may be repeated.
        """

        async def attempt() -> T:
            leader = self.metadata.table.leader(partition)
            if leader is None:
                raise broker_error(ErrorCode.LEADER_NOT_AVAILABLE, f"{what} {partition}")
            return read(await self.ask(leader, api, build))

        state = self.metadata.table.state
        if state.partition(partition) is None:
            topic = state.topics.get(partition.topic)
            code = ErrorCode.NONE if topic is None else topic.error_code
            raise broker_error(code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{what} {partition}")
        return await self.until_accepted(api.SPEC.name, attempt, changes=changes)

    async def read_topics_of(self, partitions: Collection[TopicPartition]) -> None:
        """Read the topics of partitions, so that their leaders are known: again if one of the partitions is not, which
        may have been added since. An error of one topic is that of its partitions (`ask_leader`)."""
        for topic in {partition.topic for partition in partitions}:
            with suppress(BrokerError):
                await self.metadata.table_for_topic(topic)
        if any(self.metadata.table.state.partition(partition) is None for partition in partitions):
            await self.metadata.refresh()

    async def brokers(self) -> list[Broker]:
        """Return all brokers, read now: what only one that has just joined knows is not to be missing."""
        await self.metadata.refresh()
        return list(self.metadata.table.brokers.values())

    def broker(self, number: int) -> Broker:
        """Return the broker with this id. Raises BrokerError if there is none."""
        broker = self.metadata.table.brokers.get(number)
        if broker is None:
            raise broker_error(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {number}")
        return broker

    async def ask_controller(
        self,
        api: type[Request[R]],
        build: Build[R],
        codes: Callable[[R], Iterable[int]],
        *,
        changes: bool = True,
    ) -> R:
        """Send a request to the controller: to another one while brokers answer that they are not.

        In KRaft clusters every broker forwards to it, and Metadata names any of them.

        Args:
            codes: Returns the error codes of a response.
            changes: True if a request that may have been applied must not be repeated.
        """

        async def attempt() -> R:
            table = self.metadata.table
            broker = table.brokers.get(table.state.controller_id)
            if broker is None:
                await self.metadata.refresh()
                raise broker_error(ErrorCode.NOT_CONTROLLER, "no controller is known")
            response = await self.ask(broker, api, build)
            if ErrorCode.NOT_CONTROLLER in codes(response):
                await self.metadata.refresh()
                raise broker_error(ErrorCode.NOT_CONTROLLER, f"{broker.address}: {api.SPEC.name}")
            return response

        return await self.until_accepted(api.SPEC.name, attempt, changes=changes, once=changes)

    async def ask_coordinator(
        self,
        name: str,
        api: type[Request[R]],
        build: Build[R],
        read: Callable[[R, Broker], T],
        *,
        changes: bool,
        kind: CoordinatorType = CoordinatorType.GROUP,
    ) -> T:
        """Send a request to the coordinator of a group or a transactional id, and return what `read` makes of the
        response; again, to the next one, while that raises a retriable error.

        Args:
            changes: True if a request that may have been applied must not be repeated.
        """

        async def attempt() -> T:
            try:
                broker = await self._access.coordinators.find(kind, name)
                return read(await self.ask(broker, api, build), broker)
            except OdradekError as error:
                if error.retriable:
                    self._access.coordinators.forget(kind, name)
                raise

        return await self.until_accepted(api.SPEC.name, attempt, changes=changes, once=changes)

    async def describe_group(
        self, name: str, request: Request[R], read: Callable[[R, str, Broker], GroupDescription]
    ) -> GroupDescription:
        """Return what the coordinator of a group answers to one of the requests that describe it."""
        return await self.ask_coordinator(
            name,
            type(request),
            lambda versions: request,
            lambda response, broker: read(response, name, broker),
            changes=False,
        )

    async def until_accepted(
        self, what: str, attempt: Callable[[], Awaitable[T]], *, changes: bool = False, once: bool = False
    ) -> T:
        """Repeat an attempt while its errors pass, and while there is time; then raise the last one. The metadata is
        read again before the next attempt if an error, also that of a broker that is gone, shows that it is stale.

        Args:
            changes: True if it is a change: the error says if any of the attempts may have been applied.
            once: True if an attempt that may have been applied must not be repeated.
        """
        in_doubt = False

        def passes(error: OdradekError) -> bool:
            return error.retriable and not (once and error.sent)

        async def refreshing() -> T:
            nonlocal in_doubt
            before, in_doubt = in_doubt, True  # it may be cancelled when the time is over
            try:
                return await attempt()
            except OdradekError as error:
                in_doubt = before or error.sent
                if error.refresh_metadata and passes(error):
                    with suppress(OdradekError):  # that of the attempt says what the request met
                        await self.metadata.refresh()
                raise

        late = DeadlineError(what, self._access.timeout_s, sent=changes)
        try:
            return await retry(
                refreshing, self._access.backoff, passes=passes, limit_s=self._access.timeout_s, late=late
            )
        except OdradekError as error:
            if changes and in_doubt and error.retriable and not error.sent:
                raise late from error
            raise


def _raise_passing(codes: Iterable[int], api: type[Request[R]]) -> None:
    """Raise the first error that passes by itself."""
    for code in codes:
        if (error := broker_error(code, api.SPEC.name)).retriable:
            raise error


async def each(items: Sequence[K], call: Callable[[K], Awaitable[T]]) -> Results[K, T]:
    """Call for every item, at the same time; the results say which calls failed."""
    outcomes = await gather_outcomes(call, items)
    return item_results(items, dict(zip(items, outcomes, strict=True)), "")
