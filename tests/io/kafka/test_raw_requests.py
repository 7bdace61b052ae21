"""Raw requests, with real brokers: the oldest way of finding versions, and today's."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from tests.loops import BOTH, on

import odradek as od
from odradek.errors import BrokerError, Closed, ConfigError, LocalProtocolError, Unsupported
from odradek.testing import KafkaBroker, MemoryCluster
from odradek.testing.kafka.releases import NEWEST

OLD = "0.8.2.2"

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300), pytest.mark.releases(OLD, NEWEST)]
anyio_backend = on(BOTH)
PATIENT = od.Tuning(request_timeout=60)


def connect(broker: KafkaBroker) -> od.Cluster:
    return od.connect(f"kafka://{broker.bootstrap}", tuning=PATIENT)


async def test_a_request_has_the_latest_version_that_both_sides_have(any_kafka: KafkaBroker) -> None:
    async with connect(any_kafka) as k:
        response = await k.request("Metadata", {"topics": []})
        assert (response.api, response.broker) == ("Metadata", any_kafka.broker_id)
        assert (response.version == 0) is (any_kafka.version == OLD)
        (node,) = response.fields["brokers"]
        assert (node["node_id"], node["port"]) == (any_kafka.broker_id, any_kafka.port)
        assert ("cluster_id" in response.fields) is (any_kafka.version != OLD)


async def test_it_goes_where_the_user_says(any_kafka: KafkaBroker) -> None:
    targets: list[dict[str, Any]] = [{}, {"broker": any_kafka.broker_id}, {"group": "g"}]
    targets += [] if any_kafka.version == OLD else [{"transactional_id": "t"}, {"controller": True}]
    async with connect(any_kafka) as k:
        for target in targets:
            response = await k.request("Metadata", {"topics": []}, **target)
            assert response.broker == any_kafka.broker_id
        with pytest.raises(BrokerError, match="broker 77: BROKER_NOT_AVAILABLE"):
            await k.request("Metadata", broker=77)


async def test_records_are_written_and_read_by_hand(any_kafka: KafkaBroker) -> None:
    """A batch as a producer made it comes back as it is, bytes for bytes but for what a broker sets."""
    topic = uuid4().hex
    async with connect(any_kafka) as k:
        await k.request("Metadata", {"topics": [{"name": topic}]})  # which creates it
        async with k.producer() as out:
            await out.send(topic, b"value", partition=0)
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        request = {"replica_id": -1, "max_wait_ms": 100, "topics": [{"topic": topic, "partitions": [partition]}]}
        fetched = await k.request("Fetch", request, broker=any_kafka.broker_id)
        (answer,) = fetched.fields["responses"][0]["partitions"]
        assert answer["error_code"] == 0 and answer["high_watermark"] == 1
        assert type(answer["records"]) is bytes and b"value" in answer["records"]
        data = {"name": topic, "partition_data": [{"index": 0, "records": answer["records"]}]}
        written = await k.request("Produce", {"acks": -1, "timeout_ms": 60_000, "topic_data": [data]})
        (result,) = written.fields["responses"][0]["partition_responses"]
        assert result["error_code"] in (0, 46), result  # 46: the broker has the batch of this producer already


async def test_errors_of_the_broker_are_fields(any_kafka: KafkaBroker) -> None:
    async with connect(any_kafka) as k:
        request = {"topics": [{"name": "no/topic", "partitions": [{"partition_index": 0, "timestamp": -1}]}]}
        response = await k.request("ListOffsets", {"replica_id": -1, **request})
        assert response.fields["topics"][0]["partitions"][0]["error_code"] in (3, 17)


async def test_versions_that_one_side_lacks_are_refused(any_kafka: KafkaBroker) -> None:
    async with connect(any_kafka) as k:
        with pytest.raises(Unsupported, match=r"Metadata version 99 .*one that both sides have: the broker has \d"):
            await k.request("Metadata", version=99)
        if any_kafka.version == OLD:
            with pytest.raises(Unsupported, match="DescribeCluster"):
                await k.request("DescribeCluster")
            return
        assert (await k.request("DescribeCluster")).fields["controller_id"] == any_kafka.broker_id
        assert (await k.request("Metadata", {"topics": []}, version=1)).version == 1
        with pytest.raises(LocalProtocolError, match=r"include_topic_authorized_operations: .*this version"):
            await k.request("Metadata", {"include_topic_authorized_operations": True}, version=1)
        with pytest.raises(LocalProtocolError, match=r"timeout_ms: .*"):
            await k.request("Produce", {"acks": 1, "timeout_ms": 1 << 40})
        assert (await k.request("Metadata", {"topics": []})).broker == any_kafka.broker_id


async def test_mistakes_are_refused_before_anything_is_sent(any_kafka: KafkaBroker) -> None:
    async with connect(any_kafka) as k:
        before = k.statistics().requests
        calls: list[tuple[type[Exception], str, tuple[str, Any, dict[str, Any]]]] = [
            (ConfigError, "api='Nonsense'", ("Nonsense", None, {})),
            (ConfigError, "has no field 'x'", ("Metadata", {"x": 1}, {})),
            (TypeError, "fields.topics must be", ("Metadata", {"topics": 1}, {})),
            (TypeError, "fields must be", ("Metadata", [], {})),
            (TypeError, "version must be", ("Metadata", None, {"version": "1"})),
            (ConfigError, "broker and group: a request goes to one", ("Metadata", None, {"broker": 1, "group": "g"})),
            (ConfigError, "acks=0", ("Produce", {"acks": 0}, {})),
        ]
        for error, text, (api, fields, options) in calls:
            with pytest.raises(error, match=text):
                await k.request(api, fields, **options)
        assert k.statistics().requests == before
    with pytest.raises(Closed):
        await k.request("Metadata")


@pytest.mark.releases(NEWEST)
async def test_where_there_are_no_declared_messages_it_is_refused() -> None:
    async with MemoryCluster({"t": 1}).connect() as k:
        with pytest.raises(Unsupported, match="a raw request"):
            await k.request("Metadata")
    async with od.connect("kafka07://127.0.0.1:1") as k:
        with pytest.raises(Unsupported, match=r"a raw request .*Kafka 0\.8"):
            await k.request("Metadata")
