"""`dualnet export`: what onnxruntime answers is what the model answers."""

import importlib.util
import json
import logging
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import dualnet
from dualnet import Model, StreamSpec
from dualnet.cli import main
from dualnet.data.inputs import pixels_of
from dualnet.learners.shared_options import EncoderOptions
from dualnet.models.model import NEW_MODEL
from dualnet.models.onnx import export

onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `dev` is not installed")
DOCUMENT = Path(dualnet.__file__).parents[2] / "docs/own-images.md"
PYTHON = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
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


def test_onnx_of_a_closed_form_head_with_images_read_as_the_documents_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_photos()
    files = sorted(map(str, tmp_path.glob("*.*g")))
    model = Model.create(image_size=28, learner={**NEW_MODEL, "encoder": {"width": 4, "weights": None}})
    images = torch.randint(0, 256, (12, 3, 28, 28), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    images[6:] //= 2
    model.learn(images, ["a"] * 6 + ["b"] * 6, add_classes=True)
    export(model, Path("mine.onnx"))
    [recipe] = [code for code in PYTHON.findall(DOCUMENT.read_text()) if "onnxruntime" in code]
    exec(recipe, values := {})
    assert capsys.readouterr().out.strip() in ("unknown", "a", "b")
    pixels = np.stack([values["read"](file) for file in files])
    assert np.array_equal(pixels, pixels_of(files, (3, 28, 28)))
    every = np.concatenate([pixels, images])
    probabilities, unknown, novelty = values["session"].run(None, {"images": every})
    expected = model.outputs(torch.from_numpy(every))
    torch.testing.assert_close(torch.from_numpy(probabilities), expected[0], atol=1e-4, rtol=0)
    torch.testing.assert_close(torch.from_numpy(novelty), expected[1], atol=1e-2, rtol=1e-4)
    assert unknown.tolist() == [answer.unknown for answer in model.predict(torch.from_numpy(every))]
    assert set(unknown.tolist()) == {True, False}


def write_photos() -> None:
    """Of several sizes, forms and orientations."""
    random = np.random.default_rng(0)
    for orientation in range(1, 9):
        coarse = Image.fromarray(random.integers(0, 256, (9, 7, 3), dtype=np.uint8))
        exif = Image.Exif()
        exif[0x0112] = orientation
        coarse.resize((333, 250), Image.Resampling.BICUBIC).save(f"{orientation}.jpg", exif=exif)
    coarse.resize((41, 90)).save("photo.jpg")
    coarse.resize((28, 28)).save("28.jpg", quality=95)
    coarse.convert("P").save("palette.png")
    coarse.resize((60, 31)).convert("L").save("grey.png")


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
    assert error_line("export", tmp_path / "model", tmp_path / "x.pt").endswith(f"give {tmp_path / 'x.onnx'}\n")


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
