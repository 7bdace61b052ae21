"""Real brokers: started, killed, paused, restarted with their data, never left behind."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import psutil
import pytest

import odradek as od
from odradek.errors import ConfigError, ServerError
from odradek.testing import KafkaBroker
from odradek.testing.kafka.releases import KRAFT, NEWEST, ZOOKEEPER, release
from odradek.testing.kafka.requests import ask
from odradek.testing.process import reserve_port
from odradek.wire.kafka.messages.metadata import (
    ApiVersionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponsePartition,
)

pytestmark = pytest.mark.timeout(300)  # of several programs in Java, which a loaded machine starts slowly


def eventually(condition: Callable[[], object], timeout: float = 30.0) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def partitions(broker: KafkaBroker, topic: str) -> tuple[MetadataResponsePartition, ...]:
    """Ask for a topic, which makes it; empty until it has a leader."""
    request = MetadataRequest(topics=(MetadataRequestTopic(name=topic),))
    (answer,) = ask(broker.host, broker.port, request, 0).topics
    return answer.partitions if all(each.leader_id >= 0 for each in answer.partitions) else ()


def topics(broker: KafkaBroker) -> dict[str | None, int]:
    """The number of partitions of each topic."""
    return {topic.name: len(topic.partitions) for topic in broker.metadata().topics}


def test_every_release_serves_and_keeps_its_data_when_it_is_killed(any_kafka: KafkaBroker) -> None:
    broker = any_kafka
    assert eventually(lambda: partitions(broker, "kept"))
    before, *_ = partitions(broker, "kept")
    assert (before.leader_id, before.replica_nodes) == (1, (1,))
    if release(broker.version).number >= (0, 10):
        apis = ask(broker.host, broker.port, ApiVersionsRequest(), 0).api_keys
        assert {0, 1, 3, 18} <= {api.api_key for api in apis}
    address = broker.bootstrap
    broker.kill()
    with pytest.raises(ConnectionRefusedError):
        broker.metadata()
    broker.start()
    assert broker.bootstrap == address
    assert eventually(lambda: "kept" in {topic.name for topic in broker.metadata().topics})
    assert [(each.node_id, f"{each.host}:{each.port}") for each in broker.metadata().brokers] == [(1, address)]


@pytest.mark.parametrize(
    ("version", "modes", "coordinate"),
    [
        ("0.8.0", (ZOOKEEPER,), "org.apache.kafka:kafka_2.10:0.8.0"),
        ("0.8.2.2", (ZOOKEEPER,), "org.apache.kafka:kafka_2.11:0.8.2.2"),
        ("0.10.1.1", (ZOOKEEPER,), "org.apache.kafka:kafka_2.11:0.10.1.1"),
        ("0.11.0.3", (ZOOKEEPER,), "org.apache.kafka:kafka_2.12:0.11.0.3"),
        ("2.8.2", (ZOOKEEPER, KRAFT), "org.apache.kafka:kafka_2.13:2.8.2"),
        ("3.9.1", (KRAFT, ZOOKEEPER), "org.apache.kafka:kafka_2.13:3.9.1"),
        ("4.3.1", (KRAFT,), "org.apache.kafka:kafka_2.13:4.3.1"),
    ],
)
def test_modes_and_artifacts_of_releases(version: str, modes: tuple[str, ...], coordinate: str) -> None:
    assert release(version).modes == modes
    assert release(version).coordinates[0] == coordinate


@pytest.mark.parametrize("version", ["0.7.2", "0.8", "4", "4.3", "latest", "4.3.1-SNAPSHOT", "-1.0.0"])
def test_what_is_no_release_is_refused(version: str) -> None:
    with pytest.raises(ConfigError, match=r"must be a version of Kafka from 0\.8\.0 on, such as"):
        KafkaBroker(version)


def test_a_mode_that_a_release_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"mode='zookeeper': Kafka 4\.3\.1 runs in mode kraft"):
        KafkaBroker("4.3.1", mode=ZOOKEEPER)
    with pytest.raises(ConfigError, match=r"mode='kraft': Kafka 0\.11\.0\.3 runs in mode zookeeper"):
        KafkaBroker("0.11.0.3", mode=KRAFT)


def test_it_hands_over_and_closes_its_files_when_it_is_terminated() -> None:
    with KafkaBroker("0.8.2.2") as broker:
        broker.create_topic("kept", 2, config={"retention.ms": "1000000"})
        broker.terminate()
        assert not broker.running
        assert "[Kafka Server 1], shut down completed" in broker.log_path.read_text()
        broker.start()
        assert eventually(lambda: topics(broker) == {"kept": 2})


def test_a_broker_that_is_upgraded_serves_the_data_it_had() -> None:
    with KafkaBroker("0.8.2.2") as broker:
        broker.create_topic("kept", 2)
        broker.terminate()
        broker.change_release("0.10.1.1")
        broker.start()
        assert eventually(lambda: topics(broker) == {"kept": 2})
        assert ask(broker.host, broker.port, ApiVersionsRequest(), 0).api_keys  # 0.10 on
        assert repr(broker).startswith("<KafkaBroker 0.10.1.1 zookeeper 1 ")


def test_a_full_disk_ends_a_broker_that_has_no_other() -> None:
    with KafkaBroker() as broker:
        broker.create_topic("kept")
        broker.fill_disk()
        assert eventually(lambda: not broker.running)  # it writes to its log of metadata, or to that of a topic
        broker.kill()
        broker.start()
        assert eventually(lambda: topics(broker) == {"kept": 1})


def test_a_paused_broker_answers_nothing_until_resumed(odradek_kafka: KafkaBroker) -> None:
    odradek_kafka.pause()
    with pytest.raises(TimeoutError):
        odradek_kafka.metadata(timeout=0.2)
    assert odradek_kafka.running
    odradek_kafka.resume()
    assert odradek_kafka.metadata().brokers[0].port == odradek_kafka.port


def test_stop_removes_everything_and_is_idempotent() -> None:
    broker = KafkaBroker("0.8.2.2", config={"num.partitions": "3"})
    assert repr(broker) == "<KafkaBroker 0.8.2.2 zookeeper 1 down>"
    with broker:
        assert eventually(lambda: len(partitions(broker, "three")) == 3)
        with pytest.raises(ServerError, match="started already"):
            broker.start()
        directory, process = broker.data_dir.parent, broker._process
        assert process
        zookeeper = broker.zookeeper._process
        assert zookeeper
    broker.stop()
    assert not directory.exists()
    assert not psutil.pid_exists(process.pid)
    assert not psutil.pid_exists(zookeeper.pid)
    with pytest.raises(ServerError, match="not running"):
        broker.pause()


def test_a_broker_that_dies_at_the_start_shows_its_log_and_names_the_file() -> None:
    broker = KafkaBroker("0.8.2.2", config={"log.dirs": "/dev/null/none"})
    with pytest.raises(ServerError, match=r"Kafka 0\.8\.2\.2 at 127\.0\.0\.1:\d+ died: (?s:.*)/dev/null") as caught:
        broker.start()
    (note,) = caught.value.__notes__
    log = Path(note.partition("is kept: ")[2])
    assert "/dev/null" in log.read_text()
    assert not broker.running
    log.unlink()


def test_options_of_java_go_before_those_of_a_quick_start() -> None:
    with pytest.raises(ServerError, match="TieredStopAtLevel=9 is outside the allowed range"):
        KafkaBroker("0.8.2.2", java_options=["-XX:TieredStopAtLevel=9"]).start()


def test_the_log_is_kept_when_the_block_ends_with_an_error() -> None:
    with pytest.raises(AssertionError) as caught, KafkaBroker("0.8.2.2") as broker:
        log = broker.log_path
        raise AssertionError("the test failed")
    (note,) = caught.value.__notes__
    assert note.endswith(f"is kept: {log}")
    assert "Verifying properties" in log.read_text()  # a broker may answer before it says that it has started
    assert not (log.parent / "data").exists()
    log.unlink()


def test_a_tool_of_the_jars_runs_to_its_end(odradek_kafka: KafkaBroker) -> None:
    version = odradek_kafka.java_tool("kafka.Kafka", "--version")
    assert version.stdout.split()[0] == NEWEST
    options = ("--bootstrap-server", odradek_kafka.bootstrap, "--topic", "tool")
    produced = odradek_kafka.java_tool("org.apache.kafka.tools.ConsoleProducer", *options, stdin="one\ntwo\n")
    assert produced.returncode == 0, produced.stderr
    consumer = ("org.apache.kafka.tools.consumer.ConsoleConsumer", *options, "--from-beginning")
    consumed = odradek_kafka.java_tool(*consumer, "--max-messages", "2")
    assert consumed.stdout == "one\ntwo\n"
    with pytest.raises(ServerError, match=r"ConsoleConsumer did not end within 0\.2 s; it wrote: "):
        odradek_kafka.java_tool(*consumer, timeout=0.2)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGTERM, None])
def test_no_process_and_no_directory_outlives_the_test_process(way: signal.Signals | None) -> None:
    script = (
        "import sys\n"
        "from odradek.testing import KafkaBroker\n"
        "broker = KafkaBroker('0.8.2.2')\n"
        "broker.start()\n"
        "print(broker._process.pid, broker.zookeeper._process.pid, broker.data_dir.parent, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid, zookeeper, directory = parent.stdout.readline().decode().split()
        assert psutil.pid_exists(int(pid))
        if way is not None:
            parent.send_signal(way)
        parent.communicate()
    assert eventually(lambda: not psutil.pid_exists(int(pid)) and not psutil.pid_exists(int(zookeeper)))
    assert eventually(lambda: not Path(directory).exists())


@pytest.mark.anyio
async def test_it_starts_and_stops_without_blocking_the_loop() -> None:
    async with KafkaBroker("0.8.2.2") as broker:
        assert broker.running
    assert not broker.running


def test_a_client_of_zookeeper_that_a_new_java_breaks_is_replaced_by_one_that_works() -> None:
    """ZOOKEEPER-3779: Kafka 2.0 to 2.3 brings 3.4.13 or 3.4.14, which cannot connect on Java 14 and later."""
    versions = ["1.1.1", "2.0.1", "2.3.1", "2.4.1"]
    replaced = [version for version in versions if "org.apache.zookeeper:zookeeper:3.4.10" in coordinates(version)]
    assert replaced == ["2.0.1", "2.3.1"]


def coordinates(version: str) -> tuple[str, ...]:
    return release(version).coordinates


@pytest.mark.sampled(2)
@pytest.mark.parametrize("version", ["0.8.2.2", "0.10.1.1", "0.10.2.2", "2.8.2", NEWEST])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_clients_of_a_proxied_broker_go_through_its_proxy_over_restarts(version: str) -> None:
    async with KafkaBroker(version, proxied=True) as broker:
        proxy, address = broker.proxy, broker.bootstrap
        assert address == proxy.address != f"{broker.host}:{broker.plaintext_port}"
        await anyio.to_thread.run_sync(broker.create_topic, "t")
        async with od.connect(f"kafka://{address}") as k, k.producer() as out:
            await out.send("t", b"before")
            sent = proxy.statistics().client_bytes
            proxy.cut()
            await anyio.to_thread.run_sync(broker.restart)
            assert (broker.proxy, broker.bootstrap) == (proxy, address)
            await out.send("t", b"after")
        assert proxy.statistics().client_bytes > sent
    with pytest.raises(ConfigError, match="has no proxy now"):
        _ = broker.proxy


def test_with_other_security_protocols_the_proxy_is_in_front_of_the_first_listener() -> None:
    with KafkaBroker(listeners=("SASL_PLAINTEXT", "PLAINTEXT"), proxied=True) as broker:
        assert broker.bootstrap_of("SASL_PLAINTEXT") == broker.bootstrap == broker.proxy.address
        assert broker.bootstrap_of("PLAINTEXT") == f"127.0.0.1:{broker.plaintext_port}"
        (node,) = broker.metadata().brokers
        assert node.port == broker.plaintext_port, "brokers and tools are told the direct address"


def test_a_broker_that_cannot_advertise_another_address_has_no_proxy() -> None:
    with pytest.raises(ConfigError, match=r"proxied: Kafka 0\.8\.0 advertises the address at which it listens"):
        KafkaBroker("0.8.0", proxied=True)


def test_the_first_listener_has_the_port_that_was_asked_for() -> None:
    number, keeper = reserve_port()
    keeper.close()
    broker = KafkaBroker(port=number, listeners=("SSL", "PLAINTEXT"))
    broker.reserve()
    assert broker.port == number and broker.plaintext_port not in (0, number)
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{number}"), socket.socket() as other:
        broker.stop()
        other.bind(("127.0.0.1", number))
        other.listen()
        broker.reserve()
    broker.stop()
    with pytest.raises(ConfigError, match="that of its proxy"):
        KafkaBroker(port=number, proxied=True)
