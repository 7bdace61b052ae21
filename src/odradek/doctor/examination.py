"""`examine`: asks a cluster, and has the answers judged by the tables of `connections`, `brokers` and `groups`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

import anyio

from odradek import arguments
from odradek.client.cluster import Cluster
from odradek.client.connect import connect, proxy_of
from odradek.core.admin import GroupDescription, TopicDescription
from odradek.doctor.brokers import OWN_TOPICS, missing_topic, own_topic_findings, partition_findings, quota_findings
from odradek.doctor.causes import Diagnosis, Report, diagnosis
from odradek.doctor.connections import address_findings, connection_finding, server_addresses
from odradek.doctor.groups import GroupFacts, StableOffset, group_findings, transaction_findings
from odradek.errors import BrokerError, OdradekError, Unreachable, Unsupported, ZooKeeperError
from odradek.io import tcp
from odradek.io.gather import gather_outcomes
from odradek.io.security import Security
from odradek.io.tls import client_context
from odradek.types import EARLIEST, LATEST, Position, TopicPartition

__all__ = ["examine"]

CONNECT_S = 5.0
"""Time limit for one connection (s)."""

OBSERVE_EVERY_S = 0.5
"""Time between two questions about the members of a group (s)."""

WORST_FIRST = ("error", "warning", "notice")

_NAME = arguments.optional(arguments.text("a name"))
_RULES: Mapping[str, arguments.Rule] = {
    "topic": _NAME,
    "group": _NAME,
    "seconds": arguments.seconds(at_least=1, at_most=3600),
}

Check = Callable[[], Awaitable[Iterable[Diagnosis]]]


async def examine(
    url: str,
    *,
    security: Security | None = None,
    client_id: str = "odradek",
    topic: str | None = None,
    group: str | None = None,
    seconds: float = 12.0,
) -> Report:
    """Ask a cluster what may be wrong. Nothing is changed, no topic created, and what fails on the way is a finding.
    Cancellation: safe.

    Args:
        url, security, client_id: As for `odradek.connect`. Quotas are those of this client id.
        topic: Examine this topic as well.
        group: Examine this group as well, and the topics for which it has positions.
        seconds: Time for which group and transactions are observed (s): at least twice the time between two commits,
            which is 5 s by default in Java.

    Raises:
        ConfigError, TypeError: The URL is malformed, or an argument cannot work.
    """
    arguments.check_all(_RULES, topic=topic, group=group, seconds=seconds)
    cluster = connect(url, security=security, client_id=client_id)
    examination = _Examination(url, (security or Security()).with_environment(), client_id)
    if await examination.reach_servers():
        try:
            async with cluster as k:
                await examination.examine(k, topic, group, seconds)
        except OdradekError as error:
            await examination.explain_failure(error)
    return examination.report()


class _Examination:
    """One examination: what was seen so far.

    Args:
        url: Of the cluster.
        security: With what the environment has.
        client_id: Whose quotas matter.
    """

    def __init__(self, url: str, security: Security, client_id: str) -> None:
        self._url, self._security, self._client_id = url, security, client_id
        self._tls = client_context(security) if "+ssl" in url.partition("://")[0] else None
        self._proxy = proxy_of(None)
        self._findings: list[Diagnosis] = []
        self._checked: list[str] = []
        self._skipped: dict[str, str] = {}
        self._unreachable: Collection[int] = ()
        self._topics: dict[str, TopicDescription] = {}
        self._config: dict[str, str | None] = {}

    def report(self) -> Report:
        """Return the result."""
        findings = sorted(dict.fromkeys(self._findings), key=lambda each: WORST_FIRST.index(each.severity))
        return Report(findings, self._checked, self._skipped)

    async def _check(self, name: str, check: Check, *, named: bool = False) -> None:
        """Make one check. That this client may not ask is a finding only about what the user has named."""
        try:
            self._findings += await check()
            if name not in self._skipped:
                self._checked.append(name)
        except OdradekError as error:
            not_allowed = isinstance(error, BrokerError) and "AUTHORIZATION" in error.name
            if isinstance(error, Unsupported) or (not_allowed and not named):
                self._skipped[name] = str(error)
            else:
                self._findings.append(connection_finding(error))

    # ---- connections ----------------------------------------------------------------------------------------

    async def reach_servers(self) -> bool:
        """Connect to each server of the URL; return False if none can be reached."""
        servers = server_addresses(self._url)
        errors = [each for each in await gather_outcomes(self._reach, servers) if each is not None]
        self._findings += map(connection_finding, errors)
        self._checked.append("servers of the URL")
        return len(errors) < len(servers)

    async def _reach(self, address: tuple[str, int]) -> None:
        transport = await tcp.connect(*address, CONNECT_S, self._tls, self._proxy)
        await transport.aclose()

    async def explain_failure(self, error: OdradekError) -> None:
        """Add the finding for a cluster that cannot be opened although a server can be reached, perhaps one of another
        kind."""
        host, port = server_addresses(self._url)[0]
        finding = connection_finding(error)
        if finding.cause == "connection-failed":
            if "+zk" in self._url and await _is_kafka(host, port):
                finding = diagnosis("not-zookeeper", finding.evidence)
            elif "+zk" not in self._url and await _is_zookeeper(host, port):
                finding = diagnosis("not-kafka", finding.evidence)
        self._findings.append(finding)

    async def _reach_brokers(self, k: Cluster) -> bool:
        """Connect to the addresses that brokers advertise; return False if none can be reached."""
        brokers = dict(k.driver.metadata.table.brokers)
        outcomes = await gather_outcomes(self._reach, [(each.host, each.port) for each in brokers.values()])
        failures = {number: e for number, e in zip(brokers, outcomes, strict=True) if isinstance(e, Unreachable)}
        self._unreachable = failures
        self._findings += address_findings(brokers, failures)
        self._checked.append("advertised addresses")
        return len(failures) < len(brokers) or not brokers

    # ---- the cluster ----------------------------------------------------------------------------------------

    async def examine(self, k: Cluster, topic: str | None, group: str | None, seconds: float) -> None:
        """Make all checks that need an open cluster."""
        if not await self._reach_brokers(k):
            return
        await self._check("partitions", lambda: self._partitions(k))
        await self._check("configuration of brokers", lambda: self._broker_config(k))
        await self._check("quotas", lambda: self._quotas(k))
        if topic is not None:
            await self._check(f"topic {topic}", lambda: self._topic(k, topic), named=True)
        if group is not None or topic in self._topics:
            what = "transactions" if group is None else f"group {group}"
            await self._check(what, lambda: self._observe(k, group, topic, seconds), named=True)

    async def _partitions(self, k: Cluster) -> Iterable[Diagnosis]:
        names = {*await k.topics(), *OWN_TOPICS.values()}
        self._topics = dict((await k.admin.describe_topics(names)).done)
        least: dict[str, int] = {}
        with suppress(Unsupported):
            configs = (await k.admin.describe_topic_configs(self._topics)).done if self._topics else {}
            entries = {name: each.get("min.insync.replicas") for name, each in configs.items()}
            least = {name: int(entry.value or 1) for name, entry in entries.items() if entry is not None}
        return partition_findings(list(self._topics.values()), k.driver.metadata.table.brokers, least)

    async def _broker_config(self, k: Cluster) -> Iterable[Diagnosis]:
        brokers = k.driver.metadata.table.brokers
        number = min((each for each in brokers if each not in self._unreachable), default=0)
        entries = (await k.admin.describe_broker_configs(number)).check()[number]
        self._config = {name: entry.value for name, entry in entries.items()}
        return own_topic_findings(self._config, self._topics, len(brokers))

    async def _quotas(self, k: Cluster) -> Iterable[Diagnosis]:
        user = self._security.sasl_username if "+sasl" in self._url else None
        return quota_findings(await k.admin.describe_quotas(), self._client_id, user)

    async def _topic(self, k: Cluster, name: str) -> Iterable[Diagnosis]:
        names = await k.topics()
        if name in names or name in self._topics:
            return ()
        with suppress(Unsupported):
            error = (await k.admin.describe_topics(name)).failed.get(name)
            if error is not None and connection_finding(error).cause != "topic-missing":
                raise error
        return [missing_topic(name, names, self._config)]

    # ---- a group, and transactions --------------------------------------------------------------------------

    async def _observe(self, k: Cluster, group: str | None, topic: str | None, seconds: float) -> Iterable[Diagnosis]:
        """Observe a group, and the transactions in its topics and in the one that was named."""
        first = {} if group is None else await k.admin.lag(group)
        described = self._topics.get(topic or "")
        partitions = {*first, *([each.partition for each in described.partitions] if described else ())}
        open_ends = await self._open_transactions(k, partitions)
        seen = await self._describe_often(k, group, seconds if group is not None or open_ends else 0)
        offsets = await _stable_offsets(k, open_ends) if open_ends else {}
        findings = list(transaction_findings(offsets, seconds))
        if group is None:
            return findings
        last, begins = await k.admin.lag(group), dict[TopicPartition, Position]()
        for name in sorted({partition.topic for partition in last}):
            begins |= await k.positions(name, EARLIEST)
        names: list[str] = []
        with suppress(Unsupported):
            names = [] if last else [each.name for each in await k.admin.list_groups()]
        held = [partition for partition, each in offsets.items() if each.is_held]
        return [*findings, *group_findings(GroupFacts(group, seconds, seen, first, last, begins, names, held))]

    async def _describe_often(self, k: Cluster, group: str | None, seconds: float) -> Sequence[GroupDescription]:
        """Describe a group again and again for some time; without one, wait."""
        seen: list[GroupDescription] = []
        end = anyio.current_time() + seconds
        while (left := end - anyio.current_time()) > 0:
            if group is not None:
                try:
                    seen.append(await _described(k, group))
                except Unsupported as error:
                    self._skipped["members of the group"] = str(error)
            await anyio.sleep(min(OBSERVE_EVERY_S, left))
        return seen

    async def _open_transactions(
        self, k: Cluster, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Position]:
        """Return the partitions that have an open transaction now, and where what is committed ends."""
        try:
            stable, ends = await _ends(k, partitions, read_committed=True), await _ends(k, partitions)
        except Unsupported as error:
            self._skipped["transactions"] = str(error)
            return {}
        return {partition: end for partition, end in stable.items() if end < ends.get(partition, 0)}


async def _described(k: Cluster, group: str) -> GroupDescription:
    try:
        return (await k.admin.describe_groups(group)).check()[group]
    except (BrokerError, ZooKeeperError) as error:
        if isinstance(error, BrokerError) and error.name != "GROUP_ID_NOT_FOUND":
            raise
        return GroupDescription(group, "Dead", "", "", "", (), None)  # as brokers before 4.0 say it


async def _ends(
    k: Cluster, partitions: Iterable[TopicPartition], *, read_committed: bool = False
) -> dict[TopicPartition, Position]:
    listed = await k.admin.list_offsets(dict.fromkeys(partitions, LATEST), read_committed=read_committed)
    return {partition: each.position for partition, each in listed.done.items() if each.position is not None}


async def _stable_offsets(k: Cluster, before: Mapping[TopicPartition, Position]) -> dict[TopicPartition, StableOffset]:
    """Read again where what is committed ends, and who holds it back."""
    stable, ends = await _ends(k, before, read_committed=True), await _ends(k, before)
    offsets: dict[TopicPartition, StableOffset] = {}
    for partition in stable.keys() & ends.keys():
        each = StableOffset(before[partition], stable[partition], ends[partition])
        offsets[partition] = each._replace(owner=await _owner(k, partition, each.last)) if each.is_held else each
    return offsets


async def _owner(k: Cluster, partition: TopicPartition, start: Position) -> str:
    """Return whose transaction begins at a position, as far as brokers can say it."""
    text = ""
    with suppress(Unsupported):
        for each in (await k.admin.describe_producers(partition)).done.get(partition, ()):
            if each.transaction_start == start:
                text = f"; it waits for producer {each.producer_id}, epoch {each.producer_epoch}"
                if each.last_timestamp is not None:
                    text += f", which wrote last {max(0.0, time.time() - each.last_timestamp / 1000):.0f} s ago"
                listed = await k.admin.list_transactions(producer_ids=each.producer_id)
                known = ", ".join(f"{each_id.transactional_id} is {each_id.state}" for each_id in listed)
                text += f"; {known or 'no coordinator knows its transaction: it hangs'}"
    return text


# ---- servers of another kind --------------------------------------------------------------------------------


async def _is_zookeeper(host: str, port: int) -> bool:
    with anyio.move_on_after(CONNECT_S), suppress(OSError, anyio.EndOfStream, anyio.BrokenResourceError):
        async with await anyio.connect_tcp(host, port) as stream:
            await stream.send(b"srvr")
            answer = await stream.receive(200)
            return b"ookeeper version" in answer or b"whitelist" in answer
    return False


async def _is_kafka(host: str, port: int) -> bool:
    with anyio.move_on_after(CONNECT_S), suppress(OdradekError):
        async with connect(f"kafka://[{host}]:{port}" if ":" in host else f"kafka://{host}:{port}"):
            return True
    return False
