"""Requests to a registry: who asks, how often, and what comes of an answer."""

from __future__ import annotations

import base64
import pickle
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme
from tests.registry.fake import FakeRegistry, serving

from odradek import Security
from odradek.errors import Closed, ConfigError
from odradek.registry import RegistryError, SchemaRegistry
from odradek.registry.client import MAX_KEPT
from odradek.registry.schemas import Schema, SchemaId

pytestmark = pytest.mark.anyio

TEXT = '"long"'


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with serving() as fake:
        fake.add("s/1", TEXT)
        yield fake


# ---- answers ----------------------------------------------------------------------------------------------------


async def test_answers_are_remembered(registry: FakeRegistry) -> None:
    async with SchemaRegistry(f"{registry.url}/") as client:
        for _ in range(3):
            answer = await client.schema(1)
            assert answer is not None and (answer.kind, answer.text) == ("AVRO", TEXT)
            assert await client.schema(9) is None
            number = await client.register("new", Schema("JSON", "{}"))
            assert await client.find("new", Schema("JSON", "{}")) == (number, 1)
    assert registry.asked == [
        "GET /schemas/ids/1", "GET /schemas/ids/9", "POST /subjects/new/versions", "POST /subjects/new",
    ]  # fmt: skip
    assert registry.schemas[1] == {"schema": "{}", "schemaType": "JSON", "references": []}


async def test_what_may_change_is_asked_for_again(registry: FakeRegistry) -> None:
    async with SchemaRegistry(registry.url) as client:
        assert await client.latest("s/2") is None
        assert await client.find("s/1", Schema("AVRO", '"int"')) is None
        registry.add("s/2", TEXT)
        registry.add("s/1", '"int"')
        for subject, text in (("s/2", TEXT), ("s/1", '"int"')):
            newest = await client.latest(subject)
            assert newest is not None and newest[1].text == text
        answer = await client.find("s/1", Schema("AVRO", '"int"'))
        assert answer is not None and answer[1] == 2


async def test_an_unknown_id_is_asked_for_again_after_a_minute(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, clock = 0.0, anyio.current_time
    monkeypatch.setattr("odradek.registry.shared_calls.anyio.current_time", lambda: clock() + now)
    async with SchemaRegistry(registry.url) as client:
        assert await client.schema(2) is None
        registry.add("late", '"int"')
        assert await client.schema(2) is None
        now = 61.0
        assert await client.schema(2) is not None


async def test_few_answers_are_remembered(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    async with SchemaRegistry(registry.url) as client:
        client._calls._limit = 3
        for number in (1, 7, 8, 9, 1):
            await client.schema(number)
    assert registry.asked.count("GET /schemas/ids/1") == 2 and MAX_KEPT == 10_000


async def test_a_registry_without_guids_gives_an_id_alone(registry: FakeRegistry) -> None:
    registry.has_guids = False
    async with SchemaRegistry(registry.url) as client:
        assert await client.register("s/1", Schema("AVRO", TEXT)) == SchemaId(1, None)


# ---- errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 429, 500, 503])
async def test_an_error_that_passes_is_asked_again(registry: FakeRegistry, status: int) -> None:
    registry.faults = [(status, b"busy")] * 2
    async with SchemaRegistry(registry.url) as client:
        assert await client.schema(1) is not None
    assert len(registry.asked) == 3


WRONG = [
    (401, b'{"error_code": 401, "message": "Unauthorized"}', "status 401: Unauthorized"),
    (403, b'{"error_code": 403, "message": "Forbidden"}', "status 403: Forbidden"),
    (404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}', "status 404: HTTP 404 Not Found"),
    (422, b'{"error_code": 42201, "message": "Invalid schema"}', "status 422: Invalid schema"),
    (404, b"<html>", "status 404: what answers is no schema registry"),
    (200, b"<html>", "status 200: what answers is no schema registry"),
    (302, b"", "status 302: what answers is no schema registry"),
    (200, b"[]", "status 200: what answers is no schema registry"),
    (200, b'{"status": "UP"}', "status 200: what answers is no schema registry"),
    (200, b'{"schema": {}}', "status 200: what answers is no schema registry"),
    (200, b'{"schema": "{}", "references": [1]}', "status 200: what answers is no schema registry"),
    (200, b'{"message": "down"}', "status 200: down"),
]


@pytest.mark.parametrize(("status", "body", "why"), WRONG)
async def test_a_refusal_is_an_error_at_once(registry: FakeRegistry, status: int, body: bytes, why: str) -> None:
    registry.faults = [(status, body)]
    async with SchemaRegistry(registry.url.replace("//", "//me:secret@")) as client:
        with pytest.raises(RegistryError) as failed:
            await client.schema(1)
        assert await client.schema(1) is not None  # the error is not remembered
        assert "secret" not in repr(client)
    error = failed.value
    assert (error.why, error.status) == (why, status)
    is_of_record = b"error_code" in body and status not in (401, 403)  # those pass with other credentials
    assert error.retriable != is_of_record
    assert str(error) == f"schema registry {registry.url}: {why}"
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), vars(again)) == (str(error), vars(error))


