"""URLs and security options of clusters of Kafka 0.8 and later: what they mean, and that no secret is shown."""

from __future__ import annotations

import logging
import pickle
import ssl
import tempfile
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

import odradek as od
from odradek.errors import ConfigError
from odradek.io.kafka import urls
from odradek.io.kafka.driver import KafkaDriver
from odradek.io.security import Security
from odradek.io.tls import client_context
from odradek.types import Broker

SECRET = "not-to-be-shown"
PLAIN: dict[str, Any] = {"sasl_mechanism": "PLAIN", "sasl_username": "u", "sasl_password": SECRET}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SASL_MECHANISM", "SASL_USERNAME", "SASL_PASSWORD", "SASL_TOKEN", "SSL_CAFILE", "SSL_PASSWORD"):
        monkeypatch.delenv(f"ODRADEK_{name}", raising=False)


@pytest.mark.parametrize(
    ("rest", "brokers"),
    [
        ("b1", [("b1", 9092)]),
        ("b1:1,b2:2/", [("b1", 1), ("b2", 2)]),
        (" b1 , b2:65535", [("b1", 9092), ("b2", 65535)]),
        ("[::1]:9093,[fe80::2]", [("::1", 9093), ("fe80::2", 9092)]),
        ("b1,b1:9092", [("b1", 9092)]),
    ],
)
def test_a_url_lists_some_brokers(rest: str, brokers: list[tuple[str, int]]) -> None:
    assert urls._brokers(rest.removesuffix("/")) == [Broker(-1, *each) for each in brokers]


def test_a_list_of_brokers_without_a_scheme_is_that_of_kafka() -> None:
    cluster: Any = od.connect("b1:9092,b2:1")
    assert isinstance(cluster.driver, KafkaDriver)
    assert repr(cluster) == repr(od.connect("kafka://b1:9092,b2:1"))
    assert cluster.driver.connections._bootstrap == {"b1:9092", "b2:1"}


@pytest.mark.parametrize(("connect_timeout", "limit"), [(0.5, 10.0), (5.0, 10.0), (30.0, 60.0)])
def test_a_cluster_may_be_opened_for_as_long_as_connections_may(connect_timeout: float, limit: float) -> None:
    cluster: Any = od.connect("kafka://b1", tuning=od.Tuning(connect_timeout=connect_timeout))
    assert cluster.driver._metadata._options.bootstrap_timeout_s == limit


@pytest.mark.parametrize(
    ("scheme", "tls", "sasl"),
    [
        ("kafka", False, False),
        ("kafka+ssl", True, False),
        ("kafka+sasl", False, True),
        ("kafka+sasl+ssl", True, True),
    ],
)
def test_the_scheme_says_what_is_used(scheme: str, tls: bool, sasl: bool) -> None:
    cluster: Any = od.connect(f"{scheme}://b1", security=Security(**PLAIN) if sasl else None)
    connections = cluster.driver.connections
    assert (connections._tls is not None, connections._login is not None) == (tls, sasl)


@pytest.mark.parametrize(("tuned", "seconds"), [(None, 30.0), (9.0, 9.0)])
def test_the_session_timeout_reaches_the_members_of_groups(tuned: float | None, seconds: float) -> None:
    cluster: Any = od.connect("kafka://b1", tuning=od.Tuning(session_timeout=tuned))
    assert cluster.driver._options.session_timeout_s == seconds


def test_client_id_and_rack_reach_the_driver() -> None:
    cluster: Any = od.connect("kafka://b1", client_id="billing", rack="r1")
    assert (cluster.driver._options.client_id, cluster.driver._options.rack) == ("billing", "r1")


