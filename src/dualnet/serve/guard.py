"""Who may ask what, and how much of it: checked before a request reaches the application."""

import asyncio
import hmac
from collections import Counter
from urllib.parse import SplitResult, urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dualnet.serve.errors import RequestError
from dualnet.serve.options import Options, is_loopback

READING = ("GET", "HEAD", "OPTIONS")
OPEN_PATHS = ("/", "/healthz")  # without a token; the files of the page too, which hold no data
PAGE_FILES = "/static/"
EVENTS = "/v1/events"
MOST_LISTENERS = 16
DRAIN_SECONDS = 1.0  # so that a client that is still sending reads why it is refused


class Guard:
    """ASGI: token, host, origin, requests in flight, and the size and time of a body."""

    def __init__(self, app: ASGIApp, options: Options, token: str | None, counters: Counter[str]) -> None:
        self.app, self.options, self.counters = app, options, counters
        self.token = None if token is None else token.encode()
        self.requests, self.listeners = asyncio.Semaphore(options.most_requests), asyncio.Semaphore(MOST_LISTENERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"  # uvicorn is told to do without web sockets and lifespan
        send = self.counting(send)
        request = Request(scope, receive)
        try:
            self.check(request)
            await self.admit(request, send)
        except RequestError as refused:
            if refused.status == 413:
                await drain(receive)
            await JSONResponse(refused.body, refused.status, refused.headers)(scope, receive, send)

    def check(self, request: Request) -> None:
        host = request.headers.get("host", "")
        if self.token is None and not is_loopback(parsed(f"//{host}").hostname or ""):  # a name that was rebound
            raise RequestError(403, f"host {host!r}: ask for 127.0.0.1 or localhost", "host")
        authorization = request.headers.get("authorization", "").encode("latin-1")
        right = self.token is None or hmac.compare_digest(authorization, b"Bearer " + self.token)
        if not right and not is_open(request):
            raise RequestError(401, "send the header Authorization: Bearer TOKEN", www_authenticate="Bearer")
        origin = request.headers.get("origin")
        if request.method not in READING and origin is not None and parsed(origin).netloc != host:
            raise RequestError(403, "a page of another origin may not write here")

    async def admit(self, request: Request, send: Send) -> None:
        places = self.listeners if request.scope["path"] == EVENTS else self.requests
        if places.locked():
            raise RequestError(429, "too many requests are being answered; try again", retry_after="1")
        async with places:
            body = b"" if is_open(request) else await self.body(request)
            await self.app(request.scope, given(body, request.receive), send)

    async def body(self, request: Request) -> bytes:
        """All of it, before anything is done with it."""
        most, body = self.options.most_bytes, bytearray()
        too_large = RequestError(413, f"at most {most} bytes are read (--most-bytes)", connection="close")
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > most:
            raise too_large
        try:
            async with asyncio.timeout(self.options.body_seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > most:
                        raise too_large
        except ClientDisconnect:
            raise RequestError(400, "the request ended early", "cut_off", connection="close") from None
        except TimeoutError:
            late = f"the body took more than {self.options.body_seconds:g} seconds (--body-seconds)"
            raise RequestError(408, late, connection="close") from None
        return bytes(body)

    def counting(self, send: Send) -> Send:
        async def wrapped(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.counters[f"status_{message['status']}"] += 1
            await send(message)

        return wrapped


def is_open(request: Request) -> bool:
    """Asked without a token. Nothing there has a body: none is waited for."""
    path = request.scope["path"]
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
