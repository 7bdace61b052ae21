"""HTTP requests through httpx2 whose cancellation leaves no connection open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

__all__ = ["closing_handshakes"]


def closing_handshakes() -> dict[str, Callable[[str, dict[str, Any]], Awaitable[None]]]:
    """Return the `extensions` of one request that close its connection if the TLS handshake of it does not succeed.

    httpcore2 closes a connection after an error of the handshake, and up to 2.16 leaves it open where the handshake is
    cancelled: by the caller, or by a time limit of ours.
    """
    opened: list[anyio.abc.AsyncResource] = []

    async def trace(event: str, info: dict[str, Any]) -> None:
        if event.endswith("connect_tcp.complete"):
            opened.append(info["return_value"])
        elif event.endswith("start_tls.failed"):
            for stream in opened:
                await anyio.aclose_forcefully(stream)

    return {"trace": trace}
