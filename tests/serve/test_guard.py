"""Access control before a request reaches the application."""

import asyncio
from collections.abc import MutableMapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import Counter

from dualnet.serve.errors import RequestError
from dualnet.serve.guard import MAX_WRONG_TOKENS, Guard, Shares
from dualnet.serve.options import Options

TOKEN = "a token of some length"


async def app(_: Any, __: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


async def never() -> MutableMapping[str, Any]:
    """A body that never arrives."""
    await asyncio.sleep(60)
    raise AssertionError


def guarded() -> Guard:
    responses = Counter("responses", "By status.", ["status"], registry=None)
    return Guard(app, Options(Path(), client_seconds=1), TOKEN, responses)


def status(path: str, guard: Guard | None = None, token: str | None = None, client: str = "a") -> int:
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    headers = [(b"content-length", b"9")]
    headers += [(b"authorization", f"Bearer {token}".encode())] if token else []
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "client": (client, 1)}
    asyncio.run((guard or guarded())(scope, never, send))
    return sent[0]["status"]


@pytest.mark.parametrize("path", ["/", "/healthz", "/static/page.js"])
def test_paths_without_a_token_read_no_body(path: str) -> None:
    assert status(path) == 200


def test_the_token_is_checked_before_the_body_is_read() -> None:
    assert status("/v1/predict") == 401


def test_a_body_that_does_not_arrive_ends_the_request() -> None:
    assert status("/v1/predict", token=TOKEN) == 408


def test_a_token_cannot_be_guessed_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    guard, seconds = guarded(), [100.0]
    monkeypatch.setattr("dualnet.serve.guard.time", SimpleNamespace(monotonic=lambda: seconds[0]))
    answers = [status("/v1/predict", guard, f"guess {number}") for number in range(MAX_WRONG_TOKENS)]
    assert set(answers) == {401}
    assert status("/v1/predict", guard, TOKEN) == 429 and status("/v1/predict", guard, TOKEN, "b") == 408
    seconds[0] += 61
    assert status("/v1/predict", guard, TOKEN) == 408 and not guard.body_bytes.held
    for _ in range(MAX_WRONG_TOKENS + 1):
        assert status("/v1/predict", guard) == 401, "a page that has no token yet"


def test_a_client_leaves_as_much_to_others_as_it_holds() -> None:
    shares = Shares(8)
    with shares.of("a") as take, shares.of("b") as take_other:
        for _ in range(4):
            take(1)
        with pytest.raises(RequestError, match="too many"):
            take(1)
        take_other(1)
        take_other(1)
        with pytest.raises(RequestError, match="too many"):
            take_other(1)
    assert not shares.held
