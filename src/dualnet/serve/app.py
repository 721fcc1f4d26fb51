"""The HTTP interface, one function per request. Access and limits are checked before, by `guard.py`."""

import asyncio
import json
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import uuid4

from fastapi import FastAPI, Form, Query, Request
from fastapi.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.background import BackgroundTask

from dualnet.serve import schema, state_folder
from dualnet.serve.errors import RequestError
from dualnet.serve.images import to_png, to_tensor
from dualnet.serve.onnx import exclusive, export_onnx
from dualnet.serve.prediction import add_prediction, check_number, decode_all, new_app
from dualnet.serve.service import Service

STATIC = Path(__file__).with_name("static")
EXPORTS: Any = {200: {"content": {"application/zip": {}, "application/octet-stream": {}}}}
POLL_SECONDS = 0.2  # between checks for new events
KEEP_ALIVE_SECONDS = 15.0


def make_app(service: Service) -> FastAPI:
    options, journal, onnx_lock = service.options, service.journal, threading.Lock()
    app = new_app("DualNet live learner", options)
    add_prediction(app, service)

    @app.get("/v1/predictions")
    def predict_stored(ids: schema.Ids, top: schema.Top = 5) -> schema.Predictions:
        """The most probable classes of stored examples; none for an example whose image is no longer stored."""
        check_number(ids, options)
        stored = journal.images(ids)
        version, predictions = service.predict(to_tensor([*stored.values()]), top) if stored else ("", [])
        by_id = dict(zip(stored, predictions, strict=True))
        nothing = schema.Prediction(classes=[])
        return schema.Predictions(version=version, predictions=[by_id.get(id, nothing) for id in ids])

    # Examples and classes

    @app.post("/v1/examples", status_code=201, response_model_exclude_none=True)
    def add_examples(
        image: schema.Images,
        label: Annotated[list[schema.Name | Literal[""]] | None, Form(description=schema.LABELS)] = None,
        id: Annotated[list[schema.Id] | None, Form(description="one per image; generated if omitted")] = None,
        new_class: schema.NewClass = False,
        top: schema.Top | None = None,
    ) -> list[schema.Acknowledged]:
        """Add images, with or without labels. They are on disk when the response is sent.

        With `top`, the response also has the most probable classes of each, predicted before it is learned.
        """
        ids = id or [uuid4().hex for _ in image]
        if len(ids) != len(image):
            raise RequestError(422, f"{len(ids)} ids for {len(image)} images; give one per image, or none")
        if len(set(ids)) != len(ids):
            raise RequestError(422, "ids must be unique within a request")
        labels = [name or None for name in label or [""]]
        labels = labels * len(image) if len(labels) == 1 else labels
        if len(labels) != len(image):
            raise RequestError(422, f"{len(labels)} labels for {len(image)} images; give one per image, or one for all")
        images = decode_all(service, image)
        answers = service.predict(images, top)[1] if top else [None] * len(ids)
        position, duplicates = journal.add_examples(ids, images.numpy(), labels, new_class)
        service.notify_learner(position)
        rows = zip(ids, duplicates, answers, strict=True)
        return [schema.Acknowledged(id=id, duplicate=known, prediction=answer) for id, known, answer in rows]

    @app.get("/v1/examples")
    def get_unlabelled(most: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[str]:
        """The ids of the newest examples without a label."""
        return journal.newest_unlabelled(most)

    @app.get("/v1/suggestions")
    def get_suggestions(count: Annotated[int, Query(ge=1, le=100)] = 20) -> list[str]:
        """The ids of the examples without a label that would teach most, the most instructive first."""
        return service.suggestions(count)

    @app.get("/v1/examples/{id}")
    def get_example(id: schema.Id) -> dict[str, Any]:
        example = journal.example(id)
        state = {"held_out": bool(example.held_out), "image": example.pixels is not None}
        return {"id": id, "label": example.name, "time": example.time, **state}

    @app.get("/v1/examples/{id}/image", response_class=Response, responses={200: {"content": {"image/png": {}}}})
    def get_image(id: schema.Id) -> Response:
        """The image as the model sees it."""
        pixels = journal.example(id).pixels
        if pixels is None:
            raise RequestError(404, f"the image of {id!r} is no longer stored")
        return Response(to_png(pixels), media_type="image/png")

    @app.put("/v1/examples/{id}/label")
    def set_label(id: schema.Id, label: schema.Label) -> dict[str, Any]:
        """Add or correct the label of an example."""
        service.notify_learner(journal.set_label(id, label.label, label.new_class))
        return {"id": id, "label": label.label}

    @app.delete("/v1/examples/{id}", status_code=204)
    def delete_example(id: schema.Id) -> None:
        """Remove an example from the journal, the memory and the head; what trained weights have learned remains."""
        service.notify_learner(journal.delete(id))

    @app.get("/v1/classes")
    def get_classes() -> list[dict[str, Any]]:
        return service.classes()

    @app.post("/v1/classes", status_code=201)
    def add_classes(classes: schema.Classes) -> list[str]:
        if len(set(classes.classes)) != len(classes.classes):
            raise RequestError(422, "names must be unique")
        service.notify_learner(journal.add_classes(classes.classes))
        return list(journal.classes().values())

    @app.get("/v1/classes/{number}/examples")
    def get_examples(number: schema.Number, most: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[dict[str, Any]]:
        """The examples of a class whose images are stored, those labelled last first, and which are not learned yet."""
        journal.class_name(number)  # raises RequestError if there is none
        rows = journal.examples_of(number, service.learner_status["position"], most)
        return [{"id": id, "held_out": held_out, "waiting": waiting} for id, held_out, waiting in rows]

    @app.put("/v1/classes/{number}/name")
    def rename_class(number: schema.Number, name: schema.NewName) -> list[dict[str, Any]]:
        """Rename a class. Its examples keep their ids."""
        journal.rename_class(number, name.name)
        service.announce()
        return service.classes()

    @app.delete("/v1/classes/{number}", status_code=204)
    def remove_class(number: schema.Number) -> None:
        """Remove a class and its examples; what trained weights have learned from them remains."""
        service.notify_learner(journal.remove_class(number))

    @app.get("/v1/memory")
    def get_memory() -> list[dict[str, Any]]:
        """The examples in the memory, which are replayed; their images are at /v1/examples/{id}/image."""
        return [{"id": id, "label": label} for id, label in journal.examples_with(service.call("memory"))]

    # The learner

    @app.get("/v1/status")
    def get_status() -> dict[str, Any]:
        return service.status()

    @app.post("/v1/background")
    def set_background(pause: schema.Pause) -> dict[str, Any]:
        """Pause or resume background training."""
        service.call("pause", pause.paused)
        return service.status()["background"]

    @app.get("/v1/model", response_class=Response, responses={200: {"content": {"application/octet-stream": {}}}})
    def get_model(request: Request, frozen: str = "") -> Response:
        """What predicts, in one file, for `dualnet replica`; without the frozen encoder if its digest is given."""
        if request.headers.get("if-none-match") == (tag := service.tag_of_model()):
            return Response(status_code=304, headers={"ETag": tag})
        tag, content = service.packed_model(frozen)
        return Response(content, media_type="application/octet-stream", headers={"ETag": tag})

    @app.get("/v1/events", response_class=StreamingResponse, responses={200: {"content": {"text/event-stream": {}}}})
    async def events(request: Request, after: Annotated[int, Query(ge=0, le=2**53)] = 0) -> StreamingResponse:
        """Server-sent events: `status` with what a publication has changed, and `notice`. Past events come first."""
        last = request.headers.get("last-event-id", "")
        start = int(last) if last.isascii() and last.isdigit() and len(last) < 16 else after
        at_once = {"X-Accel-Buffering": "no"}  # for nginx, which would hold events back
        return StreamingResponse(event_stream(service, start), headers=at_once, media_type="text/event-stream")

    @app.get("/metrics", response_class=PlainTextResponse)
    def get_metrics() -> Response:
        """Metrics in Prometheus text format."""
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/healthz")
    def healthz() -> dict[str, bool]:
        return {"answering": service.model is not None, "learning": service.alive}

    # Snapshots

    def named(snapshot: dict[str, Any]) -> dict[str, Any]:
        names = journal.classes()
        return {**snapshot, "classes": [names[number] for number in snapshot["classes"] if number in names]}

    @app.get("/v1/snapshots")
    def get_snapshots() -> list[dict[str, Any]]:
        """The snapshots, with the current names of their classes that still exist."""
        return [named(snapshot) for snapshot in state_folder.list_snapshots(options)]

    @app.post("/v1/snapshots", status_code=201)
    def add_snapshot(title: schema.Title | None = None) -> dict[str, Any]:
        """Save a copy of the model, once it has learned everything acknowledged so far."""
        service.wait_until_learned()
        return named(service.call("snapshot", "" if title is None else title.title))

    @app.post("/v1/snapshots/{number}/restore")
    def restore(number: schema.Number) -> dict[str, Any]:
        """Restore a snapshot. Examples added since then stay in the journal and are not learned again."""
        if not state_folder.snapshot_folder(options, number).is_dir():
            raise RequestError(404, f"snapshot {number} does not exist")
        service.wait_until_learned()
        service.call("restore", number)
        return service.status()

    @app.delete("/v1/snapshots/{number}", status_code=204)
    def delete_snapshot(number: schema.Number) -> None:
        state_folder.delete_snapshot(options, number)

    @app.get("/v1/export", response_class=FileResponse, responses=EXPORTS)
    def export(format: Literal["folder", "onnx"] = "folder") -> FileResponse:
        """The model, as a zip archive of a folder for `dualnet.load`, which includes its memory, or as ONNX."""
        with exclusive(onnx_lock) if format == "onnx" else nullcontext():
            service.wait_until_learned()
            folder = Path(tempfile.mkdtemp(prefix=state_folder.EXPORT, dir=options.state))
            try:
                service.call("export", folder / "model")
                if format == "onnx":
                    file = export_onnx(service, folder / "model")
                else:
                    file = shutil.make_archive(str(folder / "model"), "zip", folder, "model")
            except BaseException:
                shutil.rmtree(folder)
                raise
        return FileResponse(file, filename=Path(file).name, background=BackgroundTask(shutil.rmtree, folder))

    app.mount("/static", StaticFiles(directory=STATIC, follow_symlink=True))
    app.get("/", include_in_schema=False)(lambda: FileResponse(STATIC / "index.html"))
    return app


async def event_stream(service: Service, after: int) -> AsyncIterator[str]:
    idle = 0.0  # seconds
    while not service.stopping:
        for number, kind, content in service.events_after(after):
            after, idle = number, 0.0
            yield f"id: {number}\nevent: {kind}\ndata: {json.dumps(content)}\n\n"
        if idle >= KEEP_ALIVE_SECONDS:
            idle = 0.0
            yield ": \n\n"
        await asyncio.sleep(POLL_SECONDS)
        idle += POLL_SECONDS
