"""Runs the service: an HTTP process, and a learner process that it starts."""

import logging
import os
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from filelock import FileLock, Timeout
from starlette.types import ASGIApp

from dualnet.serve import state_folder
from dualnet.serve.app import make_app
from dualnet.serve.connection import MAX_ACCEPTED, MAX_QUEUED, Connection
from dualnet.serve.guard import Guard
from dualnet.serve.learner_process import Learner
from dualnet.serve.options import PRIVATE, Options
from dualnet.serve.repair import check, repair
from dualnet.serve.replica import prepare
from dualnet.serve.replicas import Replicas
from dualnet.serve.service import Service

STOP_SECONDS = 2  # for requests in progress
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def serve(options: Options, on_ready: Callable[[str], None], learner: Learner | None = None) -> None:
    """Serve until SIGINT or SIGTERM. `on_ready` is called with the address once requests are accepted."""
    token = options.token()
    state_folder.check_place(options)
    os.umask(PRIVATE)
    options.state.mkdir(parents=True, exist_ok=True)
    options.state.chmod(0o700)
    prepare()
    with locked_state(options), bound_socket(options) as listener:
        state_folder.warn_of_unused_model(options)
        state_folder.remove_unfinished(options)
        if options.repair:
            repair(options)
        try:
            service = Service(options, learner)
            service.journal.check()
        except sqlite3.DatabaseError as error:
            raise state_folder.failure(error, options) from error
        try:
            service.start()
            app, start = make_app(service), lambda: None
            if options.replicas:
                app = replicas = Replicas(app, service)
                start = replicas.start
            app = Guard(app, options, token, service.metrics.requests)
            run_server(app, options, listener, on_ready, start, service.end_events)
        finally:
            service.stop()
            state_folder.remove_unfinished(options)  # exports that were in progress


def run_server(
    app: ASGIApp,
    options: Options,
    listener: socket.socket,
    on_ready: Callable[[str], None],
    on_start: Callable[[], None] = lambda: None,
    on_exit: Callable[[], None] = lambda: None,
) -> None:
    """Until SIGINT or SIGTERM. `on_start` is called in the event loop, `on_exit` at the signal."""
    config = uvicorn.Config(
        app, log_level="error", access_log=False, server_header=False, date_header=False, lifespan="off",
        http=Connection, ws="none", backlog=MAX_ACCEPTED, headers=list(HEADERS.items()),
        timeout_keep_alive=options.client_seconds, timeout_graceful_shutdown=STOP_SECONDS,
    )  # fmt: skip
    for logger in ("asyncio", "uvicorn.error"):
        logging.getLogger(logger).addFilter(once_a_minute())
    host = f"[{options.host}]" if ":" in options.host else options.host
    address = f"http://{host}:{listener.getsockname()[1]}"
    Server(config, on_start, lambda: on_ready(address), on_exit).run([listener])


def verify(options: Options) -> str:
    """What the state folder holds. Raises ValueError if anything is missing or damaged."""
    with locked_state(options):
        return check(options)


@contextmanager
def locked_state(options: Options) -> Iterator[None]:
    """Raises ValueError if another service uses the state folder."""
    try:
        with FileLock(options.state / state_folder.LOCK, blocking=False):
            yield
    except Timeout:
        raise ValueError(f"--state {options.state}: in use by another `dualnet serve`; give another folder") from None


@contextmanager
def bound_socket(options: Options) -> Iterator[socket.socket]:
    """Raises ValueError if the address is not available."""
    try:
        addresses = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        family, kind, protocol, _, address = addresses[0]
        # asyncio disables Nagle's algorithm, which delays responses by 40 ms, only if the socket has the TCP protocol.
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(MAX_QUEUED)  # requests sent from now on wait until the service has started
    except OSError as error:
        raise ValueError(f"--host {options.host} --port {options.port}: {error.strerror}; give another") from error
    with listener:
        yield listener


def once_a_minute() -> Callable[[logging.LogRecord], bool]:
    """A filter for errors that strangers can cause as often as they like, by first line and kind of exception."""
    logged: dict[tuple[str, object], float] = {}  # when

    def is_due(record: logging.LogRecord) -> bool:
        error = record.getMessage().partition("\n")[0], record.exc_info and record.exc_info[0]
        due = record.created >= logged.get(error, 0.0) + 60
        logged.update({error: record.created} if due else {})
        return due

    return is_due


class Server(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        on_start: Callable[[], None],
        on_ready: Callable[[], None],
        on_exit: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self.on_start, self.on_ready, self.on_exit = on_start, on_ready, on_exit

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_start()
        for listener in sockets or []:
            listener.listen(MAX_QUEUED)  # asyncio has set it to `backlog`, by which it means both limits
        self.on_ready()  # from now on a signal ends the service in order

    def handle_exit(self, sig: int, frame: object) -> None:
        self.on_exit()
        super().handle_exit(sig, frame)  # pyright: ignore[reportArgumentType]
