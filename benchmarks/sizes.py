"""Sizes of the benchmarks, and learners and batches of these sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from dualnet.batch import Batch, StreamSpec
from dualnet.engine import EAGER_STEPS, Engine, precision_on
from dualnet.learners import DualNet, Learner, learner_class, make_learner
from dualnet.options import build

CLASSES_PER_TASK = 5
BATCH_SIZE = 10


@dataclass(frozen=True)
class Sizes:
    """The defaults are those of the paper on Split miniImageNet, with the default options of the learners."""

    dualnet_width: int = DualNet.Config().encoder.width
    slow_rounds: int = DualNet.Config().slow.rounds
    er_width: int = 20
    image_size: int = 84
    num_tasks: int = 17
    evaluation_size: int = 500  # images in one pass
    matmul_size: int = 8192  # of the matrices whose product measures the peak rate of the device
    num_images: int = 2_000  # in the image cache
    repeats: int = 20
    processes: int = 5  # to measure the time of an import


SMALL = Sizes(
    dualnet_width=8,
    slow_rounds=1,
    er_width=8,
    image_size=32,
    num_tasks=5,
    evaluation_size=100,
    matmul_size=1024,
    repeats=7,
)


def choose_sizes(small: bool, num_images: int | None = None, repeats: int | None = None) -> Sizes:
    """Sizes for a GPU, or small ones for a few cores, with the given values replaced."""
    sizes = SMALL if small else Sizes()
    if num_images is not None:
        sizes = replace(sizes, num_images=num_images)
    if repeats is not None:
        sizes = replace(sizes, repeats=repeats, processes=min(repeats, sizes.processes))
    for option, value in (("images", sizes.num_images), ("repeats", sizes.repeats)):
        if value < 1:
            raise ValueError(f"{option}: {value} is not 1 or more")
    return sizes


def config_of(name: str, sizes: Sizes) -> Any:
    if name == "dualnet":
        return build(DualNet.Config, {"encoder": {"width": sizes.dualnet_width}, "slow": {"rounds": sizes.slow_rounds}})
    return build(learner_class(name).Config, {"encoder": {"width": sizes.er_width}})


def spec_of(num_tasks: int, image_size: int) -> StreamSpec:
    mask = torch.eye(num_tasks, dtype=torch.bool).repeat_interleave(CLASSES_PER_TASK, dim=1)
    return StreamSpec((3, image_size, image_size), mask)


class Stepper:
    """Learners in the last task of a stream with a full memory, and the step that is measured."""

    def __init__(
        self, name: str, config: Any, spec: StreamSpec, device: torch.device, num_seeds: int = 1, capture: bool = True
    ) -> None:
        learners = [make_learner(name, spec, config, seed, str(device)) for seed in range(num_seeds)]
        for learner in learners:
            fill(learner)
        self.num_seeds, self.captures = num_seeds, capture
        self.engine = Engine(learners, precision_on(device), capture)
        self.batches = [last_batch(learner, seed) for seed, learner in enumerate(learners)]

    @property
    def learner(self) -> Learner:
        return self.engine.learners[0]

    def step(self) -> None:
        self.engine.step(self.batches)


def warm_up(device: torch.device) -> int:
    """The number of steps before measuring. On CUDA: the eager steps, the capture, and a first replay."""
    return EAGER_STEPS + 2 if device.type == "cuda" else 2


def last_batch(learner: Learner, seed: int = 0, size: int = BATCH_SIZE) -> Batch:
    """A batch of noise, labelled with the classes of the last task."""
    generator = torch.Generator().manual_seed(seed)
    task = learner.spec.num_tasks - 1
    images = torch.randint(0, 256, (size, *learner.spec.image_shape), dtype=torch.uint8, generator=generator)
    labels = task * CLASSES_PER_TASK + torch.arange(size) % CLASSES_PER_TASK
    return Batch(images, labels, torch.full((size,), task)).to(learner.class_mask.device)


def fill(learner: Learner) -> None:
    """Fill the learner's memory with noise, labelled equally with the classes of all tasks."""
    memory = getattr(learner, "memory", None)
    if memory is None:
        return
    slots = torch.arange(memory.num_slots, device=memory.labels.device)
    tasks = slots * learner.spec.num_tasks // memory.num_slots
    noise = torch.randint(0, 256, (min(memory.num_slots, 1000), *learner.spec.image_shape), dtype=torch.uint8)
    memory.images[:-1] = noise.to(slots.device)[slots % len(noise)]
    memory.labels[:-1] = tasks * CLASSES_PER_TASK + slots % CLASSES_PER_TASK
    memory.task_ids[:-1] = tasks
    memory.has_logits[:-1] = True
    memory.filled[:-1] = True
    memory.seen += memory.num_slots // learner.spec.num_tasks
