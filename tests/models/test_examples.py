"""A model with a closed-form head: the set of images with their labels decides what it predicts, not their history."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from dualnet.cli import main
from dualnet.models.held_out import pixel_digest
from dualnet.models.model import NEW_MODEL, Model, load

NAMES = ("a", "b", "c")
COUNT = 24
NARROW = {"width": 4, "weights": None}
Make = Callable[[], Model]
STRIPES = np.zeros((28, 28, 3), np.uint8)
STRIPES[::2] = 255


@pytest.fixture(scope="module")
def pixels() -> torch.Tensor:
    """Three kinds of images, in noise."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 120, (COUNT, 3, 28, 28), generator=generator)
    for row in range(COUNT):
        images[row, row % 3] += 100
    return images.to(torch.uint8)


@pytest.fixture(scope="module")
def make() -> Make:
    learner = {**NEW_MODEL, "encoder": NARROW}
    model = Model.create(image_size=28, learner=learner)
    return lambda: copy.deepcopy(model)


def names_of(rows: list[int]) -> list[str]:
    return [NAMES[row % 3] for row in rows]


def outputs_of(model: Model, pixels: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Probabilities by class name, and how far the novelty is above the threshold."""
    probabilities, novelty = model.outputs(pixels)
    return dict(zip(model.class_names, probabilities.T, strict=True)), novelty - model.threshold(0.05)


def assert_same(model: Model, other: Model, pixels: torch.Tensor) -> None:
    (first, novelty), (second, other_novelty) = outputs_of(model, pixels), outputs_of(other, pixels)
    torch.testing.assert_close(first, second, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(novelty, other_novelty, atol=1e-4, rtol=1e-6)  # in single precision


@settings(max_examples=20, deadline=None)
@given(order=st.permutations(range(COUNT)), size=st.integers(1, COUNT))
def test_order_and_sessions_have_no_effect(order, size, make: Make, pixels):
    model, once = make(), make()
    once.learn(pixels, names_of([*range(COUNT)]), add_classes=True)
    for start in range(0, COUNT, size):
        rows = order[start : start + size]
        model.learn(pixels[rows], names_of(rows), add_classes=True, batch_size=7)
    assert_same(model, once, pixels)
    assert model.evaluate(pixels, names_of([*range(COUNT)])).accuracy == 100


@settings(max_examples=20, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, COUNT - 1), st.sampled_from(["a", "b", "c", None])), min_size=1, max_size=40
    )
)
def test_teaching_correcting_withdrawing_and_teaching_again(changes, make: Make, pixels):
    """`None` withdraws an image. The end is as if the final set had been learned at once."""
    model, final = make(), {}
    model.add_classes(NAMES)
    for row, name in changes:
        if name is None:
            model.withdraw([digest_of(pixels[row])])
            final.pop(row, None)
        else:
            model.learn(pixels[row : row + 1], [name])
            final[row] = name
    once = make()
    once.add_classes(NAMES)
    if final:
        once.learn(pixels[[*final]], [*final.values()])
    assert len(model.examples) == len(final)
    assert_same(model, once, pixels)


def digest_of(image: torch.Tensor) -> bytes:
    return pixel_digest(image.numpy().tobytes())


def test_a_removed_class_leaves_nothing(make: Make, pixels):
    model, once = make(), make()
    model.learn(pixels, names_of([*range(COUNT)]), add_classes=True)
    model.remove_class("b")
    assert [*model.examples.labels.values()].count(1) == COUNT // 3, "the numbers of the classes after it"
    rows = [row for row in range(COUNT) if row % 3 != 1]
    once.learn(pixels[rows], names_of(rows), add_classes=True)
    assert_same(model, once, pixels)
    model.learn(pixels[1::3], "b", add_classes=True)
    once.learn(pixels[1::3], "b", add_classes=True)
    assert_same(model, once, pixels)
    for each in (model, once):
        each.learn(pixels[2:3], ["a"])  # the number of its class has changed
    assert_same(model, once, pixels)
    assert model.learner.closed_form.counts.tolist() == once.learner.closed_form.counts.tolist() == [9, 7, 8]


def test_corrections_by_digest_are_as_if_the_last_labels_had_been_learned(make: Make, pixels):
    model, once = make(), make()
    model.learn(pixels, names_of([*range(COUNT)]), add_classes=True)
    model.relabel({digest_of(pixels[0]): "b", digest_of(pixels[1]): "b", digest_of(pixels[2]): None, bytes(16): "a"})
    rows = [0, 1, *range(3, COUNT)]
    once.add_classes(NAMES)
    once.learn(pixels[rows], ["b", "b", *names_of(rows[2:])])
    assert_same(model, once, pixels)
    (memory,) = model.learner.memories
    assert memory.filled.sum() == COUNT - 2, "without the image whose class was wrong"


def test_a_corrected_image_leaves_the_memory(make: Make, pixels):
    model = make()
    model.learn(pixels[:2], ["a", "b"], add_classes=True)
    model.learn(pixels[:1], ["b"])
    (memory,) = model.learner.memories
    assert memory.labels[memory.filled].tolist() == [1, 1] and [*model.examples.labels.values()] == [1, 1]


def test_an_image_counts_once_with_its_last_label(make: Make, pixels):
    model = make()
    model.learn(pixels[[0, 0, 1, 0]], ["a", "a", "b", "b"], add_classes=True)
    model.learn(pixels[[0]], ["b"])
    assert len(model.examples) == 2 and model.learner.closed_form.counts.tolist() == [0, 2]


def test_images_unlike_all_classes_are_unknown(make: Make, pixels):
    model = make()
    model.learn(pixels, names_of([*range(COUNT)]), add_classes=True)
    (foreign,) = model.predict([STRIPES])
    assert foreign.unknown and not model.predict([STRIPES], unknown=0)[0].unknown
    assert sum(prediction.unknown for prediction in model.predict(pixels, unknown=0.01)) <= 2
    with pytest.raises(ValueError, match="unknown: 5 is not a share"):
        model.predict([STRIPES], unknown=5)


def test_one_image_of_each_class_makes_no_answer_certain(make: Make, pixels):
    model = make()
    model.learn(pixels[:3], NAMES, add_classes=True)
    answers = model.predict(pixels[3:])
    assert all(1 / 3 < answer.probability < 0.99 for answer in answers), [a.probability for a in answers]


def test_commands_say_unknown(make: Make, pixels, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUALNET_CACHE", str(tmp_path / "cache"))
    model = make()
    model.learn(pixels, names_of([*range(COUNT)]), add_classes=True)
    model.save("model")
    Path("test/a").mkdir(parents=True)
    for name, image in (("foreign", STRIPES), ("known", pixels[0].permute(1, 2, 0).numpy())):
        Image.fromarray(image).save(f"test/a/{name}.png")
    assert main(["predict", "model", "test"]) == 0
    assert ["unknown (" in line for line in capsys.readouterr().out.splitlines()] == [True, False]
    assert main(["predict", "model", "test", "--unknown", "0", "--json"]) == 0
    assert [json.loads(line)["unknown"] for line in capsys.readouterr().out.splitlines()] == [False, False]
    assert main(["evaluate", "model", "test", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unknown"] == 1
    assert main(["evaluate", "model", "test"]) == 0
    assert "unknown: 1 of 2 images" in capsys.readouterr().out


def test_no_images_need_to_be_stored(make: Make, pixels, tmp_path):
    """Only their features are, with which they can be withdrawn."""
    model = make()
    without = Model.create(image_size=28, learner={**NEW_MODEL, "encoder": NARROW, "memory": {"slots": 0}})
    for each in (model, without):
        each.learn(pixels, names_of([*range(COUNT)]), add_classes=True)
        each.withdraw([digest_of(pixels[0])])
        each.remove_class("c")
    assert_same(model, without, pixels)
    without.save(tmp_path)
    assert not load(tmp_path).learner.memories[0].filled.any()


def test_suggested_images_are_new_doubtful_and_unlike_each_other(make: Make, pixels):
    model = make()
    model.learn(pixels[:12], names_of([*range(12)]), add_classes=True)
    between = pixels[12:15].float().mean(dim=0, keepdim=True).to(torch.uint8)  # of all classes
    pool = torch.cat([pixels, between, between, between + 1])
    chosen = model.suggest(pool, 100)
    assert chosen[0] in (COUNT, COUNT + 2) and chosen[1] < COUNT
    assert sorted(chosen) == [*range(12, COUNT + 1), COUNT + 2], "neither learned nor repeated images"
    assert model.suggest(pool, 3) == chosen[:3]
    assert model.suggest(pixels[:12]) == []


def test_the_command_suggests_what_the_method_does(make: Make, pixels, tmp_path, monkeypatch, capsys, error_line):
    monkeypatch.chdir(tmp_path)
    model = make()
    model.learn(pixels[:12], names_of([*range(12)]), add_classes=True)
    model.save("model")
    Path("unsorted").mkdir()
    files = [f"unsorted/{row:02d}.png" for row in range(COUNT)]
    for file, image in zip(files, pixels, strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(file)
    expected = [files[number] for number in model.suggest(pixels, 4)]
    assert main(["suggest", "model", "unsorted", "-n", "4", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["image"] for line in lines] == expected and len(lines[0]["classes"]) == 3
    assert "learned all" in error_line("suggest", "model", *files[:12])
    Model.create(["a"], image_size=28, learner={"name": "er", "encoder": {"width": 4}}).save("other")
    assert "suggest: needs" in error_line("suggest", "other", "unsorted")


def test_examples_are_saved(make: Make, pixels, tmp_path):
    model = make()
    model.learn(pixels, names_of([*range(COUNT)]), add_classes=True)
    model.save(tmp_path)
    loaded = load(tmp_path)
    assert torch.equal(loaded.probabilities(pixels), model.probabilities(pixels))
    assert loaded.predict(pixels) == model.predict(pixels)
    for each in (model, loaded):
        each.learn(pixels[:3], ["b", "c", "a"])
        each.remove_class("c")
    assert torch.equal(loaded.probabilities(pixels), model.probabilities(pixels))
