"""The HTTP interface: one function for each request. What it may ask is checked by the guard before."""

import asyncio
import json
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from importlib.resources import files
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal
from uuid import uuid4

import numpy as np
import torch
from fastapi import BackgroundTasks, FastAPI, Form, HTTPException, Path, Query, Request, UploadFile
from fastapi.responses import FileResponse, PlainTextResponse, Response, StreamingResponse

from dualnet import __version__
from dualnet.serve import saved
from dualnet.serve.errors import add_errors
from dualnet.serve.images import as_png, decoded
from dualnet.serve.journal import ConflictError
from dualnet.serve.metrics import metrics
from dualnet.serve.onnx import as_onnx, one_at_a_time
from dualnet.serve.schema import (
    ERRORS,
    LABELS,
    Acknowledged,
    Class,
    Classes,
    Id,
    Images,
    Label,
    Name,
    NewClass,
    Number,
    Pause,
    Prediction,
    Predictions,
    Title,
)
from dualnet.serve.service import Service

FILES: Any = {200: {"content": {"application/zip": {}, "application/octet-stream": {}}}}
EVENT_SECONDS = 0.2  # between looks for news
KEEP_ALIVE_SECONDS = 15.0


def make_app(service: Service) -> FastAPI:
    options, journal, making_onnx = service.options, service.journal, threading.Lock()
    app = FastAPI(
        title="DualNet live learner",
        version=__version__,
        responses=ERRORS,
        redirect_slashes=False,
        docs_url=None,  # their scripts would come from an outside address
        redoc_url=None,
    )

    def pixels_of(images: list[UploadFile]) -> list[np.ndarray]:
        if len(images) > options.most_images:
            raise HTTPException(413, f"{len(images)} images; at most {options.most_images} are read (--most-images)")
        contents = enumerate(image.file.read() for image in images)
        return [decoded(data, service.size, options.most_pixels, f"image {number}") for number, data in contents]

    # Predicting

    @app.post("/v1/predict")
    def predict(image: Images, top: Annotated[int, Query(ge=1, le=1000)] = 5) -> Predictions:
        """The most probable classes of one or several images."""
        assert service.published is not None
        began = time.perf_counter()
        version, found = service.published.predict(torch.from_numpy(np.stack(pixels_of(image))), top)
        service.counters["predictions"] += len(found)
        service.counters["predict_microseconds"] += int(1e6 * (time.perf_counter() - began))
        rows = [zip(one.classes, one.probabilities, strict=True) for one in found]
        predictions = [Prediction(classes=[Class(name=n, probability=p) for n, p in row]) for row in rows]
        return Predictions(version=version, predictions=predictions)

    # Teaching

    @app.post("/v1/examples", status_code=201)
    def add_examples(
        image: Images,
        label: Annotated[list[Name | Literal[""]] | None, Form(description=LABELS)] = None,
        id: Annotated[list[Id] | None, Form(description="one for each image; made if it is left out")] = None,
        new_class: NewClass = False,
    ) -> list[Acknowledged]:
        """Teach images, with a label or without. The answer comes once they are on the disk."""
        ids = [uuid4().hex for _ in image] if id is None else id
        if len(ids) != len(image):
            raise HTTPException(422, f"{len(ids)} ids for {len(image)} images; give one for each, or none")
        if len(set(ids)) != len(ids):
            raise HTTPException(422, "an id is there twice; give each image its own")
        labels = [name or None for name in label or [""]]
        if len(labels) not in (1, len(image)):
            raise HTTPException(422, f"{len(labels)} labels for {len(image)} images; give one for each, or one for all")
        labels = labels if len(labels) == len(image) else labels * len(image)
        position, there = journal.add_examples(ids, pixels_of(image), labels, new_class, options)
        service.wrote(position)
        return [Acknowledged(id=one, duplicate=before) for one, before in zip(ids, there, strict=True)]

    @app.get("/v1/examples")
    def get_unlabelled(most: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[str]:
        """The ids of the newest examples that wait for a label."""
        return journal.newest_unlabelled(most)

    @app.get("/v1/examples/{id}")
    def get_example(id: Annotated[Id, Path()]) -> dict[str, Any]:
        example = journal.example(id) or not_there(id)
        kept = example.pixels is not None
        return {
            "id": id,
            "label": example.label,
            "time": example.time,
            "held_out": bool(example.held_out),
            "image": kept,
        }

    @app.get("/v1/examples/{id}/image", response_class=Response, responses={200: {"content": {"image/png": {}}}})
    def get_image(id: Annotated[Id, Path()]) -> Response:
        """What the model sees of it."""
        example = journal.example(id) or not_there(id)
        if example.pixels is None:
            raise HTTPException(404, f"the image of {id!r} is no longer kept")
        return Response(as_png(example.pixels, service.size), media_type="image/png")

    @app.put("/v1/examples/{id}/label")
    def set_label(id: Annotated[Id, Path()], label: Label) -> dict[str, Any]:
        """The label of an example that came without, or another one than it had."""
        position = journal.set_label(id, label.label, label.new_class, options)
        service.wrote(not_there(id) if position is None else position)
        return {"id": id, "label": label.label}

    @app.delete("/v1/examples/{id}", status_code=204)
    def delete_example(id: Annotated[Id, Path()]) -> None:
        """It leaves the journal and the memory; what the weights learned from it stays."""
        position = journal.delete(id)
        service.wrote(not_there(id) if position is None else position)

    @app.get("/v1/classes")
    def get_classes() -> list[dict[str, Any]]:
        return service.status()["classes"]

    @app.post("/v1/classes", status_code=201)
    def add_classes(classes: Classes) -> list[str]:
        if len(set(classes.classes)) != len(classes.classes):
            raise HTTPException(422, "a class is there twice")
        journal.add_classes(classes.classes, options.most_classes)
        service.wrote(journal.last_position())
        return journal.classes()

    @app.get("/v1/memory")
    def get_memory() -> list[dict[str, Any]]:
        """The examples that the memory holds, and practises; their images are at /v1/examples/{id}/image."""
        stored = service.ask("memory")
        return [{"id": id, "label": label} for id, label in journal.examples_of([digest for digest, _ in stored])]

    # The learner

    @app.get("/v1/status")
    def get_status() -> dict[str, Any]:
        return service.status()

    @app.post("/v1/background")
    def set_background(pause: Pause) -> dict[str, Any]:
        """Pause the background, or go on."""
        service.ask("pause", pause.paused)
        return service.status()["background"]

    @app.get("/v1/events", response_class=StreamingResponse, responses={200: {"content": {"text/event-stream": {}}}})
    async def events(request: Request, after: Annotated[int, Query(ge=0, le=2**53)] = 0) -> StreamingResponse:
        """Server-sent events: `status` after every publication, and `notice`. The last ones are sent first."""
        last = request.headers.get("last-event-id", "")
        begin = int(last) if last.isascii() and last.isdigit() and len(last) < 16 else after
        return StreamingResponse(listen(service, begin), media_type="text/event-stream")

    @app.get("/metrics", response_class=PlainTextResponse)
    def get_metrics() -> str:
        """For Prometheus."""
        return metrics(service)

    @app.get("/healthz")
    def healthz() -> dict[str, bool]:
        return {"answering": service.published is not None, "learning": service.alive}

    # Snapshots

    @app.get("/v1/snapshots")
    def get_snapshots() -> list[dict[str, Any]]:
        return saved.snapshots(options)

    @app.post("/v1/snapshots", status_code=201)
    def add_snapshot(title: Title | None = None) -> dict[str, Any]:
        """Keep the model as it is once it has learned all that was acknowledged before."""
        service.wait_until_learned()
        return ask_or_conflict("snapshot", "" if title is None else title.title)

    @app.post("/v1/snapshots/{number}/restore")
    def restore(number: Number) -> dict[str, Any]:
        """Go back to it. What was taught since stays in the journal and is not learned again."""
        if number not in [one["number"] for one in saved.snapshots(options)]:
            no_snapshot(number)
        position = journal.restore(number)
        service.send("wake")
        service.wait_until_learned(position)
        return service.status()

    @app.delete("/v1/snapshots/{number}", status_code=204)
    def delete_snapshot(number: Number) -> None:
        try:
            saved.delete_snapshot(options, number)
        except FileNotFoundError:
            no_snapshot(number)

    @app.get("/v1/export", response_class=FileResponse, responses=FILES)
    def export(format: Literal["folder", "onnx"] = "folder") -> FileResponse:
        """The model: a zip archive of a folder that `dualnet.load` reads, with the images of its memory; or ONNX."""
        with one_at_a_time(making_onnx) if format == "onnx" else nullcontext():
            service.wait_until_learned()
            folder = FilePath(tempfile.mkdtemp(prefix=saved.EXPORT, dir=options.state))
            try:
                ask_or_conflict("export", folder / "model")
                if format == "onnx":
                    file = as_onnx(service, folder / "model")
                else:
                    file = shutil.make_archive(str(folder / "model"), "zip", folder, "model")
            except BaseException:
                shutil.rmtree(folder)
                raise
        afterwards = BackgroundTasks()
        afterwards.add_task(shutil.rmtree, folder)
        return FileResponse(file, filename=FilePath(file).name, background=afterwards)

    def ask_or_conflict(command: str, argument: Any) -> Any:
        try:
            return service.ask(command, argument)
        except ValueError as error:
            raise ConflictError(str(error)) from error

    add_page(app)
    add_errors(app)
    return app


def not_there(id: str) -> Any:
    raise HTTPException(404, f"example {id!r} is not there")


def no_snapshot(number: int) -> Any:
    raise HTTPException(404, f"snapshot {number} is not there")


async def listen(service: Service, after: int) -> AsyncIterator[str]:
    quiet = 0.0
    while not service.stopping:
        for number, kind, content in service.events_after(after):
            after, quiet = number, 0.0
            yield f"id: {number}\nevent: {kind}\ndata: {json.dumps(content)}\n\n"
        if quiet >= KEEP_ALIVE_SECONDS:
            quiet = 0.0
            yield ": \n\n"
        await asyncio.sleep(EVENT_SECONDS)
        quiet += EVENT_SECONDS


def add_page(app: FastAPI) -> None:
    """The files of the page, each at an address of its own: no path comes from a request."""
    kinds = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    folder = files("dualnet.serve").joinpath("static")
    for file in folder.iterdir() if folder.is_dir() else ():
        kind = kinds.get(file.name.rpartition(".")[2])
        if kind is not None:
            path = "/" if file.name == "index.html" else f"/static/{file.name}"
            app.get(path, include_in_schema=False)(same_answer(file.read_bytes(), kind))


def same_answer(content: bytes, kind: str) -> Callable[[], Response]:
    return lambda: Response(content, media_type=kind)
