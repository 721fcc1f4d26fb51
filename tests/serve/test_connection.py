"""Connections of slow, silent and too many clients, over real sockets."""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest

uvicorn = pytest.importorskip("uvicorn")

from dualnet.serve import connection  # noqa: E402
from dualnet.serve.server import once_a_minute  # noqa: E402

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
SECONDS = 0.5

Connect = Callable[[bytes], socket.socket]


async def app(scope: Any, _: Any, send: Any) -> None:
    """Responds without reading the body: briefly, or without end."""
    endless = scope["path"] == "/endless"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while endless:
        await send({"type": "http.response.body", "body": bytes(100_000), "more_body": True})
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b"done"})


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    """connect(data): a new connection over which the data was sent."""
    monkeypatch.setattr(connection, "MAX_CONNECTIONS", 3)
    config = uvicorn.Config(
        app, http=connection.Connection, ws="none", lifespan="off", log_level="critical",
        timeout_keep_alive=SECONDS, timeout_graceful_shutdown=0,
    )  # fmt: skip
    server = uvicorn.Server(config)
    with closing(socket.create_server(("127.0.0.1", 0))) as listener, ExitStack() as opened:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()

        def connect(data: bytes) -> socket.socket:
            link = opened.enter_context(closing(socket.create_connection(listener.getsockname(), timeout=20)))
            link.sendall(data)
            return link

        yield connect
        server.should_exit = True
        thread.join()


def seconds_until_closed(link: socket.socket, repeated: bytes = b"") -> float:
    """While the same is sent again and again."""
    began = time.monotonic()
    link.settimeout(0.05)
    with suppress(ConnectionError):
        while True:
            with suppress(TimeoutError):
                link.sendall(repeated)
                if link.recv(1000) == b"":
                    break
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("sent", "repeated"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\n", b"X: y\r\n"),
        (REQUEST, b""),
        (REQUEST + b"GET / HTTP/1.1\r\n", b"X: y\r\n"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n", b"x"),
    ],
    ids=["silent", "slow headers", "idle after a response", "slow next headers", "a body that is not read"],
)
def test_a_client_that_sends_no_request_is_disconnected(connect: Connect, sent: bytes, repeated: bytes) -> None:
    assert 0.5 * SECONDS < seconds_until_closed(connect(sent), repeated) < 10 * SECONDS


def test_a_client_that_does_not_take_the_response_is_disconnected(connect: Connect) -> None:
    link = connect(b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n")
    time.sleep(3 * SECONDS)
    received, limit = 0, 1 << 30
    with suppress(ConnectionError):
        while received < limit and (data := link.recv(1 << 20)):
            received += len(data)
    assert 0 < received < limit


def test_those_that_wait_longest_make_room_for_others(connect: Connect) -> None:
    first, *_, last = [connect(b"") for _ in range(10)]
    for _ in range(10):
        assert connect(REQUEST).recv(100).startswith(b"HTTP/1.1 200")
    for link in (first, last):
        with suppress(ConnectionResetError):
            assert link.recv(1) == b""


def test_a_repeated_error_is_logged_once_a_minute() -> None:
    is_due, now = once_a_minute(), time.time()
    record = logging.LogRecord("", logging.ERROR, "", 0, "too many open files\nsocket 7", None, None)
    due = []
    for seconds in (0, 1, 59, 61, 62):
        record.created = now + seconds
        due.append(is_due(record))
    assert due == [True, False, False, True, False]
    record.msg = "another"
    assert is_due(record)
