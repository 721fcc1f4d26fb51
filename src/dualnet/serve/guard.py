"""ASGI middleware for access control and limits, applied before a request reaches the application."""

import asyncio
import hmac
from urllib.parse import SplitResult, urlsplit

from prometheus_client import Counter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dualnet.serve.errors import RequestError
from dualnet.serve.options import Options, is_loopback

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
OPEN_PATHS = ("/", "/healthz")  # need no token; nor do the static files of the page
STATIC_FILES = "/static/"
EVENTS = "/v1/events"
MAX_LISTENERS = 16
DRAIN_SECONDS = 1.0  # so that a client that is still sending can read the error response


class Guard:
    """Checks token, host, origin, the number of concurrent requests, and the size and duration of a body."""

    def __init__(self, app: ASGIApp, options: Options, token: str | None, responses: Counter) -> None:
        self.app, self.options, self.responses = app, options, responses
        self.token = None if token is None else token.encode()
        self.requests, self.listeners = asyncio.Semaphore(options.most_requests), asyncio.Semaphore(MAX_LISTENERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"  # uvicorn runs without websockets and lifespan
        send = self.count_status(send)
        request = Request(scope, receive)
        try:
            self.check_access(request)
            slots = self.listeners if request.scope["path"] == EVENTS else self.requests
            if slots.locked():
                raise RequestError(429, "too many concurrent requests; try again", retry_after="1")
            async with slots:
                body = b"" if is_open(request) else await self.read_body(request)
                await self.app(request.scope, with_body(body, request.receive), send)
        except RequestError as error:
            if error.status == 413:
                await drain(receive)
            await JSONResponse(error.body, error.status, error.headers)(scope, receive, send)

    def check_access(self, request: Request) -> None:
        host = request.headers.get("host", "")
        if self.token is None and not is_loopback(split_url(f"//{host}").hostname or ""):  # against DNS rebinding
            raise RequestError(403, f"host {host!r} is not allowed; use 127.0.0.1 or localhost", "host")
        authorization = request.headers.get("authorization", "").encode("latin-1")
        authorized = self.token is None or hmac.compare_digest(authorization, b"Bearer " + self.token)
        if not authorized and not is_open(request):
            raise RequestError(401, "send the header Authorization: Bearer TOKEN", www_authenticate="Bearer")
        origin = request.headers.get("origin")
        if request.method not in SAFE_METHODS and origin is not None and split_url(origin).netloc != host:
            raise RequestError(403, "writes from pages of another origin are not allowed")

    async def read_body(self, request: Request) -> bytes:
        most, body = self.options.most_bytes, bytearray()
        too_large = RequestError(413, f"the body exceeds {most} bytes (--most-bytes)", connection="close")
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
            raise RequestError(400, "the body is incomplete", "cut_off", connection="close") from None
        except TimeoutError:
            message = f"the body took more than {self.options.body_seconds:g} seconds (--body-seconds)"
            raise RequestError(408, message, connection="close") from None
        return bytes(body)

    def count_status(self, send: Send) -> Send:
        async def wrapped(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.responses.labels(message["status"]).inc()
            await send(message)

        return wrapped


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


def with_body(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives a body that was already read, then the later messages."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message


async def drain(receive: Receive) -> None:
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while (await receive()).get("more_body", False):
                pass
    except TimeoutError:
        return
