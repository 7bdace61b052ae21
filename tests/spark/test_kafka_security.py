"""Spark on a real broker that asks for TLS, a certificate and a password: options as of Spark's own Kafka source."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from odradek.errors import AuthFailed, ConfigError, OdradekError, Unreachable
from odradek.testing import KafkaBroker

from .kafka import batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PASSWORD = 'S3cret "of" alice'
WRONG = "n0t-the-right-one"


@pytest.fixture(scope="module")
def secured() -> Iterator[KafkaBroker]:
    """A broker whose listener asks for a client's certificate as well."""
    config = {"listener.name.sasl_ssl.ssl.client.auth": "required"}
    with KafkaBroker(listeners=("SASL_SSL",), users={"alice": PASSWORD}, config=config) as broker:
        yield broker


@pytest.fixture
def topic(secured: KafkaBroker) -> str:
    """A topic of this test's own."""
    name = f"secured{uuid4().hex[:12]}"
    secured.create_topic(name, 2)
    return name


def login(broker: KafkaBroker, password: str = PASSWORD, mechanism: str = "SCRAM-SHA-256") -> dict[str, str]:
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    quoted = password.replace('"', '\\"')
    return {
        "kafka.bootstrap.servers": broker.bootstrap_of("SASL_SSL"),
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": f"org.apache.kafka.common.security.{module} required\n"
        f'  username="alice" password="{quoted}";',
    }


def files(broker: KafkaBroker) -> dict[str, str]:
    return {
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(broker.certificates.ca_file),
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.location": str(broker.certificates.client_file),
    }


def key_and_chain(broker: KafkaBroker) -> tuple[str, str]:
    """The private key of the client, and its certificates."""
    key, begin, chain = broker.certificates.client_file.read_text().partition("-----BEGIN CERTIFICATE-----")
    return key, begin + chain


def texts(broker: KafkaBroker) -> dict[str, str]:
    key, chain = key_and_chain(broker)
    return {
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": broker.certificates.ca_file.read_text().replace("\n", " "),
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": chain,
        "kafka.ssl.keystore.key": key,
    }


def refusal(broker: KafkaBroker, options: dict[str, str], log: pytest.LogCaptureFixture) -> OdradekError:
    """The error of a query with these options, which must not wait for its deadline; neither it nor the log has a
    secret."""
    with log.at_level(logging.DEBUG), pytest.raises(OdradekError) as caught:
        batch(broker, **options, subscribe="t", **{"fetchOffset.deadlineMs": "3600000"}).partitions()
    for secret in (PASSWORD, WRONG, key_and_chain(broker)[0].splitlines()[1]):
        assert secret not in f"{caught.value!r} {caught.value} {log.text}"
    return caught.value


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_an_error_at_once(
    secured: KafkaBroker, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    error = refusal(secured, {**login(secured, WRONG, mechanism), **files(secured)}, caplog)
    assert isinstance(error, AuthFailed) and error.mechanism == mechanism


def test_an_authority_that_is_not_trusted_is_an_error_at_once(
    secured: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    other = {"kafka.ssl.truststore.location": str(secured.certificates.other_ca_file)}
    error = refusal(secured, {**login(secured), **files(secured), **other}, caplog)
    assert isinstance(error, Unreachable) and error.step == "tls"
    assert "kafka.ssl.truststore" in f"{error.hint}" or "authority" in f"{error.hint}"


def test_a_key_of_another_certificate_is_an_error_that_names_the_option(
    secured: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    authority = secured.certificates.ca_file.read_text()
    options = {**login(secured), **texts(secured), "kafka.ssl.keystore.certificate.chain": authority}
    error = refusal(secured, options, caplog)
    assert isinstance(error, ConfigError)
    assert "kafka.ssl.keystore.certificate.chain: key values mismatch" in str(error)


@pytest.mark.timeout(600)
def test_spark_writes_and_reads_and_shows_no_secret(
    spark: SparkSession, secured: KafkaBroker, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    written = [(f"key{number}", f"value{number}") for number in range(100)]
    rows = spark.createDataFrame(written, "key string, value string")
    rows.write.format("odradek").options(**login(secured), **texts(secured), topic=topic).mode("append").save()
    frame = (
        spark.read.format("odradek").options(**login(secured), **files(secured), subscribe=topic).load()
    ).selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value")
    assert sorted(map(tuple, frame.collect())) == sorted(written)
    frame.explain(True)
    wrong = spark.read.format("odradek").options(**login(secured, WRONG), **files(secured), subscribe=topic)
    with pytest.raises(Exception, match="AuthFailed") as caught:
        wrong.load().collect()
    shown = "\n".join((*capfd.readouterr(), str(caught.value), *plans(spark)))
    assert topic in shown or "odradek" in shown
    for secret in (PASSWORD, PASSWORD.replace('"', '\\"'), WRONG, key_and_chain(secured)[0].splitlines()[1]):
        assert secret not in shown


def plans(spark: SparkSession) -> list[str]:
    """What Spark's web interface shows of the queries so far."""
    java: Any = spark._jsparkSession
    executions = java.sharedState().statusStore().executionsList()
    return [
        f"{executions.apply(number).details()} {executions.apply(number).physicalPlanDescription()}"
        for number in range(executions.size())
    ]
