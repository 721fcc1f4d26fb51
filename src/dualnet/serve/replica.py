"""A process that predicts with published models, for the HTTP process of `dualnet serve --replicas`."""

import asyncio
import logging
import os
import pickle
import signal
import socket
import struct
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import closing
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import torch
from fastapi import FastAPI
from starlette.types import Message, Scope
from torch import Tensor

from dualnet.serve import state_folder
from dualnet.serve.decoder import Decoders
from dualnet.serve.errors import RequestError
from dualnet.serve.guard import with_body
from dualnet.serve.journal import Journal
from dualnet.serve.options import PRIVATE, Options
from dualnet.serve.prediction import add_prediction, new_app, predict_named
from dualnet.serve.schema import Prediction
from dualnet.serve.serving_model import ServingModel

LENGTH = struct.Struct(">Q")  # before a message
ENDED = (asyncio.IncompleteReadError, OSError)  # of the process at the other end


class Replica:
    """Decodes and predicts. Holds two copies of the model, as `Service` does."""

    def __init__(
        self,
        options: Options,
        names_of: Callable[[Mapping[str, Any]], Mapping[int, str]],
        on_predicted: Callable[[int, float], None] = lambda count, seconds: None,
    ) -> None:
        self.options, self.names_of, self.on_predicted = options, names_of, on_predicted
        self.decoders = Decoders()
        self.model: ServingModel | None = None
        self.spare: ServingModel | None = None

    @property
    def image_size(self) -> int:
        return self.ready().image_size

    def ready(self) -> ServingModel:
        if self.model is None:
            raise RequestError(503, "there is no model yet; try again later", retry_after="5")
        return self.model

    def publish(self, make: Callable[[], ServingModel], status: Mapping[str, Any], weights: bytes | memoryview) -> None:
        """`make` gives a model that can receive the weights, unless there are two already."""
        spare = self.spare or make()
        spare.update(status, weights)
        self.model, self.spare = spare, self.model or make()

    def predict(self, images: Tensor, top: int) -> tuple[str, list[Prediction]]:
        model = self.ready()
        began = time.perf_counter()
        answer = predict_named(model, images, top, self.names_of)
        self.on_predicted(len(images), time.perf_counter() - began)
        return answer


def main(options: Options, link: socket.socket) -> None:
    """Run until the HTTP process closes the link, or is gone."""
    os.umask(PRIVATE)
    for number in (signal.SIGINT, signal.SIGTERM):  # they reach the HTTP process, which then closes the link
        signal.signal(number, signal.SIG_IGN)
    prepare()
    asyncio.run(answer_all(options, link))


def prepare() -> None:
    torch.set_num_threads(1)  # the other cores are for other processes
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it logs malformed forms, which are client errors


async def answer_all(options: Options, link: socket.socket) -> None:
    """Handle the messages in their order: a request after a publication is answered by that, or by a later one."""
    reader, writer = await asyncio.open_connection(sock=link)
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    def tell(*message: Any) -> None:
        loop.call_soon_threadsafe(send, writer, *message)

    journal = Journal(options.state / state_folder.JOURNAL, options)
    replica = Replica(
        options,
        lambda _: journal.classes(),
        lambda count, seconds: tell("predicted", count, seconds),
    )
    app = new_app("replica", options)
    add_prediction(app, replica)
    with closing(journal.database):
        try:
            replica.decoders.start()
            while True:
                kind, *content = await receive(reader)
                if kind == "published":
                    await asyncio.to_thread(read_published, replica, *content)
                    send(writer, "loaded")
                else:
                    tasks.add(task := asyncio.create_task(answer(app, writer, *content)))
                    task.add_done_callback(tasks.discard)
        except ENDED:
            return
        finally:
            replica.decoders.stop()
            writer.close()


def read_published(replica: Replica, status: Mapping[str, Any], source: str | bytes, length: int) -> None:
    """The weights are in shared memory, or in the message."""

    def make() -> ServingModel:
        return ServingModel(replica.options)

    if isinstance(source, bytes):
        replica.publish(make, status, source)
        return
    memory = SharedMemory(source)
    try:
        assert memory.buf is not None
        with memory.buf[:length] as weights:
            replica.publish(make, status, weights)
    finally:
        memory.close()


async def answer(app: FastAPI, writer: asyncio.StreamWriter, ticket: int, scope: Scope, body: bytes) -> None:
    messages: list[Message] = []

    async def keep(message: Message) -> None:
        messages.append(message)

    try:
        await app(scope, with_body(body, never), keep)
    except Exception:  # the application has answered it
        traceback.print_exc()
    content = b"".join(message.get("body", b"") for message in messages)
    send(writer, "answer", ticket, messages[0]["status"], messages[0]["headers"], content)


async def never() -> Message:
    """The client stays."""
    await asyncio.Event().wait()
    raise AssertionError


# Messages between the processes


def send(writer: asyncio.StreamWriter, *message: Any) -> None:
    content = pickle.dumps(message)
    writer.write(LENGTH.pack(len(content)))
    writer.write(content)


async def receive(reader: asyncio.StreamReader) -> tuple[Any, ...]:
    [length] = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    return pickle.loads(await reader.readexactly(length))
