"""The service as a real process, used over HTTP."""

import contextlib
import http.client
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import SOURCE
from forked import CommandLine
from PIL import Image
from serve_hostile import attack
from serving import COLOURS, SIZE, Program, Server, files_with, picture, pictures, png, small_model

import dualnet
from dualnet.cli import main
from dualnet.serve.app import STATIC
from dualnet.serve.errors import RequestError
from dualnet.serve.options import Options
from dualnet.serve.service import Service
from dualnet.serve.serving_model import ServingModel

pytest.importorskip("fastapi")

ONNX = "/v1/export?format=onnx"
QUICK = ("--save-seconds", 0.5, "--client-seconds", 1, "--share", 0.2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service taught two classes with ten images each, with frequent checkpoints."""
    with Server(tmp_path_factory.mktemp("serve") / "state", "--model", model, *QUICK) as server:
        teach_two(server)
        yield server
        assert server.end() == 130 and "Traceback" not in server.log


@pytest.mark.usefixtures("default_sigint")
def test_an_interrupt_while_the_learner_process_imports_is_one_line(tmp_path: Path) -> None:
    process = Program("serve", "--state", tmp_path / "state", "--port", 0)
    learner = ""
    while process.poll() is None and not learner:
        words = ["pgrep", "-P", str(process.pid), "-f", "spawn_main"]
        learner = subprocess.run(words, capture_output=True, text=True, check=False).stdout
        time.sleep(0.01)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    with process.output as output:
        assert output.read() == "dualnet: stopped\n"
    # Python ends itself by SIGINT if the interrupt came while an import executed a string, as dataclasses do
    assert process.wait() in (130, -signal.SIGINT)


def teach_two(server: Server) -> None:
    assert server.port, server.log
    for number in range(10):
        for colour in ("red", "green"):
            image = picture(colour, number if number < 9 else next(pictures(colour, 10, held_out=True)))
            status, content = server.teach(png(image), colour, id=f"{colour}-{number}")
            assert (status, content) == (201, [{"id": f"{colour}-{number}", "duplicate": False}])


def predicted(server: Server, colour: str, number: int = 1000) -> str:
    status, answer = server.upload("/v1/predict", png(picture(colour, number)))
    assert status == 200
    return answer["predictions"][0]["classes"][0]["name"]


def test_taught_classes_are_predicted_and_held_out_examples_are_evaluated(server: Server) -> None:
    server.learned()
    status = server.status_when(lambda status: all(row["held_out_accuracy"] == 100 for row in status["classes"]))
    assert {row["name"]: row["examples"] for row in status["classes"]} == {"red": 10, "green": 10}
    counts = [[row[key] for key in ("in_memory", "held_out", "tested", "waiting")] for row in status["classes"]]
    assert counts == [[9, 1, 1, 0], [9, 1, 1, 0]]
    stored = server.get("/v1/classes/1/examples?most=3")
    assert [example["id"] for example in stored] == ["red-9", "red-8", "red-7"]
    assert [(example["held_out"], example["waiting"]) for example in stored] == [(True, False), *[(False, False)] * 2]
    assert server.request("GET", "/v1/classes/9/examples")[0] == 404
    held_out = [id for id in (f"red-{n}" for n in range(10)) if server.get(f"/v1/examples/{id}")["held_out"]]
    assert held_out == ["red-9"]
    server.status_when(lambda _: predicted(server, "red") == "red" and predicted(server, "green") == "green")


def test_the_background_trains_and_publishes(server: Server) -> None:
    before = server.learned()
    steps, version = before["background"]["steps"], before["version"]
    after = server.status_when(lambda now: now["background"]["steps"] > steps + 2 and now["version"] != version)
    assert "slow" in after["losses"]
    server.send("POST", "/v1/background", {"paused": True})
    steps = server.status_when(lambda status: status["background"]["activity"] == "paused")["background"]["steps"]
    time.sleep(0.3)
    assert server.get("/v1/status")["background"]["steps"] == steps
    assert server.send("POST", "/v1/background", {"paused": False})[1]["activity"] == "learning"


def test_a_response_is_sent_without_delay(server: Server) -> None:
    """Nagle's algorithm would hold the body back until the client acknowledges the headers, for 40 ms."""
    connection, seconds = http.client.HTTPConnection("127.0.0.1", server.port), []
    for _ in range(40):  # at first a connection acknowledges everything at once
        began = time.monotonic()
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        seconds.append(time.monotonic() - began)
    connection.close()
    assert min(seconds[20:]) < 0.03


def test_all_that_is_stored_is_readable_by_its_owner_only(server: Server) -> None:
    assert server.send("POST", "/v1/snapshots")[0] == 201
    modes = {path: path.stat().st_mode & 0o077 for path in (server.state, *server.state.rglob("*"))}
    assert len(modes) > 5 and not any(modes.values()), modes


def test_predictions_are_in_the_order_of_the_images(server: Server) -> None:
    server.learned()  # until then the weights change from one request to the next
    images = [png(picture(colour, 77)) for colour in ("red", "green", "red")]
    status, answer = server.upload("/v1/predict?top=1", *images)
    singles = [server.upload("/v1/predict?top=1", image)[1]["predictions"][0]["classes"][0]["name"] for image in images]
    assert status == 200 and [prediction["classes"][0]["name"] for prediction in answer["predictions"]] == singles
    assert all(len(prediction["classes"]) == 1 for prediction in answer["predictions"])


def test_an_image_that_is_taught_is_sent_once_and_predicted_before_and_after(server: Server) -> None:
    image = png(picture("blue", 600))
    server.learned()
    server.send("POST", "/v1/background", {"paused": True})
    before = server.upload("/v1/predict?top=2", image)[1]["predictions"][0]
    status, [added] = server.upload("/v1/examples?top=2", image, id="once")
    assert (status, added) == (201, {"id": "once", "duplicate": False, "prediction": before})
    after = server.get("/v1/predictions?id=once&id=unknown&id=once&top=1")["predictions"]
    first = {**before, "classes": before["classes"][:1]}
    assert after == [first, {"classes": [], "unknown": False}, first]
    server.send("POST", "/v1/background", {"paused": False})
    assert server.request("GET", "/v1/predictions?id=a%2fb")[0] == server.request("GET", "/v1/predictions")[0] == 422
    assert server.request("GET", "/v1/predictions?" + "&".join(["id=once"] * 51))[0] == 413


def test_an_id_is_stored_once_however_often_it_is_sent(server: Server) -> None:
    before = server.get("/v1/status")["examples"]
    assert server.teach(png(picture("red", 0)), "red", id="red-0") == (201, [{"id": "red-0", "duplicate": True}])
    assert server.teach(png(picture("red", 5)), "red", id="red-0")[0] == 409
    assert server.teach(png(picture("red", 0)), "green", id="red-0")[0] == 409
    assert server.get("/v1/status")["examples"] == before


def test_a_class_must_exist_or_be_created_explicitly(server: Server) -> None:
    status, wrong = server.upload("/v1/examples", png(picture("blue", 0)), label="orange")
    assert status == 409 and "orange" in wrong["error"]["message"]
    assert server.send("POST", "/v1/classes", {"classes": ["red"]})[0] == 409
    assert "orange" not in [row["name"] for row in server.get("/v1/classes")]


def test_a_class_is_renamed_and_the_export_has_its_name(server: Server, tmp_path: Path) -> None:
    before = server.learned()["classes"]
    numbers = {row["name"]: row["number"] for row in before}
    path = f"/v1/classes/{numbers['green']}/name"
    status, now = server.send("PUT", path, {"name": "grün"})
    assert status == 200 and [row["name"] for row in now] == ["grün" if n == "green" else n for n in numbers]
    assert [row["in_memory"] for row in now] == [row["in_memory"] for row in before]
    assert server.get("/v1/examples/green-0")["label"] == "grün"
    server.status_when(lambda _: predicted(server, "green") == "grün")
    with zipfile.ZipFile(io.BytesIO(server.get("/v1/export"))) as archive:
        archive.extractall(tmp_path)
    assert "grün" in dualnet.load(tmp_path / "model").class_names
    for name, expected in (("red", 409), ("", 422), (" a", 422), ("a\nb", 422), (1, 422), ("x" * 101, 422)):
        status, wrong = server.send("PUT", path, {"name": name})
        assert status == expected and "\n" not in wrong["error"]["message"]
    assert server.send("PUT", "/v1/classes/999/name", {"name": "new"})[0] == 404
    assert server.upload("/v1/examples", png(picture("green", 0)), label="green")[0] == 409
    assert server.send("PUT", path, {"name": "green"})[0] == 200
    assert server.send("PUT", path, {"name": "green"})[0] == 200, "again changes nothing"


def test_a_late_label_is_learned_and_a_correction_replaces_it_in_the_memory(server: Server) -> None:
    assert server.teach(png(picture("blue", 2)), id="late")[0] == 201
    memory = {example["id"]: example["label"] for example in server.get("/v1/memory")}
    assert "late" not in memory and server.get("/v1/examples/late")["label"] is None
    assert server.send("PUT", "/v1/examples/late/label", {"label": "red"})[0] == 200
    server.learned()
    assert {"id": "late", "label": "red"} in server.get("/v1/memory")
    in_memory = {row["name"]: row["in_memory"] for row in server.get("/v1/classes")}
    assert server.send("PUT", "/v1/examples/late/label", {"label": "green"})[0] == 200
    server.learned()
    now = {row["name"]: row["in_memory"] for row in server.get("/v1/classes")}
    assert (now["red"], now["green"]) == (in_memory["red"] - 1, in_memory["green"] + 1)
    assert server.send("PUT", "/v1/examples/missing/label", {"label": "red"})[0] == 404


def test_a_deleted_example_leaves_journal_memory_and_checkpoints(server: Server) -> None:
    pixels = bytes([137]) * SIZE * SIZE  # found again in a file
    server.teach(png(np.full((SIZE, SIZE, 3), 137, np.uint8)), "red", id="secret")
    server.learned()
    assert files_with(server.state, pixels)
    in_memory = server.get("/v1/classes")[0]["in_memory"]
    assert server.request("DELETE", "/v1/examples/secret")[0] == 204
    assert server.request("GET", "/v1/examples/secret")[0] == 410
    assert server.request("DELETE", "/v1/examples/secret")[0] == 410
    server.learned()
    assert server.get("/v1/classes")[0]["in_memory"] == in_memory - 1
    server.status_when(lambda _: files_with(server.state, pixels) == [])


def test_a_removed_class_is_gone_with_its_images(server: Server) -> None:
    pixels = bytes([139]) * SIZE * SIZE
    before = server.learned()["classes"]
    server.teach(png(np.full((SIZE, SIZE, 3), 139, np.uint8)), "mistake", id="mistake")
    server.learned()
    number = server.get("/v1/classes")[-1]["number"]
    assert files_with(server.state, pixels)
    assert server.request("DELETE", f"/v1/classes/{number}") == (204, b"")
    assert [row["name"] for row in server.get("/v1/classes")] == [row["name"] for row in before]
    _, answer = server.upload("/v1/predict", png(np.full((SIZE, SIZE, 3), 139, np.uint8)))
    assert "mistake" not in [row["name"] for row in answer["predictions"][0]["classes"]]
    assert server.request("GET", "/v1/examples/mistake")[0] == 410
    assert server.request("DELETE", f"/v1/classes/{number}")[0] == 404
    assert server.upload("/v1/examples", png(picture("red", 0)), label="mistake")[0] == 409
    server.learned()
    assert [row["in_memory"] for row in server.get("/v1/classes")] == [row["in_memory"] for row in before]
    server.status_when(lambda _: files_with(server.state, pixels) == [])


def test_images_are_rotated_by_their_exif_orientation_and_other_metadata_is_dropped(server: Server) -> None:
    upright = picture("red", 3, (40, 60))
    tags = Image.Exif()
    tags[0x0112], tags[0x010E] = 6, "a secret description"  # turned by 90 degrees
    turned = np.rot90(upright)
    server.upload("/v1/examples", png(np.ascontiguousarray(turned), "PNG", exif=tags), id="turned")
    server.upload("/v1/examples", png(upright), id="upright")
    turned, upright = (server.get(f"/v1/examples/{id}/image") for id in ("turned", "upright"))
    assert turned == upright and Image.open(io.BytesIO(turned)).size == (SIZE, SIZE)
    assert files_with(server.state, b"a secret description") == []


def test_restoring_a_snapshot_keeps_the_classes_added_since(server: Server) -> None:
    status, made = server.send("POST", "/v1/snapshots", {"title": "two classes"})
    assert status == 201 and made in server.get("/v1/snapshots")
    for number in range(3):
        server.teach(png(picture("blue", 50 + number)), "blue", id=f"blue-{number}")
    server.learned()
    memory = {example["id"] for example in server.get("/v1/memory")}
    assert {"blue-0", "blue-1", "blue-2"} <= memory
    assert server.request("DELETE", "/v1/examples/red-1")[0] == 204
    status, now = server.send("POST", f"/v1/snapshots/{made['number']}/restore")
    assert status == 200 and [row["name"] for row in now["classes"]] == ["red", "green", "blue"]
    assert {example["id"] for example in server.get("/v1/memory")} == memory - {"blue-0", "blue-1", "blue-2", "red-1"}
    assert server.send("POST", "/v1/snapshots/99/restore")[0] == 404
    assert server.request("DELETE", f"/v1/snapshots/{made['number']}")[0] == 204
    assert made not in server.get("/v1/snapshots")


def test_the_exported_model_gives_the_same_predictions(server: Server, tmp_path: Path) -> None:
    server.send("POST", "/v1/background", {"paused": True})
    image = picture("green", 555)
    with zipfile.ZipFile(io.BytesIO(server.get("/v1/export"))) as archive:
        archive.extractall(tmp_path)
    expected = dualnet.load(tmp_path / "model").predict(image)[0]
    classes = server.upload("/v1/predict", png(image))[1]["predictions"][0]["classes"]
    assert [row["name"] for row in classes] == list(expected.classes)
    torch.testing.assert_close([row["probability"] for row in classes], list(expected.probabilities))
    server.send("POST", "/v1/background", {"paused": False})
    assert not list(server.state.glob("export-*"))


@contextlib.contextmanager
def exporting(server: Server) -> Iterator[Future[tuple[int, Any]]]:
    """Runs the block during an ONNX export; gives the future response to the export."""
    with ThreadPoolExecutor() as pool:
        response = pool.submit(server.request, "GET", ONNX)
        server.status_when(lambda _: exporters(server.state) or response.done())
        yield response


def exporters(state: Path) -> list[str]:
    """The processes that export a model of the state folder."""
    files = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            files += [file.parent.name] if f"\0export\0{state}/export-".encode() in file.read_bytes() else []
    return files


def test_the_onnx_export_gives_the_same_predictions(server: Server, tmp_path: Path) -> None:
    """Also by the code that the page gives."""
    runtime = pytest.importorskip("onnxruntime")
    server.send("POST", "/v1/background", {"paused": True})
    with exporting(server) as first:
        priorities = {os.getpriority(os.PRIO_PROCESS, int(pid)) for pid in exporters(server.state)}
        assert priorities == {os.getpriority(os.PRIO_PROCESS, 0)}, "otherwise it starves beside the background"
        status, wrong = server.request("GET", ONNX)
        assert (status, wrong["error"]["code"]) == (429, "busy")
    status, content = first.result()
    assert status == 200
    server.status_when(lambda _: not list(server.state.glob("export-*")))
    session = runtime.InferenceSession(content)
    image = picture("green", 555)
    probabilities = session.run(None, {"images": image.transpose(2, 0, 1)[None]})[0][0].tolist()
    names = json.loads(session.get_modelmeta().custom_metadata_map["class_names"])
    predicted = {
        row["name"]: row["probability"]
        for row in server.upload("/v1/predict", png(image))[1]["predictions"][0]["classes"]
    }
    torch.testing.assert_close(dict(zip(names, probabilities, strict=True)), predicted, atol=1e-5, rtol=0)
    server.send("POST", "/v1/background", {"paused": False})
    (tmp_path / "model.onnx").write_bytes(content)
    Image.fromarray(image).save(tmp_path / "photo.jpg", "PNG")  # JPEG would change the pixels
    code = (STATIC / "use.js").read_text().partition('"ONNX"')[2].split("`")[1]
    output = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    name, probability = output.stdout.split()
    best = max(probabilities)
    assert (name, float(probability)) == (names[probabilities.index(best)], pytest.approx(best, abs=1e-5))


def test_events_start_with_past_ones_and_continue(server: Server) -> None:
    number = server.send("POST", "/v1/snapshots")[1]["number"]
    assert server.send("POST", f"/v1/snapshots/{number}/restore")[0] == 200  # which is a notice
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as link:
        link.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        reader = link.makefile("rb")
        kinds, numbers = set(), []
        while (kinds != {"status", "notice"} or len(numbers) < 5) and len(numbers) < 1000:
            line = reader.readline().decode().strip()
            kinds |= {line.removeprefix("event: ")} if line.startswith("event: ") else set()
            numbers += [int(line.removeprefix("id: "))] if line.startswith("id: ") else []
            if line.startswith("data: "):
                content = json.loads(line.removeprefix("data: "))
        assert kinds == {"status", "notice"}
        assert numbers == sorted(set(numbers)) and content["time"] > 0


def test_metrics_and_openapi(server: Server) -> None:
    assert server.request("GET", "/nothing")[0] == 404
    predicted(server, "red")
    server.learned()
    lines = server.get("/metrics").decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values["dualnet_examples"]) == server.get("/v1/status")["examples"]
    assert float(values['dualnet_requests_total{status="404"}']) >= 1 and values["dualnet_learner_up"] == "1.0"
    for name in ("predict", "learn"):
        assert float(values[f'dualnet_{name}_seconds_bucket{{le="5.0"}}']) > 0
        assert 0 < float(values[f"dualnet_{name}_seconds_sum"]) < 10 * float(values[f"dualnet_{name}_seconds_count"])
    assert "/v1/examples/{id}/label" in server.get("/openapi.json")["paths"]


