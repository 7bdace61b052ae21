"""`Admin`, the part that is about brokers: replicas, leaders, log directories, the quorum, features, transactions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from odradek import arguments
from odradek.client.admin_arguments import NAME, AdminPart, items, names, partitions
from odradek.client.options import partition as partition_rule
from odradek.core.admin import Results
from odradek.core.admin_cluster import (
    BrokersAdmin,
    Features,
    LogDirectory,
    QuorumDescription,
    Reassignment,
    Replica,
)
from odradek.core.admin_transactions import (
    ProducerDescription,
    TransactionDescription,
    TransactionListing,
    TransactionsAdmin,
)
from odradek.types import TopicPartition

__all__ = ["AdminOfBrokers"]

_BROKER = arguments.count(0, unit="a broker id")
_PARTITION = partition_rule()
_BROKERS = arguments.sequence(_BROKER, "a sequence of broker ids")
_TARGETS = arguments.mapping(
    _PARTITION, arguments.optional(_BROKERS), "a mapping of partitions to sequences of broker ids, or None"
)
_PATHS = arguments.mapping(
    arguments.instance(Replica, "a Replica"), arguments.text("a path"), "a mapping of replicas to paths"
)
_LISTENERS = arguments.mapping(
    NAME, arguments.pair(NAME, arguments.port()), "a mapping of names of listeners to (host, port)"
)
_LEVELS = arguments.mapping(NAME, arguments.count(0, 32767, "a level"), "a mapping of features to levels")
_PRODUCER_ID = arguments.count(0, (1 << 63) - 1, "a producer id")
_PRODUCER = arguments.instance(ProducerDescription, "a ProducerDescription")
_FLAG = arguments.flag()
_AGE = arguments.optional(arguments.seconds())


class AdminOfBrokers(AdminPart):
    """Brokers of a cluster, where its partitions are, and its transactions."""

    @property
    def _brokers(self) -> BrokersAdmin:
        return self._driver.admin().brokers

    @property
    def _transactions(self) -> TransactionsAdmin:
        return self._driver.admin().transactions

    # ---- replicas and leaders -------------------------------------------------------------------------------

    async def reassign_partitions(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> Results[TopicPartition, None]:
        """Begin to move replicas of partitions to other brokers. `list_reassignments` shows how far that is.

        Args:
            targets: Partition -> ids of the brokers that have a replica afterwards, the preferred leader first; None
                cancels the move in progress.

        Raises:
            Unsupported: The brokers are older than 2.4.
            TransportError: No answer; moves may have begun if the error says `sent`.
        """
        return await self._brokers.reassign(_TARGETS("targets", targets))

    async def cancel_reassignments(
        self, of: TopicPartition | Iterable[TopicPartition]
    ) -> Results[TopicPartition, None]:
        """Cancel moves of replicas that are in progress. Raises as `reassign_partitions`."""
        return await self._brokers.reassign(dict.fromkeys(partitions("of", of)))

    async def list_reassignments(
        self, of: TopicPartition | Iterable[TopicPartition] | None = None
    ) -> Mapping[TopicPartition, Reassignment]:
        """Return the moves of replicas that are in progress, of these partitions or of all. Cancellation: safe.

        Raises:
            Unsupported: The brokers are older than 2.4.
        """
        return await self._brokers.list_reassignments(None if of is None else partitions("of", of))

    async def elect_leaders(
        self, of: TopicPartition | Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> Results[TopicPartition, bool]:
        """Let the preferred leader of partitions lead them.

        Args:
            of: These partitions; None: all.
            unclean: Let any replica lead those that have no leader, even if it lacks records: they are lost (2.4 and
                later).

        Returns:
            True if there is another leader now, False if none was needed. With None, only partitions that brokers name.

        Raises:
            Unsupported: The brokers are older than 2.2, or than an argument needs.
        """
        wanted = None if of is None else partitions("of", of)
        return await self._brokers.elect_leaders(wanted, unclean=_FLAG("unclean", unclean))

    # ---- log directories ------------------------------------------------------------------------------------

    async def describe_log_dirs(
        self, brokers: int | Iterable[int] | None = None
    ) -> Results[int, Sequence[LogDirectory]]:
        """Return the log directories of brokers, of all by default, and what is in them. Cancellation: safe.

        Raises:
            Unsupported: The brokers are older than 1.0.
        """
        wanted = None if brokers is None else items("brokers", brokers, _BROKER, int, "a broker id, or several")
        return await self._brokers.describe_log_dirs(wanted)

    async def move_replicas(self, targets: Mapping[Replica, str]) -> Results[Replica, None]:
        """Begin to move replicas to other log directories of their brokers. `describe_log_dirs` shows how far that is.

        Args:
            targets: `Replica(broker, partition)` -> the path of the directory.

        Raises:
            Unsupported: The brokers are older than 1.0.
        """
        return await self._brokers.move_replicas(_PATHS("targets", targets))

    # ---- quorum ---------------------------------------------------------------------------------------------

    async def describe_quorum(self) -> QuorumDescription:
        """Return the state of the quorum of controllers. Cancellation: safe.

        Raises:
            Unsupported: The brokers are older than 3.3, or not in KRaft mode.
        """
        return await self._brokers.describe_quorum()

    async def add_voter(self, voter: int, directory_id: str, listeners: Mapping[str, tuple[str, int]]) -> None:
        """Add a controller to the quorum (KIP-853).

        Args:
            voter: Its id.
            directory_id: The id of its directory of metadata, as `meta.properties` has it.
            listeners: Name of each of its listeners for controllers -> host and port.

        Raises:
            Unsupported: The brokers are older than 3.9, or not in KRaft mode.
            BrokerError: It is a voter already, does not answer, or voters are configured (`kraft.version` 0).
        """
        await self._brokers.add_voter(
            _BROKER("voter", voter), NAME("directory_id", directory_id), _LISTENERS("listeners", listeners)
        )

    async def remove_voter(self, voter: int, directory_id: str) -> None:
        """Remove a controller from the quorum. Arguments and errors are those of `add_voter`."""
        await self._brokers.remove_voter(_BROKER("voter", voter), NAME("directory_id", directory_id))

    async def unregister_broker(self, broker: int) -> None:
        """Forget a broker that has stopped and will not come back.

        Raises:
            Unsupported: The brokers are older than 3.3, or not in KRaft mode.
            BrokerError: There is no such broker.
        """
        await self._brokers.unregister_broker(_BROKER("broker", broker))

    # ---- features -------------------------------------------------------------------------------------------

    async def describe_features(self) -> Features:
        """Return the features of the cluster and their levels (KIP-584). Cancellation: safe.

        Raises:
            Unsupported: The brokers are older than 2.7.
        """
        return await self._brokers.describe_features()

    async def update_features(
        self,
        levels: Mapping[str, int],
        *,
        downgrade: bool = False,
        unsafe: bool = False,
        validate_only: bool = False,
    ) -> Results[str, None]:
        """Change the levels of features that the cluster uses. From 4.0 on either all are changed, or none.

        Args:
            levels: Feature -> level; 0 turns it off.
            downgrade: Levels may become lower, if that loses nothing.
            unsafe: They may become lower even if it loses metadata (3.3 and later); needs `downgrade`.
            validate_only: Find out whether they can be changed, without doing it (3.3 and later).

        Raises:
            Unsupported: The brokers are older than 2.7, or than an argument needs.
            BrokerError: The controller refuses it.
        """
        return await self._brokers.update_features(
            _LEVELS("levels", levels),
            downgrade=_FLAG("downgrade", downgrade),
            unsafe=_FLAG("unsafe", unsafe) and downgrade,
            validate_only=_FLAG("validate_only", validate_only),
        )

    # ---- transactions ---------------------------------------------------------------------------------------

    async def list_transactions(
        self,
        *,
        states: str | Iterable[str] = (),
        producer_ids: int | Iterable[int] = (),
        longer_than: float | None = None,
        pattern: str | None = None,
    ) -> Sequence[TransactionListing]:
        """Return transactional ids, sorted. Cancellation: safe.

        Args:
            states: Those in one of these states only, such as `Ongoing`.
            producer_ids: Those of these producers only.
            longer_than: Those with a transaction that has been open for longer only (s; 3.8 and later).
            pattern: Those that match this regular expression, of Java's RE2, only (4.1 and later).

        Raises:
            Unsupported: The brokers are older than 3.0, or than an argument needs.
            TransportError, DeadlineError: A broker did not answer: those that it coordinates would be missing.
        """
        return await self._transactions.list_transactions(
            names("states", states),
            items("producer_ids", producer_ids, _PRODUCER_ID, int, "a producer id, or several"),
            _AGE("longer_than", longer_than),
            arguments.optional(NAME)("pattern", pattern),
        )

    async def describe_transactions(
        self, transactional_ids: str | Iterable[str]
    ) -> Results[str, TransactionDescription]:
        """Return states, times and partitions of transactions. Cancellation: safe.

        Raises:
            Unsupported: The brokers are older than 3.0.
        """
        return await self._transactions.describe_transactions(names("transactional_ids", transactional_ids))

    async def describe_producers(
        self, of: TopicPartition | Iterable[TopicPartition]
    ) -> Results[TopicPartition, Sequence[ProducerDescription]]:
        """Return the producers that the leaders of partitions know, and where their open transactions begin.

        Raises:
            Unsupported: The brokers are older than 2.8.
        """
        return await self._transactions.describe_producers(partitions("of", of))

    async def abort_transaction(self, partition: TopicPartition, producer: ProducerDescription) -> None:
        """Abort an open transaction in one partition that nobody will end any more (KIP-664).

        Only for one that its coordinator does not know: another one it ends itself, when its time is over.

        Args:
            partition: Which.
            producer: What `describe_producers` said of its producer.

        Raises:
            Unsupported: The brokers are older than 0.11.
            BrokerError: It is not open any more, or this client may not do that.
        """
        await self._transactions.abort_transaction(_PARTITION("partition", partition), _PRODUCER("producer", producer))