@pytest.mark.parametrize(
    ("url", "security", "why"),
    [
        ("kafka://", None, "invalid broker ''"),
        ("kafka://b1,,b2", None, "invalid broker ''"),
        ("kafka://b1:0", None, "invalid broker 'b1:0'"),
        ("kafka://b1:70000", None, "invalid broker 'b1:70000'"),
        ("kafka://b1/path", None, "invalid broker 'b1/path'"),
        ("kafka://::1", None, "invalid broker '::1'"),
        ("kafka+sasl://b1", None, r"sasl_mechanism=.*ODRADEK_SASL_MECHANISM"),
        ("kafka+sasl://b1", Security(sasl_mechanism="PLAIN"), "PLAIN needs sasl_username and sasl_password"),
        ("kafka+sasl://b1", Security(sasl_mechanism="OAUTHBEARER"), "sasl_aws_region or sasl_token, or"),
        ("kafka://b1", Security(sasl_mechanism="PLAIN"), r"no effect with kafka://: use a URL with \+sasl"),
        ("kafka+sasl://b1", Security(**PLAIN, ssl_cafile=__file__), r"no effect with kafka\+sasl://"),
        ("kafka+ssl://b1", Security(ssl_cafile=__file__), "no certificates in PEM format"),
        ("kafka+ssl://b1", Security(ssl_keyfile=__file__), "ssl_keyfile without ssl_certfile"),
        ("kafka07://b1", Security(), r"security.*kafka07"),
        ("plaintext://b1", None, "unknown scheme"),
    ],
)
def test_what_cannot_work_says_so(url: str, security: Security | None, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        od.connect(url, security=security)


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({"sasl_mechanism": "plain"}, ConfigError, "one of 'PLAIN'"),
        ({"sasl_mechanism": 5}, TypeError, "sasl_mechanism"),
        ({"ssl_cafile": "/no/such/file"}, ConfigError, "no such file"),
        ({"ssl_check_hostname": 0}, TypeError, "True or False"),
        ({"ssl_context": "x"}, TypeError, "SSLContext"),
        ({"sasl_token_provider": "x"}, TypeError, "asynchronous function"),
        ({"sasl_password": SECRET.encode()}, TypeError, "sasl_password must be a text, not bytes"),
        ({"sasl_password": "\ud800" + SECRET}, ConfigError, "UTF-8"),
        ({"sasl_token": [SECRET]}, TypeError, "sasl_token must be a text, not list"),
        ({"ssl_password": ""}, ConfigError, "ssl_password"),
    ],
)
def test_an_option_that_cannot_be_names_itself_and_shows_no_secret(
    options: dict[str, Any], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why) as caught:
        Security(**options)
    assert SECRET not in str(caught.value)


def test_secrets_and_files_come_from_the_environment_unless_they_are_set() -> None:
    environment = {
        "ODRADEK_SASL_MECHANISM": "SCRAM-SHA-512",
        "ODRADEK_SASL_USERNAME": "env",
        "ODRADEK_SASL_PASSWORD": SECRET,
        "ODRADEK_SSL_CAFILE": __file__,
        "ODRADEK_SASL_TOKEN": "",
    }
    read = Security(sasl_username="mine").with_environment(environment)
    assert (read.sasl_mechanism, read.sasl_username, read.sasl_password) == ("SCRAM-SHA-512", "mine", SECRET)
    assert (read.ssl_cafile, read.sasl_token) == (__file__, None)


def test_a_command_line_needs_no_code_to_authenticate(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MECHANISM", "PLAIN"), ("USERNAME", "u"), ("PASSWORD", SECRET)):
        monkeypatch.setenv(f"ODRADEK_SASL_{name}", value)
    cluster: Any = od.connect("kafka+sasl://b1")
    assert cluster.driver.connections._login.mechanism == "PLAIN"


def test_nothing_shows_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    security = Security(**PLAIN, sasl_token=SECRET, ssl_password=SECRET, sasl_extensions={"key": SECRET})
    cluster = od.connect("kafka+sasl://b1", security=security)
    driver: Any = cluster.driver
    shown = f"{security!r} {cluster!r} {driver!r} {driver.connections!r} {driver.connections._login!r}"
    assert SECRET not in shown + caplog.text
    for url in (f"kafka+sasl://u:{SECRET}@b1", f"kafka://{SECRET}@b1"):
        with pytest.raises(ConfigError) as caught:
            od.connect(url)
        assert SECRET not in str(caught.value)


def test_options_go_to_other_processes_unless_they_hold_a_context() -> None:
    security = Security(**PLAIN)
    assert pickle.loads(pickle.dumps(security)) == security
    with pytest.raises(ConfigError, match="name files instead"):
        pickle.dumps(Security(ssl_context=ssl.create_default_context()))


# ---- files -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate, its key with a password, and both in one file."""
    directory = tmp_path_factory.mktemp("tls")
    issued = trustme.CA().issue_cert("me")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(SECRET.encode()),
    )
    (directory / "cert.pem").write_bytes(issued.cert_chain_pems[0].bytes())
    (directory / "key.pem").write_bytes(encrypted)
    (directory / "both.pem").write_bytes(issued.private_key_and_cert_chain_pem.bytes())
    return directory


