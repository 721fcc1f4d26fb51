"""SIGKILL at random moments, under load."""

import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from serve_kills import GONE, kill_under_load
from serving import Server, picture, png, small_model

pytest.importorskip("fastapi")


def test_everything_acknowledged_is_stored_exactly_once(tmp_path: Path) -> None:
    load = kill_under_load(tmp_path, kills=2)
    assert len(load.labels) > 10


class Naming:
    """Threads that rename a class and teach it, until the service is gone, and record what was acknowledged."""

    def __init__(self) -> None:
        self.names, self.examples, self.number = ["red"], 0, 0  # the last name, and those in doubt

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
            while True:
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


def test_a_name_that_was_acknowledged_stays_and_all_examples_have_it(tmp_path: Path) -> None:
    model, moments, naming = small_model(tmp_path / "model"), random.Random(0), Naming()
    for kill in range(4):
        with Server(tmp_path / "state", "--model", model, "--save-seconds", 0.2, "--held-out-every", 0) as server:
            assert server.port, server.log
            if kill == 0:
                assert server.teach(png(picture("red", 0)), "red")[0] == 201
                naming.examples = 1
            naming.check(server)
            threads = [threading.Thread(target=act, args=(server,)) for act in (naming.rename, naming.teach)]
            for thread in threads:
                thread.start()
            time.sleep(moments.uniform(0.2, 1.2))
            server.end(signal.SIGKILL)
            for thread in threads:
                thread.join()
    assert naming.number > 4
