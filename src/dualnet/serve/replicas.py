"""The processes of `dualnet serve --replicas` that predict: starting them, what they were sent, which one answers."""

import asyncio
import itertools
import shutil
import socket
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from dualnet.serve import replica
from dualnet.serve.errors import RequestError
from dualnet.serve.guard import with_body
from dualnet.serve.learner_process import spawn
from dualnet.serve.prediction import PATH
from dualnet.serve.replica import ENDED, receive, send
from dualnet.serve.service import RESTART_SECONDS, Service

SHARED = Path("/dev/shm")
ATTEMPTS = 2  # of a request whose replica ends: it may be what ended it
KEYS = ("type", "http_version", "method", "scheme", "path", "raw_path", "root_path", "query_string", "headers")

Answer = tuple[int, list[tuple[bytes, bytes]], bytes]  # status, headers, body


class Publication:
    """Weights, in shared memory while a replica still has to read them."""

    def __init__(self, status: Mapping[str, Any], weights: bytes) -> None:
        self.status, self.weights = status, weights
        self.memory: SharedMemory | None = None
        self.readers = 0

    def lend(self) -> str | bytes:
        """The name of the memory; or, without room for it, the weights."""
        self.readers += 1
        if self.memory is None and has_room(len(self.weights)):
            self.memory = SharedMemory(create=True, size=len(self.weights))
            room = np.ndarray(len(self.weights), np.uint8, self.memory.buf)
            room[:] = np.frombuffer(self.weights, np.uint8)  # NumPy copies without holding the GIL
            del room  # the memory cannot be closed before
        return self.weights if self.memory is None else self.memory.name

    def give_back(self) -> None:
        self.readers -= 1
        if self.readers == 0 and self.memory is not None:
            self.memory.close()
            self.memory.unlink()
            self.memory = None


def has_room(length: int) -> bool:
    """Linux ends a process that writes more than fits, and containers often have 64 MB."""
    return not SHARED.exists() or shutil.disk_usage(SHARED).free > 2 * length


class Link:
    """A replica process, and what it was sent."""

    def __init__(self, owner: "Replicas") -> None:
        self.owner = owner
        self.reading: Publication | None = None  # what it was sent and has not read yet
        self.current: Publication | None = None  # what it was sent last
        self.answers: dict[int, asyncio.Future[Answer]] = {}  # by ticket
        self.writer: asyncio.StreamWriter | None = None

    @property
    def is_ready(self) -> bool:
        """It has read the newest publication, or will before any later request."""
        return self.current is not None and self.current is self.owner.newest and self.has_read

    async def run(self) -> None:
        """Keep a process running."""
        failures = 0
        while True:
            self.has_read = False
            try:
                reason = await self.run_process()
            except Exception as error:  # such as too little memory to start a process
                reason = f"{type(error).__name__}: {error}"
            failures = 0 if self.has_read else failures + 1
            self.owner.service.on_notice("replica_ended", f"{reason}; restarting")
            await asyncio.sleep(RESTART_SECONDS[min(failures, len(RESTART_SECONDS) - 1)])

    async def run_process(self) -> str:
        """Until the process ends. Returns the reason."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = spawn("dualnet-replica", replica.main, self.owner.service.options, theirs)
        reader, self.writer = await asyncio.open_connection(sock=ours)
        try:
            self.publish()
            with suppress(*ENDED):
                while True:
                    kind, *content = await receive(reader)
                    getattr(self, f"on_{kind}")(*content)
        finally:
            self.end()
            process.kill()
            process.join()
        return f"exit code {process.exitcode}"

    def publish(self) -> None:
        """Send the newest publication, unless the process is still reading an older one."""
        newest = self.owner.newest
        if self.reading is not None or self.writer is None or newest is None or newest is self.current:
            return
        self.reading = self.current = newest
        send(self.writer, "published", newest.status, newest.lend(), len(newest.weights))

    def on_loaded(self) -> None:
        assert self.reading is not None
        self.reading.give_back()
        self.reading, self.has_read = None, True
        self.publish()

    def on_predicted(self, count: int, seconds: float) -> None:
        self.owner.service.metrics.on_predicted(count, seconds)

    def on_answer(self, ticket: int, *answer: Any) -> None:
        if not (waiting := self.answers.pop(ticket)).done():  # cancelled, while the service stops
            waiting.set_result(answer)

    async def ask(self, scope: Scope, body: bytes) -> Answer:
        """Raises ConnectionError if the process ends before it answers."""
        assert self.writer is not None
        ticket = next(self.owner.tickets)
        answer = self.answers[ticket] = asyncio.get_running_loop().create_future()
        send(self.writer, "request", ticket, {key: scope[key] for key in KEYS}, body)
        return await answer

    def end(self) -> None:
        assert self.writer is not None
        self.writer.close()
        if self.reading is not None:
            self.reading.give_back()
        self.writer = self.reading = self.current = None
        for answer in [answer for answer in self.answers.values() if not answer.done()]:
            answer.set_exception(ConnectionError("the replica has ended"))
        self.answers.clear()


class Replicas:
    """An ASGI application. Predictions go to the replica with the fewest; the rest, and those without one, to `app`."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service
        self.newest: Publication | None = None
        self.tickets = itertools.count(1)
        self.links = [Link(self) for _ in range(service.options.replicas)]
        self.tasks: list[asyncio.Task[None]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (scope["method"], scope["path"]) != ("POST", PATH):
            await self.app(scope, receive, send)
            return
        body = await Request(scope, receive).body()
        for _ in range(ATTEMPTS):
            ready = [link for link in self.links if link.is_ready]
            if not ready:
                await self.app(scope, with_body(body, receive), send)
                return
            try:
                status, headers, content = await min(ready, key=lambda link: len(link.answers)).ask(scope, body)
            except ConnectionError:
                continue
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": content})
            return
        raise RequestError(503, "the replicas that predicted this have ended; try again later", retry_after="5")

    def start(self) -> None:
        """In the event loop."""
        loop = asyncio.get_running_loop()

        def publish(*content: Any) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self.publish, *content)

        self.service.on_weights, self.service.num_replicas = publish, lambda: sum(link.is_ready for link in self.links)
        self.publish(*self.service.published)
        self.tasks = [asyncio.create_task(link.run()) for link in self.links]

    def publish(self, status: Mapping[str, Any], weights: bytes) -> None:
        self.newest = Publication(status, weights)
        for link in self.links:
            link.publish()
