"""Exchanges with proxies: what is sent, what the answers mean, and bytes that no proxy should send."""

from __future__ import annotations

import pickle
from base64 import b64decode
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.wire.proxy import MAX_HEADER_BYTES, Exchange, ProxyError, http_connect, socks5

GRANTED = b"\x05\x00\x00\x01\0\0\0\0\0\0"
TARGET = b"\x05\x01\x00\x03\x06broker\x23\x84"


def run(exchange: Exchange, answers: bytes, chunk: int = 1 << 20) -> tuple[bytes, bytes]:
    """Return what was sent, and what of the answers was not read. Raises EOFError if they are too short."""
    sent, data = b"", None
    try:
        while True:
            step = next(exchange) if data is None else exchange.send(data)
            assert 1 <= step.at_least <= step.at_most
            sent, size = sent + step.send, max(step.at_least, min(step.at_most, chunk))
            data, answers = answers[:size], answers[size:]
            if len(data) < step.at_least:
                raise EOFError
    except StopIteration:
        return sent, answers


# ---- SOCKS5 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("broker", b"\x03\x06broker"),
        ("10.1.2.3", b"\x01\x0a\x01\x02\x03"),
        ("::1", b"\x04" + bytes(15) + b"\x01"),
        ("b\u00fccher.example", b"\x03\x15xn--bcher-kva.example"),
        ("kafka_1.internal", b"\x03\x10kafka_1.internal"),
    ],
)
def test_socks_names_the_host_as_it_is(host: str, address: bytes) -> None:
    sent, rest = run(socks5(host, 9092), b"\x05\x00" + GRANTED + b"next")
    assert sent == b"\x05\x01\x00" + b"\x05\x01\x00" + address + b"\x23\x84"
    assert rest == b"next"


def test_socks_logs_in_if_the_proxy_chooses_that() -> None:
    sent, _ = run(socks5("broker", 9092, "us\u00e9r", "p"), b"\x05\x02\x01\x00" + GRANTED)
    assert sent == b"\x05\x02\x00\x02" + b"\x01\x05us\xc3\xa9r\x01p" + TARGET
    sent, _ = run(socks5("broker", 9092, "user", "p"), b"\x05\x00" + GRANTED)
    assert sent == b"\x05\x02\x00\x02" + TARGET


@pytest.mark.parametrize(
    "bound", [b"\x01\1\2\3\4\0\1", b"\x04" + bytes(16) + b"\0\1", b"\x03\x00\0\1", b"\x03\x05proxy\0\1"]
)
def test_an_address_of_the_proxy_is_skipped(bound: bytes) -> None:
    assert run(socks5("broker", 9092), b"\x05\x00\x05\x00\x00" + bound + b"rest")[1] == b"rest"


@pytest.mark.parametrize(
    ("user", "answers", "why", "step", "retriable"),
    [
        (None, b"\x05\xff", "it wants a user and password", "proxy", False),
        ("u", b"\x05\xff", "it takes no user and password", "proxy", False),
        ("u", b"\x05\x02\x01\x01", "it refused the user and password", "proxy", False),
        (None, b"\x05\x02", "what answers does not speak SOCKS5", "proxy", False),
        (None, b"HTTP/1.1 400 Bad Request", "does not speak SOCKS5", "proxy", False),
        (None, b"\x04\x00", "does not speak SOCKS5", "proxy", False),
        (None, b"\x05\x00\x04\x00\x00\x01\x00", "does not speak SOCKS5", "proxy", False),
        (None, b"\x05\x00\x05\x00\x00\x09\x00", "does not speak SOCKS5", "proxy", False),
        (None, b"\x05\x00\x05\x01\x00\x01\x00", "it failed", "tcp", True),
        (None, b"\x05\x00\x05\x02\x00\x01\x00", "its rules do not allow", "proxy", False),
        (None, b"\x05\x00\x05\x04\x00\x01\x00", "the host cannot be reached", "tcp", True),
        (None, b"\x05\x00\x05\x05\x00\x01\x00", "connection refused", "tcp", True),
        (None, b"\x05\x00\x05\x63\x00\x01\x00", "reply 99, which means nothing", "proxy", False),
    ],
)
def test_what_a_socks_proxy_refuses(user: str | None, answers: bytes, why: str, step: str, retriable: bool) -> None:
    with pytest.raises(ProxyError, match=why) as caught:
        run(socks5("broker", 9092, user, "hidden"), answers)
    assert (caught.value.step, caught.value.retriable) == (step, retriable)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.step, again.retriable) == (str(caught.value), step, retriable)


