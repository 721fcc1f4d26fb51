"""Mistakes that a user corrects: a class is renamed or removed, in Python and by `dualnet edit`."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import class_folders, file_times
from serving import open_model

import dualnet
from dualnet import Model
from dualnet.cli import main
from dualnet.experiments import checkpoint
from dualnet.serve.options import Options

IMAGES = torch.randint(0, 256, (8, 3, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
SMALL = {"name": "er", "encoder": {"width": 4}, "memory": {"slots": 6, "policy": "balanced"}, "ema_rate": 0.3}


def made() -> Model:
    """Two classes from the start, one that came later."""
    model = Model.create(["kat", "dog"], image_size=28, learner=SMALL)
    model.learn(IMAGES, ["kat", "dog", "kat", "owl"] * 2, add_classes=True)
    return model


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made().save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("old", ["kat", "owl"])
def test_a_renamed_class_is_predicted_learned_and_saved_by_its_new_name(
    old: str, tmp_path: Path, state_of: Any, differing: Any
) -> None:
    model, as_it_was = made(), made()
    model.save(tmp_path / "model")
    model.rename_class(old, "Katze")
    assert not differing(state_of(model.learner), state_of(as_it_was.learner))
    names = {name: name for name in as_it_was.class_names} | {old: "Katze"}
    for before, now in zip(as_it_was.predict(IMAGES), model.predict(IMAGES), strict=True):
        assert now.classes == tuple(names[name] for name in before.classes)
        assert now.probabilities == before.probabilities
    model.save(tmp_path / "model")  # again to its own folder, and to another
    model.save(tmp_path / "other")
    as_it_was.learn(IMAGES, [old] * 8)
    for place in ("model", "other"):
        loaded = dualnet.load(tmp_path / place)
        assert list(loaded.class_names) == [names[name] for name in ("kat", "dog", "owl")]
        loaded.learn(IMAGES, ["Katze"] * 8)
        assert not differing(state_of(loaded.learner), state_of(as_it_was.learner))
        with pytest.raises(ValueError, match=f"^labels: '{old}' is not one of"):
            loaded.learn(IMAGES, [old] * 8)
        loaded.learn(IMAGES, [old] * 8, add_classes=True)
        assert loaded.class_names[3] == old
        loaded.save(tmp_path / place)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("cat", "tiger", "names: 'cat' is not one of the model's 3 classes (kat, dog, owl); did you mean kat?"),
        (3, "tiger", "names: 3 is not one of the model's 3 classes (kat, dog, owl)"),
        ("kat", "dog", "names: 'dog' exists already; "),
        ("kat", "kat", "names: 'kat' exists already; "),
        ("kat", " ", "names: ' ' is blank or contains a control character; "),
        ("kat", "a\nb", "names: 'a\\nb' is blank or contains a control character; "),
        ("kat", 7, "names: [7] is not a list of names"),
    ],
)
def test_names_that_cannot_be_used_are_refused_in_one_line(old: Any, new: Any, message: str) -> None:
    model = made()
    with pytest.raises(ValueError) as error:
        model.rename_class(old, new)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
    assert model.class_names == ("kat", "dog", "owl")


def test_the_command_renames_in_place_or_elsewhere(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["edit", "model", "--rename", "kat", "cat", "--rename", "owl", "kat", "--out", "other"]) == 0
    assert capsys.readouterr().out == "other: kat renamed to cat, owl renamed to kat\n"
    assert list(dualnet.load("other").class_names) == ["cat", "dog", "kat"]
    assert list(dualnet.load("model").class_names) == ["kat", "dog", "owl"]
    assert main(["edit", "model", "--rename", "kat", "cat"]) == 0
    assert main(["show", "model"]) == 0
    assert capsys.readouterr().out.endswith("classes: cat, dog, owl\n")
    assert not list(saved.glob("*.tmp"))


def test_the_command_removes_a_class_and_its_images_from_every_file(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = dualnet.load("model")
    images = [image.numpy().tobytes() for image in model.learner.memories[0].images[model.learner.memories[0].filled]]
    labels = model.learner.memories[0].labels[model.learner.memories[0].filled].tolist()
    assert main(["edit", "model", "--rename", "kat", "cat", "--remove", "owl"]) == 0
    assert capsys.readouterr().out == "model: owl removed, kat renamed to cat\n"
    assert list(dualnet.load("model").class_names) == ["cat", "dog"]
    files = [file.read_bytes() for file in saved.rglob("*.safetensors")]
    assert len(files) == 1 and {*labels} == {0, 1, 2}
    for image, label in zip(images, labels, strict=True):
        assert [image in file for file in files] == [label != 2]
    class_folders(["owl"], 2, "photos")
    assert main(["learn", "model", "photos", "--out", "model", "--device", "cpu"]) == 0
    assert "3 classes, 1 of them new (owl)" in capsys.readouterr().out


def test_a_class_gets_the_name_of_one_that_is_removed(saved: Path) -> None:
    assert main(["edit", "model", "--rename", "kat", "owl", "--remove", "owl"]) == 0
    assert list(dualnet.load("model").class_names) == ["owl", "dog"]


def test_the_onnx_file_has_the_new_name_and_no_removed_class(saved: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    assert main(["edit", "model", "--remove", "dog", "--rename", "kat", "cat"]) == 0
    assert main(["export", "model", "it.onnx"]) == 0
    session = runtime.InferenceSession("it.onnx")
    assert json.loads(session.get_modelmeta().custom_metadata_map["class_names"]) == ["cat", "owl"]
    probabilities = torch.from_numpy(session.run(None, {"images": IMAGES.numpy()})[0])
    torch.testing.assert_close(probabilities, dualnet.load("model").probabilities(IMAGES), atol=1e-5, rtol=0)


REFUSED: dict[str, str] = {
    "edit model": "nothing to change; give --rename OLD NEW or --remove NAME",
    "edit model --remove cat": "names: 'cat' is not one of the model's 3 classes (kat, dog, owl); did you mean kat?",
    "edit model --remove kat --remove kat": "names: 'kat' is not one of",
    "edit model --rename kat": "--rename: expected 2 arguments",
    "edit model --rename cat tiger": "names: 'cat' is not one of",
    "edit model --rename kat dog": "names: 'dog' exists already",
    "edit model --rename kat cat --rename owl cat": "names: 'cat' exists already",
    "edit RUN --rename a b": "names: 'a' is not one of the model's 4 classes",
    "edit nowhere --rename kat cat": "nowhere: does not exist; give the folder of a run",
    "edit model --rename kat cat --out RUN": "RUN: holds a run",
    "edit model --rename kat cat --out photos": "photos: holds other files",
}


@pytest.mark.parametrize("words", REFUSED)
def test_nonsense_is_refused_and_changes_nothing(words: str, saved: Path, finished: Path, error_line: Any) -> None:
    Path("RUN").symlink_to(finished)
    class_folders(["kat"], 2, "photos")
    before = file_times()
    assert REFUSED[words] in error_line(*words.split())
    assert file_times() == before


def test_a_run_is_renamed_into_a_model(finished: Path, tmp_path: Path, error_line: Any) -> None:
    first, *others = dualnet.load(finished).class_names
    line = error_line("edit", finished, "--rename", first, "new")
    assert "holds a run; save the model to a folder of its own" in line
    assert main(["edit", str(finished), "--rename", first, "new", "--out", str(tmp_path / "model")]) == 0
    assert list(dualnet.load(tmp_path / "model").class_names) == ["new", *others]


def test_an_unfinished_session_and_the_model_of_a_service_are_refused(saved: Path, error_line: Any) -> None:
    folder = saved / "checkpoint"
    step, state, _ = checkpoint.newest(folder) or (0, {}, "")
    state["session"] = {"plan": "", "step": 1, "steps": 3}
    checkpoint.write(folder, step + 1, checkpoint.snapshot(state))
    assert "its session is at step 1 of 3 and not finished" in error_line(*["edit", "model", "--rename", "kat", "cat"])
    open_model(Options(Path("live"), image_size=28, device="cpu"))
    assert "belongs to a service" in error_line(*["edit", "live/model", "--rename", "kat", "cat"])
    class_folders(["owl"], 2, "photos")
    line = error_line(*["learn", "live/model", "photos", "--out", "live/model", "--device", "cpu"])
    assert "belongs to a service; use `dualnet teach`, or choose another --out" in line
