"""Tokens for Amazon MSK: their signature, derived step by step from the specification of AWS (Signature Version 4)."""

from __future__ import annotations

import datetime
import hmac
import sys
import time
from base64 import urlsafe_b64decode
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import anyio
import botocore.auth
import botocore.session
import pytest
from botocore.credentials import Credentials
from botocore.exceptions import ProfileNotFound
from tests.loops import BOTH, on

import odradek as od
from odradek._version import __version__
from odradek.errors import ConfigError, Unreachable
from odradek.io.kafka.authentication import TokenSource, token_provider
from odradek.io.kafka.msk import MskIam, signed_token
from odradek.io.security import Security

pytestmark = pytest.mark.anyio
anyio_backend = on(BOTH)

KEY, SECRET, SESSION = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "AQoDYXdz//+session=="
DATE, MOMENT = "20150830", "20150830T123600Z"


@pytest.fixture
def fixed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.datetime(2015, 8, 30, 12, 36, tzinfo=datetime.UTC)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *_, **__: now)


def signature(secret: str, date: str, region: str, service: str, text: str) -> str:
    """Steps 3 and 4 of the specification: the signing key, and the signature of the string to sign."""
    key = f"AWS4{secret}".encode()
    for part in (date, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, text.encode(), "sha256").hex()


def test_the_steps_give_the_signature_that_aws_publishes() -> None:
    """The example of the specification: ListUsers of IAM."""
    hashed = "f536975d06c0309214f805bb90ccff089219ecd68b2577efef23edd43b7e1a59"
    text = f"AWS4-HMAC-SHA256\n{MOMENT}\n{DATE}/us-east-1/iam/aws4_request\n{hashed}"
    expected = "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"
    assert signature(SECRET, DATE, "us-east-1", "iam", text) == expected


@pytest.mark.parametrize("session", [None, SESSION])
@pytest.mark.parametrize("region", ["us-east-1", "eu-west-1"])
def test_a_token_is_a_signed_url(fixed_clock: None, region: str, session: str | None) -> None:
    token = signed_token(region, Credentials(KEY, SECRET, session))
    assert "=" not in token
    url = urlsplit(urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    host, scope = f"kafka.{region}.amazonaws.com", f"{DATE}/{region}/kafka-cluster/aws4_request"
    assert (url.scheme, url.netloc, url.path) == ("https", host, "/")
    query = {name: value for name, (value,) in parse_qs(url.query).items()}
    assert query.pop("User-Agent") == f"odradek/{__version__}"
    signed = query.pop("X-Amz-Signature")
    assert query == {
        "Action": "kafka-cluster:Connect",
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{KEY}/{scope}",
        "X-Amz-Date": MOMENT,
        "X-Amz-Expires": "900",
        "X-Amz-SignedHeaders": "host",
        **({} if session is None else {"X-Amz-Security-Token": session}),
    }
    encoded = "&".join(f"{quote(name, safe='')}={quote(query[name], safe='')}" for name in sorted(query))
    canonical = f"GET\n/\n{encoded}\nhost:{host}\n\nhost\n{sha256(b'').hexdigest()}"
    text = f"AWS4-HMAC-SHA256\n{MOMENT}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
    assert signed == signature(SECRET, DATE, region, "kafka-cluster", text)


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


def security(region: str = "eu-west-1") -> Security:
    return Security(sasl_mechanism="OAUTHBEARER", sasl_aws_region=region)


async def test_credentials_are_those_of_the_environment_and_a_token_is_kept(credentials: None) -> None:
    provider, now = token_provider(security()), [0.0]
    assert isinstance(provider, MskIam)
    began = time.time()
    token, expires_at = await provider()
    assert began + 899 < expires_at < time.time() + 901
    assert KEY in urlsafe_b64decode(token + "==").decode() and SECRET not in repr(provider)
    made: list[float] = []

    async def provide() -> tuple[str, float]:
        made.append(now[0])
        return (await provider())[0], now[0] + 900

    source = TokenSource(provide, 30.0, wall_clock=lambda: now[0])
    for now[0] in (0.0, 100.0, 719.0, 721.0):
        await source.ensure("b:9098")
    assert made == [0.0, 721.0]


async def test_a_token_has_the_credentials_that_are_in_the_file_now(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Tools such as saml2aws write temporary credentials into the file, again and again."""
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    provider = MskIam("eu-west-1")
    for key in ("AKIDFIRST", "AKIDSECOND"):
        file.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key={SECRET}\n")
        token, _ = await provider()
        assert key in urlsafe_b64decode(token + "==").decode()


async def test_a_token_has_only_characters_that_the_mechanism_allows(credentials: None) -> None:
    driver: Any = od.connect("kafka+sasl+ssl://b-1.example:9098", security=security()).driver
    connections = driver.connections
    await connections._tokens.ensure("b-1.example:9098")
    assert b"auth=Bearer aHR0cHM6Ly9rYWZrYS5" in next(connections._login.begin("b-1.example"))


async def test_missing_credentials_are_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoSession:
        def get_credentials(self) -> None:
            return None

    monkeypatch.setattr(botocore.session, "Session", NoSession)
    with pytest.raises(Unreachable, match="no token: AWS credentials for MSK in eu-west-1: there are none") as caught:
        await TokenSource(MskIam("eu-west-1"), 30.0).ensure("b:9098")
    assert not caught.value.retriable


async def test_an_error_of_the_credentials_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def get_credentials(self) -> None:
            raise ProfileNotFound(profile="nobody")

    monkeypatch.setattr(botocore.session, "Session", Broken)
    with pytest.raises(Unreachable, match=r"ProfileNotFound: .*nobody") as caught:
        await TokenSource(MskIam("eu-west-1"), 30.0).ensure("b:9098")
    assert caught.value.retriable


async def test_credentials_that_take_too_long_cost_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    released = anyio.Event()

    class Slow:
        def get_credentials(self) -> None:
            anyio.from_thread.run(released.wait)

    monkeypatch.setattr(botocore.session, "Session", Slow)
    with pytest.raises(Unreachable, match=r"AWS credentials for MSK in eu-west-1: no answer within 0\.05 s"):
        await TokenSource(MskIam("eu-west-1"), 0.05).ensure("b:9098")
    released.set()


@pytest.mark.parametrize("region", ["", "eu west", "a/b", "evil.example.com#", "EU"])
def test_a_region_that_is_none_is_refused(region: str) -> None:
    with pytest.raises(ConfigError, match=r"Security\.sasl_aws_region"):
        security(region)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(ConfigError, match=r"pip install odradek\[msk\]"):
        od.connect("kafka+sasl+ssl://b:9098", security=security())
