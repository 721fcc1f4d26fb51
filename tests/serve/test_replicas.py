"""`dualnet serve --replicas`: several processes predict, one learns, all real."""

import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from serve_kills import new_model
from serving import Server, picture, png

pytest.importorskip("fastapi")

from dualnet.serve import replicas
from dualnet.serve.replicas import Publication

IMAGE = png(picture("red", 1000))
TOKEN = "a token of a service"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("replicas")
    new_model({"slots": 100}).save(folder / "model")
    (folder / "token").write_text(TOKEN)
    words = ("--model", folder / "model", "--token-file", folder / "token", "--replicas", 2)
    with Server(folder / "state", *words) as server:
        server.token = TOKEN
        for number in range(4):
            for colour in ("red", "green"):
                assert server.teach(png(picture(colour, number)), colour)[0] == 201
        yield server
        assert server.end() == 130 and "Traceback" not in server.log


@pytest.fixture(autouse=True)
def ready(server: Server) -> None:
    server.status_when(lambda status: status["replicas"] == 2 and status["waiting"] == 0)


def answer(server: Server) -> dict[str, Any]:
    status, content = server.upload("/v1/predict", IMAGE)
    assert status == 200, content
    return content


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


@contextmanager
def load(server: Server) -> Iterator[list[dict[str, Any]]]:
    """The answers to predictions of two clients; each must succeed."""
    ended, answers = threading.Event(), []

    def predict() -> None:
        while not ended.is_set():
            answers.append(answer(server))

    with ThreadPoolExecutor(2) as pool:
        clients = [pool.submit(predict) for _ in range(2)]
        try:
            yield answers
        finally:
            ended.set()
        for client in clients:
            client.result()


def test_every_answer_is_by_one_version_and_none_is_late(server: Server) -> None:
    assert server.teach(IMAGE, id="the-image")[0] == 201
    by_version = defaultdict[str, list[Any]](list)
    with load(server) as answers:
        for number in range(10, 40):
            server.teach(png(picture(("red", "green", "blue")[number % 3], number)), f"class {number % 5}")
            if number % 6 == 0:
                version = server.learned()["version"]
                assert numbers(answer(server)["version"]) >= numbers(version)
            content = server.get("/v1/predictions?id=the-image")  # by the HTTP process
            by_version[content["version"]].append(content["predictions"])
    for content in answers:
        by_version[content["version"]].append(content["predictions"])
    assert len(by_version) > 5
    assert all(content == contents[0] for contents in by_version.values() for content in contents)


def test_a_class_has_its_new_name_at_once(server: Server) -> None:
    [number, *_] = [row["number"] for row in server.get("/v1/classes")]
    for name in ("new name", "red"):
        assert server.send("PUT", f"/v1/classes/{number}/name", {"name": name})[0] == 200
        assert name in [row["name"] for row in answer(server)["predictions"][0]["classes"]]


def test_a_replica_that_dies_is_replaced_and_no_request_fails(server: Server) -> None:
    for _ in range(2):
        with load(server) as answers:
            [first, second] = server.replicas()
            os.kill(first, signal.SIGKILL)
            before = len(answers)
            server.status_when(lambda status: status["replicas"] == 1)
            server.status_when(lambda status: status["replicas"] == 2)
        assert len(answers) > before and first not in server.replicas() and second in server.replicas()


def test_answers_do_not_need_the_learner(server: Server) -> None:
    with load(server) as answers:
        server.kill_learner()
        before = len(answers)
        time.sleep(0.3)
    assert len(answers) > before
    server.status_when(lambda status: status["learner"] == "running")


def test_a_request_whose_replicas_end_is_given_to_two_of_them(server: Server) -> None:
    """It may be what ended them. The HTTP process answers while there is no replica."""
    pids = server.replicas()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(2) as pool:
        requests = [pool.submit(server.upload, "/v1/predict", IMAGE) for _ in pids]  # one for each
        time.sleep(0.3)
        os.kill(pids[0], signal.SIGKILL)
        server.status_when(lambda status: status["replicas"] == 1)
        os.kill(pids[1], signal.SIGKILL)
        assert sorted(request.result()[0] for request in requests) == [200, 503]


def test_the_guard_is_before_the_replicas(server: Server) -> None:
    wrong = {"Authorization": "Bearer another token", "Content-Type": "multipart/form-data; boundary=x"}
    assert server.request("POST", "/v1/predict", b"", wrong)[0] == 401
    assert server.upload("/v1/predict", b"0" * 20_000_001)[0] == 413
    assert server.upload("/v1/predict", b"no image")[1]["error"]["message"].startswith("image 0: unreadable")


def test_weights_without_room_in_shared_memory_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "SHARED", Path("/dev/shm"))
    publication = Publication({}, b"weights")
    assert isinstance(publication.lend(), str)
    publication.give_back()
    monkeypatch.setattr(replicas, "has_room", lambda _: False)
    assert publication.lend() == b"weights"
    publication.give_back()
    assert publication.memory is None
