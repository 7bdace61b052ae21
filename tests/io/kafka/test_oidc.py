"""Tokens by client credentials, from a token endpoint on loopback: what is asked for, and every way to fail."""

from __future__ import annotations

import logging
import pickle
import ssl
import sys
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme
from tests.loops import BOTH, on

import odradek as od
from odradek.core.backoff import Backoff
from odradek.errors import ConfigError, Unreachable
from odradek.io.kafka.authentication import TokenSource, token_provider
from odradek.io.kafka.oidc import ClientCredentials
from odradek.io.security import Security, TokenError

from .token_server import TokenServer, token_server

pytestmark = pytest.mark.anyio
anyio_backend = on(BOTH)

SECRET = "s3cr3t/of+the client"


@pytest.fixture(scope="module")
def started() -> Iterator[TokenServer]:
    with token_server() as server:
        yield server


@pytest.fixture
def server(started: TokenServer) -> TokenServer:
    started.forms.clear()
    started.headers.clear()
    started.says(200, {"access_token": "tok", "expires_in": 300, "token_type": "Bearer"})
    return started


def security(url: str, **more: Any) -> Security:
    options = {"sasl_oauth_client_id": "kafka:client", "sasl_oauth_client_secret": SECRET} | more
    return Security(sasl_mechanism="OAUTHBEARER", sasl_oauth_token_url=url, **options)


