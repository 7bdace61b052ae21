"""The options for clusters of 0.8 and later: Java's names, the meaning they have here, and no secret in any error."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import trustme

from odradek.errors import ConfigError
from odradek.io.security import Security
from odradek.io.tls import client_context
from odradek.ranges.catalog import find_logs
from odradek.ranges.request import ClusterConnection
from odradek.spark.options import IGNORED_KAFKA, REFUSED_KAFKA, SourceOptions, parse_source
from odradek.spark.source import OdradekSource
from odradek.types import EARLIEST, Position, TopicPartition

BASE = {"kafka.bootstrap.servers": "b1:9092, b2:9093", "subscribe": "orders"}
PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="a \\"secret\\";";'
SCRAM = PLAIN.replace("plain.Plain", "scram.Scram")


def parse(streaming: bool = False, /, **options: str) -> SourceOptions:
    return parse_source(BASE | {name.replace("_", "."): value for name, value in options.items()}, streaming=streaming)


def security(**options: str) -> tuple[str, Security]:
    where = parse(**{f"kafka_{name}": value for name, value in options.items()}).where
    assert isinstance(where, ClusterConnection) and where.security is not None
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
    assert (options.max_size, options.min_size, options.max_delay_s) == (1000, 10, 300.0)
    assert (options.task_size, options.min_tasks) == (500, 8)
    assert (options.read_committed, options.fetch_bytes, find_logs(options).unit.name) == (True, 300_000, "records")
    assert options.where == ClusterConnection("kafka://b1:9092,b2:9093", Security(), "reporting", "r1", 5.0)
    assert pickle.loads(pickle.dumps(options)) == options


def test_the_columns_are_those_of_sparks_own_source() -> None:
    names = OdradekSource(BASE | {"includeHeaders": "true"}).schema().fieldNames()
    assert names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    assert OdradekSource(BASE | {"corrupt": "dead"}).schema().fieldNames()[-2:] == ["timestampType", "error"]


@pytest.mark.parametrize("name", IGNORED_KAFKA)
def test_options_that_change_nothing_are_accepted(name: str) -> None:
    assert parse_source(BASE | {name.lower(): "1"}, streaming=True) == parse(True)


@pytest.mark.parametrize("name", sorted(REFUSED_KAFKA))
def test_options_that_cannot_be_honoured_say_what_to_do_instead(name: str) -> None:
    with pytest.raises(ConfigError, match=f"option {name}: ") as caught:
        parse_source(BASE | {name.lower(): "1"}, streaming=True)
    assert REFUSED_KAFKA[name] in str(caught.value)


def test_an_unknown_client_option_is_an_error() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown option 'kafka.max.pol.records': did you mean kafka.max.poll.records"
    ):
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


def test_client_credentials_come_from_javas_options_and_from_its_login_module() -> None:
    url, module = "https://h/token", "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    login = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
    endpoint = {"sasl.oauthbearer.token.endpoint.url": url}
    jaas = f'{module} required clientId="c" clientSecret="of-the-client" scope="s" extension_pool="p";'
    _, by_module = security(**login, **endpoint, sasl_jaas_config=jaas)
    own = {"client.credentials.client.id": "c", "client.credentials.client.secret": "of-the-client", "scope": "s"}
    _, by_options = security(**login, **endpoint, **{f"sasl.oauthbearer.{name}": value for name, value in own.items()})
    for each in (by_module, by_options):
        assert (each.sasl_mechanism, each.sasl_oauth_token_url) == ("OAUTHBEARER", url)
        assert (each.sasl_oauth_client_id, each.sasl_oauth_client_secret) == ("c", "of-the-client")
        assert each.sasl_oauth_scope == "s" and "of-the-client" not in repr(each)
    assert by_module.sasl_extensions == {"pool": "p"}
    with pytest.raises(ConfigError, match=r"kafka\.sasl\.oauthbearer\.token\.endpoint\.url: must be one like https"):
        security(**login, sasl_jaas_config=jaas, **{"sasl.oauthbearer.token.endpoint.url": "h/token"})


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT"])
def test_stores_of_java_do_not_matter_without_tls(protocol: str) -> None:
    stores = {"ssl_truststore_location": "trust.jks", "ssl_keystore_location": "c.p12", "ssl_keystore_type": "PKCS12"}
    login = {"sasl_mechanism": "PLAIN", "sasl_jaas_config": PLAIN}
    _, options = security(security_protocol=protocol, **stores, **login)
    assert (options.ssl_cafile, options.ssl_certfile) == (None, None)


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_a_login_of_java_does_not_matter_without_sasl(protocol: str) -> None:
    _, options = security(security_protocol=protocol, sasl_jaas_config="com.example.OwnLoginModule required;")
    assert options.sasl_mechanism is None


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
    with pytest.raises(ConfigError, match="a store of type JKS cannot be read here: convert it to PEM"):
        security(security_protocol="SSL", **names)
    with pytest.raises(ConfigError, match=r"option kafka.ssl.keystore.location: a store of type PKCS12"):
        security(security_protocol="SSL", ssl_keystore_location=client, ssl_keystore_type="PKCS12")
    missing = {"ssl_truststore_location": str(tmp_path / "none.pem"), "ssl_truststore_type": "PEM"}
    with pytest.raises(ConfigError, match=r"kafka\.ssl\.truststore\.location='.*none\.pem': no such file"):
        security(security_protocol="SSL", **missing)


@pytest.mark.parametrize("on_one_line", [False, True])
def test_certificates_and_keys_may_be_texts(on_one_line: bool) -> None:
    """Properties of Java's clients often have them on one line, which OpenSSL does not take."""
    authority = trustme.CA()
    issued = authority.issue_cert("client")
    trusted, chain, key = (
        pem.bytes().decode().replace("\n", " " if on_one_line else "\n")
        for pem in (authority.cert_pem, issued.cert_chain_pems[0], issued.private_key_pem)
    )
    texts = {"ssl.truststore.certificates": trusted, "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key}
    url, tls = security(security_protocol="SSL", ssl_truststore_type="PEM", **texts)
    assert (url.partition(":")[0], tls.ssl_check_hostname) == ("kafka+ssl", True)
    assert client_context(tls).get_ca_certs()[0]["subject"] == client_context(tls).get_ca_certs()[0]["issuer"]
    assert tls.ssl_key_pem is not None
    assert tls.ssl_key_pem.strip() == issued.private_key_pem.bytes().decode().strip()
    assert "BEGIN" not in repr(tls)


def test_texts_that_are_not_pem_are_refused_without_being_shown() -> None:
    secret = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"
    wrong = {
        "ssl.keystore.key": r"option kafka\.ssl\.keystore\.key: must be PEM",
        "ssl.truststore.certificates": r"option kafka\.ssl\.truststore\.certificates: must be PEM",
    }
    for name, says in wrong.items():
        with pytest.raises(ConfigError, match=says) as caught:
            security(security_protocol="SSL", **{name: secret})
        assert secret not in str(caught.value)
    key = f"-----BEGIN PRIVATE KEY-----{secret}-----END PRIVATE KEY-----"
    with pytest.raises(
        ConfigError, match=r"kafka\.ssl\.keystore\.key without kafka\.ssl\.keystore\.certificate"
    ) as caught:
        security(security_protocol="SSL", **{"ssl.keystore.key": key})
    assert secret not in str(caught.value)
    with pytest.raises(ConfigError, match=r"keystore\.location and kafka\.ssl\.keystore\.key exclude"):
        security(security_protocol="SSL", **{"ssl.keystore.location": "client.pem", "ssl.keystore.key": key})


def test_a_malformed_address_names_the_option() -> None:
    with pytest.raises(ConfigError, match=r"option kafka\.bootstrap\.servers: invalid broker 'b:x'"):
        parse(kafka_bootstrap_servers="b:x")
