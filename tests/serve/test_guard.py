"""Access control before a request reaches the application."""

import asyncio
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Counter

from dualnet.serve.guard import Guard
from dualnet.serve.options import Options


async def app(_: Any, __: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


async def never() -> MutableMapping[str, Any]:
    """A body that never arrives."""
    await asyncio.sleep(60)
    raise AssertionError


def status(path: str) -> int:
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    headers = [(b"content-length", b"9")]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    responses = Counter("responses", "By status.", ["status"], registry=None)
    guard = Guard(app, Options(Path(), body_seconds=0.1), "a token of some length", responses)
    asyncio.run(guard(scope, never, send))
    return sent[0]["status"]


@pytest.mark.parametrize("path", ["/", "/healthz", "/static/page.js"])
def test_paths_without_a_token_read_no_body(path: str) -> None:
    assert status(path) == 200


def test_the_token_is_checked_before_the_body_is_read() -> None:
    assert status("/v1/predict") == 401
