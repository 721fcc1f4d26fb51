"""Who may ask what, and how much of it: checked before a request reaches the application."""

import asyncio
import hmac
import json
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from dualnet.serve.options import Options, is_loopback

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

READING = ("GET", "HEAD", "OPTIONS")
OPEN_PATHS = ("/", "/healthz")  # without a token; the files of the page too, which hold no data
PAGE_FILES = "/static/"
EVENTS = "/v1/events"
MOST_LISTENERS = 16
DRAIN_SECONDS = 1.0  # so that a client that is still sending reads why it is refused
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class RefusedError(Exception):
    """The answer to a request that goes no further."""

    def __init__(self, status: int, code: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, code, {k.replace("_", "-"): v for k, v in headers.items()}


def error_body(code: str, message: str) -> dict[str, Any]:
    """The one shape of all errors."""
    return {"error": {"code": code, "message": message}}


class Guard:
    """ASGI: token, host, origin, requests in flight, and the size and time of a body."""

    def __init__(self, app: App, options: Options, token: str | None, counters: Counter[str]) -> None:
        self.app, self.options, self.counters = app, options, counters
        self.token = None if token is None else token.encode()
        self.in_flight = self.listeners = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # a web socket is closed
        send = self.with_headers(send)
        try:
            self.check(scope)
            await self.admit(scope, receive, send)
        except RefusedError as refused:
            await self.refuse(refused, receive, send)

    def check(self, scope: MutableMapping[str, Any]) -> None:
        headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
        host = headers.get("host", b"").decode("latin-1")
        if self.token is None and not is_loopback(parsed(f"//{host}").hostname or ""):
            raise RefusedError(403, "host", f"host {host!r}: ask for 127.0.0.1 or localhost")  # a name that was rebound
        if not is_open(scope["path"]):
            self.check_token(headers.get("authorization", b""))
        origin = headers.get("origin")
        writes = scope["method"] not in READING
        if writes and origin is not None and parsed(origin.decode("latin-1")).netloc != host:
            raise RefusedError(403, "origin", "a page of another origin may not write here")

    def check_token(self, authorization: bytes) -> None:
        if self.token is not None and not hmac.compare_digest(authorization, b"Bearer " + self.token):
            raise RefusedError(401, "token", "send the header Authorization: Bearer TOKEN", www_authenticate="Bearer")

    async def admit(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        kind, most = (
            ("listeners", MOST_LISTENERS) if scope["path"] == EVENTS else ("in_flight", self.options.most_requests)
        )
        if getattr(self, kind) >= most:
            raise RefusedError(429, "busy", f"{most} requests are being answered; try again", retry_after="1")
        setattr(self, kind, getattr(self, kind) + 1)
        try:
            body = b"" if is_open(scope["path"]) else await self.body(scope, receive)
            await self.app(scope, given(body, receive), send)
        finally:
            setattr(self, kind, getattr(self, kind) - 1)

    async def body(self, scope: MutableMapping[str, Any], receive: Receive) -> bytes:
        """All of it, before anything is done with it."""
        most = self.options.most_bytes
        too_large = RefusedError(413, "too_large", f"at most {most} bytes are read (--most-bytes)", connection="close")
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > most:
            raise too_large
        parts, count = [], 0
        try:
            async with asyncio.timeout(self.options.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RefusedError(400, "cut_off", "the request ended early", connection="close")
                    parts.append(message.get("body", b""))
                    count += len(parts[-1])
                    if count > most:
                        raise too_large
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            late = f"the body took more than {self.options.body_seconds:g} seconds (--body-seconds)"
            raise RefusedError(408, "too_slow", late, connection="close") from None

    async def refuse(self, refused: RefusedError, receive: Receive, send: Send) -> None:
        if refused.status == 413:
            await drain(receive)
        body = json.dumps(error_body(refused.code, str(refused))).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), **refused.headers}
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": refused.status, "headers": encoded})
        await send({"type": "http.response.body", "body": body})

    def with_headers(self, send: Send) -> Send:
        async def wrapped(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.counters[f"status_{message['status']}"] += 1
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *more]}
            await send(message)

        return wrapped


def is_open(path: str) -> bool:
    """Asked without a token. Nothing there has a body: none is waited for."""
    return path in OPEN_PATHS or path.startswith(PAGE_FILES)


def parsed(address: str) -> SplitResult:
    """Its parts; none if it is no address."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


def given(body: bytes, receive: Receive) -> Receive:
    """Receives a body that is there already, then whatever comes."""
    left = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return left.pop() if left else await receive()

    return next_message


async def drain(receive: Receive) -> None:
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while (await receive()).get("more_body", False):
                pass
    except TimeoutError:
        return
