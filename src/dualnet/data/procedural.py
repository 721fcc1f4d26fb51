"""A benchmark without files: textured shapes with random pose, light and clutter, drawn by code."""

from dataclasses import dataclass

import numpy as np

from dualnet.data.benchmark import VALIDATION_TASKS, Benchmark, BenchmarkConfig, OrderSeed
from dualnet.data.drawing import MAX_CLASSES, draw, shape_and_texture
from dualnet.data.splits import Split, divide_classes, make_benchmark, permute_classes

MIN_SIZE, MAX_SIZE = 8, 512  # sides in pixels: smaller shapes are indistinguishable, larger images take long to draw
MAX_PIXELS = 100_000_000  # of all images, which take up to 20 s to draw


@dataclass(frozen=True)
class Procedural(BenchmarkConfig):
    """Classes are shapes with a texture, mostly in a typical colour. Each task has its own background and light."""

    num_tasks: int = 5  # number of tasks
    classes_per_task: int = 4  # new classes of each task
    train_per_class: int = 100  # training images of a class
    test_per_class: int = 25  # test images of a class
    order_seed: OrderSeed = None  # shuffles the classes; seed: as the seed of each run; None: not shuffled
    image_size: int = 32  # side in pixels
    seed: int = 0  # of the drawing: other images of the same classes

    def __post_init__(self) -> None:
        super().__post_init__()
        if not MIN_SIZE <= self.image_size <= MAX_SIZE:
            raise ValueError(f"image_size: {self.image_size} is not {MIN_SIZE} to {MAX_SIZE} pixels")

    def make(self) -> Benchmark:
        return self._drawn(0, self.num_tasks)

    def make_validation(self) -> Benchmark:
        """Three tasks of the classes, backgrounds and lights that follow those of the benchmark."""
        return self._drawn(self.num_tasks, VALIDATION_TASKS, validation=True)

    def _drawn(self, first_task: int, num_tasks: int, validation: bool = False) -> Benchmark:
        num_classes, first = num_tasks * self.classes_per_task, first_task * self.classes_per_task
        if first + num_classes > MAX_CLASSES:
            tasks = f"{self.num_tasks} tasks of {self.classes_per_task}"
            needed = f"{tasks}{f', and {num_tasks} for validation,' * validation} need {first + num_classes} classes"
            raise ValueError(f"procedural: {needed}, there are {MAX_CLASSES}; lower num_tasks or classes_per_task")
        num_images = num_classes * (self.train_per_class + self.test_per_class)
        if num_images * self.image_size**2 > MAX_PIXELS:
            drawn = f"{num_images} images of {self.image_size} x {self.image_size} pixels"
            remedy = "lower train_per_class, test_per_class or image_size"
            raise ValueError(f"procedural: {drawn} are more than {MAX_PIXELS / 1e6:g} megapixels; {remedy}")
        order = permute_classes(num_classes, self.order_seed)
        place = order.argsort()  # of each class in the order
        counts = np.repeat([self.train_per_class, self.test_per_class], num_classes)
        split = Split(
            labels=np.repeat(np.tile(place, 2), counts),
            is_test=np.arange(counts.sum()) >= num_classes * self.train_per_class,
            class_names=[" ".join(reversed(shape_and_texture(first + number))) for number in order.tolist()],
            tasks=divide_classes(num_classes, self.classes_per_task),
            names=[f"seed {self.seed}, image {row}" for row in range(counts.sum())],
        )
        images = [
            draw(number, task, count, self.image_size, seed=(self.seed, number, part))
            for part, count in enumerate((self.train_per_class, self.test_per_class))
            for number, task in enumerate((first_task + place // self.classes_per_task).tolist(), first)
        ]
        return make_benchmark(np.concatenate(images), split, validation=validation)
