"""Certificates of a broker for tests: a right one, and each kind of wrong one."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import NamedTuple

import trustme
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12
from cryptography.x509 import load_pem_x509_certificate

__all__ = ["CertificateFiles", "Certificates"]

VALID, EXPIRED, UNTRUSTED, WRONG_HOST = "valid", "expired", "untrusted", "wrong_host"
PASSWORD = "odradek"
"""Password of the stores: Java wants one."""
HOSTS = ("localhost", "127.0.0.1")
OTHER_HOST = "other.example"
FILES = ("ca.pem", "other-ca.pem", "client.pem", "broker.p12", "trust.p12")


class CertificateFiles(NamedTuple):
    """Files of the certificates of a broker."""

    ca_file: Path
    """The authority that a client should trust (PEM)."""
    other_ca_file: Path
    """An authority that has nothing to do with the broker (PEM)."""
    client_file: Path
    """Certificate and private key of a client that the broker trusts (PEM); it asks for one with the property
    `ssl.client.auth`."""
    key_store: Path
    trust_store: Path

    @property
    def properties(self) -> dict[str, object]:
        """Properties of server.properties that name them."""
        return {
            "ssl.keystore.location": self.key_store,
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.password": PASSWORD,
            "ssl.key.password": PASSWORD,
            "ssl.truststore.location": self.trust_store,
            "ssl.truststore.type": "PKCS12",
            "ssl.truststore.password": PASSWORD,
        }


class Certificates:
    """A certificate authority, what it issued for a broker and a client, and another authority.

    Args:
        kind: `valid` for localhost and 127.0.0.1; `expired`; `untrusted`: signed by the other authority; `wrong_host`:
            for another name.
    """

    def __init__(self, kind: str = VALID) -> None:
        ca, other = trustme.CA(), trustme.CA()
        client = ca.issue_cert("client@odradek.example")
        self._contents = (
            ca.cert_pem.bytes(),
            other.cert_pem.bytes(),
            client.private_key_pem.bytes() + b"".join(each.bytes() for each in client.cert_chain_pems),
            _key_store(_issue(other if kind == UNTRUSTED else ca, kind)),
            _trust_store(ca),
        )

    def write(self, directory: Path) -> CertificateFiles:
        """Write the files of a broker, unless the directory has them."""
        files = CertificateFiles(*(directory / name for name in FILES))
        directory.mkdir(exist_ok=True)
        for path, content in zip(files, self._contents, strict=True):
            if not path.exists():
                path.write_bytes(content)
        return files


def _issue(ca: trustme.CA, kind: str) -> trustme.LeafCert:
    if kind == EXPIRED:
        now = datetime.datetime.now(datetime.UTC)
        year, hour = datetime.timedelta(days=365), datetime.timedelta(hours=1)
        return ca.issue_cert(*HOSTS, not_before=now - year, not_after=now - hour)
    return ca.issue_cert(*([OTHER_HOST] if kind == WRONG_HOST else HOSTS))


def _key_store(certificate: trustme.LeafCert) -> bytes:
    key = load_pem_private_key(certificate.private_key_pem.bytes(), None)
    chain = [load_pem_x509_certificate(each.bytes()) for each in certificate.cert_chain_pems]
    return pkcs12.serialize_key_and_certificates(
        b"broker",
        key,  # type: ignore[arg-type]  # trustme makes RSA and EC keys alone
        chain[0],
        chain[1:],
        BestAvailableEncryption(PASSWORD.encode()),
    )


def _trust_store(ca: trustme.CA) -> bytes:
    trusted = pkcs12.PKCS12Certificate(load_pem_x509_certificate(ca.cert_pem.bytes()), b"ca")
    return pkcs12.serialize_java_truststore([trusted], BestAvailableEncryption(PASSWORD.encode()))
