"""SIGKILL at random moments, under load."""

import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from serve_kills import GONE, kill_under_load
from serving import SIZE, Server, files_with, picture, png, small_model

pytest.importorskip("fastapi")


def test_everything_acknowledged_is_stored_exactly_once(tmp_path: Path) -> None:
    load = kill_under_load(tmp_path, kills=2)
    assert len(load.labels) > 10


class Naming:
    """Threads that rename a class and teach it, until the service is gone, and record what was acknowledged."""

    def __init__(self) -> None:
        self.names, self.examples, self.number = ["red"], 1, 0  # the last name, and those in doubt

    def rename(self, server: Server) -> None:
        with suppress(*GONE):
            while True:
                self.number += 1
                self.names.append(f"red {self.number}")
                status, _ = server.send("PUT", "/v1/classes/1/name", {"name": self.names[-1]})
                assert status == 200
                self.names = self.names[-1:]

    def teach(self, server: Server) -> None:
        with suppress(*GONE):
            while self.examples < 300:  # all fit into the memory
                label = server.get("/v1/classes")[0]["name"]
                image = png(picture("red", 1000 + self.examples))
                self.examples += server.upload("/v1/examples", image, label=label)[0] == 201  # 409 if just renamed

    def check(self, server: Server) -> None:
        status = server.learned()
        [found] = status["classes"]
        assert found["number"] == 1 and found["name"] in self.names
        assert found["examples"] == found["in_memory"] == status["examples"] >= self.examples > 0
        self.names, self.examples = [found["name"]], found["examples"]
        assert {one["label"] for one in server.get("/v1/memory")} == {found["name"]}
        [prediction] = server.upload("/v1/predict", png(picture("red", 0)))[1]["predictions"]
        assert [one["name"] for one in prediction["classes"]] == [found["name"]]


def kill_repeatedly(tmp_path: Path, check: Callable[[Server], None], *actions: Callable[[Server], None]) -> None:
    """Four times: start a service with one example, check it, and kill it while the actions go on in threads."""
    model, moments = small_model(tmp_path / "model"), random.Random(0)
    for kill in range(4):
        with Server(tmp_path / "state", "--model", model, "--save-seconds", 0.2, "--held-out-every", 0) as server:
            assert server.port, server.log
            if kill == 0:
                assert server.teach(png(picture("red", 0)), "red")[0] == 201
            check(server)
            threads = [threading.Thread(target=action, args=(server,)) for action in actions]
            for thread in threads:
                thread.start()
            time.sleep(moments.uniform(0.2, 1.2))
            server.end(signal.SIGKILL)
            for thread in threads:
                thread.join()


def test_a_name_that_was_acknowledged_stays_and_all_examples_have_it(tmp_path: Path) -> None:
    naming = Naming()
    kill_repeatedly(tmp_path, naming.check, naming.rename, naming.teach)
    assert naming.number > 4


class Removing:
    """A thread that teaches a class with one example and removes it, again and again, until the service is gone."""

    def __init__(self) -> None:
        self.number, self.removed, self.in_doubt = 0, 0, set[int]()  # examples, by the number of their image

    def act(self, server: Server) -> None:
        with suppress(*GONE):
            while self.number < 250:  # images of one grey each
                self.number += 1
                self.in_doubt.add(self.number)
                image = png(np.full((SIZE, SIZE, 3), self.number, np.uint8))
                status, content = server.teach(image, "short-lived", id=f"example-{self.number}")
                assert status == 201, content
                [_, found] = server.get("/v1/classes")
                status, content = server.request("DELETE", f"/v1/classes/{found['number']}")
                assert status == 204, content
                self.in_doubt.remove(self.number)
                self.removed += 1

    def check(self, server: Server) -> None:
        status = server.learned()
        names = [one["name"] for one in status["classes"]]
        stored = [n for n in range(1, self.number + 1) if server.request("GET", f"/v1/examples/example-{n}")[0] == 200]
        assert set(stored) <= self.in_doubt and status["examples"] == 1 + len(stored)
        assert names == ["red"] or names == ["red", "short-lived"]
        assert {one["label"] for one in server.get("/v1/memory")} == {"red"} | ({"short-lived"} if stored else set())
        for found in status["classes"][1:]:
            assert server.request("DELETE", f"/v1/classes/{found['number']}")[0] == 204
        self.in_doubt.clear()
        [prediction] = server.upload("/v1/predict", png(picture("red", 0)))[1]["predictions"]
        assert [one["name"] for one in prediction["classes"]] == ["red"]
        pixels = [bytes([number]) * SIZE * SIZE for number in range(1, self.number + 1)]
        server.status_when(lambda _: not any(files_with(server.state, content) for content in pixels))


def test_a_class_whose_removal_was_acknowledged_is_gone_with_its_images(tmp_path: Path) -> None:
    removing = Removing()
    kill_repeatedly(tmp_path, removing.check, removing.act)
    assert removing.removed > 1