@pytest.mark.parametrize("body", [b'{"status": "UP"}', b'{"id": "first", "version": 1}', b'{"id": null}'])
async def test_an_answer_without_what_was_asked_for_is_an_error_and_not_remembered(
    registry: FakeRegistry, body: bytes
) -> None:
    schema = Schema("AVRO", TEXT)
    async with SchemaRegistry(registry.url) as client:
        for ask in (client.register, client.find):
            registry.faults = [(200, body)]
            with pytest.raises(RegistryError, match="no schema registry"):
                await ask("s/1", schema)
            assert await ask("s/1", schema) is not None
        registry.faults = [(200, body)]
        with pytest.raises(RegistryError, match="no schema registry"):
            await client.latest("s/1")


async def test_a_registry_that_does_not_answer_is_left_in_time(registry: FakeRegistry) -> None:
    registry.gate.clear()
    async with SchemaRegistry(registry.url, timeout=0.3) as client:
        with anyio.fail_after(20):
            with pytest.raises(RegistryError, match=r"no answer within 0.3 s|ReadTimeout") as failed:
                await client.schema(1)
        assert failed.value.retriable and failed.value.status is None


async def test_another_url_is_tried(registry: FakeRegistry) -> None:
    with serving() as gone:
        pass
    async with SchemaRegistry([gone.url, registry.url]) as client:
        assert await client.schema(1) is not None
    async with SchemaRegistry(gone.url, timeout=0.2) as client:
        with pytest.raises(RegistryError, match="ConnectError") as failed:
            await client.schema(1)
        assert failed.value.retriable


async def test_another_url_is_tried_if_the_first_is_silent(registry: FakeRegistry) -> None:
    with serving() as silent:
        silent.gate.clear()
        async with SchemaRegistry([silent.url, registry.url], timeout=1.0) as client:
            assert await client.schema(1) is not None
            assert await client.latest("s/1") is not None
        silent.gate.set()
    assert len(silent.asked) == 1  # it is not asked again while the other answers


async def test_outside_of_its_block_it_is_closed(registry: FakeRegistry) -> None:
    client = SchemaRegistry(registry.url)
    with pytest.raises(Closed, match="is not open: use it inside its async with block"):
        await client.schema(1)
    async with client:
        assert await client.schema(1) is not None
    with pytest.raises(Closed):
        await client.schema(2)


BAD: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"url": "ftp://x"}, ConfigError), ({"url": "registry:8081"}, ConfigError), ({"url": []}, ConfigError),
    ({"url": [7]}, TypeError), ({"url": "http://x", "timeout": 0}, ConfigError),
    ({"url": "http://x", "security": "tls"}, TypeError), ({"url": "http://x", "username": 7}, TypeError),
    ({"url": "http://x:y"}, ConfigError), ({"url": "http://x:99999"}, ConfigError),
    ({"url": "http://[::1"}, ConfigError),
]  # fmt: skip