async def test_a_token_is_asked_for_with_the_credentials_and_the_scope(
    server: TokenServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    first: Any = await ClientCredentials(security(server.url, sasl_oauth_scope="kafka read"))()
    second: Any = await ClientCredentials(security(server.url))()
    assert first[0] == second[0] == "tok" and 0 <= second[1] - first[1] < 60
    assert server.forms == [
        {"grant_type": "client_credentials", "scope": "kafka read"},
        {"grant_type": "client_credentials"},
    ]
    kind, _, credentials = server.headers[0]["Authorization"].partition(" ")
    assert kind == "Basic"
    assert b64decode(credentials).decode() == "kafka%3Aclient:s3cr3t%2Fof%2Bthe+client"  # RFC 6749, 2.3.1
    assert SECRET not in caplog.text and credentials not in caplog.text


async def test_a_token_is_kept_until_shortly_before_it_expires(server: TokenServer) -> None:
    provider, now = token_provider(security(server.url)), [0.0]
    assert provider is not None

    async def provide() -> Any:
        answer: Any = await provider()
        return answer[0], now[0] + 300

    source = TokenSource(provide, 30.0, wall_clock=lambda: now[0])
    for now[0], asked in ((0.0, 1), (200.0, 1), (239.0, 1), (241.0, 2), (242.0, 2)):
        await source.ensure("b:9092")
        assert len(server.forms) == asked


async def test_a_secret_in_a_file_is_read_for_each_token(server: TokenServer, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("one\n")
    options = {"sasl_oauth_client_secret": None, "sasl_oauth_client_secret_file": str(file)}
    provider = ClientCredentials(security(server.url, **options))
    await provider()
    file.write_text("two")
    await provider()
    sent = [b64decode(headers["Authorization"].split()[1]).decode() for headers in server.headers]
    assert [each.partition(":")[2] for each in sent] == ["one", "two"]
    file.unlink()
    with pytest.raises(TokenError, match=r"sasl_oauth_client_secret_file: .*No such file"):
        await provider()


async def test_without_a_lifetime_the_expiry_is_that_of_the_token(server: TokenServer) -> None:
    for lifetime in ({}, {"expires_in": "soon"}, {"expires_in": True}, {"expires_in": None}):
        server.says(200, {"access_token": "tok"} | lifetime)
        assert await ClientCredentials(security(server.url))() == "tok"


@pytest.mark.parametrize(
    ("status", "body", "text", "retriable"),
    [
        (
            401,
            {"error": "invalid_client", "error_description": "no such client"},
            "401: invalid_client: no such",
            False,
        ),
        (400, {"error": "invalid_scope"}, "status 400: invalid_scope", False),
        (403, b"<html>", "status 403: the answer is no JSON object", False),
        (404, b"", "status 404: the answer is no JSON object", False),
        (302, b"", "status 302", False),
        (429, b"", "status 429", True),
        (503, {"error": "temporarily_unavailable"}, "status 503: temporarily_unavailable", True),
        (200, b"<html>welcome</html>", "status 200: the answer is no JSON object", False),
        (200, [1], "status 200: the answer is no JSON object", False),
        (200, b"\xff\xfe", "status 200: the answer is no JSON object", False),
        (200, {"id_token": "x", "expires_in": 5}, "the answer has no access_token; it has id_token, expires_in", False),
        (200, {"access_token": ""}, "no access_token", False),
        (200, {"access_token": 5}, "no access_token", False),
        (200, {}, "no access_token; it has nothing", False),
        (401, {"error": "x" * 5000}, "status 401: xxx", False),
    ],
)
async def test_an_answer_without_a_token_is_an_error_that_says_why(
    server: TokenServer, status: int, body: object, text: str, retriable: bool
) -> None:
    server.says(status, body)
    source = TokenSource(ClientCredentials(security(server.url)), 30.0)
    with pytest.raises(Unreachable) as caught:
        await source.ensure("b:9092")
    error = caught.value
    assert error.step == "sasl" and error.address == "b:9092"
    assert f"no token: {server.url}: " in error.why and text in error.why and len(error.why) < 600
    assert error.retriable is retriable
    assert ("sasl_oauth_client_id" in error.hint) is (status == 401)
    assert SECRET not in f"{error}{error.__cause__}"


async def test_an_endpoint_that_cannot_be_reached_is_named(server: TokenServer) -> None:
    source = TokenSource(ClientCredentials(security("http://127.0.0.1:1/token")), 30.0)
    with pytest.raises(Unreachable, match=r"no token: http://127\.0\.0\.1:1/token: ConnectError: ") as caught:
        await source.ensure("b:9092")
    assert caught.value.retriable


async def test_an_endpoint_that_is_silent_costs_the_time_limit(server: TokenServer) -> None:
    server.gate.clear()
    try:
        source = TokenSource(ClientCredentials(security(server.url)), 0.2)
        with pytest.raises(Unreachable, match=r"oauth2/token: no answer within 0\.2 s"):
            await source.ensure("b:9092")
    finally:
        server.gate.set()


async def test_a_cancelled_request_leaves_nothing_behind(server: TokenServer) -> None:
    source = TokenSource(ClientCredentials(security(server.url)), 30.0)
    for delay in (0.0, 0.001, 0.003, 0.01, 0.02):
        with anyio.move_on_after(delay):
            await source.ensure("b:9092")
    await source.ensure("b:9092")
    assert source.token == "tok"


async def test_failures_in_the_background_are_logged_with_what_the_endpoint_says(
    server: TokenServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.says(503, {"error": "down"})
    source = TokenSource(ClientCredentials(security(server.url)), 30.0, Backoff(0.001, 1, 0.001))
    source._refresh_at = 0.0
    async with anyio.create_task_group() as group:
        group.start_soon(source.run)
        with anyio.fail_after(30):
            while len(server.forms) < 3:  # noqa: ASYNC110 - in the server's thread
                await anyio.sleep(0.01)
        group.cancel_scope.cancel()
    logged = [record.message for record in caplog.records if record.name == "odradek.security"]
    assert logged == [f"{server.url}: status 503: down; trying again"]


async def test_https_needs_a_certificate_that_is_trusted(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    with token_server(context) as server:
        server.says(200, {"access_token": "tok"})
        assert await ClientCredentials(security(server.url, sasl_oauth_cafile=str(file)))() == "tok"
        with pytest.raises(TokenError, match="CERTIFICATE_VERIFY_FAILED"):
            await ClientCredentials(security(server.url))()


# ---- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sasl_oauth_token_url": "ftp://h/t"}, "sasl_oauth_token_url: must be one like https"),
        ({"sasl_oauth_token_url": "https://"}, "sasl_oauth_token_url: must be"),
        ({"sasl_oauth_token_url": "https://u:hidden@h/t"}, "sasl_oauth_token_url: must be"),
        ({"sasl_oauth_token_url": "https://h:99999/t"}, "sasl_oauth_token_url: must be"),
        ({"sasl_oauth_client_id": None}, "needs sasl_oauth_client_id, or ODRADEK_SASL_OAUTH_CLIENT_ID"),
        ({"sasl_oauth_client_secret": None}, "needs either sasl_oauth_client_secret or sasl_oauth_client_secret_file"),
        ({"sasl_oauth_client_secret_file": "pyproject.toml"}, "needs either sasl_oauth_client_secret or"),
        ({"sasl_oauth_cafile": "pyproject.toml"}, "no certificates in PEM format"),
        ({"sasl_aws_region": "eu-west-1"}, "sasl_oauth_token_url and sasl_aws_region: a token comes from one"),
    ],
)
def test_options_that_cannot_work_are_refused_by_connect(options: dict[str, Any], text: str) -> None:
    made = security("https://h/t")
    changed = {name: getattr(made, name) for name in Security.__dataclass_fields__} | options
    with pytest.raises(ConfigError, match=text) as caught:
        od.connect("kafka+sasl://b", security=Security(**changed))
    assert "hidden" not in str(caught.value) and SECRET not in str(caught.value)


def test_all_of_it_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TOKEN_URL": "https://h/t", "CLIENT_ID": "c", "CLIENT_SECRET": SECRET}.items():
        monkeypatch.setenv(f"ODRADEK_SASL_OAUTH_{name}", value)
    monkeypatch.setenv("ODRADEK_SASL_MECHANISM", "OAUTHBEARER")
    driver: Any = od.connect("kafka+sasl://b").driver
    assert "https://h/t" in repr(driver.connections._tokens._provider)


def test_a_secret_is_not_shown_and_goes_to_other_processes() -> None:
    made = security("https://h/t")
    assert SECRET not in repr(made)
    assert pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(TypeError) as caught:
        Security(sasl_oauth_client_secret=5)  # type: ignore[arg-type]
    assert "5" not in str(caught.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(ConfigError, match=r"pip install odradek\[oidc\]"):
        ClientCredentials(security("https://h/t"))


def test_a_function_goes_before_an_endpoint() -> None:
    async def provide() -> str:
        return "t"

    assert token_provider(security("https://h/t", sasl_token_provider=provide)) is provide
    assert token_provider(Security(sasl_mechanism="PLAIN", sasl_oauth_token_url="https://h/t")) is None