# ---- HTTP ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "target"), [("broker", "broker:9092"), ("10.1.2.3", "10.1.2.3:9092"), ("::1", "[::1]:9092")]
)
def test_connect_names_the_host_as_it_is(host: str, target: str) -> None:
    sent, _ = run(http_connect(host, 9092), b"HTTP/1.1 200 Connection established\r\n\r\n")
    assert sent == f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode()


def test_connect_logs_in_at_once() -> None:
    sent, _ = run(http_connect("broker", 9092, "us\u00e9r", "a:b"), b"HTTP/1.0 200 OK\r\n\r\n")
    line = next(line for line in sent.split(b"\r\n") if line.startswith(b"Proxy-Authorization: Basic "))
    assert b64decode(line.rpartition(b" ")[2]).decode() == "us\u00e9r:a:b"


@pytest.mark.parametrize("chunk", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nVia: x\r\nProxy-Agent: y\r\n\r\n",
        b"HTTP/1.0 200 OK\n\n",
        b"HTTP/1.1 200\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\nA:b\n\r\n",
    ],
)
def test_an_answer_may_come_in_any_pieces(answer: bytes, chunk: int) -> None:
    assert run(http_connect("broker", 9092), answer, chunk)[1] == b""


@pytest.mark.parametrize(
    ("user", "answer", "why", "step", "retriable"),
    [
        (None, b"HTTP/1.1 407 Login\r\n\r\n", "status 407 Login: it wants a user and password", "proxy", False),
        ("u", b"HTTP/1.1 407\r\n\r\n", "status 407: it wants another user and password", "proxy", False),
        (None, b"HTTP/1.1 403 Forbidden\r\n\r\n<html>", "status 403 Forbidden", "proxy", False),
        (None, b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "status 502 Bad Gateway", "tcp", True),
        (None, b"HTTP/1.1 504 \x1b[31m\xff\r\n\r\n", r"status 504 \?\[31m\?", "tcp", True),
        (None, b"HTTP/1.1 301 Moved\r\n\r\n", "status 301", "proxy", False),
        (None, b"HTTP/2 200\r\n\r\n", "does not speak HTTP", "proxy", False),
        (None, b"HTTP/1.1 abc\r\n\r\n", "does not speak HTTP", "proxy", False),
        (None, b"\x05\x00", "does not speak HTTP", "proxy", False),
        (None, b"HTTP/1.1 200 OK\r\n" + b"x" * MAX_HEADER_BYTES, "does not speak HTTP", "proxy", False),
        (None, b"HTTP/1.1 200 OK\r\n\r\nmore", "it sent data behind its answer", "proxy", False),
    ],
)
def test_what_an_http_proxy_refuses(user: str | None, answer: bytes, why: str, step: str, retriable: bool) -> None:
    with pytest.raises(ProxyError, match=why) as caught:
        run(http_connect("broker", 9092, user, "hidden"), answer)
    assert (caught.value.step, caught.value.retriable) == (step, retriable)
    assert "hidden" not in str(caught.value)


# ---- both ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["a\r\nX: y", "a b", "", "a" * 70, "a..b", "\ud800", "x." * 140, "a/b", "u@h"])
@pytest.mark.parametrize("make", [socks5, http_connect])
def test_what_cannot_be_a_host_is_refused_before_anything_is_sent(make: type, host: str) -> None:
    with pytest.raises(UnicodeError):
        make(host, 9092)


HOSTILE = st.lists(
    st.binary(max_size=40) | st.sampled_from([b"\x05\x00", GRANTED, b"HTTP/1.1 200 OK\r\n", b"\r\n\r\n"])
)


@given(
    make=st.sampled_from([socks5, http_connect]),
    user=st.none() | st.just("user"),
    answers=HOSTILE.map(b"".join),
    chunk=st.integers(1, 50),
)
def test_any_bytes_lead_through_or_are_an_error(make: type, user: str | None, answers: bytes, chunk: int) -> None:
    with suppress(ProxyError, EOFError):
        run(make("broker", 9092, user, "p"), answers, chunk)
