"""A benchmark that needs no files: textured shapes with pose, light and clutter, drawn by code."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dualnet.data.benchmark import Benchmark, BenchmarkConfig
from dualnet.data.drawing import draw, look_of
from dualnet.data.shapes import MAX_CLASSES, shape_and_texture
from dualnet.data.splits import Rows, benchmark_of, tasks_of

VALIDATION_TASKS = 3  # as many as the paper's
MIN_SIZE, MAX_SIZE = 8, 512  # sides in pixels: below, shapes blur together; above, an image alone fills a batch


@dataclass(frozen=True)
class Procedural(BenchmarkConfig):
    """Classes are shapes with a texture, mostly in a typical colour; every task takes place in a world of its own."""

    num_tasks: int = 5  # tasks of the stream
    classes_per_task: int = 4  # new classes in every task
    train_per_class: int = 100  # training images of a class
    test_per_class: int = 25  # test images of a class
    image_size: int = 32  # side in pixels
    seed: int = 0  # of the drawing: another seed, other images of the same classes

    def make(self) -> Benchmark:
        _check(self)
        return benchmark_of(self._drawn(first=0, num_tasks=self.num_tasks))

    def make_validation(self) -> Benchmark:
        """Three tasks of the classes that come after those of the benchmark, in the worlds that come next."""
        _check(self)
        first = self.num_tasks * self.classes_per_task
        if (needed := first + VALIDATION_TASKS * self.classes_per_task) > MAX_CLASSES:
            raise ValueError(
                f"procedural: {self.num_tasks} tasks of {self.classes_per_task}, and {VALIDATION_TASKS} for validation,"
                f" need {needed} classes, there are {MAX_CLASSES}; lower num_tasks or classes_per_task"
            )
        return benchmark_of(self._drawn(first, VALIDATION_TASKS), validation=True)

    def _drawn(self, first: int, num_tasks: int) -> Rows:
        """Tasks from a class number on."""
        num_classes = num_tasks * self.classes_per_task
        numbers = range(first, first + num_classes)
        counts = np.repeat([self.train_per_class, self.test_per_class], num_classes)
        return Rows(
            images=lambda: np.concatenate([self._draw(number, part) for part in (0, 1) for number in numbers]),
            labels=np.repeat(np.tile(np.arange(num_classes), 2), counts),
            is_test=np.arange(counts.sum()) >= num_classes * self.train_per_class,
            class_names=[_name(number) for number in numbers],
            tasks=tasks_of(num_classes, self.classes_per_task),
            names=[f"seed {self.seed}, image {row}" for row in range(counts.sum())],
        )

    def _draw(self, number: int, part: int) -> np.ndarray:
        """Images of a class for training (part 0) or testing (part 1), from random streams of their own."""
        count = (self.train_per_class, self.test_per_class)[part]
        look = look_of(number, task=number // self.classes_per_task)
        return draw(look, count, self.image_size, seed=(self.seed, number, part))


def _check(config: Procedural) -> None:
    for option in ("num_tasks", "classes_per_task", "train_per_class", "test_per_class"):
        if getattr(config, option) < 1:
            raise ValueError(f"procedural: {option} is {getattr(config, option)}; give at least 1")
    if (needed := config.num_tasks * config.classes_per_task) > MAX_CLASSES:
        raise ValueError(
            f"procedural: {config.num_tasks} tasks of {config.classes_per_task} need {needed} classes, "
            f"there are {MAX_CLASSES}; lower num_tasks or classes_per_task"
        )
    if not MIN_SIZE <= config.image_size <= MAX_SIZE:
        raise ValueError(f"procedural: image_size is {config.image_size}; give {MIN_SIZE} to {MAX_SIZE} pixels")
    if config.seed < 0:
        raise ValueError(f"procedural: seed is {config.seed}; give 0 or more")


def _name(number: int) -> str:
    shape, texture = shape_and_texture(number)
    return f"{texture.__name__} {shape.__name__}"
