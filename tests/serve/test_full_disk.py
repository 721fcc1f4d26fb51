"""The disk is full while the service runs: nothing acknowledged is lost, and it recovers when there is space again."""

from pathlib import Path

import numpy as np
import pytest
from serving import Server, picture, png, small_model

from dualnet.serve.options import Options
from dualnet.serve.service import Service
from dualnet.serve.state_folder import LAST_FILE, SNAPSHOTS

pytest.importorskip("fastapi")


def test_writes_are_refused_predictions_continue_and_everything_recovers(tmp_path: Path) -> None:
    options = ("--model", small_model(tmp_path / "model"), "--save-seconds", 0.3, "--share", 0.2)
    noise = np.random.default_rng(0).integers(0, 256, (700, 700, 3), np.uint8)  # 1.5 MB: Starlette would use a file
    with Server(tmp_path / "state", *options) as server:
        for number in range(4):
            for colour in ("red", "green"):
                assert server.teach(png(picture(colour, number)), colour, id=f"{colour}-{number}")[0] == 201
        assert server.send("POST", "/v1/snapshots")[1]["number"] == 1
        before = server.learned()
        server.fill_disk(True)
        for status, content in (
            server.teach(png(picture("red", 9)), "red", id="new"),
            server.send("PUT", "/v1/examples/red-0/label", {"label": "green"}),
            server.request("DELETE", "/v1/examples/red-1"),
            server.send("POST", "/v1/classes", {"classes": ["third"]}),
            server.send("POST", "/v1/background", {"paused": True}),
            server.send("POST", "/v1/snapshots"),
            server.send("POST", "/v1/snapshots/1/restore"),
            server.request("GET", "/v1/export"),
        ):
            assert status == 507 and "nothing was stored" in content["error"]["message"], content
        assert server.upload("/v1/predict", png(noise))[0] == 200
        server.kill_learner()
        during = server.get("/v1/status")
        assert during["examples"] == before["examples"] and during["background"]["activity"] != "paused"
        server.fill_disk(False)
        assert server.teach(png(picture("red", 9)), "red", id="new")[0] == 201
        assert server.send("POST", "/v1/snapshots/1/restore")[0] == 200
        assert server.teach(png(picture("green", 9)), "green", id="newer")[0] == 201
        server.learned()
        server.fill_disk(True)
        assert server.end() == 130 and "Traceback" not in server.log
    with Server(tmp_path / "state", *options) as server:
        stored = {example["id"]: example["label"] for example in server.get("/v1/memory")}
        assert server.learned()["examples"] == before["examples"] + 2
        assert stored == {**{f"{name}-{n}": name for name in ("red", "green") for n in range(4)}, "newer": "green"}
        assert sorted(path.name for path in (server.state / SNAPSHOTS).iterdir()) == ["1", LAST_FILE]


def test_an_onnx_export_without_space_is_an_error_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dualnet.serve.onnx import export_onnx

    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'dualnet: model.onnx: No space left on device' >&2; exit 1")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    service = Service(Options(tmp_path / "state"))
    with pytest.raises(OSError, match=r"^model.onnx: No space left"):
        export_onnx(service, tmp_path / "model")
    service.journal.database.close()
