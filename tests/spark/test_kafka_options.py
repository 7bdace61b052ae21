"""The options for clusters of 0.8 and later: Java's names, the meaning they have here, and no secret in any error."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import trustme

from odradek.errors import ConfigError
from odradek.io.security import Security
from odradek.spark.admission import ReadLimits
from odradek.spark.client_options import ClusterOptions
from odradek.spark.option_names import KAFKA
from odradek.spark.options import SourceOptions, TaskLimits, parse_source
from odradek.types import EARLIEST, Position, TopicPartition

BASE = {"kafka.bootstrap.servers": "b1:9092, b2:9093", "subscribe": "orders"}
PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="a \\"secret\\";";'
SCRAM = PLAIN.replace("plain.Plain", "scram.Scram")


def parse(streaming: bool = False, /, **options: str) -> SourceOptions:
    return parse_source(BASE | {name.replace("_", "."): value for name, value in options.items()}, streaming=streaming)


def security(**options: str) -> tuple[str, Security]:
    where = parse(**{f"kafka_{name}": value for name, value in options.items()}).where
    assert isinstance(where, ClusterOptions) and where.security is not None
    return where.url, where.security


def test_options_of_sparks_own_source_have_their_meaning() -> None:
    options = parse(
        True,
        startingOffsets='{"orders":{"0":23,"1":-2}}',
        maxOffsetsPerTrigger="1000",
        minOffsetsPerTrigger="10",
        maxTriggerDelay="5m",
        minPartitions="8",
        maxRecordsPerPartition="500",
        kafka_isolation_level="read_committed",
        kafka_client_id="reporting",
        kafka_client_rack="r1",
        kafka_request_timeout_ms="5000",
        kafka_max_partition_fetch_bytes="300000",
    )
    assert options.start == {TopicPartition("orders", 0): Position(23), TopicPartition("orders", 1): EARLIEST}
    assert options.limits == ReadLimits(1000, 10, 300.0)
    assert options.packing == TaskLimits(500, 8, None, None)
    assert (options.read_committed, options.fetch_bytes, options.unit.name) == (True, 300_000, "records")
    assert options.where == ClusterOptions("kafka://b1:9092,b2:9093", Security(), "reporting", "r1", 5.0)
    assert pickle.loads(pickle.dumps(options)) == options


def test_the_columns_are_those_of_sparks_own_source() -> None:
    names = [column.name for column in parse(includeHeaders="true").columns]
    assert names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]


@pytest.mark.parametrize("name", KAFKA.no_effect)
def test_options_that_change_nothing_are_accepted(name: str) -> None:
    assert parse_source(BASE | {name.lower(): "1"}, streaming=True) == parse(True)


@pytest.mark.parametrize("name", sorted(KAFKA.refused))
def test_options_that_cannot_be_honoured_say_what_to_do_instead(name: str) -> None:
    with pytest.raises(ConfigError, match=f"option {name}: ") as caught:
        parse_source(BASE | {name.lower(): "1"}, streaming=True)
    assert KAFKA.refused[name] in str(caught.value)


def test_an_unknown_client_option_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"unknown option 'kafka.max.pol.records': did you mean"):
        parse(kafka_max_pol_records="1")


@pytest.mark.parametrize(
    ("protocol", "scheme"),
    [("PLAINTEXT", "kafka"), ("SSL", "kafka+ssl"), ("SASL_PLAINTEXT", "kafka+sasl"), ("SASL_SSL", "kafka+sasl+ssl")],
)
def test_the_security_protocol_chooses_the_scheme(protocol: str, scheme: str) -> None:
    url, _ = security(security_protocol=protocol, sasl_mechanism="PLAIN", sasl_jaas_config=PLAIN)
    assert url == f"{scheme}://b1:9092,b2:9093"


def test_users_and_passwords_come_from_javas_login_modules() -> None:
    _, scram = security(security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512", sasl_jaas_config=SCRAM)
    assert (scram.sasl_mechanism, scram.sasl_username, scram.sasl_password) == ("SCRAM-SHA-512", "alice", 'a "secret";')
    token = SCRAM.replace(" required", ' required tokenauth="true"')
    _, delegated = security(security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512", sasl_jaas_config=token)
    assert delegated.sasl_delegation_token
    _, kerberos = security(security_protocol="SASL_PLAINTEXT", sasl_kerberos_service_name="kafka")
    assert (kerberos.sasl_mechanism, kerberos.sasl_kerberos_service_name) == ("GSSAPI", "kafka")


def test_no_error_has_a_secret() -> None:
    for jaas in (PLAIN.replace("required", "required secretKeys=1"), PLAIN[:-20], PLAIN.replace("PlainLogin", "Other")):
        with pytest.raises(ConfigError) as caught:
            parse(kafka_security_protocol="SASL_SSL", kafka_sasl_mechanism="PLAIN", kafka_sasl_jaas_config=jaas)
        assert 'a \\"secret' not in str(caught.value) and 'a "secret' not in str(caught.value)
    options = parse(kafka_security_protocol="SASL_SSL", kafka_sasl_mechanism="PLAIN", kafka_sasl_jaas_config=PLAIN)
    assert "secret" not in repr(options)


def test_certificates_are_pem_files(tmp_path: Path) -> None:
    authority, trusted, client = trustme.CA(), str(tmp_path / "ca.pem"), str(tmp_path / "client.pem")
    authority.cert_pem.write_to_path(trusted)
    authority.issue_cert("client").private_key_and_cert_chain_pem.write_to_path(client)
    names = {"ssl_truststore_location": trusted, "ssl_keystore_location": client}
    _, tls = security(
        security_protocol="SSL",
        **names,
        ssl_truststore_type="PEM",
        ssl_keystore_type="PEM",
        ssl_key_password="of-the-key",
        ssl_endpoint_identification_algorithm="",
    )
    assert (tls.ssl_cafile, tls.ssl_certfile, tls.ssl_password) == (trusted, client, "of-the-key")
    assert not tls.ssl_check_hostname
    with pytest.raises(ConfigError, match="a file of type JKS cannot be read here"):
        security(security_protocol="SSL", **names)


def test_a_malformed_address_names_the_option() -> None:
    with pytest.raises(ConfigError, match=r"options of kafka\.bootstrap\.servers: invalid broker 'b:x'"):
        parse(kafka_bootstrap_servers="b:x")
