"""The HTTP interface: one function for each request. What it may ask is checked by the guard before."""

import asyncio
import json
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import uuid4

import numpy as np
import torch
from fastapi import FastAPI, Form, Query, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException

from dualnet import __version__
from dualnet.serve import saved, schema
from dualnet.serve.errors import MissingError, RequestError
from dualnet.serve.images import as_png, decoded
from dualnet.serve.metrics import metrics
from dualnet.serve.onnx import as_onnx, one_at_a_time
from dualnet.serve.service import Service

PAGE = Path(__file__).with_name("static")
FILES: Any = {200: {"content": {"application/zip": {}, "application/octet-stream": {}}}}
EVENT_SECONDS = 0.2  # between looks for news
KEEP_ALIVE_SECONDS = 15.0


def make_app(service: Service) -> FastAPI:
    options, journal, making_onnx = service.options, service.journal, threading.Lock()
    app = FastAPI(
        title="DualNet live learner",
        version=__version__,
        responses=schema.RESPONSES,
        redirect_slashes=False,
        docs_url=None,  # their scripts would come from an outside address
        redoc_url=None,
    )

    def pixels_of(images: list[UploadFile]) -> list[np.ndarray]:
        if len(images) > options.most_images:
            raise RequestError(413, f"{len(images)} images; at most {options.most_images} are read (--most-images)")
        contents = enumerate(image.file.read() for image in images)
        return [decoded(data, service.size, options.most_pixels, f"image {number}") for number, data in contents]

    # Predicting

    @app.post("/v1/predict")
    def predict(image: schema.Images, top: Annotated[int, Query(ge=1, le=1000)] = 5) -> schema.Predictions:
        """The most probable classes of one or several images."""
        assert service.published is not None
        began = time.perf_counter()
        version, found = service.published.predict(torch.from_numpy(np.stack(pixels_of(image))), top)
        service.counters["predictions"] += len(found)
        service.counters["predict_microseconds"] += int(1e6 * (time.perf_counter() - began))
        rows = [zip(one.classes, one.probabilities, strict=True) for one in found]
        predictions = [{"classes": [{"name": name, "probability": p} for name, p in row]} for row in rows]
        return schema.Predictions.model_validate({"version": version, "predictions": predictions})

    # Teaching

    @app.post("/v1/examples", status_code=201)
    def add_examples(
        image: schema.Images,
        label: Annotated[list[schema.Name | Literal[""]] | None, Form(description=schema.LABELS)] = None,
        id: Annotated[list[schema.Id] | None, Form(description="one for each image; made if it is left out")] = None,
        new_class: schema.NewClass = False,
    ) -> list[schema.Acknowledged]:
        """Teach images, with a label or without. The answer comes once they are on the disk."""
        ids = [uuid4().hex for _ in image] if id is None else id
        if len(ids) != len(image):
            raise RequestError(422, f"{len(ids)} ids for {len(image)} images; give one for each, or none")
        if len(set(ids)) != len(ids):
            raise RequestError(422, "an id is there twice; give each image its own")
        labels = [name or None for name in label or [""]]
        if len(labels) not in (1, len(image)):
            raise RequestError(422, f"{len(labels)} labels for {len(image)} images; give one for each, or one for all")
        labels = labels if len(labels) == len(image) else labels * len(image)
        position, there = journal.add_examples(ids, pixels_of(image), labels, new_class)
        service.wrote(position)
        return [schema.Acknowledged(id=one, duplicate=before) for one, before in zip(ids, there, strict=True)]

    @app.get("/v1/examples")
    def get_unlabelled(most: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[str]:
        """The ids of the newest examples that wait for a label."""
        return journal.newest_unlabelled(most)

    @app.get("/v1/examples/{id}")
    def get_example(id: schema.Id) -> dict[str, Any]:
        example = journal.example(id)
        shown = {"id": id, "label": example.label, "time": example.time}
        return {**shown, "held_out": bool(example.held_out), "image": example.pixels is not None}

    @app.get("/v1/examples/{id}/image", response_class=Response, responses={200: {"content": {"image/png": {}}}})
    def get_image(id: schema.Id) -> Response:
        """What the model sees of it."""
        pixels = journal.example(id).pixels
        if pixels is None:
            raise RequestError(404, f"the image of {id!r} is no longer kept")
        return Response(as_png(pixels), media_type="image/png")

    @app.put("/v1/examples/{id}/label")
    def set_label(id: schema.Id, label: schema.Label) -> dict[str, Any]:
        """The label of an example that came without, or another one than it had."""
        service.wrote(journal.set_label(id, label.label, label.new_class))
        return {"id": id, "label": label.label}

    @app.delete("/v1/examples/{id}", status_code=204)
    def delete_example(id: schema.Id) -> None:
        """It leaves the journal and the memory; what the weights learned from it stays."""
        service.wrote(journal.delete(id))

    @app.get("/v1/classes")
    def get_classes() -> list[dict[str, Any]]:
        return service.status()["classes"]

    @app.post("/v1/classes", status_code=201)
    def add_classes(classes: schema.Classes) -> list[str]:
        if len(set(classes.classes)) != len(classes.classes):
            raise RequestError(422, "a class is there twice")
        service.wrote(journal.add_classes(classes.classes))
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
    def set_background(pause: schema.Pause) -> dict[str, Any]:
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
    def add_snapshot(title: schema.Title | None = None) -> dict[str, Any]:
        """Keep the model as it is once it has learned all that was acknowledged before."""
        service.wait_until_learned()
        return service.ask("snapshot", "" if title is None else title.title)

    @app.post("/v1/snapshots/{number}/restore")
    def restore(number: schema.Number) -> dict[str, Any]:
        """Go back to it. What was taught since stays in the journal and is not learned again."""
        if not saved.snapshot_folder(options, number).is_dir():
            raise MissingError(f"snapshot {number}")
        position = journal.restore(number)
        service.send("wake")
        service.wait_until_learned(position)
        return service.status()

    @app.delete("/v1/snapshots/{number}", status_code=204)
    def delete_snapshot(number: schema.Number) -> None:
        saved.delete_snapshot(options, number)

    @app.get("/v1/export", response_class=FileResponse, responses=FILES)
    def export(format: Literal["folder", "onnx"] = "folder") -> FileResponse:
        """The model: a zip archive of a folder that `dualnet.load` reads, with the images of its memory; or ONNX."""
        with one_at_a_time(making_onnx) if format == "onnx" else nullcontext():
            service.wait_until_learned()
            folder = Path(tempfile.mkdtemp(prefix=saved.EXPORT, dir=options.state))
            try:
                service.ask("export", folder / "model")
                if format == "onnx":
                    file = as_onnx(service, folder / "model")
                else:
                    file = shutil.make_archive(str(folder / "model"), "zip", folder, "model")
            except BaseException:
                shutil.rmtree(folder)
                raise
        return FileResponse(file, filename=Path(file).name, background=BackgroundTask(shutil.rmtree, folder))

    app.mount("/static", StaticFiles(directory=PAGE))
    app.get("/", include_in_schema=False)(lambda: FileResponse(PAGE / "index.html"))
    add_errors(app)
    return app


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


def add_errors(app: FastAPI) -> None:
    """Every error has the one shape."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        told = refusal(error)
        if told.status == 405:  # Starlette names the methods of the first route
            told.headers["Allow"] = ", ".join(methods_of(app, request)) or "GET, HEAD"  # of a file of the page
        return JSONResponse(told.body, told.status, told.headers)

    for kind in (RequestError, RequestValidationError, HTTPException, sqlite3.OperationalError, ValueError, Exception):
        app.add_exception_handler(kind, answer)


def refusal(error: Exception) -> RequestError:
    """What is told of an error."""
    match error:
        case RequestError():
            return error
        case RequestValidationError():
            first = error.errors()[0]
            return RequestError(422, f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}")
        case HTTPException():  # what FastAPI refuses by itself
            return RequestError(error.status_code, error.detail)
        case sqlite3.OperationalError():
            return RequestError(507, f"the journal cannot be written ({error}); nothing of this request was kept")
        case ValueError():
            return RequestError(400, str(error))
    return RequestError(500, f"a fault of the service ({type(error).__name__}); its log tells more")


def methods_of(app: FastAPI, request: Request) -> list[str]:
    """Those of all routes with the path of the request."""
    routes = [route for route in app.routes if isinstance(route, APIRoute) and route.path_regex.match(request.url.path)]
    return sorted({method for route in routes for method in route.methods or ()})