def test_the_learner_is_restarted_if_its_process_ends_and_predictions_continue(server: Server) -> None:
    before = server.learned()["version"]
    server.kill_learner()
    assert server.upload("/v1/predict", png(picture("red", 1)))[0] == 200
    server.teach(png(picture("green", 201)), "green", id="after")
    after = server.status_when(lambda status: status["version"].partition(".")[0] != before.partition(".")[0])
    assert after["learner"] == "running"
    server.learned()
    assert {"id": "after", "label": "green"} in server.get("/v1/memory")


def test_a_stop_ends_an_export_and_a_restart_recovers_everything(server: Server) -> None:
    before = server.learned()
    with exporting(server) as export:
        began = time.monotonic()
        assert server.end() == 130 and "Traceback" not in server.log
        assert time.monotonic() - began < 3, "a stop does not wait for the export, which takes longer"
        assert exporters(server.state) == []
    assert export.result()[0] == 503 and not list(server.state.glob("export-*"))
    again = Server(server.state, *QUICK)
    server.process, server.port = again.process, again.port
    after = server.learned()
    for key in ("examples", "unlabelled"):
        assert after[key] == before[key]
    kept = ("name", "examples", "in_memory")
    assert [[row[key] for key in kept] for row in after["classes"]] == [
        [row[key] for key in kept] for row in before["classes"]
    ]
    server.status_when(lambda _: predicted(server, "red") == "red")


