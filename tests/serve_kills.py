"""Kills the service at random moments under load; everything that it acknowledged must still be stored.

As a script: `python tests/serve_kills.py 50`; with `full`, the disk is full half of the time; with `live`, the encoder
is trained. Without it, predictions are at last those of a model that has learned everything at once.
"""

import http.client
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import COLOURS, SIZE, SMALL, Server, files_with, picture, png, small_model

from dualnet.models.model import NEW_MODEL, Model
from dualnet.serve.worker import CALIBRATE_SECONDS

FEW, LONGEST_SECONDS = 6, 30.0  # acknowledged examples before each kill, and the longest wait for them
GONE = (OSError, http.client.HTTPException)


class Load:
    """Threads that teach, label, change classes and predict until the service is gone, and record its answers."""

    def __init__(self, seed: int, full_disk: bool) -> None:
        self.random = random.Random(seed)
        self.acts = [self.teach, self.label, self.change_classes, self.predict]
        self.acts += [self.fill_disk] if full_disk else []
        self.refused = 0  # requests, on a full disk
        self.number = 0
        self.sent: dict[str, tuple[str, int]] = {}  # colour and number of the image, by id
        self.labels: dict[str, str | None] = {}  # of the acknowledged examples
        self.in_doubt: dict[str, str] = {}  # labels that were sent and not acknowledged
        self.names: dict[int, set[str | None]] = {}  # that a class may have, by number; None: removed
        self.short_lived: list[int] = []  # the greys of images whose class is removed
        self.errors: list[Exception] = []  # of the threads
        self.ended = threading.Event()

    def run(self, server: Server, seconds: float) -> None:
        threads = [threading.Thread(target=self.until_gone, args=(act, server)) for act in self.acts]
        self.ended.clear()
        for thread in threads:
            thread.start()
        enough, end = len(self.labels) + FEW, time.monotonic() + LONGEST_SECONDS
        time.sleep(seconds)
        while len(self.labels) < enough and time.monotonic() < end:  # the machine is busy, or its disk is full
            time.sleep(0.01)
        server.end(signal.SIGKILL)
        self.ended.set()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def until_gone(self, act: Callable[[Server], None], server: Server) -> None:
        while not self.ended.is_set():
            try:
                act(server)
            except GONE:
                return
            except Exception as error:
                self.errors.append(error)
                return

    def teach(self, server: Server) -> None:
        self.number += 1
        colour, id = self.random.choice(list(COLOURS)), f"example-{self.number}"
        label = colour if self.number % 3 else None
        self.sent[id] = (colour, self.number)
        status, content = server.teach(png(picture(colour, self.number)), label, id=id)
        if self.is_stored(status, content):
            assert status == 201 and content == [{"id": id, "duplicate": False}], content
            self.labels[id] = label

    def label(self, server: Server) -> None:
        unlabelled = [id for id, label in list(self.labels.items()) if label is None]
        if not unlabelled:
            time.sleep(0.01)
            return
        id = self.random.choice(unlabelled)
        colour = self.sent[id][0]
        self.in_doubt[id] = colour
        status, content = server.send("PUT", f"/v1/examples/{id}/label", {"label": colour, "new_class": True})
        if self.is_stored(status, content):
            assert status == 200, content
            self.labels[id] = self.in_doubt.pop(id)

    def change_classes(self, server: Server) -> None:
        """Teach a class with one image, and rename and remove it."""
        grey = len(self.short_lived) + 2  # a checkpoint may have many bytes 0 and 1 in a row
        if grey > 250:
            time.sleep(0.01)
            return
        self.short_lived.append(grey)
        image, name = png(np.full((SIZE, SIZE, 3), grey, np.uint8)), f"class {grey}"
        if not self.is_stored(*server.teach(image, name, id=f"short-lived-{grey}")):
            return
        [number] = [row["number"] for row in server.get("/v1/classes") if row["name"] == name]
        self.names[number] = {name, f"{name} renamed"}
        if self.is_stored(*server.send("PUT", f"/v1/classes/{number}/name", {"name": f"{name} renamed"})):
            self.names[number].remove(name)
        self.names[number].add(None)
        if self.is_stored(*server.request("DELETE", f"/v1/classes/{number}")):
            self.names[number] = {None}

    def predict(self, server: Server) -> None:
        assert server.upload("/v1/predict", png(picture("red", 1)))[0] == 200

    def fill_disk(self, server: Server) -> None:
        for full in (True, False):
            server.fill_disk(full)
            time.sleep(self.random.uniform(0, 0.3))

    def is_stored(self, status: int, content: Any) -> bool:
        is_full = status == 507 and self.fill_disk in self.acts
        if is_full:
            assert "nothing was stored" in content["error"]["message"]
            self.refused += 1
        return not is_full

    def check(self, server: Server) -> None:
        """Everything acknowledged is stored with its label, and nothing else."""
        for id, (colour, number) in list(self.sent.items()):
            status, stored = server.request("GET", f"/v1/examples/{id}")
            if id in self.labels:
                assert status == 200, f"{id} was acknowledged and is gone"
                assert stored["label"] in (self.labels[id], self.in_doubt.get(id)), (id, stored, self.labels[id])
            elif status == 404:  # not acknowledged: it may be stored or not; sent again, it is stored once
                assert server.teach(png(picture(colour, number)), id=id)[0] == 201
                stored = {"label": None}
            self.labels[id] = stored["label"]
        self.in_doubt.clear()
        self.check_classes(server)
        status = server.learned()
        assert status["examples"] == len(self.sent)
        labelled = [id for id, label in self.labels.items() if label is not None]
        held_out = [id for id in labelled if server.get(f"/v1/examples/{id}")["held_out"]]
        # The memory has a slot for each: none was lost, none learned twice.
        in_memory = sum(row["in_memory"] for row in status["classes"])
        assert in_memory == len(labelled) - len(held_out) <= status["memory_slots"]
        assert {example["label"] for example in server.get("/v1/memory")} <= {*COLOURS}
        _, answer = server.upload("/v1/predict", png(picture("red", 1)))
        assert {row["name"] for row in answer["predictions"][0]["classes"]} <= {*COLOURS}
        pixels = [bytes([grey]) * SIZE * SIZE for grey in self.short_lived]
        server.status_when(lambda _: not any(files_with(server.state, content) for content in pixels))

    def check_predictions(self, server: Server) -> None:
        """They are those of a model that has learned the same examples at once, and was never stopped."""
        stored = {id: server.get(f"/v1/examples/{id}") for id in self.labels}
        learned = [id for id in sorted(stored) if stored[id]["label"] and not stored[id]["held_out"]]
        model = new_model({"slots": 1})
        images = [picture(*self.sent[id]) for id in learned]
        model.learn(images, [stored[id]["label"] for id in learned], add_classes=True)
        model.calibrate()
        shown = [picture(colour, 10**6 + number) for colour in COLOURS for number in range(5)]
        server.status_when(lambda status: status["waiting"] == 0)
        time.sleep(2 * CALIBRATE_SECONDS)
        _, answer = server.upload("/v1/predict", *map(png, shown))
        for expected, row in zip(model.predict(shown), answer["predictions"], strict=True):
            probabilities = {each["name"]: each["probability"] for each in row["classes"]}
            assert probabilities == pytest.approx(
                dict(zip(expected.classes, expected.probabilities, strict=True)), abs=1e-5
            )
            assert row["unknown"] == expected.unknown

    def check_classes(self, server: Server) -> None:
        """Each has an acknowledged name, or was removed. Those that remain, and what is in doubt, are removed."""
        names = {row["number"]: row["name"] for row in server.get("/v1/classes")}
        for number, possible in self.names.items():
            assert names.get(number) in possible, (number, names.get(number), possible)
        for number in [number for number, name in names.items() if name not in COLOURS]:
            assert server.request("DELETE", f"/v1/classes/{number}")[0] == 204
        self.names.clear()


def kill_under_load(folder: Path, kills: int, seed: int = 0, full_disk: bool = False, live: bool = False) -> Load:
    memory = {"slots": 8000}
    if live:
        model = small_model(folder / "model", memory=memory)
    else:
        model = folder / "model"
        new_model(memory).save(model)
    load = Load(seed, full_disk)
    for kill in range(kills + 1):
        with Server(folder / "state", "--model", model, "--save-seconds", 0.3, "--share", 0.5) as server:
            assert server.port, server.log
            load.check(server)
            if kill < kills:
                load.run(server, load.random.uniform(0.05, 1.5))
                refused = f", {load.refused} requests refused" if full_disk else ""
                print(f"kill {kill + 1}: {len(load.labels)} acknowledged examples{refused}", flush=True)
            else:
                if not live:
                    load.check_predictions(server)
                assert server.end() == 130
    return load


def new_model(memory: dict[str, int]) -> Model:
    """A small one with a closed-form head."""
    return Model.create(image_size=SIZE, learner={**NEW_MODEL, "encoder": SMALL["encoder"], "memory": memory})


if __name__ == "__main__":
    words = sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        kill_under_load(Path(folder), int(sys.argv[1]), int(time.time()), "full" in words, "live" in words)
