"""`dualnet replica`: predicts with the models that a service elsewhere publishes, also while that cannot be reached."""

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import httpx
import prometheus_client
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from dualnet.files import describe_error
from dualnet.serve.client import open_client
from dualnet.serve.errors import RequestError
from dualnet.serve.guard import Guard
from dualnet.serve.options import PRIVATE, Options
from dualnet.serve.prediction import add_prediction, new_app
from dualnet.serve.published_model import Published, unpack
from dualnet.serve.replica import Replica, prepare
from dualnet.serve.server import STOP_SECONDS, bound_socket, run_server

POLL_SECONDS = 0.5  # between questions for a newer model
TIMEOUT_SECONDS = 20.0  # of the network
MAX_BYTES = 4_000_000_000
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH")


class Follower:
    """Asks the service for its model, in a thread, and hands it to the replica."""

    def __init__(self, source: str, options: Options, replica: Replica, on_warning: Callable[[str], None]) -> None:
        self.source, self.options, self.replica = source, options, replica
        self.client = open_client(source, "--from", options.token(), TIMEOUT_SECONDS)
        self.tag = ""  # of the model that predicts
        self.digest = ""  # of its frozen weights
        self.current_at: float | None = None  # when it was the newest, on the monotonic clock
        self.is_following = False
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run, args=[on_warning], daemon=True)

    def run(self, on_warning: Callable[[str], None]) -> None:
        warned = ""
        while not self.stopping.wait(POLL_SECONDS):
            try:
                self.follow()
                warned = ""
            except Exception as error:  # whatever it is, predictions continue, and the next answer may be better
                self.is_following = False
                if warned != (warned := describe_error(error)):
                    on_warning(f"--from {self.source}: {warned}; predictions continue with the model so far")

    def follow(self) -> None:
        """Predict with the newest model from now on. Raises ValueError if the service refuses to give it."""
        asked = time.monotonic()
        known = {"params": {"frozen": self.digest}, "headers": {"If-None-Match": self.tag}}
        with self.client.stream("GET", "v1/model", **known) as response:
            if response.status_code == 200:
                self.publish(unpack(read_limited(response), self.source))
                self.tag = response.headers.get("ETag", "")
            elif response.status_code != 304:
                check_refusal(response)
        self.current_at, self.is_following = asked, True

    def publish(self, published: Published) -> None:
        is_known = published.digest == self.digest
        replica = self.replica if is_known else Replica(self.options, self.replica.names_of)
        replica.publish(partial(published.make, self.options), published.status, published.weights)
        self.replica.model, self.replica.spare, self.digest = replica.model, replica.spare, published.digest

    def health(self) -> JSONResponse:
        """Ready once there is a model, however old; `stale_seconds`: since when it may not be the newest."""
        stale = None if self.current_at is None else round(time.monotonic() - self.current_at, 1)
        is_ready = self.replica.model is not None
        content = {"answering": is_ready, "following": self.is_following, "stale_seconds": stale}
        return JSONResponse(content, 200 if is_ready else 503)


def read_limited(response: httpx.Response) -> bytes:
    content = bytearray()
    for part in response.iter_bytes():
        content += part
        if len(content) > MAX_BYTES:
            raise ValueError(f"the model has more than {MAX_BYTES} bytes")
    return bytes(content)


def check_refusal(response: httpx.Response) -> NoReturn:
    """Raises ConnectionError if a later answer may be another."""
    status = response.status_code
    if status == 429 or status >= 500:
        raise ConnectionError(f"it is busy or starts (status {status})")
    if status in (401, 403):
        raise ValueError(f"the token is missing or wrong (status {status}); give that of the service (--token-file)")
    raise ValueError(f"it has no model to follow (status {status}); is it a `dualnet serve` of this version?")


def make_app(follower: Follower) -> FastAPI:
    app = new_app("DualNet replica", follower.options)
    add_prediction(app, follower.replica)
    app.get("/healthz")(follower.health)

    @app.api_route("/{path:path}", methods=[*METHODS], include_in_schema=False)
    def others(path: str) -> None:
        raise RequestError(404, "a replica has POST /v1/predict and GET /healthz; send this to the service it follows")

    return app


def follow(source: str, options: Options, on_ready: Callable[[str], None], on_warning: Callable[[str], None]) -> None:
    """Predict until SIGINT or SIGTERM. Raises ValueError if the service refuses."""
    token = options.token()
    os.umask(PRIVATE)
    prepare()
    replica = Replica(options, lambda status: status["names"])
    follower = Follower(source, options, replica, on_warning)
    counter = prometheus_client.Counter("requests", "", ["status"], registry=prometheus_client.CollectorRegistry())
    with bound_socket(options) as listener:
        try:
            follower.follow()
        except (httpx.HTTPError, OSError) as error:
            on_warning(f"--from {source}: no model yet ({error}); predictions begin once there is one")
        except ValueError as error:
            raise ValueError(f"--from {source}: {error}") from error
        replica.decoders.start()
        follower.thread.start()
        try:
            run_server(Guard(make_app(follower), options, token, counter), options, listener, on_ready)
        finally:
            follower.stopping.set()
            follower.thread.join(STOP_SECONDS)  # PyTorch aborts if Python exits while a thread makes a model
            replica.decoders.stop()