def test_an_export_imports_nothing_from_the_working_directory(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dualnet.serve.onnx import export_onnx

    (tmp_path / "yaml.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    with pytest.raises(RequestError, match="no class"):
        export_onnx(Service(Options(tmp_path / "state")), model)


def test_a_learner_whose_messages_cannot_be_handled_is_killed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing that it learns would be published."""
    service = Service(Options(tmp_path / "state", model=model))
    monkeypatch.setattr(ServingModel, "update", lambda *_: 1 // 0)
    with pytest.raises(ValueError, match=f"exit code -{signal.SIGKILL:d}"):
        service.start()
    assert not service.process.is_alive() and "ZeroDivisionError" in capsys.readouterr().err
    service.stop()
    service.journal.database.close()


def test_a_state_folder_is_used_by_one_service(server: Server) -> None:
    second = Server(server.state)
    assert second.code() == 2 and str(server.state) in second.log


@pytest.mark.parametrize(("kilobytes", "file"), [(4, "journal.sqlite"), (200, "model")])
def test_a_first_start_without_space_fails_with_the_file_and_the_reason(
    tmp_path: Path, kilobytes: int, file: str
) -> None:
    """A limit on the size of files stands for a full disk."""
    words = ("serve", "--port", 0, "--state", tmp_path / "state")
    code, error = CommandLine(*words, file_bytes=1024 * kilobytes).rest()
    assert code == 1 and error.count("\n") == 1, error
    assert f"dualnet: {tmp_path / 'state' / file}" in error


# Errors and access control


@pytest.mark.parametrize("image", [b"", b"no image", png(picture("red", 0))[:60]], ids=["empty", "text", "cut off"])
def test_data_that_is_not_an_image_is_rejected(server: Server, image: bytes) -> None:
    before = server.get("/v1/status")["examples"]
    for path in ("/v1/predict", "/v1/examples"):
        status, wrong = server.upload(path, image)
        assert (status, wrong["error"]["code"]) == (400, "bad_request")
    assert server.get("/v1/status")["examples"] == before


def test_an_image_with_too_many_pixels_is_reported_as_such(server: Server) -> None:
    status, wrong = server.upload("/v1/predict", png(np.zeros((15000, 13000), bool)))
    assert status == 400 and "megapixels" in wrong["error"]["message"]


def test_an_invalid_value_is_reported_by_field_and_reason(server: Server) -> None:
    def message(response: tuple[int, Any]) -> str:
        assert response[0] == 422 and response[1]["error"]["code"] == "invalid"
        return response[1]["error"]["message"]

    image, name_rule = png(picture("red", 1)), "use printable characters, without spaces at the start or end"
    for name in (" red", " ", "re\nd"):
        assert message(server.teach(image, name)) == f"label.0: {name_rule}"
    assert message(server.send("POST", "/v1/classes", {"classes": ["a", "b "]})) == f"classes.1: {name_rule}"
    assert message(server.upload("/v1/predict", image="text")) == "image.0: send it as a file"
    body = b'{"classes": ["a"]}'
    for wrong in ({}, {"Content-Type": "application/x-www-form-urlencoded"}):  # the latter is sent by curl -d
        assert "Content-Type: application/json" in message(server.request("POST", "/v1/classes", body, wrong))
    kind = {"Content-Type": "application/json"}
    assert "not valid JSON" in message(server.request("POST", "/v1/classes", b'{"classes"', kind))
    assert message(server.send("POST", "/v1/classes", {"classes": ["a"], "a b": 1})) == "Extra inputs are not permitted"
    assert message(server.request("POST", "/v1/predict")).startswith("image: ")


def test_writes_from_another_origin_and_requests_to_another_host_are_rejected(server: Server) -> None:
    own, other = f"http://127.0.0.1:{server.port}", "http://example.org"
    body = json.dumps({"paused": False}).encode()
    for origin, expected in ((own, 200), (other, 403), ("null", 403)):
        headers = {"Content-Type": "application/json", "Origin": origin}
        assert server.request("POST", "/v1/background", body, headers)[0] == expected
    for host, expected in ((f"localhost:{server.port}", 200), ("example.org", 403), ("", 403), ("[", 403)):
        assert server.request("GET", "/v1/status", headers={"Host": host})[0] == expected


@pytest.mark.parametrize("path", ["/", "/static/page.js", "/v1/status", "/nothing"])
def test_every_response_has_the_security_headers(server: Server, path: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", path)
        headers = connection.getresponse().headers
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")
    assert "default-src 'none'" in headers["Content-Security-Policy"]


def test_teach_sends_a_folder_once_and_continues_after_an_unreadable_file(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for colour in ("red", "blue"):
        (tmp_path / "labelled" / colour).mkdir(parents=True)
        for number in range(2):
            (tmp_path / "labelled" / colour / f"{number}.png").write_bytes(png(picture(colour, 400 + number)))
    (tmp_path / "labelled" / "red" / "broken.png").write_bytes(b"no image")
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "1.png").write_bytes(png(picture("green", 400)))
    before = server.get("/v1/status")
    url = ["--url", f"http://127.0.0.1:{server.port}"]
    for expected in ([4, 0, 0, 1], [0, 4, 0, 1], [0, 3, 1, 1]):  # taught, already stored, deleted, rejected
        if expected[2]:
            data = (tmp_path / "labelled" / "red" / "0.png").read_bytes()
            id = blake2b(b"red\0" + data, digest_size=16).hexdigest()
            assert server.request("DELETE", f"/v1/examples/{id}")[0] == 204
        assert main(["teach", str(tmp_path / "labelled"), *url]) == 1
        captured = capsys.readouterr()
        assert [int(word) for word in re.findall(r"\d+", captured.out)] == expected and "broken.png" in captured.err
    assert main(["teach", str(tmp_path / "plain"), "--unlabelled", *url]) == 0
    after = server.get("/v1/status")
    assert (after["examples"], after["unlabelled"]) == (before["examples"] + 4, before["unlabelled"] + 1)
    assert main(["teach", str(tmp_path / "plain"), "--unlabelled", "--url", "nowhere"]) == 2


def test_hostile_requests_get_a_status_below_500_and_the_service_continues(server: Server) -> None:
    statuses = attack(server.port, 160)
    assert {201, 400, 403, 404, 405, 409, 422} <= statuses.keys(), statuses
    assert server.teach(png(picture("red", 300)), "red")[0] == 201
    assert server.upload("/v1/predict", png(picture("red", 1)))[0] == 200
    assert server.learned()["learner"] == "running"


def test_suggested_images_have_no_label_and_the_learner_chooses_them(server: Server, tmp_path: Path) -> None:
    assert (
        server.request("GET", "/v1/suggestions?count=0")[0]
        == server.request("GET", "/v1/suggestions?count=101")[0]
        == 422
    )
    status, answer = server.request("GET", "/v1/suggestions")
    assert status == 409 and "closed-form head" in answer["error"]["message"], "its encoder is trained"
    learner = {"name": "dualnet", "preset": "lda", "encoder": {"width": 4, "weights": None}}
    dualnet.Model.create(image_size=SIZE, learner=learner).save(tmp_path / "model")
    with Server(tmp_path / "state", "--model", tmp_path / "model", "--held-out-every", 0) as suggesting:
        status, answer = suggesting.request("GET", "/v1/suggestions")
        assert status == 409 and "label a few" in answer["error"]["message"]
        for colour in ("red", "green"):
            for number in range(3):
                suggesting.teach(png(picture(colour, number)), colour)
            suggesting.learned()
        assert suggesting.get("/v1/suggestions") == []
        for number in range(20):
            suggesting.teach(png(picture("green", 100 + number)), id=f"green-{number}")
        suggesting.teach(png(picture("blue", 0)), id="blue")
        suggested = suggesting.get("/v1/suggestions?count=3")
        assert suggested[0] == "blue" and len(set(suggested)) == 3
        assert len(suggesting.get("/v1/suggestions")) == 20 and len(suggesting.get("/v1/suggestions?count=100")) == 21
        suggesting.send("PUT", "/v1/examples/blue/label", {"label": "blue", "new_class": True})
        assert "blue" not in suggesting.get("/v1/suggestions?count=100")


def test_another_host_requires_a_token(tmp_path: Path) -> None:
    refused = Server(tmp_path / "state", "--host", "0.0.0.0")
    assert refused.code() == 2 and "--token-file" in refused.log and not (tmp_path / "state").exists()


def test_a_diverging_step_is_rolled_back_and_the_service_continues(tmp_path: Path) -> None:
    """With a token, limits and a rate that makes the first step diverge."""
    model, token = small_model(tmp_path / "model", lr=1e30), tmp_path / "token"
    token.write_text("a token of some length\n")
    limits = ("--most-requests", 1, "--most-images", 2, "--most-bytes", 20000)
    words = ("--model", model, "--token-file", token, *limits, "--most-classes", 2, "--client-seconds", 2)
    with Server(tmp_path / "state", *words, as_program=True) as server:
        assert server.get("/healthz") == {"answering": True, "learning": True}
        for wrong in (None, "a token of some lengtH", "é", "a"):
            headers = {} if wrong is None else {"Authorization": f"Bearer {wrong}".encode().decode("latin-1")}
            for path in ("/v1/status", "/v1/suggestions", "/metrics"):
                status, error = server.request("GET", path, headers=headers)
                assert (status, error["error"]["code"]) == (401, "token")
        server.token = "a token of some length"
        image = png(picture("red", 1))
        assert server.upload("/v1/predict", image, image, image)[1]["error"]["code"] == "too_large"
        assert server.upload("/v1/predict", bytes(30000))[0] == 413
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as slow:
            lines = ["POST /v1/predict HTTP/1.1", "Host: localhost", f"Authorization: Bearer {server.token}"]
            slow.sendall("\r\n".join([*lines, "Content-Length: 9", "", "x"]).encode())
            time.sleep(0.1)
            assert server.request("GET", "/v1/status")[0] == 200, "a slow body is no reason for others to wait"
            assert slow.recv(100).startswith(b"HTTP/1.1 408")
        for number, colour in enumerate(COLOURS):
            assert server.teach(png(picture(colour, number)), colour)[0] == (201 if number < 2 else 409)
        status = server.status_when(lambda status: status["rolled_back"] > 0 and status["waiting"] == 0)
        assert sum(row["in_memory"] for row in status["classes"]) == 2
        assert server.upload("/v1/predict", image)[0] == 200
        assert server.end() == 130
