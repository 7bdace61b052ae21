"""The way of administrative requests to the broker that has to get them: the controller, a coordinator, a leader."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from odradek.core.backoff import Backoff
from odradek.core.kafka.broker_errors import broker_error
from odradek.core.kafka.versions import BrokerVersions
from odradek.errors import DeadlineError, OdradekError, Unsupported
from odradek.io.kafka.coordinators import CoordinatorType
from odradek.io.kafka.metadata import KafkaMetadata
from odradek.io.kafka.offsets import CoordinatorAccess
from odradek.io.retry import first_answer, retry
from odradek.types import Broker
from odradek.wire.kafka.error_codes import ErrorCode
from odradek.wire.kafka.schema import Request, Response

__all__ = ["AdminRequests"]

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

    def require(self, api: type[Request[R]], feature: str, needs: str) -> None:
        """Raise Unsupported if a broker is too old for a request."""
        if not self._access.versions().has(api):
            raise Unsupported(feature, needs)

    def has(self, api: type[Request[R]], version: int = 0) -> bool:
        """Return True if all brokers have this version of a request."""
        return self._access.versions().has(api, version)

    async def ask(self, broker: Broker, api: type[Request[R]], build: Build[R]) -> R:
        """Send a request to a broker. Raises what awaiting a request raises."""
        return await self._access.connections.get(broker, PURPOSE).submit_built(api, build)

    async def ask_any(self, api: type[Request[R]], build: Build[R]) -> R:
        """Send a request to any broker: the next one if it does not answer, until the time is over."""

        async def attempt() -> R:
            if not self.metadata.table.brokers:  # 0.8.0 and 0.8.1 only list those that have a partition
                await self.metadata.all_topics()
            brokers = list(self.metadata.table.brokers.values())
            none = broker_error(ErrorCode.BROKER_NOT_AVAILABLE, "no broker is known")
            return await first_answer(brokers, lambda broker: self.ask(broker, api, build), none)

        return await self.until_accepted(api.SPEC.name, attempt)

    async def ask_controller(self, api: type[Request[R]], build: Build[R], codes: Callable[[R], Iterable[int]]) -> R:
        """Send a request to the controller: to another one while brokers answer that they are not.

        In KRaft clusters every broker forwards to it, and Metadata names any of them.

        Args:
            codes: Returns the error codes of a response.
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

        return await self.until_accepted(api.SPEC.name, attempt, changes=True)

    async def ask_coordinator(
        self, group: str, api: type[Request[R]], build: Build[R], read: Callable[[R, Broker], T], *, changes: bool
    ) -> T:
        """Send a request to the coordinator of a group, and return what `read` makes of the response; again, to the
        next one, while that raises a retriable error.

        Args:
            changes: True if a request that may have been applied must not be repeated.
        """

        async def attempt() -> T:
            try:
                broker = await self._access.coordinators.find(CoordinatorType.GROUP, group)
                return read(await self.ask(broker, api, build), broker)
            except OdradekError as error:
                if error.retriable:
                    self._access.coordinators.forget(CoordinatorType.GROUP, group)
                raise

        return await self.until_accepted(api.SPEC.name, attempt, changes=changes)

    async def until_accepted(self, what: str, attempt: Callable[[], Awaitable[T]], *, changes: bool = False) -> T:
        """Repeat an attempt while its errors pass, and while there is time; then raise the last one."""
        return await retry(
            attempt,
            self._access.backoff,
            passes=lambda error: error.retriable and not (changes and error.sent),
            limit_s=self._access.timeout_s,
            late=DeadlineError(what, self._access.timeout_s, sent=changes),
        )
