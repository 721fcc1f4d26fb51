"""A TCP connection. It needs no token, so it is closed if its client is slow, or if others need its place."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 500  # open files, of which a process may often have 1024
MAX_ACCEPTED = 128  # at once, in addition to these
MAX_QUEUED = 2048  # by the system, until they are accepted


class Connection(H11Protocol):
    """Its client has `timeout_keep_alive` seconds to send headers, and to take each part of a response.

    The guard limits the time for a body, since it can respond.
    """

    since = 0.0  # when it began to wait for its client, on the clock of the loop
    writing_timer: asyncio.TimerHandle | None = None  # while the client does not take the response

    @property
    def waits(self) -> bool:
        """Whether its client has not sent a complete request."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self.since = self.loop.time()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        if len(self.connections) > MAX_CONNECTIONS:
            self.make_room()

    def make_room(self) -> None:
        """Close the connection that has waited for its client longest."""
        waiting = [other for other in self.connections if isinstance(other, Connection) and other.waits]
        longest = min(waiting, key=lambda other: other.since)
        self.connections.discard(longest)
        longest.transport.abort()

    def data_received(self, data: bytes) -> None:
        """As in the base class, except that the timer runs until the headers are complete."""
        cycle = self.cycle
        self.conn.receive_data(data)
        self.handle_events()
        if self.cycle is not cycle:
            self.since = self.loop.time()

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.writing_timer = self.loop.call_later(self.timeout_keep_alive, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.writing_timer is not None:
            self.writing_timer.cancel()

    def timeout_keep_alive_handler(self) -> None:
        self.transport.abort()
