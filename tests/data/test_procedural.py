"""Procedural images: the same bits everywhere, all classes different, options checked."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from dualnet.data.drawing import MAX_CLASSES, SHAPES, TEXTURES, TYPICAL_IN_TEN, draw, shape_and_texture
from dualnet.data.procedural import Procedural

DEFAULT_SHA256 = "61736b5e82fe3569d6f554798e7c6dff869c464edcca3b5ec6673731672920ca"


def test_default_images_never_change() -> None:
    array = Procedural().make().tasks[0].train.array
    assert array.shape == (2500, 3, 32, 32) and array.dtype == np.uint8
    assert hashlib.sha256(array.tobytes()).hexdigest() == DEFAULT_SHA256


def test_another_seed_draws_other_images() -> None:
    config = Procedural(num_tasks=1, train_per_class=2, test_per_class=1)
    first, second = (replace(config, seed=seed).make().tasks[0].train.array for seed in (0, 1))
    assert not any(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_more_images_leave_the_first_as_they_are() -> None:
    assert np.array_equal(draw(3, 0, 150, 32, (0, 3, 0))[:70], draw(3, 0, 70, 32, (0, 3, 0)))


@pytest.mark.parametrize("size", [8, 33, 84])
def test_any_size(size: int) -> None:
    images = draw(0, 0, 3, size, (0,))
    assert images.shape == (3, 3, size, size) and images.std() > 10


def test_every_class_has_its_own_look() -> None:
    assert len({shape_and_texture(number) for number in range(MAX_CLASSES)}) == len(SHAPES) * len(TEXTURES) >= 40
    grid = np.arange(-300, 301, 5, dtype=np.int32)
    looks = set()
    for number in range(MAX_CLASSES):
        name, marks = shape_and_texture(number)
        shape, texture = SHAPES[name], TEXTURES[marks]
        inside = shape(grid + 0 * grid[:, None], grid[:, None] + 0 * grid)
        marked = inside & texture(grid + 0 * grid[:, None], grid[:, None] + 0 * grid)
        assert 0.1 < inside.mean() < 0.7, "the shape can be seen and leaves room"
        looks.add(inside.tobytes() + marked.tobytes())
    assert len(looks) == MAX_CLASSES


def test_classes_of_a_task_differ_in_shape_and_texture() -> None:
    for start in range(0, 20, 4):
        looks = [shape_and_texture(number) for number in range(start, start + 4)]
        assert len({shape for shape, _ in looks}) == len({texture for _, texture in looks}) == 4
    assert 0 < TYPICAL_IN_TEN < 10, "colour helps, but does not decide"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_tasks": 0}, "num_tasks: 0"),
        ({"classes_per_task": -1}, "classes_per_task: -1"),
        ({"train_per_class": 0}, "train_per_class: 0"),
        ({"test_per_class": 0}, "test_per_class: 0"),
        ({"num_tasks": 13}, "13 tasks of 4 need 52 classes, there are 50; lower num_tasks or classes_per_task"),
        ({"image_size": 7}, "image_size: 7 is not 8 to 512"),
        ({"seed": -1}, "seed: -1"),
        (
            {"test_per_class": 10_000_000},
            "200002000 images of 32 x 32 pixels are more than 100 megapixels; lower train",
        ),
    ],
)
def test_mistakes_are_explained(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Procedural(**options).make()


def test_validation_tasks_are_of_other_classes_in_other_worlds() -> None:
    config = Procedural(train_per_class=2, test_per_class=1)
    validation = config.make_validation()
    assert len(validation.tasks) == 3 and len(validation.class_names) == 12
    assert not set(validation.class_names) & set(config.make().class_names)
    first = validation.tasks[0].train
    assert np.array_equal(first.array[first.rows[:2]], draw(20, 5, 2, 32, (0, 20, 0)))


def test_validation_needs_classes_that_the_benchmark_leaves() -> None:
    with pytest.raises(ValueError, match="10 tasks of 4, and 3 for validation, need 52 classes, there are 50; lower"):
        Procedural(num_tasks=10).make_validation()
