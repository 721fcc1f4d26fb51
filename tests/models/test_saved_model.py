"""A model saved from Python: all of its state is saved, and no other file is overwritten."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import dualnet
from dualnet import Batch, Learner, Model, StreamSpec, cli, make_learner
from dualnet.learners import LEARNERS
from dualnet.models.model import load_with_state, write

NAMES = tuple("abcdef")  # three tasks of two classes


@pytest.fixture
def taught(small_learner: Callable[..., Learner], stream: list[Batch]) -> Callable[..., Model]:
    """taught(name, **options): a model whose learner has seen a task."""

    def make(name: str = "er", **options: Any) -> Model:
        learner = small_learner(name, seed=3, **options)
        for batch in stream[:2]:
            learner.observe(batch)
        learner.end_task()
        return Model(learner, NAMES)

    return make


def test_all_that_a_learner_knows_of_its_stream_comes_back(tmp_path: Path) -> None:
    mask = torch.tensor([[True, False, True, False], [False, True, True, False]])
    learner = make_learner("finetune", StreamSpec((1, 40, 36), mask, input_size=30))
    Model(learner, ["ä", "b", "c", "d"]).save(tmp_path / "deep" / "model")
    spec = dualnet.load(tmp_path / "deep" / "model").learner.spec
    assert torch.equal(spec.class_mask, mask) and (spec.image_shape, spec.input_size) == ((1, 40, 36), 30)


def test_numbers_and_names_of_numpy_are_written_as_any_others(tmp_path: Path) -> None:
    spec = StreamSpec(tuple(np.array([3, 28, 28])), torch.ones(1, 2, dtype=torch.bool), np.int64(30))
    Model(make_learner("finetune", spec), np.array(["a", "b"])).save(tmp_path / "model")
    assert dualnet.load(tmp_path / "model").class_names == ("a", "b")


def test_the_command_line_reads_it(taught: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taught().save(tmp_path / "model")
    Image.new("RGB", (30, 40)).save(tmp_path / "image.png")
    assert cli.main(["predict", str(tmp_path / "model"), str(tmp_path / "image.png"), "--task", "1", "--json"]) == 0
    assert {entry["name"] for entry in json.loads(capsys.readouterr().out)["classes"]} == {"c", "d"}


def test_no_run_begins_in_a_saved_model(taught: Any, tmp_path: Path, error_line: Any) -> None:
    taught("er").save(tmp_path / "mine")
    line = error_line("run", "demo-er", "--out", tmp_path / "mine")
    assert line == f"dualnet: {tmp_path / 'mine'} is a saved model; give --out another folder\n"


def test_saved_again_the_newest_counts(taught: Any, stream: list[Batch], state_of: Any, differing: Any, tmp_path):
    model = taught()
    for _ in range(2):
        model.save(tmp_path)
        model.learner.observe(stream[2])
    model.save(tmp_path)
    assert not differing(state_of(model.learner), state_of(dualnet.load(tmp_path).learner))
    [file] = (tmp_path / "checkpoint").iterdir()
    file.write_bytes(b"damaged")
    with (
        pytest.warns(UserWarning, match="damaged"),
        pytest.raises(ValueError, match="holds no checkpoint that can be read; give"),
    ):
        dualnet.load(tmp_path)


def test_a_model_weighs_what_it_holds(tmp_path: Path) -> None:
    """As `dualnet learn` makes it: 10 classes of 20 images at 64 pixels."""
    model = Model.create([f"class {number}" for number in range(10)])
    images = torch.randint(0, 256, (200, 3, 64, 64), dtype=torch.uint8)
    model.learner.memories[0].add(Batch(images, torch.arange(200) % 10), model.learner.generator)
    for _ in range(2):
        model.save(tmp_path)
    files = [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 1 and 200 * 3 * 64 * 64 < sum(files) < 12e6


def listed(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_is_not_written_over(finished: Path) -> None:
    before = listed(finished)
    with pytest.raises(ValueError, match="holds a run; save the model to a folder of its own"):
        dualnet.load(finished).save(finished)
    assert listed(finished) == before


def test_other_files_are_not_written_over(taught: Any, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="holds other files; save the model to a folder of its own"):
        taught().save(tmp_path)
    with pytest.raises(ValueError, match=r"letter\.txt: .*; choose another folder"):
        taught().save(tmp_path / "letter.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_another_model_is_not_written_over(taught: Any, tmp_path: Path) -> None:
    """Neither one made alike, nor what was saved there after this one was loaded."""
    first, other = taught(), taught()
    first.save(tmp_path / "first")
    loaded = dualnet.load(tmp_path / "first")
    first.save(tmp_path / "second")
    first.rename_class(NAMES[0], "new")
    first.save(tmp_path / "first")  # also after a save to another folder
    before = listed(tmp_path)
    for model in (other, loaded):
        with pytest.raises(ValueError, match="holds another model; choose another folder"):
            model.save(tmp_path / "first")
    assert listed(tmp_path) == before


def test_a_service_and_an_unfinished_session_are_not_written_over(taught: Any, tmp_path: Path) -> None:
    """They continue from more than a model."""
    for more in ({"serve": {"position": 7}}, {"session": {"step": 1, "steps": 2}}):
        write(tmp_path, taught(), **more)
        model, _ = load_with_state(tmp_path, "cpu", trust=False)
        with pytest.raises(ValueError, match="holds another model; choose another folder"):
            model.save(tmp_path)


def test_a_save_that_was_cut_off_can_be_made_again(taught: Any, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "step-00000001.safetensors.123.tmp").write_text("half")
    with pytest.raises(ValueError, match="holds no checkpoint that can be read"):
        dualnet.load(tmp_path)
    taught().save(tmp_path)
    assert [path.name for path in tmp_path.rglob("*.*")] == ["step-00000001.safetensors"]
    assert dualnet.load(tmp_path).class_names == NAMES


def test_a_learner_of_ones_own_goes_by_its_import_path(own_learner: str, spec: StreamSpec, tmp_path: Path) -> None:
    model = Model(make_learner(own_learner, spec), NAMES)
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match=rf"model: learner.name is {own_learner}, .*--trust.*trust=True"):
        dualnet.load(tmp_path / "model")
    assert type(dualnet.load(tmp_path / "model", trust=True).learner) is type(model.learner)


def test_a_learner_that_could_not_be_found_again_is_refused(spec: StreamSpec, small_config: Any, tmp_path: Path):
    class Nowhere(LEARNERS["er"]):
        pass

    model = Model(Nowhere(spec, small_config("er")), NAMES)
    with pytest.raises(ValueError, match=r"<locals>\.Nowhere: "):
        model.save(tmp_path / "model")
    Nowhere.__module__, Nowhere.__qualname__ = "__main__", "Nowhere"  # of a script
    with pytest.raises(ValueError, match=r"^__main__\.Nowhere: cannot be imported"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("names", ["abcdef", ("a",), (0, 1, 2, 3, 4, 5)])
def test_every_class_has_a_name(names: Any, small_learner: Any) -> None:
    with pytest.raises(ValueError, match="class_names: 6 names are needed, one for each class of the learner"):
        Model(small_learner("er"), names)


def test_files_are_squares_in_colour(tmp_path: Path) -> None:
    learner = make_learner("finetune", StreamSpec((1, 28, 28), torch.ones(1, 2, dtype=torch.bool)))
    with pytest.raises(ValueError, match=r"^images: .* uint8 \[B, 1, 28, 28\]"):
        Model(learner, ["a", "b"]).predict(tmp_path / "image.png")
