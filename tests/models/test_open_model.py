"""A model without a run: `Model.create`, `Model.learn`, new classes, saving."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dualnet
from dualnet import Batch, Model
from dualnet.experiments import checkpoint
from dualnet.learners import LEARNERS
from dualnet.objectives import OBJECTIVES
from dualnet.options import merge

SMALL = {
    "name": "dualnet",
    "preset": "best",
    "encoder": {"width": 4},
    "updates": 2,
    "replay_size": 6,
    "memory": {"slots": 12},
}
TASK_FREE = [name for name in LEARNERS if name != "ctn"]  # which needs tasks
COLOURS = {"red": (200, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 200)}


def pictures(*names: str | None, size: int = 32, seed: int = 0) -> np.ndarray:
    """One image for each name, noise around its colour: uint8 [B, size, size, 3]."""
    rng = np.random.default_rng(seed)
    noise = rng.integers(-25, 26, (len(names), size, size, 3))
    colours = np.array([COLOURS.get(name or "", (120, 120, 120)) for name in names])
    return (colours[:, None, None] + noise).clip(0, 255).astype(np.uint8)


@pytest.fixture
def create() -> Callable[..., Model]:
    """create(names, **options of the learner): a small model."""
    return lambda names=(), seed=0, **options: Model.create(
        names, image_size=32, learner=merge(SMALL, options), seed=seed
    )


def test_it_begins_with_no_class_and_learns_what_comes(create: Any) -> None:
    model = create(encoder={"width": 8})
    assert "0 classes" in repr(model) and len(repr(model)) < 100
    with pytest.raises(ValueError, match="add_classes=True"):
        model.predict(pictures("red"))
    for seed in range(12):
        names = ["red", "green", None] * 3 if seed < 6 else ["red", "green", "blue"] * 3
        losses = model.learn(pictures(*names, seed=seed), names, batch_size=9, add_classes=True)
        assert {"labels", "replay", "soft_labels"} == set(losses)
    assert model.class_names == ("red", "green", "blue")
    predictions = model.predict(pictures(*COLOURS, seed=99))
    assert [prediction.name for prediction in predictions] == list(COLOURS)
    stored = model.learner.memory.composition().flatten().tolist()
    assert stored == [4, 4, 4], "12 slots, an equal share of each"


def test_one_class_is_a_model_too(create: Any) -> None:
    model = create(["red"])
    losses = model.learn(pictures("red", "red"), "red")
    assert losses["labels"] == 0
    assert model.predict(pictures("green"))[0].probabilities == (1.0,)


@pytest.mark.parametrize("name", TASK_FREE)
def test_every_learner_begins_with_no_class(name: str, tmp_path: Path, state_of: Any, differing: Any) -> None:
    model = Model.create(image_size=32, learner={"name": name, "encoder": {"width": 4}, "ema_rate": 0.3})
    model.learner.observe(Batch(torch.from_numpy(pictures(None, None)).permute(0, 3, 1, 2)))
    model.save(tmp_path / "model")
    other = dualnet.load(tmp_path / "model")
    for each in (model, other):
        each.learn(pictures("red", "green", None), ["red", "green", None], add_classes=True)
        each.learn(pictures("red", "blue"), ["red", "blue"], add_classes=True)
    assert not differing(state_of(model.learner), state_of(other.learner))
    assert model.predict(pictures("red")) == other.predict(pictures("red"))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_slow_learner_can_begin_before_the_first_class(objective: str, create: Any) -> None:
    model = create(slow={"rounds": 1, "objective": objective}, unlabelled="replay")
    losses = model.learn(pictures(None, None, None, None))
    assert losses.keys() == {"slow"} and np.isfinite(losses["slow"])


def test_it_learns_what_observe_would(create: Any, state_of: Any, differing: Any) -> None:
    model, by_hand = create(["red", "green"]), create(["red", "green"])
    images = pictures("red", "green", "red", None, None)
    losses = model.learn(images, ["red", "green", "red", None, None], batch_size=3)
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    first = by_hand.learner.observe(Batch(pixels[:3], torch.tensor([0, 1, 0])))
    by_hand.learner.observe(Batch(pixels[3:]))
    assert not differing(state_of(model.learner), state_of(by_hand.learner))
    assert losses == pytest.approx({name: float(value) for name, value in first.items()})


def test_a_batch_of_another_size_becomes_squares_of_the_models(create: Any) -> None:
    model = create(["red", "green"])
    large = np.repeat(np.repeat(pictures("red", "green"), 2, axis=1), 3, axis=2)
    model.learn(large, ["red", "green"])
    assert model.learner.memory.images.shape[1:] == (3, 32, 32)
    assert {int(label) for label in model.learner.memory.labels} == {-1, 0, 1}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown class": ({"labels": ["red", "gren"]}, r"^labels: 'gren' .*did you mean green\?"),
    "far from any": ({"labels": ["red", "x"]}, r"^labels: 'x' .*add_classes=True"),
    "too few labels": ({"labels": ["red"]}, r"^labels: 1 for 2 images"),
    "no label, and no slow learner": ({"labels": None}, r"^labels: none is known.*label_share"),
    "numbers": ({"labels": [0, 1]}, r"^labels\[0\]: 0 "),
    "not a number": ({"labels": ["red", float("nan")]}, r"^labels\[1\]: nan .*None"),
    "a label that is no name": ({"labels": 3}, r"^labels\[0\]: 3 "),
    "no batch": ({"batch_size": 0}, r"^batch_size: 0 "),
    "half a batch": ({"batch_size": 2.5}, r"^batch_size: 2.5 "),
    "a task that is not there": ({"labels": "red", "task": 1}, r"^task: 1 "),
    "no images": ({"images": 7}, r"^images: int "),
    "a file that is not there": (
        {"images": ["missing.png", "too.png"]},
        r"^2 of 2 images unreadable: missing.png .*on_error: skip in",
    ),
    "channels": ({"images": np.zeros((2, 4, 9, 9), np.uint8)}, r"^images: .*channels"),
    "floats": ({"images": np.full((2, 9, 9, 3), 7.0)}, r"^images: float from 7"),
    "whole numbers in a tensor": ({"images": torch.zeros(2, 3, 32, 32, dtype=torch.int64)}, r"^images are int64"),
    "no pixel": ({"images": np.zeros((2, 0, 9, 3), np.uint8)}, r"^images are uint8 \[2, 3, 0, 9\]"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_nonsense_is_refused_before_anything_changes(what: str, create: Any, state_of: Any, differing: Any) -> None:
    given, message = REFUSED[what]
    model = create(["red", "green"])
    before = state_of(model.learner)
    with pytest.raises(ValueError, match=message) as caught:
        model.learn(**{"images": pictures("red", "green"), **given})
    assert "\n" not in str(caught.value)
    assert model.class_names == ("red", "green") and not differing(before, state_of(model.learner))


@pytest.mark.parametrize("learner", [{"name": "er"}, {"name": "dualnet", "slow": {"rounds": 0}}])
def test_updates_on_replay_need_no_label(learner: dict[str, Any]) -> None:
    options = {**learner, "encoder": {"width": 4}, "unlabelled": "replay"}
    model = Model.create(["red", "green"], image_size=32, learner=options)
    model.learn(pictures("red", "green"), ["red", "green"])
    assert model.learn(pictures(None, None))["replay"] > 0


def test_no_images_no_step(create: Any, state_of: Any, differing: Any) -> None:
    model = create(["red"])
    before = state_of(model.learner)
    assert model.learn([], []) == {} and model.learn(np.zeros((0, 3, 32, 32), np.uint8)) == {}
    assert not differing(before, state_of(model.learner))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"class_names": "cat"}, r"^names: 'cat' is not a list"),
        ({"class_names": ["cat", "cat"]}, r"^names: 'cat' "),
        ({"class_names": [1]}, r"^names: "),
        ({"class_names": ["cat", ""]}, r"^names: '' is blank"),
        ({"class_names": [" "]}, r"^names: ' ' is blank"),
        ({"class_names": ["a\nb"]}, r"^names: 'a\\nb' .*control character"),
        *(({"image_size": size}, rf"^image_size: .*{size}.* from 1 to 1024") for size in (0, 1025, 28.5, "28")),
        ({"image_size": 4}, r"too small"),
        ({"channels": 2}, r"2 channels"),
        ({"channels": 1}, r"colour, 3 channels"),
        ({"seed": -1}, r"^seed: -1 "),
        ({"seed": "a"}, r"^seed: 'a' "),
        ({"device": "gpu"}, r"^device: 'gpu' "),
        ({"learner": "dualnet"}, r"^learner: a section"),
        ({"learner": {}}, r"^learner.name: "),
        ({"learner": {"name": "dualnet", "soft_labels": {"when": "task_end"}}}, r"^learner.name: dualnet needs tasks"),
        ({"learner": {"name": "ctn"}}, r"^learner.name: ctn needs tasks"),
        (
            {"learner": {"name": "er", "memory": {"slots_per_class": 5}}},
            r"^learner.memory.slots_per_class: .*memory.slots",
        ),
        ({"learner": {"name": "er", "memory": {"slots": 0}}}, r"^memory.slots: 0 is for learners"),
    ],
)
def test_a_model_that_cannot_be_made(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Model.create(**{"image_size": 32, **given})
    assert "\n" not in str(caught.value)


def test_a_task_aware_model_takes_the_task_of_the_class(small_learner: Any, state_of: Any, differing: Any) -> None:
    """Three tasks of two classes; a class that comes later is a new task, or of one that is named."""
    model = Model(small_learner("er"), tuple("abcdef"))
    size = model.learner.spec.image_shape[1]
    images = pictures(None, None, None, size=size)
    model.learn(images, ["a", "d", "f"])
    assert model.learner.memory.task_ids[model.learner.memory.filled].sort().values.tolist() == [0, 1, 2]
    model.learn(images, ["a", "g", "g"], add_classes=True)
    model.learn(images, "h", add_classes=True, task=1)
    model.learn(images, ["a", None, None], task=0)
    assert model.learner.spec.class_mask[:, 6:].nonzero().tolist() == [[1, 1], [3, 0]]
    before = state_of(model.learner)
    for given, message in (
        ({"labels": ["a", None, None]}, r"^task: .*without a label"),
        ({"labels": ["new", "a", None]}, r"^task: .*without a label"),
        ({"labels": ["a", "d", "a"], "task": 0}, r"^task: 0, and labels\[1\]"),
        ({"labels": "new", "task": 4}, r"^task: 4 "),
    ):
        with pytest.raises(ValueError, match=message):
            model.learn(images, **given, add_classes=True)
    assert len(model.class_names) == 8 and not differing(before, state_of(model.learner))


def test_it_is_saved_again_and_again_as_it_grows(create: Any, tmp_path: Path, state_of: Any, differing: Any) -> None:
    model, folder = create(), tmp_path / "model"
    for name in COLOURS:
        model.learn(pictures(name), name, add_classes=True)
        model.save(folder)
    assert checkpoint.steps(folder / "checkpoint") == [3], "the newest only"
    loaded = dualnet.load(folder)
    assert loaded.class_names == tuple(COLOURS) and not differing(state_of(model.learner), state_of(loaded.learner))
    with pytest.raises(ValueError, match="holds another model"):
        create(seed=1).save(folder)


def test_a_loss_that_is_not_finite_is_said(create: Any) -> None:
    model = create(["red", "green"], lr=1e30)
    with pytest.raises(RuntimeError, match="diverged"):
        for _ in range(3):
            model.learn(pictures("red", "green"), ["red", "green"])
