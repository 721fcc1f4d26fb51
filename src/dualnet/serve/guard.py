"""ASGI middleware for access control and limits, applied before a request reaches the application."""

import asyncio
import hmac
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import SplitResult, urlsplit

import prometheus_client
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dualnet.serve.errors import RequestError
from dualnet.serve.options import Options, is_loopback

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
OPEN_PATHS = ("/", "/healthz")  # need no token; nor do the static files of the page
STATIC_FILES = "/static/"
EVENTS = "/v1/events"
MAX_LISTENERS = 32
MAX_BODIES = 16  # of the largest size, in memory
MAX_WRONG_TOKENS = 10  # of a client in a minute
PART = 1 << 18  # bytes of a body that are parsed before others are served
DRAIN_SECONDS = 1.0  # so that a client that is still sending can read the error response


class Guard:
    """Checks token, host, origin, the number of concurrent requests, and the size and duration of a body."""

    def __init__(self, app: ASGIApp, options: Options, token: str | None, responses: prometheus_client.Counter) -> None:
        self.app, self.options, self.responses = app, options, responses
        self.token = None if token is None else token.encode()
        self.requests, self.listeners = Shares(options.most_requests), Shares(MAX_LISTENERS)
        self.body_bytes = Shares(MAX_BODIES * options.most_bytes)
        self.wrong_tokens, self.wrong_since = Counter[str](), 0.0  # by client, in this minute; on the monotonic clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"  # uvicorn runs without websockets and lifespan
        send = self.count_status(send)
        request = Request(scope, receive)
        try:
            self.check_access(request)
            slots = self.listeners if request.scope["path"] == EVENTS else self.requests
            with self.body_bytes.of(client_of(request)) as take_bytes:
                body = bytearray() if is_open(request) else await self.read_body(request, take_bytes)
                with slots.of(client_of(request)) as take_slot:
                    take_slot(1)
                    await self.app(request.scope, with_body(body, request.receive), send)
        except RequestError as error:
            if error.status == 413:
                await drain(receive)
            await JSONResponse(error.body, error.status, error.headers)(scope, receive, send)

    def check_access(self, request: Request) -> None:
        host = request.headers.get("host", "")
        if self.token is None and not is_loopback(split_url(f"//{host}").hostname or ""):  # against DNS rebinding
            raise RequestError(403, f"host {host!r} is not allowed; use 127.0.0.1 or localhost", "host")
        if self.token is not None and not is_open(request):
            self.check_token(self.token, client_of(request), request.headers.get("authorization"))
        origin = request.headers.get("origin")
        if request.method not in SAFE_METHODS and origin is not None and split_url(origin).netloc != host:
            raise RequestError(403, "writes from pages of another origin are not allowed")

    def check_token(self, token: bytes, client: str, authorization: str | None) -> None:
        if time.monotonic() > self.wrong_since + 60:
            self.wrong_tokens, self.wrong_since = Counter(), time.monotonic()
        if self.wrong_tokens[client] >= MAX_WRONG_TOKENS:  # also with the right one, or it could be guessed
            raise RequestError(429, "too many wrong tokens; try again in a minute", retry_after="60")
        if not hmac.compare_digest((authorization or "").encode("latin-1"), b"Bearer " + token):
            self.wrong_tokens[client] += authorization is not None
            raise RequestError(401, "send the header Authorization: Bearer TOKEN", www_authenticate="Bearer")

    async def read_body(self, request: Request, take: Callable[[int], None]) -> bytearray:
        most, body = self.options.most_bytes, bytearray()
        too_large = RequestError(413, f"the body exceeds {most} bytes (--most-bytes)", connection="close")
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > most:
            raise too_large
        try:
            async with asyncio.timeout(self.options.client_seconds):
                async for part in request.stream():
                    take(len(part))
                    body += part
                    if len(body) > most:
                        raise too_large
        except ClientDisconnect:
            raise RequestError(400, "the body is incomplete", "cut_off", connection="close") from None
        except TimeoutError:
            message = f"the body took more than {self.options.client_seconds:g} seconds (--client-seconds)"
            raise RequestError(408, message, connection="close") from None
        return body

    def count_status(self, send: Send) -> Send:
        async def wrapped(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.responses.labels(message["status"]).inc()
            await send(message)

        return wrapped


class Shares:
    """What clients hold of something limited. A client may take more while it holds less than is free."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, Counter[str]()

    @contextmanager
    def of(self, client: str) -> Iterator[Callable[[int], None]]:
        """A function that takes more. All that was taken is given back at the end of the context."""
        taken = 0

        def take(count: int) -> None:
            nonlocal taken
            if self.held[client] >= self.most - self.held.total():
                raise RequestError(429, "too many concurrent requests; try again", retry_after="1")
            self.held[client] += count
            taken += count

        try:
            yield take
        finally:
            self.held -= Counter({client: taken})


def client_of(request: Request) -> str:
    """Its address."""
    return request.client.host if request.client else ""


def is_open(request: Request) -> bool:
    """Whether the path needs no token. No such path takes a body, so none is read."""
    path = request.scope["path"]
    return path in OPEN_PATHS or path.startswith(STATIC_FILES)


def split_url(url: str) -> SplitResult:
    """The parts of a URL, all empty if it is malformed."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def with_body(body: bytes | bytearray, receive: Receive) -> Receive:
    """A `receive` that gives a body that was already read, in parts, then the later messages."""
    starts = iter(range(0, max(1, len(body)), PART))

    async def next_message() -> Message:
        if (start := next(starts, None)) is None:
            return await receive()
        await asyncio.sleep(0)
        end = start + PART
        return {"type": "http.request", "body": bytes(memoryview(body)[start:end]), "more_body": end < len(body)}

    return next_message


async def drain(receive: Receive) -> None:
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while (await receive()).get("more_body", False):
                pass
    except TimeoutError:
        return
