"""A TLS handshake that never ends, from a listener that says nothing: whoever gives up leaves no connection open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream
from tests.loops import BOTH, on

from odradek.io.kafka.oidc import ClientCredentials
from odradek.io.security import Security
from odradek.registry import RegistryError, SchemaRegistry

pytestmark = pytest.mark.anyio
anyio_backend = on(BOTH)


class SilentListener:
    """Accepts one connection and reads what comes.

    Attributes:
        asked: Set when the client has begun its handshake.
        closed: Set when the client has closed the connection.
    """

    def __init__(self, port: int) -> None:
        self.url = f"https://127.0.0.1:{port}"
        self.asked, self.closed = anyio.Event(), anyio.Event()

    async def serve(self, stream: SocketStream) -> None:
        async with stream:
            await stream.receive()
            self.asked.set()
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()
            self.closed.set()


@asynccontextmanager
async def silent_listener() -> AsyncIterator[SilentListener]:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        silent = SilentListener(listener.extra(SocketAttribute.local_port))
        tasks.start_soon(listener.serve, silent.serve)
        yield silent
        with anyio.fail_after(30):
            await silent.closed.wait()
        tasks.cancel_scope.cancel()


async def a_schema(url: str) -> None:
    async with SchemaRegistry(url) as registry:
        await registry.schema(1)


async def a_token(url: str) -> None:
    await ClientCredentials(
        Security(
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_url=url,
            sasl_oauth_client_id="client",
            sasl_oauth_client_secret="secret",
        )
    )()


@pytest.mark.parametrize("request_of", [a_schema, a_token])
async def test_a_caller_that_is_cancelled(request_of: Callable[[str], Coroutine[Any, Any, None]]) -> None:
    async with silent_listener() as silent, anyio.create_task_group() as tasks:
        tasks.start_soon(request_of, silent.url)
        await silent.asked.wait()
        tasks.cancel_scope.cancel()


async def test_a_time_limit_of_ours() -> None:
    async with silent_listener() as silent, SchemaRegistry(silent.url, timeout=0.2) as registry:
        with pytest.raises(RegistryError, match=r"no answer within 0\.2 s"):
            await registry.schema(1)
