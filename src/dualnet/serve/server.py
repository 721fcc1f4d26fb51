"""Runs the service: one process that answers, one that learns."""

import fcntl
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import uvicorn

from dualnet.data.cache_file import locked
from dualnet.data.decode import decoding
from dualnet.serve import saved
from dualnet.serve.app import make_app
from dualnet.serve.guard import Guard
from dualnet.serve.options import Options
from dualnet.serve.service import Service

STOP_SECONDS = 2  # for requests that are being answered
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def serve(options: Options, tell: Callable[[str], None]) -> None:
    """Until SIGINT or SIGTERM. `tell` is given the address once it answers."""
    token = options.token()
    options.state.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # the other cores learn
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # a form that cannot be read is the client's fault
    with only_one(options), listening(options) as listener, decoding():
        saved.clean(options)
        service = Service(options)
        try:
            service.start()
            app = Guard(make_app(service), options, token, service.counters)
            config = uvicorn.Config(
                app, log_level="error", access_log=False, server_header=False, date_header=False,
                timeout_graceful_shutdown=STOP_SECONDS, ws="none", lifespan="off", headers=list(HEADERS.items()),
            )  # fmt: skip
            host = f"[{options.host}]" if ":" in options.host else options.host
            tell(f"http://{host}:{listener.getsockname()[1]}")
            Server(config, service).run([listener])
        finally:
            service.stop()
            saved.clean(options)  # of exports that were under way


@contextmanager
def only_one(options: Options) -> Iterator[None]:
    """Raises ValueError if another service has the state folder."""
    try:
        with locked(options.state / saved.LOCK, fcntl.LOCK_NB):
            yield
    except BlockingIOError:
        raise ValueError(
            f"--state {options.state}: another `dualnet serve` uses it; stop it, or give another"
        ) from None


@contextmanager
def listening(options: Options) -> Iterator[socket.socket]:
    """Raises ValueError for an address that cannot be had."""
    try:
        found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        family, kind, protocol, _, address = found[0]
        # Without the protocol asyncio does not know it as TCP and leaves Nagle's algorithm on: 40 ms for each answer.
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)  # who asks now is answered once the service has started
    except OSError as error:
        raise ValueError(f"--host {options.host} --port {options.port}: {error.strerror}; give another") from error
    with listener:
        yield listener


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service

    def handle_exit(self, sig: int, frame: object) -> None:
        self.service.stopping = True  # the streams of events end
        super().handle_exit(sig, frame)  # pyright: ignore[reportArgumentType]
