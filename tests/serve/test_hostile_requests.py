"""Requests that no friendly client sends."""

from pathlib import Path

import pytest
from serve_hostile import attack
from serving import Server, picture, png, small_model

pytest.importorskip("fastapi")


def test_hostile_requests_get_an_answer_below_500_and_the_service_goes_on(tmp_path: Path) -> None:
    model = small_model(tmp_path / "model")
    with Server(tmp_path / "state", "--model", model, "--body-seconds", 1) as server:
        statuses = attack(server.port, 160)
        assert {201, 400, 403, 404, 405, 409, 422} <= statuses.keys(), statuses
        assert server.teach(png(picture("red", 1)), "red")[0] == 201
        assert server.upload("/v1/predict", png(picture("red", 1)))[0] == 200
        assert server.learned()["learner"] == "running"
        assert server.end() == 130 and "Traceback" not in server.said
