"""`dualnet replica`: follows a service over HTTP and predicts as it does, all real processes."""

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from serve_kills import new_model
from serving import COLOURS, LIVE, SIZE, SMALL, Elsewhere, Server, picture, png

pytest.importorskip("fastapi")

from dualnet.experiments import checkpoint
from dualnet.models.model import Model
from dualnet.serve import state_folder
from dualnet.serve.options import Options
from dualnet.serve.published_model import Source, tag_of, unpack
from dualnet.serve.serving_model import ServingModel, publication
from dualnet.serve.worker import CALIBRATE_SECONDS

IMAGE = png(picture("red", 1000))
TOKEN = "a token of a service"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("follower")
    new_model({"slots": 100}).save(folder / "model")
    for name in ("token", "wrong"):
        (folder / name).write_text(f"{TOKEN}{'' if name == 'token' else ' of another'}")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with serve(folder) as server:
        for number in range(4):
            for colour in ("red", "green"):
                assert server.teach(png(picture(colour, number)), colour)[0] == 201
        server.learned()
        yield server


@pytest.fixture(scope="module")
def replica(server: Server, folder: Path) -> Iterator[Elsewhere]:
    with Elsewhere(server, "--token-file", folder / "token") as replica:
        yield replica
        assert replica.end() == 130 and "Traceback" not in replica.log


def serve(folder: Path, *words: object) -> Server:
    server = Server(folder / "state", "--model", folder / "model", "--token-file", folder / "token", *words)
    server.token = TOKEN
    return server


def answer(server: Server) -> dict[str, Any]:
    status, content = server.upload("/v1/predict", IMAGE, png(picture("green", 7)))
    assert status == 200, content
    return content


def wait(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_replica_answers_as_the_service_and_follows_it(server: Server, replica: Elsewhere) -> None:
    wait(lambda: answer(replica) == answer(server))
    before = answer(replica)
    server.teach(png(picture("blue", 1)), "blue")
    server.learned()
    wait(lambda: answer(replica) == answer(server))
    assert answer(replica)["version"] != before["version"]
    assert len(answer(replica)["predictions"][0]["classes"]) == 3
    [row] = [row for row in server.get("/v1/classes") if row["name"] == "blue"]
    assert server.send("PUT", f"/v1/classes/{row['number']}/name", {"name": "azure"})[0] == 200
    wait(lambda: "azure" in str(answer(replica)))
    assert replica.get("/healthz") == {"answering": True, "following": True, "stale_seconds": pytest.approx(0, abs=2)}


def test_the_model_is_sent_when_it_has_changed_and_without_images(server: Server) -> None:
    time.sleep(2 * CALIBRATE_SECONDS)  # after which nothing is published
    status, content = server.request("GET", "/v1/model")
    pixels = [picture(colour, number).transpose(2, 0, 1).tobytes() for colour in COLOURS for number in range(4)]
    assert status == 200 and not any(part[:200] in content for part in pixels)
    tree, _ = checkpoint.decode(content)
    assert "examples" not in tree and len(tree["frozen"]) > 0
    tag = tag_of(tree, tree["names"])
    assert server.request("GET", "/v1/model", headers={"If-None-Match": tag}) == (304, b"")
    assert len(server.request("GET", f"/v1/model?frozen={tree['digest']}")[1]) < len(content)


def test_a_replica_only_predicts_and_needs_the_token(replica: Elsewhere, server: Server) -> None:
    for method, path in (("POST", "/v1/examples"), ("GET", "/v1/predict"), ("GET", "/"), ("DELETE", "/v1/classes/1")):
        status, content = replica.request(method, path)
        assert status == 404 and "a replica has POST /v1/predict" in content["error"]["message"]
    assert replica.upload("/v1/predict", b"no image")[0] == 400
    assert replica.upload("/v1/predict", b"0" * 20_000_001)[0] == 413
    replica.token = None
    assert replica.upload("/v1/predict", IMAGE)[0] == 401
    assert replica.request("GET", "/healthz")[0] == 200
    replica.token = TOKEN


def test_a_wrong_token_is_refused_at_the_start(server: Server, folder: Path) -> None:
    for words in ((), ("--token-file", folder / "wrong")):
        refused = Elsewhere(server, *words)
        assert refused.code() == 2 and refused.log.count("\n") == 1
        assert "the token is missing or wrong (status 401)" in refused.log


def test_answers_continue_without_the_service_and_a_later_one_is_followed(
    server: Server, replica: Elsewhere, folder: Path
) -> None:
    wait(lambda: answer(replica) == answer(server))
    before = answer(replica)
    server.end(signal.SIGKILL)
    wait(lambda: not replica.get("/healthz")["following"])
    assert answer(replica) == before
    with Elsewhere(server, "--token-file", folder / "token") as early:  # begins without a service
        status, content = early.request("GET", "/healthz")
        assert (status, content) == (503, {"answering": False, "following": False, "stale_seconds": None})
        assert early.upload("/v1/predict", IMAGE)[0] == 503
        with serve(folder, "--port", server.port) as again:
            again.learned()
            for each in (replica, early):
                wait(lambda each=each: each.request("GET", "/healthz")[1]["following"])
                wait(lambda each=each: answer(each) == answer(again))
            assert answer(replica)["version"] != before["version"]
            assert answer(replica)["predictions"][0]["classes"][0]["name"] == "red"


@pytest.mark.parametrize("kind", ["closed form", "live"])
def test_a_copy_has_the_same_bits(kind: str, tmp_path: Path) -> None:
    options = Options(tmp_path, device="cpu")
    live = Model.create(["1", "2"], image_size=SIZE, learner={**LIVE, **SMALL})
    model = live if kind == "live" else new_model({"slots": 10})
    images = [picture(colour, number) for number in range(3) for colour in ("red", "green")]
    model.learn(images, ["1", "2"] * 3, add_classes=kind != "live")
    model.calibrate()
    model.save(tmp_path / state_folder.MODEL)
    serving, weights = ServingModel(options), publication(model).numpy().tobytes()
    status = {"version": "1.1", "classes": list(model.class_names)}
    serving.update(status, weights)
    packed = Source(serving.model).pack(status, weights, {1: "red", 2: "green"}, "")
    published = unpack(packed, "a service")
    copy = published.make(options)
    copy.update(published.status, published.weights)
    pixels = torch.from_numpy(picture("red", 9)).permute(2, 0, 1)[None].contiguous()
    assert copy.predict(pixels, 5)[1] == serving.predict(pixels, 5)[1]
    assert published.status == {**status, "names": {1: "red", 2: "green"}}
    again = unpack(Source(serving.model).pack(status, weights, {}, published.digest), "a service")
    assert again.frozen is None and again.digest == published.digest
    damaged = bytearray(packed)
    damaged[-9] ^= 1
    with pytest.raises(ValueError, match="digest"):
        unpack(bytes(damaged), "a service")
    if kind != "live":
        with pytest.raises(ValueError, match="frozen weights"):
            replace(published, frozen={}).make(options)


def test_code_from_outside_is_not_imported() -> None:
    learner = {"options": {"name": "os.path"}}
    tree = {"learner": learner, "digest": "", "frozen": {}, "version": "1", "classes": [], "names": {}}
    content, _ = checkpoint.encode(checkpoint.snapshot({**tree, "weights": torch.zeros(1)}))
    with pytest.raises(ValueError, match="code from outside"):
        unpack(content, "a service")