def test_certificate_and_key_may_be_in_one_file_or_two(files: Path) -> None:
    client_context(Security(ssl_certfile=str(files / "both.pem")))
    context = client_context(
        Security(ssl_certfile=str(files / "cert.pem"), ssl_keyfile=str(files / "key.pem"), ssl_password=SECRET)
    )
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_certificates_and_key_may_be_texts(files: Path) -> None:
    """The key in the same text or in one of its own, encrypted or not; texts go before files."""
    certificate, key = (files / "cert.pem").read_text(), (files / "key.pem").read_text()
    client_context(Security(ssl_certificate_pem=(files / "both.pem").read_text(), ssl_certfile=__file__))
    context = client_context(
        Security(ssl_certificate_pem=certificate, ssl_key_pem=key, ssl_password=SECRET, ssl_ca_pem=certificate)
    )
    assert context.cert_store_stats()["x509"] == 1
    for wrong, why in (
        (Security(ssl_certificate_pem=certificate, ssl_key_pem=key), "ssl_certificate_pem: .*set ssl_password"),
        (Security(ssl_certificate_pem=certificate), "ssl_certificate_pem: "),
        (Security(ssl_key_pem=key), "ssl_key_pem without ssl_certificate_pem"),
        (Security(ssl_ca_pem=SECRET), "ssl_ca_pem: no certificates in PEM format"),
        (Security(ssl_ca_pem="\N{SNOWMAN}"), "ssl_ca_pem: no certificates in PEM format"),
    ):
        with pytest.raises(ConfigError, match=why) as caught:
            client_context(wrong)
        assert SECRET not in str(caught.value) and "BEGIN" not in str(caught.value)


def test_the_file_that_openssl_reads_a_text_from_is_closed_and_goes(
    monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    """Windows opens no temporary file a second time."""
    loaded: list[Path] = []

    def load(self: ssl.SSLContext, certificate: str, *more: Any) -> None:
        loaded.append(Path(certificate))
        assert "BEGIN" in loaded[0].read_text() and loaded[0].parent.stat().st_mode & 0o77 == 0
        assert loaded[0] not in [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", load)
    client_context(Security(ssl_certificate_pem=(files / "both.pem").read_text()))
    assert len(loaded) == 1 and not loaded[0].exists()


def test_a_text_without_a_place_for_its_file_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    """As where the file system is read-only."""
    monkeypatch.setattr(tempfile, "tempdir", str(files / "missing"))
    with pytest.raises(ConfigError, match=r"ssl_certificate_pem: no temporary file.*No such file"):
        client_context(Security(ssl_certificate_pem=(files / "both.pem").read_text()))


@pytest.mark.parametrize(("password", "why"), [(None, "set ssl_password"), ("x" + SECRET, "wrong ssl_password")])
def test_a_key_that_cannot_be_read_says_why_and_does_not_ask_on_the_terminal(
    files: Path, password: str | None, why: str
) -> None:
    security = Security(ssl_certfile=str(files / "cert.pem"), ssl_keyfile=str(files / "key.pem"), ssl_password=password)
    with pytest.raises(ConfigError, match=why) as caught:
        client_context(security)
    assert SECRET not in str(caught.value)


def test_a_context_of_the_user_is_used_as_it_is() -> None:
    context = ssl.create_default_context()
    assert client_context(Security(ssl_context=context)) is context


def test_without_the_check_of_the_name_the_certificate_is_still_checked() -> None:
    context = client_context(Security(ssl_check_hostname=False))
    assert (context.check_hostname, context.verify_mode) == (False, ssl.CERT_REQUIRED)