@pytest.mark.parametrize(("options", "kind"), BAD)
async def test_an_option_that_cannot_work_is_refused(options: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        SchemaRegistry(**options)


# ---- tasks that ask at the same time ----------------------------------------------------------------------------


async def test_what_is_not_remembered_is_shared_while_it_is_asked_for(registry: FakeRegistry) -> None:
    async with SchemaRegistry(registry.url) as client, anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(client.latest, "s/1")
            tasks.start_soon(client.latest, "none")
    assert sorted(registry.asked) == ["GET /subjects/none/versions/latest", "GET /subjects/s%2F1/versions/latest"]


async def test_an_error_reaches_everyone_who_waits(registry: FakeRegistry) -> None:
    registry.faults, errors = [(401, b"{}")], []
    registry.gate.clear()
    async with SchemaRegistry(registry.url) as client:

        async def ask() -> None:
            with pytest.raises(RegistryError) as failed:
                await client.schema(1)
            errors.append(failed.value)

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(ask)
            while not registry.asked:
                await anyio.lowlevel.checkpoint()
            registry.gate.set()
    assert len(registry.asked) == 1 and len({id(error) for error in errors}) == 5
    assert {str(error) for error in errors} == {str(errors[0])}


async def test_if_the_task_that_asks_is_cancelled_another_asks(registry: FakeRegistry) -> None:
    registry.gate.clear()
    answer: list[Any] = []
    async with SchemaRegistry(registry.url) as client, anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()

        async def ask(scope: anyio.CancelScope) -> None:
            with scope:
                answer.append(await client.schema(1))

        tasks.start_soon(ask, scope)
        while not registry.asked:
            await anyio.lowlevel.checkpoint()
        for _ in range(3):
            tasks.start_soon(ask, anyio.CancelScope())
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        scope.cancel()
        registry.gate.set()
    assert len(answer) == 3 and None not in answer and len(registry.asked) == 2


# ---- who asks ---------------------------------------------------------------------------------------------------


async def test_user_and_password_are_sent(registry: FakeRegistry) -> None:
    wanted = "Basic " + base64.b64encode(b"me:secret").decode()
    async with SchemaRegistry(registry.url, username="me", password="secret", headers={"X-Cluster": "lsrc-1"}) as one:
        await one.schema(1)
    async with SchemaRegistry(registry.url.replace("//", "//me:secret@")) as two:
        await two.register("s", Schema("AVRO", TEXT))
    assert [each["Authorization"] for each in registry.headers] == [wanted] * 2
    assert registry.headers[0]["X-Cluster"] == "lsrc-1"
    assert registry.headers[1]["Content-Type"] == "application/vnd.schemaregistry.v1+json"


async def test_tokens_are_sent(registry: FakeRegistry) -> None:
    tokens = iter(["a", ("b", 1e12)])

    async def provide() -> Any:
        return next(tokens)

    async with SchemaRegistry(registry.url, token=provide) as client:
        await client.schema(1)
        await client.schema(2)
    async with SchemaRegistry(registry.url, token="c") as client:
        await client.schema(1)
    assert [each["Authorization"] for each in registry.headers] == ["Bearer a", "Bearer b", "Bearer c"]


async def test_a_provider_of_tokens_that_fails_is_asked_again(registry: FakeRegistry) -> None:
    answers = iter([None, None, "a"])

    async def provide() -> str:
        if (token := next(answers, None)) is None:
            raise OSError("secret")
        return token

    async with SchemaRegistry(registry.url, token=provide, timeout=2.0) as client:
        assert await client.schema(1) is not None
    assert [each["Authorization"] for each in registry.headers] == ["Bearer a"]
    async with SchemaRegistry(registry.url, token=provide, timeout=0.5) as client:
        with pytest.raises(RegistryError, match=r"no token: the token provider raised OSError$") as failed:
            await client.schema(1)
    assert failed.value.retriable and isinstance(failed.value.__cause__, OSError)


async def test_a_provider_that_returns_no_token_is_an_error(registry: FakeRegistry) -> None:
    async def provide() -> Any:
        return None

    async with SchemaRegistry(registry.url, token=provide, timeout=0.5) as client:
        with pytest.raises(RegistryError, match=r"no token: the token provider returned NoneType, not a text"):
            await client.schema(1)


async def test_tls_trusts_what_it_is_told() -> None:
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    with serving(server) as registry:
        registry.add("s", TEXT)
        pem = authority.cert_pem.bytes().decode()
        async with SchemaRegistry(registry.url, security=Security(ssl_ca_pem=pem)) as client:
            assert await client.schema(1) is not None
        async with SchemaRegistry(registry.url, timeout=0.3) as stranger:
            with pytest.raises(RegistryError, match="CERTIFICATE_VERIFY_FAILED"):
                await stranger.schema(1)


async def test_files_of_certificates_that_were_replaced_are_read_again(tmp_path: Path) -> None:
    first, second = trustme.CA(), trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    first.issue_cert("127.0.0.1").configure_cert(server)
    file = tmp_path / "ca.pem"
    file.write_bytes(first.cert_pem.bytes())
    with serving(server) as registry:
        registry.add("s/1", TEXT)
        registry.add("s/2", '"int"')
        registry.add("s/3", '"string"')
        async with SchemaRegistry(registry.url, security=Security(ssl_cafile=str(file)), timeout=30.0) as client:
            assert await client.schema(1) is not None
            registry.gate.clear()
            async with anyio.create_task_group() as group:
                group.start_soon(client.schema, 2)
                while len(registry.asked) < 2:  # noqa: ASYNC110 - in a thread
                    await anyio.sleep(0.001)
                second.issue_cert("127.0.0.1").configure_cert(server)
                file.write_bytes(second.cert_pem.bytes())
                group.start_soon(client.schema, 3)
                while len(registry.asked) < 4:  # noqa: ASYNC110 - in a thread
                    await anyio.sleep(0.001)
                registry.gate.set()
    assert sorted(registry.asked[1:]) == ["GET /schemas/ids/2"] * 2 + ["GET /schemas/ids/3"], "one was repeated"


# ---- imports ----------------------------------------------------------------------------------------------------


def test_packages_are_imported_only_when_they_are_used() -> None:
    code = """
import sys, odradek, odradek.serde
assert not any(name.startswith('odradek.registry') for name in sys.modules)
import odradek.registry
print(sorted({'fastavro', 'google.protobuf', 'jsonschema', 'httpx2', 'confluent_kafka', 'pyarrow'} & {*sys.modules}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("package", ["httpx2", "fastavro", "jsonschema.exceptions", "google.protobuf.message"])
def test_a_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        for module in ("avro", "json", "protobuf"):
            patch.delitem(sys.modules, f"odradek.registry.{module}", raising=False)
        patch.setitem(sys.modules, package, None)
        with pytest.raises(ConfigError, match=r"pip install odradek\[registry\]"):
            client = SchemaRegistry("http://127.0.0.1:1")
            client.avro(TEXT)
            client.json_schema("{}")
            client.protobuf(int)
