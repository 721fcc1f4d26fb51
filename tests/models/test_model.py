"""A trained model predicts from files and tensors, and can continue to learn."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import dualnet
from dualnet.batch import Batch
from dualnet.data.benchmark import Benchmark
from dualnet.experiments import checkpoint
from dualnet.models.model import Model


@pytest.fixture(scope="module")
def model(finished: Path) -> Model:
    return dualnet.load(finished)


@pytest.fixture(scope="module")
def images(benchmark: Benchmark) -> torch.Tensor:
    """Test images of the second task: uint8 [4, 3, 28, 28]."""
    return benchmark.tasks[1].test.load()[0]


def save(images: torch.Tensor, folder: Path) -> list[Path]:
    files = [folder / f"{number}.png" for number in range(len(images))]
    for image, file in zip(images, files, strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(file)
    return files


def test_probabilities(model: Model, images: torch.Tensor) -> None:
    probabilities = model.probabilities(images)
    assert probabilities.shape == (4, 4)
    assert torch.allclose(probabilities.sum(dim=1), torch.ones(4)) and (probabilities > 0).all()
    assert torch.equal(probabilities, model.learner.logits(images, None).softmax(dim=1))


@pytest.mark.parametrize("task", [0, 1])
def test_a_task_lets_only_its_classes_answer(
    task: int, model: Model, images: torch.Tensor, benchmark: Benchmark
) -> None:
    probabilities = model.probabilities(images, task)
    inside = benchmark.spec.class_mask[task]
    assert torch.allclose(probabilities[:, inside].sum(dim=1), torch.ones(4))
    assert (probabilities[:, ~inside] == 0).all()
    own = {name for name, member in zip(benchmark.class_names, inside, strict=True) if member}
    for prediction in model.predict(images, task, top=3):
        assert set(prediction.classes) == own, "others are not even named with 0 %"


def test_predictions_are_sorted(model: Model, images: torch.Tensor, benchmark: Benchmark) -> None:
    predictions = model.predict(images, top=10)
    for prediction, row in zip(predictions, model.probabilities(images), strict=True):
        assert list(prediction.probabilities) == sorted(row.tolist(), reverse=True)
        assert set(prediction.classes) == set(benchmark.class_names)
        assert prediction.name == benchmark.class_names[row.argmax()]
        assert prediction.probability == row.max()
        assert sum(prediction.probabilities) == pytest.approx(1)
    for likeliest, all_classes in zip(model.predict(images, top=2), predictions, strict=True):
        assert likeliest.classes == all_classes.classes[:2]


def test_many_images_go_in_parts(model: Model, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = model.probabilities(images, task=0)
    monkeypatch.setattr("dualnet.models.model.PREDICT_SIZE", 3)
    assert torch.allclose(model.probabilities(images, task=0), whole)


def test_no_images_no_answers(model: Model, images: torch.Tensor) -> None:
    assert model.predict([]) == [] and model.predict(images[:0]) == []


def test_a_loaded_learner_is_the_one_that_was_saved(finished: Path, state_of, differing) -> None:
    state = checkpoint.load(finished / "checkpoint", 6).tree
    loaded = state_of(dualnet.load(finished).learner)
    assert not differing({name: loaded[name] for name in state["learner"]}, state["learner"])
    assert any(name.endswith("momentum_buffer") for name in loaded), "the optimizers are back too"


def test_a_loaded_learner_goes_on(tiny, run, stopped: Path, benchmark: Benchmark, state_of, differing) -> None:
    """The same steps by hand give the result of the run."""
    with pytest.warns(UserWarning, match=rf"^{stopped}: .* step 5 .*not finished; `dualnet run`"):
        learner = dualnet.load(stopped).learner
    rows = torch.randperm(12, generator=torch.Generator().manual_seed(1))[8:]  # the last batch of task 1, seed 0
    images, labels = benchmark.tasks[1].train.load()
    losses = learner.observe(Batch(images[rows], labels[rows], torch.ones(4, dtype=torch.int64)))
    assert all(loss.isfinite() for loss in losses.values())
    learner.end_task()
    run(tiny(), stopped)
    assert not differing(state_of(learner), state_of(dualnet.load(stopped).learner))


@pytest.mark.parametrize("protocol", ["task_free", "task_free_boundaries"])
def test_a_task_free_model(protocol: str, tiny, run, images: torch.Tensor, tmp_path: Path) -> None:
    model = dualnet.load(run(tiny("er", protocol=protocol), tmp_path))
    assert model.learner.spec.num_tasks == 1
    assert model.predict(images) == model.predict(images, task=0)
    with pytest.raises(ValueError, match=r"^task: 1 is given, but the model has no tasks"):
        model.predict(images, task=1)


@pytest.mark.filterwarnings("ignore:.*not finished")
def test_a_model_from_another_device_keeps_its_weights(stopped: Path, state_of, differing) -> None:
    """The state of a generator has no meaning on another device: it starts again, all else is restored."""
    there = state_of(dualnet.load(stopped).learner)
    step, state, _ = checkpoint.newest(stopped / "checkpoint") or (0, {}, "")
    state["learner"]["_extra_state"] = torch.zeros(16, dtype=torch.uint8)  # as a CUDA generator's
    checkpoint.write(stopped / "checkpoint", step, checkpoint.snapshot({**state, "device": "cuda"}))
    assert differing(there, state_of(dualnet.load(stopped).learner)) == {"_extra_state"}


@pytest.mark.parametrize(
    ("wrong", "described"),
    [
        (torch.zeros(2, 3, 28, 28, dtype=torch.int64), r"images are int64 \[2, 3, 28, 28\]; give uint8 \[B, 3, H, W\]"),
        (torch.zeros(2, 1, 28, 28, dtype=torch.uint8), r"images are uint8 \[2, 1, 28, 28\]; give uint8 \[B, 3, H, W\]"),
        (7, r"images: int "),
        (None, r"images: NoneType "),
        ([1, 2], r"images\[0\]: int "),
        ([[np.zeros((28, 28, 3), np.uint8)]], r"images\[0\]: list "),
        (np.zeros((28, 28, 3), np.int64), r"images\[0\]: int64 .*uint8"),
        (np.zeros((28, 28, 5), np.uint8), r"images\[0\]: .*\[28, 28, 5\]"),
        (np.zeros((0, 28, 3), np.uint8), r"images\[0\]: .*\[0, 28, 3\]"),
        (np.zeros(7, np.uint8), r"images\[0\]: .*\[7\]"),
        (np.full((28, 28, 3), 200.0), r"images\[0\]: float from 200 to 200.*255"),
        (torch.full((2, 3, 28, 28), 200.0), r"images: float from 200 to 200.*255"),
        (np.full((28, 28, 3), np.nan), r"images\[0\]: float"),
        (np.zeros((2, 28, 28, 5), np.uint8), r"images: .*\[2, 28, 28, 5\]"),
        (np.zeros((2, 28, 28, 3), bool), r"images: bool .*uint8"),
        (b"no image", r"images\[0\]: unreadable"),
        (b"", r"images\[0\]: unreadable .*empty"),
    ],
)
def test_things_that_are_no_images(wrong: Any, described: str, model: Model) -> None:
    """One line; an array is not printed number by number."""
    with pytest.raises(ValueError, match=rf"^{described}") as caught:
        model.predict(wrong)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


def test_every_form_of_an_image_is_answered_alike(model: Model, images: torch.Tensor, tmp_path: Path) -> None:
    files = save(images, tmp_path)
    (tmp_path / "notes.txt").write_text("left out")
    expected = model.predict(images, task=1)
    arrays = images.permute(0, 2, 3, 1).numpy()
    forms = {
        "folder": tmp_path,
        "path of a folder": str(tmp_path),
        "bytes": [file.read_bytes() for file in files],
        "Pillow": [Image.open(file) for file in files],
        "HWC": list(arrays),
        "CHW": list(images.numpy()),
        "float": [array.astype(np.float32) / 255 for array in arrays],
        "tensors": list(images),
        "BHWC": arrays,
        "BCHW": images.numpy(),
        "read-only": np.broadcast_to(images.numpy(), images.shape),
        "BHWC float": arrays / 255,
        "BCHW float tensor": images / 255,
        "an array of paths": np.array([str(file) for file in files]),
        "a generator of mixed forms": (each for each in (files[0], arrays[1], images[2], files[3].read_bytes())),
    }
    for form, given in forms.items():
        assert model.predict(given, task=1) == expected, form
    for image in (files[0], files[0].read_bytes(), arrays[0], images[0], Image.open(files[0])):
        assert model.predict(image, task=1)[0].classes == expected[0].classes


def test_unreadable_images_are_named_or_skipped(model: Model, images: torch.Tensor, tmp_path: Path) -> None:
    files: list[Any] = save(images, tmp_path)
    files[1].write_bytes(b"")
    mixed = [*files, b"no image", files[1]]
    with pytest.raises(ValueError, match=r"^2 of 6 images .*1.png \(empty file\), images\[4\] \(not an image"):
        model.predict(mixed)  # a file that is given twice is named once
    predictions = model.predict(mixed, task=1, on_error="skip")
    expected = model.predict(images[[0, 2, 3]], task=1, on_error="skip")
    assert [predictions[number] for number in (0, 2, 3)] == expected
    assert not any(prediction.error for prediction in expected)
    for number, reason in ((1, "empty file"), (4, "not an image"), (5, "empty file")):
        assert predictions[number].error.startswith(reason) and not predictions[number].classes
        assert (predictions[number].name, predictions[number].probability) == ("", 0.0)
    assert [prediction.error for prediction in model.predict(b"", on_error="skip")] == ["empty file"]
    with pytest.raises(ValueError, match="on_error: 'ignore' is not one of stop, skip"):
        model.predict(images, on_error="ignore")  # pyright: ignore[reportArgumentType]


def test_a_folder_without_images(model: Model, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no images .*in this folder"):
        model.predict(tmp_path)


@pytest.mark.parametrize("task", [-1, 2, "0", 1.5, True])
def test_a_task_that_is_not_there(task: Any, model: Model, images: torch.Tensor) -> None:
    for some in (images, images[:0]):
        with pytest.raises(ValueError, match=f"^task: {task!r} is not .* 0 to 1"):
            model.predict(some, task)


@pytest.mark.parametrize("top", [0, -1, 1.5, "3"])
def test_no_class_to_name(top: Any, model: Model, images: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"^top: .* is not 1 or more"):
        model.predict(images, top=top)


def test_a_folder_without_checkpoint(stopped: Path) -> None:
    shutil.rmtree(stopped / "checkpoint")
    with pytest.raises(ValueError, match="this run has no checkpoint that can be read; "):
        dualnet.load(stopped)


def test_a_finished_run_whose_checkpoints_are_damaged(tiny, run, finished: Path, tmp_path: Path) -> None:
    """`dualnet run` would say that there is nothing to do: the remedy must be another, and help."""
    folder = Path(shutil.copytree(finished, tmp_path / "seed-0"))
    for file in (folder / "checkpoint").glob("*.safetensors"):
        file.write_bytes(b"")
    with (
        pytest.warns(UserWarning, match="damaged checkpoint"),
        pytest.raises(ValueError, match=r"remove its result\.json and run it again"),
    ):
        dualnet.load(folder)
    (folder / "result.json").unlink()
    with pytest.warns(UserWarning, match="damaged checkpoint"):
        run(tiny(), folder)
    assert dualnet.load(folder).class_names == dualnet.load(finished).class_names
