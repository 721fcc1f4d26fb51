"""`dualnet export`: what onnxruntime answers is what the model answers."""

import importlib.util
import json
import logging
from pathlib import Path

import pytest
import torch

import dualnet
from dualnet import Model, StreamSpec
from dualnet.cli import main
from dualnet.learners.shared_options import EncoderOptions
from dualnet.models.onnx import export

onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `dev` is not installed")
TASKS = torch.tensor([[True, True, False], [False, False, True]])


def test_onnx_of_a_model_with_tasks_and_averaged_weights_and_a_class_that_came_later(tmp_path: Path) -> None:
    spec = StreamSpec((3, 28, 28), TASKS, input_size=32)  # resized and normalised inside
    learner = dualnet.make_learner("er", spec, dualnet.ER.Config(EncoderOptions(width=4), ema_rate=0.1), seed=1)
    model = Model(learner, ["a", "b", "c"])
    images = torch.randint(0, 256, (20, 3, 28, 28), dtype=torch.uint8)
    model.learn(images, ["a", "b"] * 10)
    model.add_classes(["d"], task=0)
    model.save(tmp_path / "model")
    assert main(["export", str(tmp_path / "model"), str(tmp_path / "new" / "it.onnx"), "--task", "0"]) == 0
    session = onnxruntime.InferenceSession(tmp_path / "new" / "it.onnx")
    assert json.loads(session.get_modelmeta().custom_metadata_map["class_names"]) == ["a", "b", "c", "d"]
    for count in (1, 20):
        probabilities = torch.from_numpy(session.run(["probabilities"], {"images": images[:count].numpy()})[0])
        torch.testing.assert_close(probabilities, model.probabilities(images[:count], 0), atol=1e-5, rtol=0)
    assert model.probabilities(images).isfinite().all()  # the trace left nothing behind


def test_a_task_aware_model_without_a_task_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dualnet.cli.export.export", lambda *_: None)
    learner = dualnet.make_learner(
        "er", StreamSpec((3, 28, 28), TASKS), dualnet.ER.Config(EncoderOptions(width=4)), seed=0
    )
    Model(learner, ["a", "b", "c"]).save(tmp_path / "model")
    words = ["export", str(tmp_path / "model"), str(tmp_path / "it.onnx")]
    assert main(words) == 0
    said = capsys.readouterr().err
    assert said.startswith("dualnet: warning: ") and "--task (0 to 1)" in said and said.count("\n") == 1
    assert main([*words, "--task", "1"]) == 0 and capsys.readouterr().err == ""


def test_what_cannot_be_exported_is_said_in_a_line(tmp_path: Path, error_line) -> None:
    Model.create(image_size=28, learner={"name": "er", "encoder": {"width": 4}}).save(tmp_path / "empty")
    assert "no class" in error_line("export", tmp_path / "empty", tmp_path / "it.onnx")
    assert not (tmp_path / "it.onnx").exists()


def test_a_file_that_cannot_be_made_is_said_in_a_line(tmp_path: Path, error_line) -> None:
    model = Model.create(image_size=28, learner={"name": "er", "encoder": {"width": 4}})
    model.add_classes(["a"])
    model.save(tmp_path / "model")
    (tmp_path / "file").touch()
    for wrong, named in ((tmp_path, tmp_path), (tmp_path / "file" / "it.onnx", tmp_path / "file")):
        assert error_line("export", tmp_path / "model", wrong).startswith(f"dualnet: {named}: ")


def test_an_export_without_torchvision_logs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torchvision" else find(name))
    logger = logging.getLogger("torch.onnx")
    logger.addHandler(caplog.handler)
    try:
        export(
            Model.create(["a"], image_size=28, learner={"name": "er", "encoder": {"width": 4}}), tmp_path / "it.onnx"
        )
    finally:
        logger.removeHandler(caplog.handler)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
